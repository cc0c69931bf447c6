"""The gcs's table of tasks that outlive their processes: what it keeps, what it drops, and how it is read."""

from __future__ import annotations

import pytest

from minray.common.task_rows import ROW
from minray.gcs.gcs_task_manager import TASK_BYTES, WORKER_BYTES, GcsTaskManager
from minray.protocol.state import AddTaskEventData, TaskInfo, WorkerTaskEvents

JOB, OTHER_JOB = b"job1", b"job2"


def task_id(name: str, job_id: bytes = JOB) -> bytes:
    return name.encode().ljust(20) + job_id


def failed(name: str, job_id: bytes = JOB, error: str = "") -> TaskInfo:
    return TaskInfo(task_id(name, job_id), 0, "", "NORMAL_TASK", "FAILED", b"", error=error)


def rows(*names: str, job_id: bytes = JOB) -> bytes:
    return b"".join(
        ROW.pack(task_id(name, job_id), b"", 0, 0, number, 0, 0, 0, name.encode()) for number, name in enumerate(names, 1)
    )


def worker(worker_id: bytes, *names: str, lost: int = 0, job_id: bytes = JOB) -> WorkerTaskEvents:
    return WorkerTaskEvents(
        node_id=b"node",
        node_ip="",
        worker_id=worker_id,
        pid=1,
        zero_us=0,
        rows=rows(*names, job_id=job_id),
        lost=lost,
    )


def table(max_tasks: int = 100, max_bytes: int = 1 << 20, part_bytes: int = 1 << 20) -> GcsTaskManager:
    return GcsTaskManager(max_tasks, max_bytes, part_bytes)


def add(manager: GcsTaskManager, *entries: TaskInfo | WorkerTaskEvents) -> None:
    for one in entries:
        if isinstance(one, TaskInfo):
            manager.add(AddTaskEventData(failed=[one], job_id=JOB))
        else:
            manager.add(AddTaskEventData(workers=[one]))


def kept(manager: GcsTaskManager) -> list[str]:
    """Names of all tasks in the table: the failed ones, then those that workers have run."""
    part = manager.part(0)
    assert part.is_complete
    names = [task.task_id[:20].decode().strip() for task in part.failed]
    return names + [event.name for one in part.workers for event in one.events().events]


def test_what_is_reported_is_kept() -> None:
    manager = table()
    add(manager, failed("a"), worker(b"w", "b", "c"), failed("d"))
    assert kept(manager) == ["a", "d", "b", "c"]
    assert (manager.tasks, manager.size_bytes) == (4, 2 * TASK_BYTES + WORKER_BYTES + 2 * ROW.size)


def test_a_report_that_arrives_twice_is_entered_once() -> None:
    manager = table()
    for _ in range(2):
        add(manager, failed("a"), worker(b"w", "b"))
    assert kept(manager) == ["a", "b"] and manager.tasks == 2


def test_the_oldest_rows_of_the_oldest_worker_are_dropped_first_and_counted_by_job() -> None:
    manager = table(max_tasks=5)
    add(manager, failed("a"), worker(b"v", "b", "c", job_id=OTHER_JOB), worker(b"w", "d", "e"))
    assert manager.dropped_of(JOB) == manager.dropped_of(OTHER_JOB) == 0
    add(manager, failed("f"))
    assert kept(manager) == ["a", "f", "c", "d", "e"] and manager.dropped_of(OTHER_JOB) == 1
    add(manager, failed("g"), failed("h"))
    assert kept(manager) == ["a", "f", "g", "h", "e"]
    assert (manager.dropped_of(OTHER_JOB), manager.dropped_of(JOB), manager.part(0).dropped) == (2, 1, 3)


def test_failed_tasks_are_dropped_when_nothing_else_is_left() -> None:
    manager = table(max_tasks=2)
    add(manager, failed("a"), worker(b"w", "b"), failed("c"), failed("d"))
    assert kept(manager) == ["c", "d"] and manager.dropped_of(JOB) == 2 and manager.tasks == 2


def test_bytes_are_bounded_too() -> None:
    manager = table(max_bytes=TASK_BYTES + WORKER_BYTES + 2 * ROW.size)
    add(manager, worker(b"w", "a", "b"), failed("c"))
    assert kept(manager) == ["c", "a", "b"]
    add(manager, failed("d", error="x"))
    assert kept(manager) == ["d"] and manager.dropped_of(JOB) == 3
    assert manager.size_bytes == TASK_BYTES + 1


def test_a_worker_with_more_rows_than_there_is_room_keeps_the_newest() -> None:
    manager = table(max_tasks=2)
    add(manager, worker(b"w", "a", "b", "c", lost=7))
    assert kept(manager) == ["b", "c"] and manager.dropped_of(JOB) == 8


def test_what_an_owner_could_not_describe_counts_as_dropped() -> None:
    manager = table()
    manager.add(AddTaskEventData(job_id=JOB, left_out=3))
    assert manager.dropped_of(JOB) == 3 and kept(manager) == []


def test_nothing_is_kept_where_there_is_room_for_nothing() -> None:
    manager = table(max_tasks=0)
    add(manager, worker(b"w", "a"), failed("b"))
    assert kept(manager) == [] and (manager.tasks, manager.size_bytes) == (0, 0) and manager.dropped_of(JOB) == 2


@pytest.mark.parametrize(("part_bytes", "expected"), [(1, 4), (TASK_BYTES, 4), (2 * TASK_BYTES + 1, 2), (1 << 20, 1)])
def test_the_table_is_read_in_parts(part_bytes: int, expected: int) -> None:
    manager = table(part_bytes=part_bytes)
    add(manager, failed("a"), worker(b"v", "b"), failed("c"), worker(b"w", "d", "e"))
    names: list[str] = []
    after, parts = 0, 0
    while True:
        part = manager.part(after)
        names += [task.task_id[:1].decode() for task in part.failed]
        names += [event.name for one in part.workers for event in one.events().events]
        after, parts = part.last, parts + 1
        if part.is_complete:
            break
    assert sorted(names) == ["a", "b", "c", "d", "e"] and parts == expected
