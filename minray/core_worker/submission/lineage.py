"""Remembers finished tasks whose results may be lost and would have to be made again.

Ray: the second half of src/ray/core_worker/task_manager.h (submissible tasks), ReferenceCounter::EvictLineage

Pure. A task is remembered while one of its results in the object store has an entry in the reference counter. The entry
exists while the result's value is needed, or another remembered task takes the result. As long as the task is remembered,
its own large arguments and the references inside its other arguments are needed. Small arguments are part of the task as it
was sent to a worker. Hence the lineage of an object is a graph of tasks, which shrinks from its end: when the last reference
to the last result of a chain is dropped, the whole chain is forgotten.

The memory for lineage is bounded. When it is used up, tasks are forgotten, the earliest ended first, until half is left.
Their results stay, but cannot be made again if they are lost (G72).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from minray.common.ids import task_of
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.pending_task import PendingTask

TASK_BYTES = 1000
"""Bytes of memory that a remembered task without arguments takes, a round estimate."""


class _Remembered(NamedTuple):
    """One remembered task."""

    task: PendingTask
    needs: tuple[bytes, ...]
    """Ids of objects that the task takes, except the values that it carries."""
    results: set[bytes]
    """Ids of the results for which the task is remembered."""
    size: int
    """Estimated memory of the task, in bytes."""


class Lineage:
    """Remembers the finished tasks of one process, within a bounded memory."""

    def __init__(self, references: ReferenceCounter, max_bytes: int) -> None:
        self._references = references
        self._max_bytes = max_bytes
        self._tasks: dict[bytes, _Remembered] = {}
        """Remembered tasks by task id, the earliest ended first."""
        self.bytes = 0
        """Sum of the tasks' sizes."""

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, task_id: bytes) -> PendingTask | None:
        remembered = self._tasks.get(task_id)
        return None if remembered is None else remembered.task

    def needs_of(self, task_id: bytes) -> tuple[bytes, ...]:
        """Return the ids of objects that a remembered task takes, except the values that it carries."""
        return self._tasks[task_id].needs

    def keep_task(self, task: PendingTask, results: Iterable[bytes], effects: Effects) -> None:
        """Remember a task that has ended, perhaps not for the first time, for these results; without results, forget it."""
        remembered = _Remembered(task, _needs_of(task), set(results), _size_of(task))
        if remembered.results:
            self._references.add_lineage(remembered.needs)
        self._forget(task.task_id, effects)
        if remembered.results:
            self._tasks[task.task_id] = remembered
            self.bytes += remembered.size
            if self.bytes > self._max_bytes:
                self._evict(effects)

    def on_forgotten(self, object_id: bytes, effects: Effects) -> None:
        """Forget the task of an object that has no entry in the reference counter any more, if no other result needs it."""
        remembered = self._tasks.get(task_of(object_id))
        if remembered is not None:
            remembered.results.discard(object_id)
            if not remembered.results:
                self._forget(remembered.task.task_id, effects)

    def _forget(self, task_id: bytes, effects: Effects) -> None:
        remembered = self._tasks.pop(task_id, None)
        if remembered is not None:
            self.bytes -= remembered.size
            self._references.remove_lineage(remembered.needs, effects)

    def _evict(self, effects: Effects) -> None:
        while self.bytes > self._max_bytes // 2:
            self._forget(next(iter(self._tasks)), effects)


def _needs_of(task: PendingTask) -> tuple[bytes, ...]:
    needs = [info.object_id for info in task.nested]
    for argument in task.arguments:
        if argument.value is None:
            needs.append(argument.object_id)
        else:
            needs += [info.object_id for info in argument.value.nested]
    return tuple(needs)


def _size_of(task: PendingTask) -> int:
    size = TASK_BYTES + len(task.args) + sum(map(len, task.inline_buffers))
    for argument in task.arguments:
        if argument.value is not None:
            size += len(argument.value.data) + sum(map(len, argument.value.inline_buffers))
    return size
