"""Tasks that this process has submitted and that have not ended: their states, attempts and outcomes.

Ray: src/ray/core_worker/task_manager.h

Pure. A task is ``PENDING_ARGS_AVAIL`` until its arguments exist, ``PENDING_NODE_ASSIGNMENT`` until a leased worker takes
it, ``SUBMITTED_TO_WORKER`` until a reply or a death decides, then ``FINISHED`` or ``FAILED`` and forgotten here. The
states' names are those of Ray's state API. A task whose results were lost begins again (``lineage`` remembers it).

Retries: a death of the worker or its node uses one of ``max_retries``; a user's exception does only if
``retry_exceptions`` covers it (G16, G18). A task whose node was preempted is made again for free (G21), one that had been
pushed but had not started is pushed again for free, and so, after a pause, is one whose worker was killed because its node
had no memory (G20). A cancelled task is never retried (G19). To make lost results again uses one of them, too (G70).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from minray.common.ids import short
from minray.common.state_table import InvalidTransition
from minray.common.task_spec import TaskTemplate
from minray.core_worker.records.pending_task import FAILED, FINISHED, NEW, PUSHED, QUEUED, WAITING, PendingTask

MOST_RECENT = 1000
"""So many tasks that have ended are remembered, for people."""
TRANSITIONS = {
    NEW: (WAITING, QUEUED),
    WAITING: (QUEUED, FAILED),
    QUEUED: (PUSHED, FAILED),
    PUSHED: (WAITING, QUEUED, FINISHED, FAILED),
    FINISHED: (WAITING,),
    FAILED: (WAITING,),
}


class TaskManager:
    """The table of one process."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None) -> None:
        self._record = record
        self.tasks: dict[bytes, PendingTask] = {}
        """All that have not ended, by task id, oldest first."""
        self.submitted_count = 0
        self.finished_count = 0
        self.recent: deque[tuple[bytes, TaskTemplate, bytes, int, str, bytes]] = deque(maxlen=MOST_RECENT)
        """Of the last that have ended: id, template, of an actor's call the actor, attempt, FINISHED or FAILED, parent."""

    def add(self, task: PendingTask) -> None:
        self.tasks[task.task_id] = task
        self.submitted_count += 1

    def move(self, task: PendingTask, new: str) -> None:
        """A step of the state table; what is FINISHED or FAILED is not in the table any more."""
        old = task.state
        if new not in TRANSITIONS[old]:
            raise InvalidTransition(f"task {short(task.task_id)}: {old or 'new'} -> {new}")
        task.state = new
        if self._record is not None:
            self._record("task", short(task.task_id), old, new)
        if new is FINISHED or new is FAILED:
            del self.tasks[task.task_id]
            self.finished_count += 1
            client = task.prepared.client
            actor_id = b"" if client is None else client.actor_id
            self.recent.append((task.task_id, task.prepared.template, actor_id, task.attempt, new, task.parent_id))

    def begin_again(self, task: PendingTask, needs: tuple[bytes, ...]) -> None:
        """Results of a task that has ended are lost, and it has used up a retry: it takes these arguments once more."""
        task.needs = needs
        self.add(task)
        self.move(task, WAITING)

    def may_retry(self, task: PendingTask, preempted: bool = False) -> bool:
        """Use up one retry, if there is one: True, and the next attempt has begun. A preemption uses none (G21)."""
        if preempted and task.prepared.template.max_retries != 0 and not task.cancelled:
            task.attempt += 1
            task.preemptions += 1
            return True
        if task.cancelled or task.retries_left == 0:
            return False
        if task.retries_left > 0:
            task.retries_left -= 1
        task.attempt += 1
        return True

    def retry_after_memory(self, task: PendingTask) -> float | None:
        """It was killed for its node's memory (G20): how many base delays later the next attempt may begin; None: never."""
        if task.cancelled or task.prepared.template.max_retries == 0:
            return None
        task.attempt += 1
        task.memory_kills += 1
        return float(2 ** (task.memory_kills - 1))

    def children_of(self, parent_id: bytes) -> list[PendingTask]:
        return [task for task in self.tasks.values() if task.parent_id == parent_id]
