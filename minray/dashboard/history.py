"""The last ten minutes of a cluster in numbers, one sample every five seconds.

Ray: has no counterpart; its page embeds Grafana, which needs Prometheus

The dashboard takes samples as long as it runs, since nobody knows beforehand when the history is wanted. A sample is made
from the gcs's tables and a few questions to each node. While the cluster does not answer, samples have no
values, so that a gap is seen as a gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from minray.common.resources import CPU, GPU, MEMORY
from minray.dashboard.cluster_state import DashboardState
from minray.dashboard.tables import Usage

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Seconds between two samples."""
SAMPLES = 120
"""Number of samples kept: ten minutes."""
UNITS = {
    "cpu_percent": "%", "ram_used": "bytes", "ram_total": "bytes", "disk_used": "bytes", "nodes": "", "cpus_used": "",
    "cpus_total": "", "gpus_used": "", "memory_used": "bytes", "store_used": "bytes", "store_total": "bytes",
    "spilled": "bytes", "workers": "", "waiting": "", "jobs": "", "silent": "",
}  # fmt: skip
"""Unit of each series."""


def series_of(summary: dict[str, Any], usage: Usage) -> dict[str, float]:
    """Return the values of a sample from a summary of the cluster and its machines; none if it does not answer."""
    machines = list(usage.values())

    def of_machines(name: str) -> float:
        return sum(machine.get(name, 0.0) for machine in machines)

    if not summary["is_connected"]:
        return {}
    total, available = summary["resources_total"], summary["resources_available"]

    def used(name: str) -> float:
        return float(total.get(name, 0.0) - available.get(name, 0.0))

    return {
        "cpu_percent": round(of_machines("node_cpu_utilization") / max(1, len(machines)), 1),
        "ram_used": of_machines("node_mem_used"),
        "ram_total": of_machines("node_mem_total"),
        "disk_used": of_machines("node_disk_usage"),
        "nodes": summary["nodes_alive"],
        "cpus_used": used(CPU),
        "cpus_total": total.get(CPU, 0.0),
        "gpus_used": used(GPU),
        "memory_used": used(MEMORY),
        "store_used": summary["store_used"],
        "store_total": summary["store_total"],
        "spilled": summary["spilled_bytes"],
        "workers": summary["workers"],
        "waiting": summary["waiting"],
        "jobs": summary["jobs_running"],
        "silent": len(summary["silent"]),
    }


class History:
    """A ring of samples."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        self._samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sample(), name="history")

    async def _sample(self) -> None:
        while True:
            try:
                summary = await self._state.cluster()
                usage = await self._state.usage() if summary["is_connected"] else {}
                self.add(self._state.connection.platform.host.time(), summary, usage)
            except Exception:  # A bug of minray; later samples are still wanted.
                logger.exception("a sample for the history could not be taken")
            await asyncio.sleep(PERIOD_S)

    def add(self, time_s: float, summary: dict[str, Any], usage: Usage) -> None:
        self._samples.append({"time": round(time_s, 1), "series": series_of(summary, usage)})

    def facts(self) -> dict[str, Any]:
        return {"period_s": PERIOD_S, "units": UNITS, "samples": list(self._samples)}

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
