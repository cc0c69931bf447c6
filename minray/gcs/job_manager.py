"""The table of jobs: one per driver, numbered across restarts of the gcs, finished once.

Ray: src/ray/gcs/gcs_job_manager.h

    RUNNING -> FINISHED -> forgotten

Rules
  * A driver's incarnation has one job: registering again, however late, gives the same one, finished or not.
  * Numbers count up and are never used again; a number whose registration could not be stored is skipped.
  * A job finishes when its driver says so, when its driver's process dies, or when its driver's node dies.
  * The things of a job end with it; if it has detached actors, they end with the last of these (``kept``).
  * The setup hook of a job that is over is dropped, since it may be large and no new worker needs it.
  * The last finished jobs are kept for users to read. Older ones are forgotten unless detached actors keep them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from minray.common.bounds import BOUNDS
from minray.common.ids import JOB_ID_BYTES
from minray.common.state_table import NEW, StateMachine
from minray.gcs.effects import Publication
from minray.platform.base import Record
from minray.protocol.gcs import JOBS, JobInfo, RegisterJob

RUNNING, FINISHED = "RUNNING", "FINISHED"
TRANSITIONS = {NEW: (RUNNING, FINISHED), RUNNING: (FINISHED,), FINISHED: (NEW,)}
"""Transitions of a job's state. NEW leads to FINISHED because a restarted gcs loads finished jobs from its tables."""


class JobManager:
    """Holds the table of jobs, and decides each change of it."""

    def __init__(
        self, record: Record | None, max_finished_jobs: int = BOUNDS.maximum_gcs_finished_job_cached_count
    ) -> None:
        """``max_finished_jobs`` is bounded because a new subscriber receives them all."""
        self._max_finished_jobs = max_finished_jobs
        self._states = StateMachine("job", TRANSITIONS, record)
        self._jobs: dict[bytes, JobInfo] = {}
        """Jobs by job id."""
        self._job_of_driver: dict[bytes, bytes] = {}
        """Job ids by the driver's incarnation, for every job in ``_jobs``."""
        self._past: dict[bytes, None] = {}
        """Ids of finished jobs of which nothing is kept, oldest first."""
        self.last_number = 0
        """Number of the newest job; stored with every registration."""

    def load(self, jobs: Iterable[JobInfo], last_number: int) -> list[Publication]:
        """Enter the jobs that an earlier gcs has stored, after a restart."""
        self.last_number = last_number
        in_order = sorted(jobs, key=lambda job: (job.end_time, job.job_id))
        return [publication for job in in_order for publication in self.on_committed(job)]

    def of_driver(self, driver_id: bytes) -> JobInfo | None:
        job_id = self._job_of_driver.get(driver_id)
        return None if job_id is None else self._jobs[job_id]

    def register(self, request: RegisterJob, now: float) -> JobInfo:
        """Return the record to store for a new driver's job, under the next number."""
        assert request.driver.worker_id not in self._job_of_driver, "ask of_driver first"
        self.last_number += 1
        job_id = self.last_number.to_bytes(JOB_ID_BYTES, "big")
        return JobInfo(job_id, request.driver, request.driver_pid, request.config, start_time=now)

    def finish(self, job_id: bytes, now: float, kept: bool = False) -> JobInfo | None:
        """Return the record to store for a job that ends; None if it is unknown or has ended before."""
        assert now > 0, "an end time of zero means that the job runs"
        if self._states.get(job_id) != RUNNING:
            return None
        ended = msgspec.structs.replace(self._jobs[job_id], end_time=now, kept=kept)
        return ended if kept else _without_hook(ended)

    def release(self, job_id: bytes) -> JobInfo | None:
        """Return the record to store when nothing of a finished job must be kept any more; None if nothing was kept."""
        job = self._jobs.get(job_id)
        return _without_hook(msgspec.structs.replace(job, kept=False)) if job is not None and job.kept else None

    def on_committed(self, job: JobInfo) -> list[Publication]:
        """Enter a record that is durable, and return the publications. The oldest finished job may be dropped."""
        old = self._jobs.get(job.job_id)
        self._jobs[job.job_id] = job
        self._job_of_driver[job.driver.worker_id] = job.job_id
        publications = [Publication(JOBS, job.job_id, job)]
        if old is None or not old.end_time:
            self._states.set(job.job_id, FINISHED if job.end_time else RUNNING)
        if job.end_time and not job.kept:
            self._past[job.job_id] = None
            if len(self._past) > self._max_finished_jobs:
                publications.append(self._forget(next(iter(self._past))))
        return publications

    def _forget(self, job_id: bytes) -> Publication:
        self._states.set(job_id, NEW)
        del self._past[job_id]
        del self._job_of_driver[self._jobs.pop(job_id).driver.worker_id]
        return Publication(JOBS, job_id, None)

    def get(self, job_id: bytes) -> JobInfo | None:
        return self._jobs.get(job_id)

    def is_over(self, job_id: bytes) -> bool:
        """Tell whether a job has finished; also True for an unknown job, which was forgotten or never stored."""
        return self._states.get(job_id) != RUNNING

    def running(self) -> list[JobInfo]:
        return [job for job in self._jobs.values() if not job.end_time]

    def finished(self) -> list[JobInfo]:
        return [job for job in self._jobs.values() if job.end_time]


def _without_hook(job: JobInfo) -> JobInfo:
    return msgspec.structs.replace(job, config=msgspec.structs.replace(job.config, setup_hook=b""))
