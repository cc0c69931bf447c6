"""Lists the tasks that this process owns, and those that were pushed to it, for the state API.

Ray: src/ray/core_worker/task_event_buffer.h

Ray's workers report every change of every task to the gcs. Here a process that is asked reads its own tables. These have
all unfinished tasks and the latest finished ones (``TaskManager.recent``); older ones are forgotten. The gcs keeps only
failed tasks (``task_event_buffer``) and what dead workers have run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from minray.common.ids import actor_of, return_id
from minray.common.task_spec import TaskTemplate, kind_of
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.error_types import error_type_of
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, CallStream, PendingTask
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import describe_packed
from minray.protocol.base import Address
from minray.protocol.state import (
    ACTOR_ARGS_FETCH,
    ACTOR_ORDERING,
    ARGS_FETCH,
    MOST_TASKS,
    RUNNING,
    GetTasksInfo,
    ReceivedInfo,
    TaskInfo,
    TasksInfo,
)

MAX_ERROR_CHARACTERS = 2000
"""Number of characters that an answer keeps of a task's error: its end, which has the exception itself."""
SENT = "SUBMITTED_TO_WORKER"
"""State of a task that was pushed to a worker and waits there; it is Ray's name."""


class TaskAccount:
    """Lists tasks from the tables of one core worker."""

    def __init__(
        self, process: Process, tasks: TaskManager, store: MemoryStore, unanswered: Callable[[], list[ReceivedTask]]
    ) -> None:
        """Keep the tables; ``unanswered`` returns the tasks that were pushed to this process and have no answer yet."""
        self._process = process
        self._tasks = tasks
        self._store = store
        self._unanswered = unanswered

    def tasks(self, request: GetTasksInfo) -> TasksInfo:
        """Return this process's answer to a request for its tasks."""
        config, tasks = self._process.config, self._tasks
        wanted = None if request.task_ids is None else set(request.task_ids)
        pending = [task for task in reversed(tasks.tasks.values()) if wanted is None or task.task_id in wanted]
        ended = [one for one in reversed(tasks.recent) if wanted is None or one[0] in wanted]
        limit = min(request.limit, MOST_TASKS)
        infos = [describe_pending(task) for task in islice(pending, limit)]
        infos += [self._ended(*one) for one in islice(ended, limit - len(infos))]
        return TasksInfo(
            node_id=config.node_id,
            worker_id=config.worker_id,
            pid=self._process.platform.processes.pid,
            is_driver=config.is_driver,
            total=len(pending) + len(ended),
            tasks=infos,
            received=[ReceivedInfo(task.task_id, task.attempt, state_of(task)) for task in self._unanswered()],
        )

    def _ended(
        self, task_id: bytes, template: TaskTemplate, called: bytes, attempt: int, state: str, parent_id: bytes
    ) -> TaskInfo:
        error = self._error_of(task_id, template) if state is FAILED else b""
        return TaskInfo(
            task_id=task_id,
            attempt=attempt,
            name=template.name,
            kind=kind_of(template),
            state=state,
            parent_id=parent_id,
            actor_id=_actor_id(task_id, template, called),
            resources=dict(template.shape.resources),
            error=describe_packed(error)[-MAX_ERROR_CHARACTERS:] if error else "",
            function_name=template.function_name,
            error_type=error_type_of(error) if error else "",
        )

    def _error_of(self, task_id: bytes, template: TaskTemplate) -> bytes:
        """Return the first error among a failed task's results; the results before it were made before the task failed."""
        for index in range(1, template.num_returns + 1):
            stored = self._store.objects.get(return_id(task_id, index))
            if stored is not None and stored.is_error and not stored.is_freed:
                return bytes(stored.data)
        return b""


def describe_pending(task: PendingTask) -> TaskInfo:
    """Describe a task that is in the table of its owner, or was until now."""
    address, pid = _whereabouts(task)
    return TaskInfo(
        task_id=task.task_id,
        attempt=task.attempt,
        name=task.prepared.template.name,
        kind=kind_of(task.prepared.template),
        state=FINISHED if task.prepared.template.actor is not None and task.state is PUSHED else task.state,
        parent_id=task.parent_id,
        actor_id=_actor_id(task.task_id, task.prepared.template, _called(task)),
        node_id=address.node_id if address is not None else b"",
        worker_id=address.worker_id if address is not None else b"",
        pid=pid,
        resources=dict(task.prepared.template.shape.resources),
        function_name=task.prepared.template.function_name,
    )


def _whereabouts(task: PendingTask) -> tuple[Address | None, int]:
    worker = task.worker
    if isinstance(worker, LeasedWorker):
        return worker.address, worker.pid
    if isinstance(worker, CallStream):
        client = task.prepared.client
        info = None if client is None else client.info
        return worker.address, 0 if info is None else info.pid
    return None, 0


def state_of(task: ReceivedTask) -> str:
    """Return Ray's name for the state of a task that was pushed to this process and has no answer yet."""
    if task.is_claimed():
        return RUNNING
    if task.fetching is not None:
        return ACTOR_ARGS_FETCH if task.header.template.method else ARGS_FETCH
    return ACTOR_ORDERING if task.header.template.method else SENT


def _called(task: PendingTask) -> bytes:
    """Return the id of the actor that a task calls; empty if the task is no actor call."""
    return b"" if task.prepared.client is None else bytes(task.prepared.client.actor_id)


def _actor_id(task_id: bytes, template: TaskTemplate, called: bytes) -> bytes:
    return called if template.actor is None else actor_of(task_id)
