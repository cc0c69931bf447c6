"""The job that this process belongs to, and the settings that its tasks inherit from the job.

Ray: WorkerContext in src/ray/core_worker/context.h

A driver enters its job when the gcs has registered it. A worker enters the job of its first task
(``execution/job_environment.py``). A process enters at most one job, and never leaves it.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.common.ids import TaskIdFactory
from minray.common.task_spec import RuntimeEnvInfo
from minray.protocol.gcs import JobInfo

NO_JOB = b"\0\0\0\0"
"""Job id of a worker that has not received a task yet."""


def _do_nothing(job: JobInfo) -> None:
    """Set up nothing for a job: this process is a driver, or not a process of its own."""


class JobContext:
    """The job of one process, and the ids and settings that follow from it."""

    def __init__(self, worker_id: bytes) -> None:
        self._worker_id = worker_id
        self.job: JobInfo | None = None
        """The job's record; None until the process enters a job."""
        self.job_id = NO_JOB
        self.task_ids = TaskIdFactory(worker_id, NO_JOB)
        """Makes the ids of the tasks and objects of this process; user threads call it."""
        self.environment = RuntimeEnvInfo()
        """The runtime environment that tasks submitted here inherit."""
        self.on_enter: Callable[[JobInfo], None] = _do_nothing
        """Called when the process enters a job; set by the process."""

    def enter(self, job: JobInfo) -> None:
        """Make this process part of the job."""
        assert self.job is None, job
        self.job, self.job_id = job, job.job_id
        self.task_ids = TaskIdFactory(self._worker_id, job.job_id)
        self.on_enter(job)

    @property
    def namespace(self) -> str:
        """The namespace used for names that are given without one; a job without a namespace has its own (G32)."""
        return (self.job.config.namespace if self.job is not None else "") or f"anonymous-{self.job_id.hex()}"
