"""Reports the counters and histograms of a worker to its raylet, so that they are not lost when the worker ends.

Ray: src/ray/stats/metric_exporter.h, which sends every value of every process to an agent of its node

A worker whose programs record nothing sends nothing and has no timer. After a value was recorded, a report follows within
``metrics_report_interval_ms``, however many values follow. A worker that ends in order reports once more, with the counts
of the tasks that it has owned. A killed worker has told all but the values of the last interval.

A driver reports nothing, because its job is over when it ends. Nor are gauges reported: a gauge says how something is now.
"""

from __future__ import annotations

import asyncio

from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.metric_registry import MetricRegistry, registry
from minray.core_worker.introspection.process_metrics import ProcessFigures
from minray.rpc.connection import ignore


class MetricReporter:
    """Sends the reports of one worker; of a driver none."""

    def __init__(self, process: Process, figures: ProcessFigures) -> None:
        self._process = process
        self._figures = figures
        self._interval_s = process.config.system_config.metrics_report_interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0
        """Number of the last report."""
        self._registry: MetricRegistry | None = None
        """The values of this process; None before ``begin``, and always in a driver."""

    def begin(self) -> None:
        """Report from now on what programs record; from any thread."""
        if self._interval_s and not self._process.config.is_driver:
            self._registry = registry()
            self._await_change(self._registry)

    def close(self) -> None:
        if self._registry is not None:
            self._registry.call_on_change(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def report(self) -> None:
        """Report now, unless there is nothing to report."""
        known = self._registry
        if known is None:
            return
        self.close()
        metrics = self._figures.lasting()
        if metrics.families or metrics.system:
            from minray.protocol.metrics import ReportMetrics  # Drivers, which report nothing, import this file, too.

            self._number += 1
            self._process.raylet.send(ReportMetrics(self._number, metrics), ignore)
        self._await_change(known)

    def _await_change(self, known: MetricRegistry) -> None:
        post = self._process.platform.user_code.post
        known.call_on_change(lambda: post(self._begin_timer))

    def _begin_timer(self) -> None:
        if self._timer is None and not self._process.is_exiting:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.report)
