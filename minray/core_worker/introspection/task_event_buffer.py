"""Tells the gcs about the tasks of this process that have failed, so that it knows their errors when this process is gone.

Ray: src/ray/core_worker/task_event_buffer.h, which sends every change of every task

A failed task is reported within ``task_events_report_interval_ms``, together with others. A process without failures sends
nothing and has no timer. Tasks that have succeeded are not reported: their workers have rows of them (``TaskProfile``). A
driver that leaves, and a worker that ends in order, report at once. A driver also reports its unfinished tasks, which end
with their job. A killed process has told all but the failures of the last interval.
"""

from __future__ import annotations

import asyncio
from itertools import islice

import msgspec

from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.error_types import TASK_CANCELLED, WORKER_DIED, error_type_of
from minray.core_worker.introspection.task_account import MAX_ERROR_CHARACTERS, describe_pending
from minray.core_worker.records.pending_task import FAILED, FINISHED, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import describe_packed
from minray.protocol.state import AddTaskEventData, TaskInfo
from minray.rpc.connection import ignore

MOST_REPORTED = 1000
"""Most failed tasks of one report: describing an error takes 30 us. The others are only counted."""
JOB_ENDED = "Job finishes ({}) as driver exits. Marking all non-terminal tasks as failed."
"""Error message of a task that its driver did not wait for; it is Ray's."""


class TaskEventBuffer:
    """Collects the failed tasks of one process until they are reported."""

    def __init__(self, process: Process, context: JobContext, tasks: TaskManager) -> None:
        self._process = process
        self._context = context
        self._tasks = tasks
        self._interval_s = process.config.system_config.task_events_report_interval_ms / 1000
        self._failed: list[tuple[TaskInfo, bytes]] = []
        """Failed tasks that are not reported yet, each with its packed error or nothing; at most MOST_REPORTED."""
        self._left_out = 0
        """Number of failed tasks that the next report does not describe."""
        self._timer: asyncio.TimerHandle | None = None

    def on_failed(self, task: PendingTask, error: StoredObject | None) -> None:
        """Note a task that has failed; ``error`` is None if none of its results holds one."""
        if not self._interval_s or not task.prepared.template.is_recorded:
            return
        if len(self._failed) >= MOST_REPORTED:
            self._left_out += 1
        elif self._process.is_exiting:
            self._failed.append((self._ended_with_job(task), b""))
        else:
            known = {"error_type": TASK_CANCELLED} if task.cancelled else {}
            info = msgspec.structs.replace(describe_pending(task), state=FAILED, **known)
            self._failed.append((info, b"" if error is None else bytes(error.data)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.report)

    def report(self) -> None:
        """Send what is not reported yet."""
        report = self._take()
        if report is not None:
            self._process.patient.send_to_gcs(report, ignore)

    async def hand_over(self) -> None:
        """Report as a driver that leaves, and return when the gcs has the report. Raises PlatformError.

        The tasks that are still unfinished end with the job."""
        unfinished = self._tasks.tasks.values()
        for task in islice(unfinished, MOST_REPORTED):
            if describe_pending(task).state != FINISHED:
                self.on_failed(task, None)
        self._left_out += max(0, len(unfinished) - MOST_REPORTED)
        report = self._take()
        if report is not None:
            await self._process.gcs.call(report)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended_with_job(self, task: PendingTask) -> TaskInfo:
        """Describe a task that fails because its driver leaves."""
        message = JOB_ENDED.format(self._context.job_id.hex())
        return msgspec.structs.replace(describe_pending(task), state=FAILED, error_type=WORKER_DIED, error=message)

    def _take(self) -> AddTaskEventData | None:
        """Make the report and empty the buffer; None if there is nothing to report."""
        self.close()
        failed, self._failed = [_with_error(info, packed) for info, packed in self._failed], []
        left_out, self._left_out = self._left_out, 0
        if not failed and not left_out:
            return None
        return AddTaskEventData(failed=failed, job_id=self._context.job_id, left_out=left_out)


def _with_error(info: TaskInfo, packed: bytes) -> TaskInfo:
    if not packed:
        return info
    error_type = info.error_type or error_type_of(packed)
    return msgspec.structs.replace(info, error=describe_packed(packed)[-MAX_ERROR_CHARACTERS:], error_type=error_type)
