"""Keeps the unfinished tasks that this process has submitted: their states, attempts and retries.

Ray: src/ray/core_worker/task_manager.h

Pure. A task is WAITING (in Ray: PENDING_ARGS_AVAIL) until its arguments exist. It is QUEUED (PENDING_NODE_ASSIGNMENT) until
it is sent to a leased worker, or to its actor. It is PUSHED (SUBMITTED_TO_WORKER) until a reply or a death decides. Then it
is FINISHED or FAILED and leaves the table. Users see Ray's names. A task whose results were lost begins again (``lineage``
remembers it).

Retries
  * The death of a worker or its node uses up one of ``max_retries``. So does making lost results again (G70).
  * A user's exception leads to a retry only if ``retry_exceptions`` covers it (G16, G18), and uses one up.
  * A task whose node was preempted is run again for free (G21), unless its ``max_retries`` is 0.
  * A task whose worker was killed because its node had no memory is run again for free, after a pause (G20), unless its
    ``max_retries`` is 0.
  * A pushed task that had not started is pushed again for free.
  * A cancelled task is never retried (G19).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from minray.common.ids import short
from minray.common.state_table import InvalidTransition
from minray.common.task_spec import TaskTemplate
from minray.core_worker.records.ended_tasks import EndedTasks
from minray.core_worker.records.pending_task import FAILED, FINISHED, NEW, PUSHED, QUEUED, WAITING, PendingTask

MOST_RECENT = 1000
"""Number of finished tasks kept for the state API; a bound on memory."""
TRANSITIONS = {
    NEW: (WAITING, QUEUED),
    WAITING: (QUEUED, FAILED),
    QUEUED: (PUSHED, FAILED),
    PUSHED: (WAITING, QUEUED, FINISHED, FAILED),
    FINISHED: (WAITING,),
    FAILED: (WAITING,),
}


class TaskManager:
    """The table of one process's unfinished tasks."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None) -> None:
        self._record = record
        self.tasks: dict[bytes, PendingTask] = {}
        """Unfinished tasks by task id, oldest first."""
        self.submitted_count = 0
        self.ended = EndedTasks()
        self.recent: deque[tuple[bytes, TaskTemplate, bytes, int, str, bytes]] = deque(maxlen=MOST_RECENT)
        """The latest finished tasks: id, template, id of the called actor (or empty), attempt, state, parent's id."""

    def add_task(self, task: PendingTask) -> None:
        self.tasks[task.task_id] = task
        self.submitted_count += 1

    def move(self, task: PendingTask, new: str) -> None:
        """Move a task to a new state of the table of transitions; FINISHED and FAILED remove it from ``tasks``."""
        old = task.state
        if new not in TRANSITIONS[old]:
            raise InvalidTransition(f"task {short(task.task_id)}: {old or 'new'} -> {new}")
        task.state = new
        if self._record is not None:
            self._record("task", short(task.task_id), old, new)
        if new is FINISHED or new is FAILED:
            del self.tasks[task.task_id]
            template, client = task.prepared.template, task.prepared.client
            if new is FINISHED:
                (self.ended.finished_again if task.attempt else self.ended.finished)[template.name] += 1
            else:
                (self.ended.failed_again if task.attempt else self.ended.failed)[template.name] += 1
            actor_id = b"" if client is None else client.actor_id
            self.recent.append((task.task_id, template, actor_id, task.attempt, new, task.parent_id))

    def begin_again(self, task: PendingTask, needs: tuple[bytes, ...]) -> None:
        """Enter an ended task again, whose results are lost; it has used up a retry, and takes these objects once more."""
        task.needs = needs
        self.add_task(task)
        self.move(task, WAITING)

    def begin_retry(self, task: PendingTask, preempted: bool = False) -> bool:
        """Begin the next attempt and use up one retry; False if there is none. A preemption uses up none (G21)."""
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
        """Begin the next attempt of a task that was killed for its node's memory (G20).

        Return the pause before it, in multiples of the base delay; None if the task must not be retried.
        """
        if task.cancelled or task.prepared.template.max_retries == 0:
            return None
        task.attempt += 1
        task.memory_kills += 1
        return float(2 ** (task.memory_kills - 1))

    def children_of(self, parent_id: bytes) -> list[PendingTask]:
        return [task for task in self.tasks.values() if task.parent_id == parent_id]
