"""Decides how far ahead tasks are pushed to one leased worker, from the measured run times of their functions.

Ray: ``max_tasks_in_flight_per_worker`` of src/ray/core_worker/task_submission/normal_task_submitter.h, until 2022

A message costs the owner a system call on each side, and wakes a process. With many workers, one message for each task
would be the owner's main work. So messages bring several tasks where that makes no task wait long:

  * A *short* function (``pipeline_max_task_milliseconds``) is pipelined up to ``pipeline_target_milliseconds`` of work.
  * A function that takes up to half of that target is pipelined too, but only the *surplus*: tasks beyond those that open
    lease requests can bring workers for. So the last tasks of a batch still run side by side.
  * A worker gets more tasks when half of the target is done, and then several.
  * A *tiny* task costs less than waking a worker, so one worker gets several of them before another one is woken. It gets
    more whenever it has answered: half a target of tiny tasks is done before more could arrive.
"""

from __future__ import annotations

from minray.common.config import SystemConfig
from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import PendingTask

UNKNOWN_ESTIMATE_US = 1e9
"""Estimate, in microseconds, for a task whose function was not measured or is long: no task is queued behind it."""
LEAST_ESTIMATE_US = 50.0
"""The least estimate of any task, in microseconds: receiving and answering it takes time too."""
TINY_US = 20.0
"""Measured run time, in microseconds, below which a task costs less than waking a worker for it."""
TINY_AT_ONCE = 20
"""Number of tiny tasks that one worker gets before another worker is woken for them."""


class Pipelining:
    """Answers how many tasks one worker may have at a time."""

    def __init__(self, config: SystemConfig) -> None:
        self._max_in_flight = config.max_tasks_in_flight_per_worker
        self._target_us = config.pipeline_target_milliseconds * 1000
        self._short_us = config.pipeline_max_task_milliseconds * 1000
        self._surplus_us = max(self._target_us / 2, self._short_us)

    def is_low(self, worker: LeasedWorker) -> bool:
        """Whether a worker has at most half of the work that it may have. If not, it gets tiny tasks only."""
        return worker.queued_us * 2 <= self._target_us

    def has_room(self, worker: LeasedWorker, estimate_us: float) -> bool:
        """Whether a busy worker may have a further task."""
        return worker.queued_us + estimate_us <= self._target_us and len(worker.in_flight) < self._max_in_flight

    def estimate_us(self, task: PendingTask, is_surplus: bool) -> float:
        """Return the time after which a task probably ends, in microseconds. ``is_surplus``: no request waits for it."""
        mean_us = task.prepared.mean_us
        if mean_us is None or mean_us >= (self._surplus_us if is_surplus else self._short_us):
            return UNKNOWN_ESTIMATE_US
        return max(mean_us, LEAST_ESTIMATE_US)


def at_once(task: PendingTask) -> int:
    """Return the number of tasks like this one for which a worker is woken, if that many wait."""
    mean_us = task.prepared.mean_us
    return TINY_AT_ONCE if mean_us is not None and mean_us < TINY_US else 1
