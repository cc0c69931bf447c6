"""Answers questions for the system metrics of the gcs: its process, and the tasks of ended processes that it keeps.

Ray: src/ray/gcs/metrics.h

The other figures of Ray's gcs are counted by the reader, from tables that the gcs publishes: nodes, jobs, actors, placement
groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from minray.common.loop_lag import event_loop_lag_ms
from minray.common.machine_usage import ProcessUsage, cpu_percent
from minray.gcs.gcs_task_manager import GcsTaskManager
from minray.platform.base import Platform
from minray.protocol.metrics import GcsMetrics, GetGcsMetrics
from minray.protocol.state import SystemValue
from minray.rpc.request_meter import RequestMeter
from minray.rpc.service import Call

LEAST_S, MOST_S = 0.2, 60.0
"""Minimum and maximum seconds between the two measurements of which a CPU use is made."""
WAIT_S = 0.25
"""Seconds between two measurements if there is no earlier one."""
COMPONENT = {"Component": "gcs"}


class GcsMetricsService:
    """Serves the question for the figures of one gcs."""

    def __init__(self, platform: Platform, tasks: GcsTaskManager, requests: RequestMeter) -> None:
        self._platform = platform
        self._requests = requests
        self._tasks = tasks
        self._last: tuple[float, ProcessUsage | None] | None = None
        """Time and result of the last measurement."""

    async def handle_GetGcsMetrics(self, request: GetGcsMetrics, call: Call) -> GcsMetrics:
        loop, lag_ms = asyncio.get_running_loop(), await event_loop_lag_ms()
        before = self._last
        if before is None or not LEAST_S <= loop.time() - before[0] <= MOST_S:
            before = loop.time(), self._measure()
            await asyncio.sleep(WAIT_S)
        self._last = loop.time(), self._measure()
        lag = SystemValue("io_context_event_loop_lag_ms", lag_ms, {"Name": "gcs_server"})
        return GcsMetrics([*self._process(before, self._last), *self._events(), *self._requests.values(), lag])

    def _measure(self) -> ProcessUsage | None:
        return self._platform.host.process_usage(self._platform.processes.pid)

    @staticmethod
    def _process(
        before: tuple[float, ProcessUsage | None], after: tuple[float, ProcessUsage | None]
    ) -> Iterator[SystemValue]:
        (began_at, first), (ended_at, last) = before, after
        if first is None or last is None:
            return
        own_bytes = max(0, last.rss_bytes - last.shared_bytes)
        for name, value in {
            "component_cpu_percentage": cpu_percent(first, last, max(ended_at - began_at, LEAST_S)),
            "component_rss_bytes": last.rss_bytes,
            "component_rss_mb": last.rss_bytes / 1e6,
            "component_shared_bytes": last.shared_bytes,
            "component_uss_bytes": own_bytes,
            "component_uss_mb": own_bytes / 1e6,
        }.items():
            yield SystemValue(name, float(value), COMPONENT)
        if last.open_files >= 0:
            yield SystemValue("component_num_fds", float(last.open_files), COMPONENT)

    def _events(self) -> Iterator[SystemValue]:
        yield SystemValue("gcs_task_manager_task_events_stored", float(self._tasks.tasks))
        yield SystemValue("gcs_task_manager_task_events_dropped", float(self._tasks.dropped()))
