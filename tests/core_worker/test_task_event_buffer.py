"""Failed tasks on their way to the gcs: collected, described, and reported together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.introspection import task_event_buffer
from minray.core_worker.introspection.error_types import error_type_of
from minray.core_worker.introspection.task_event_buffer import TaskEventBuffer
from minray.core_worker.records.pending_task import FAILED, QUEUED, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    ObjectReconstructionFailedError,
    RayError,
    RaySystemError,
    TaskCancelledError,
    WorkerCrashedError,
)
from minray.protocol.base import DONE
from minray.protocol.state import AddTaskEventData
from tests.core_worker.parts import leased, packed, pending, prepare, submit
from tests.core_worker.peers import Asked, RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import in_virtual_time, pass_time, turns


class Owner:
    """A process of which there are the table of tasks and the buffer; a test sees what the gcs is told."""

    def __init__(self, **system: Any) -> None:
        self.peers = RecordingPeers()
        self.tasks = TaskManager(None)
        self.process = process_record(self.peers, **system)
        self.buffer = TaskEventBuffer(self.process, JobContext(b"worker".ljust(16)), self.tasks)

    def task(self, name: str = "f", **options: Any) -> PendingTask:
        return submit(self.tasks, pending(prepare(name=name, **options)), QUEUED)

    def fail(self, name: str = "f", error: Exception | None = None, **options: Any) -> PendingTask:
        task = self.task(name, **options)
        self.buffer.on_failed(task, StoredObject(packed(error or KeyError("no such thing"), name), (), True, ()))
        return task

    def take(self) -> Asked:
        return self.peers.take(AddTaskEventData)

    def is_silent(self) -> bool:
        return not self.peers.asked


@in_virtual_time
async def test_failed_tasks_are_reported_together_within_a_second() -> None:
    owner = Owner()
    tasks = [owner.fail("f"), owner.fail("g")]
    await pass_time(0.9)
    assert owner.is_silent()
    await pass_time(0.2)
    report = owner.take().request
    assert [info.task_id for info in report.failed] == [task.task_id for task in tasks] and report.left_out == 0
    info = report.failed[1]
    assert (info.name, info.state, info.error_type) == ("g", "FAILED", "TASK_EXECUTION_EXCEPTION")
    assert "no such thing" in info.error
    await pass_time(10)
    assert owner.is_silent(), "what is reported is forgotten"


@in_virtual_time
async def test_a_process_without_failures_has_no_timer_and_says_nothing() -> None:
    owner = Owner()
    owner.buffer.report()
    await owner.buffer.hand_over()
    await pass_time(10)
    assert owner.is_silent()


@in_virtual_time
async def test_a_report_says_where_a_task_failed_and_that_it_was_cancelled() -> None:
    owner = Owner()
    task = owner.task()
    task.worker, task.cancelled = leased(), True
    owner.buffer.on_failed(task, None)
    owner.buffer.report()
    (info,) = owner.take().request.failed
    assert (info.pid, info.error_type, info.error) == (5, "TASK_CANCELLED", "")


@in_virtual_time
async def test_too_many_failures_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_event_buffer, "MOST_REPORTED", 2)
    owner = Owner()
    for _ in range(5):
        owner.fail()
    owner.buffer.report()
    report = owner.take().request
    assert (len(report.failed), report.left_out) == (2, 3)


@pytest.mark.parametrize("is_gone", [False, True])
@in_virtual_time
async def test_a_driver_that_leaves_reports_the_tasks_that_end_with_its_job(is_gone: bool) -> None:
    owner = Owner()
    owner.task("quiet", is_recorded=False)
    owner.task("waits")
    owner.process.is_exiting = True
    owner.tasks.move(owner.fail("because it leaves"), FAILED)
    handing_over = asyncio.get_running_loop().create_task(owner.buffer.hand_over())
    await turns()
    asked = owner.take()
    assert [info.name for info in asked.request.failed] == ["because it leaves", "waits"] and not handing_over.done()
    for info in asked.request.failed:
        assert (info.state, info.error_type) == ("FAILED", "WORKER_DIED") and info.error.startswith("Job finishes (")
    if is_gone:
        asked.fail(unreachable())
    else:
        asked.answer(DONE)
    await turns()
    assert (handing_over.exception() is not None) is is_gone and owner.is_silent()


@pytest.mark.parametrize(("system", "options"), [({"task_events_report_interval_ms": 0}, {}), ({}, {"is_recorded": False})])
@in_virtual_time
async def test_what_nobody_wants_to_know_is_not_reported(system: dict[str, Any], options: dict[str, Any]) -> None:
    owner = Owner(**system)
    owner.fail(**options)
    await owner.buffer.hand_over()
    await pass_time(5)
    assert owner.is_silent()


@in_virtual_time
async def test_a_closed_buffer_has_no_timer() -> None:
    owner = Owner()
    owner.fail()
    owner.buffer.close()
    await pass_time(5)
    assert owner.is_silent()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WorkerCrashedError(), "WORKER_DIED"),
        (NodeDiedError(), "NODE_DIED"),
        (ActorDiedError(), "ACTOR_DIED"),
        (TaskCancelledError(), "TASK_CANCELLED"),
        (ObjectReconstructionFailedError(), "OBJECT_UNRECONSTRUCTABLE"),
        (RaySystemError(), "TASK_EXECUTION_EXCEPTION"),
        (KeyError("user's"), "TASK_EXECUTION_EXCEPTION"),
    ],
)
def test_errors_have_rays_names(error: RayError | KeyError, expected: str) -> None:
    assert error_type_of(packed(error)) == expected
