"""The table of tasks that outlive their processes: failed ones from their owners, and what dead workers have run.

Ray: src/ray/gcs/gcs_task_manager.h

Pure. Ray's processes report every change of every task. Here living processes are asked, and the gcs keeps only what they
cannot tell later: an owner reports its failed tasks within a second, and a raylet sends the journal of a dead worker.

Rules
  * Tasks and bytes are bounded (``task_events_max_num_task_in_gcs``, ``task_events_max_bytes_in_gcs``). What the oldest
    worker has run is dropped first, its oldest rows first. Failed tasks, which have their errors, are dropped last.
  * Dropped tasks are counted by job, and a reader gets the sum. A job's end changes nothing: its tasks stay until others
    need room.
  * A report may arrive twice. A failed task is known by its id and attempt, a worker by its id.
  * The table is not stored. A gcs that starts again knows no ended tasks, as in Ray.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from minray.common.ids import job_of
from minray.common.task_rows import ROW
from minray.common.tombstones import remember
from minray.protocol.state import AddTaskEventData, TaskEvents, TaskInfo, WorkerTaskEvents

TASK_BYTES, WORKER_BYTES = 600, 300
"""Memory of a failed task without its error, and of a worker without its rows; estimates for the bound on bytes."""
PART_BYTES = 16 * 1024 * 1024
"""Most bytes of one answer, unless its first entry is larger."""


class GcsTaskManager:
    """Holds the tasks of ended processes."""

    def __init__(self, max_tasks: int, max_bytes: int, part_bytes: int = PART_BYTES) -> None:
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._part_bytes = part_bytes
        self._failed: dict[tuple[bytes, int], tuple[int, TaskInfo]] = {}
        """Failed tasks by id and attempt, oldest first, each with the number of its entry."""
        self._workers: dict[bytes, tuple[int, WorkerTaskEvents]] = {}
        """Rows of dead workers by worker id, oldest first, each with the number of its entry."""
        self._last = 0
        """Number of the newest entry."""
        self._dropped: OrderedDict[bytes, int] = OrderedDict()
        """Number of dropped tasks by job; the oldest jobs are forgotten (``remember``)."""
        self.tasks = 0
        """Number of tasks in the table; at most ``max_tasks``."""
        self.size_bytes = 0
        """Memory of the table; at most ``max_bytes``."""

    def add(self, report: AddTaskEventData) -> None:
        """Enter a report; what is older may be dropped."""
        if report.left_out:
            self._count_dropped(report.job_id, report.left_out)
        for task in report.failed:
            if (task.task_id, task.attempt) not in self._failed:
                self._last += 1
                self._failed[task.task_id, task.attempt] = self._last, task
                self._grow(1, _size_of(task))
        for worker in report.workers:
            if worker.worker_id not in self._workers and worker.rows:
                self._last += 1
                self._workers[worker.worker_id] = self._last, worker
                self._grow(_count(worker), _size_of_worker(worker))
                if worker.lost:
                    self._count_dropped(job_of(worker.rows), worker.lost)
        self._keep_bounds()

    def part(self, after: int) -> TaskEvents:
        """Return the entries that are newer than number ``after``, the oldest first, as many as one answer may have."""
        newer: list[tuple[int, TaskInfo | WorkerTaskEvents]] = [
            entry for table in (self._failed, self._workers) for entry in table.values() if entry[0] > after
        ]
        newer.sort(key=lambda entry: entry[0])
        failed: list[TaskInfo] = []
        workers: list[WorkerTaskEvents] = []
        last, size = after, 0
        for number, one in newer:
            size += _size_of(one) if isinstance(one, TaskInfo) else _size_of_worker(one)
            if size > self._part_bytes and last > after:
                break
            last = number
            if isinstance(one, TaskInfo):
                failed.append(one)
            else:
                workers.append(one)
        return TaskEvents(
            failed=failed,
            workers=workers,
            last=last,
            is_complete=not newer or last == newer[-1][0],
            dropped=self.dropped(),
        )

    def dropped(self) -> int:
        """Return the number of tasks that were dropped, or never received, because there were too many."""
        return sum(self._dropped.values())

    def dropped_of(self, job_id: bytes) -> int:
        return self._dropped.get(job_id, 0)

    def _grow(self, tasks: int, size_bytes: int) -> None:
        self.tasks += tasks
        self.size_bytes += size_bytes

    def _count_dropped(self, job_id: bytes, count: int) -> None:
        remember(self._dropped, job_id, self._dropped.pop(job_id, 0) + count)

    def _keep_bounds(self) -> None:
        while self.tasks > self._max_tasks or self.size_bytes > self._max_bytes:
            if self._workers:
                self._drop_rows(next(iter(self._workers)))
            elif self._failed:
                _, task = self._failed.pop(next(iter(self._failed)))
                self._grow(-1, -_size_of(task))
                self._count_dropped(job_of(task.task_id), 1)
            else:
                return

    def _drop_rows(self, worker_id: bytes) -> None:
        """Drop as many of a worker's oldest rows as the bounds require; a worker without rows is dropped too."""
        number, worker = self._workers[worker_id]
        tasks, size_bytes = self.tasks - self._max_tasks, self.size_bytes - self._max_bytes
        excess = min(max(tasks, -(-size_bytes // ROW.size)), _count(worker))
        self._grow(-excess, -excess * ROW.size)
        self._count_dropped(job_of(worker.rows), excess)
        if excess == _count(worker):
            del self._workers[worker_id]
            self._grow(0, -WORKER_BYTES)
        else:
            self._workers[worker_id] = number, msgspec.structs.replace(worker, rows=worker.rows[excess * ROW.size :])


def _count(worker: WorkerTaskEvents) -> int:
    return len(worker.rows) // ROW.size


def _size_of(task: TaskInfo) -> int:
    return TASK_BYTES + len(task.error) + len(task.name) + len(task.function_name)


def _size_of_worker(worker: WorkerTaskEvents) -> int:
    return WORKER_BYTES + len(worker.rows)
