"""A ``TaskExecutor`` that stores what coverage.py has measured before the end of each task is reported.

Ray: no counterpart; there a worker that is killed has measured nothing

coverage.py writes its data when a process ends. A worker often ends by SIGKILL: with its cluster, with its job, or because
its actor is killed. So this executor stores the data when a task has ended, before the caller hears of it. A task whose
result has arrived is counted, however its worker ends. That costs a task about 1.5 ms, and only in processes that
coverage.py measures.

A zygote is measured from its start if coverage's own environment variable says so (``COVERAGE_PROCESS_START``, or
``patch = subprocess`` in its configuration). Forked workers inherit that, and coverage.py gives each its own data file.

Left out: a task that a kill interrupts is not counted. Lines that a thread runs after the last task are stored only if the
worker ends in order: by SIGTERM, by ``sys.exit`` or as an actor that nobody needs any more.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from minray.core_worker.execution.task_executor import TaskExecutor

if TYPE_CHECKING:
    from minray.core_worker.records.received_task import ReceivedTask

logger = logging.getLogger(__name__)


class CoverageStore:
    """Stores the data of the measurement that runs in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while data are stored, since calls of a threaded actor end at the same time."""
        self._has_failed = False

    def store(self) -> None:
        """Write what was measured until now. A failure is logged once."""
        measurement = _measurement()
        if measurement is None:
            return
        try:
            with self._lock:
                measurement.save()
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                logger.exception("coverage.py could not store what a task has run")


class MeasuredExecutor(TaskExecutor):
    """Runs tasks, and stores after each what it has run."""

    def __init__(self, *parts: Any) -> None:
        """``parts`` are those of ``TaskExecutor``."""
        super().__init__(*parts)
        self._coverage = CoverageStore()

    def execute(self, task: ReceivedTask) -> None:
        super().execute(task)
        self._coverage.store()

    def execute_beside(self, task: ReceivedTask) -> None:
        super().execute_beside(task)
        self._coverage.store()

    async def execute_async(self, task: ReceivedTask) -> None:
        await super().execute_async(task)
        self._coverage.store()


def is_measured() -> bool:
    """Whether coverage.py measures this process."""
    return _measurement() is not None


def _measurement() -> Any:
    """Return the running measurement, an instance of ``coverage.Coverage``; None if there is none."""
    coverage = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage is not None and hasattr(coverage, "Coverage") else None
