"""A ``TaskExecutor`` that also notes when a task has its arguments, and when its function has returned.

Ray: the profile events of execute_task in python/ray/_raylet.pyx

``minray.timeline`` shows the phases ``task:deserialize_arguments``, ``task:execute`` and ``task:store_outputs``. The notes
cost each task about a microsecond. Hence processes use this class only with the entry ``record_task_phases`` of the
system config, for which ``RAY_PROFILING=1`` stands. Ray always records them.

A task whose function raises has no third phase, and one whose arguments cannot be unpickled has only the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.config import WorkerConfig
from minray.core_worker.execution.measured_executor import MeasuredExecutor
from minray.core_worker.execution.return_values import ReturnValues
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.records.received_task import ReceivedTask, Result


class _TimedReturns(ReturnValues):
    """Notes when a function has returned, and then stores its value."""

    def __init__(self, returns: ReturnValues, profile: TaskProfile) -> None:
        self._inner = returns
        self._profile = profile

    def keep(self, task: ReceivedTask, result: Any) -> list[Result]:
        self._profile.note_phase(task)
        return self._inner.keep(task, result)


class TimedExecutor(TaskExecutor):
    """Runs tasks, and notes their phases in the profile."""

    def __init__(self, *parts: Any) -> None:
        """``parts`` are those of ``TaskExecutor``."""
        super().__init__(*parts)
        self._returns = _TimedReturns(self._returns, self._profile)

    def _prepare(self, task: ReceivedTask) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        prepared = super()._prepare(task)
        self._profile.note_phase(task)
        return prepared


def executor_class(config: WorkerConfig) -> type[TaskExecutor]:
    """Return the class whose instance runs the tasks of a process. One that is measured by coverage.py records no phases."""
    if config.is_measured:
        return MeasuredExecutor
    return TimedExecutor if config.system_config.record_task_phases else TaskExecutor
