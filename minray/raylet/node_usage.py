"""Measures the use of a node's machine and of its processes, for the system metrics.

Ray: python/ray/dashboard/modules/reporter/reporter_agent.py

Speeds and percentages need two measurements. The first is that of the last question, if that was less than a minute ago.
Otherwise two are made a quarter second apart, so that a single question is answered exactly, too. Nothing is measured
while nobody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from minray.common.machine_usage import MachineSpeeds, MachineUsage, ProcessUsage, between, cpu_percent
from minray.platform.base import Host

LEAST_S, MOST_S = 0.2, 60.0
"""Minimum and maximum seconds between two measurements that make a speed."""
WAIT_S = 0.25
"""Seconds between two measurements if there is no earlier one."""


class Component(NamedTuple):
    """The use of one process."""

    usage: ProcessUsage
    cpu_percent: float | None
    """Use of CPUs, where 100 is one CPU; None if the process was not measured before."""


class NodeUsage(NamedTuple):
    """The use of a machine and of some of its processes."""

    machine: MachineUsage
    speeds: MachineSpeeds
    components: dict[int, Component]
    """Processes by pid; one that has ended is missing."""


class _Measurement(NamedTuple):
    at: float
    machine: MachineUsage
    processes: dict[int, ProcessUsage]


class UsageMeter:
    """Measures one node, as often as it is asked."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._last: _Measurement | None = None

    async def measure(self, pids: list[int]) -> NodeUsage:
        """Measure the machine and these processes. Raises OSError if the machine cannot be measured."""
        before = self._last
        now = asyncio.get_running_loop().time()
        if before is None or not LEAST_S <= now - before.at <= MOST_S:
            before = self._read(pids)
            await asyncio.sleep(WAIT_S)
        after = self._last = self._read(pids)
        seconds = max(after.at - before.at, LEAST_S)
        return NodeUsage(
            after.machine,
            between(before.machine, after.machine, seconds),
            {
                pid: Component(usage, _percent(before.processes, pid, usage, seconds))
                for pid, usage in after.processes.items()
            },
        )

    def _read(self, pids: list[int]) -> _Measurement:
        usages = {pid: self._host.process_usage(pid) for pid in pids}
        processes = {pid: usage for pid, usage in usages.items() if usage is not None}
        return _Measurement(asyncio.get_running_loop().time(), self._host.machine_usage(), processes)


def _percent(before: Mapping[int, ProcessUsage], pid: int, usage: ProcessUsage, seconds: float) -> float | None:
    """Return the CPU use of a process; None if it was not measured before, or another process had the pid then."""
    known = before.get(pid)
    return None if known is None or known.cpu_s > usage.cpu_s else cpu_percent(known, usage, seconds)
