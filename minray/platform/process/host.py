"""The real machine: its name, the CPUs and memory this process may use, entropy and the wall clock.

Ray: python/ray/_private/utils.py (get_num_cpus, get_system_memory), python/ray/_private/worker.py (init, which raises the
limit of open files), src/ray/common/cgroup2

In a container, control groups limit what the machine offers. Both versions of them are read, from our own group up to the
root; the tightest limit of any level holds.

Rules
  * Shares of CPUs are rounded down to whole CPUs, but never below one.
  * A file that cannot be read sets no limit.
  * psutil and ``machine_usage`` are imported where they are used, since only raylets use them: in each driver they would
    take a megabyte.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from minray.platform.process import limits

if TYPE_CHECKING:
    from minray.common.machine_usage import MachineUsage, ProcessUsage
    from minray.platform.process.gpu_meter import GpuMeter

MOST_FILES = 1 << 20
"""The largest limit of open files that a process asks for: more than any process opens."""
LOOPBACKS = ("lo", "lo0")
"""Names of the interface on which a machine talks to itself, on Linux and macOS."""
_open, _read, _close = os.open, os.read, os.close
"""The functions of ``os``, kept here because tests replace those while a loop is awake."""


class RealHost:
    """This machine, as far as this process may use it. Tests pass a ``root`` other than / to find /proc and /sys in."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)
        self.hostname = socket.gethostname()
        self.cpu_count = _cpu_count(Path(root))
        self.memory_bytes = _memory_bytes(Path(root))
        self._gpus: GpuMeter | None = None
        """Made by the first question about the machine."""

    def memory_usage(self) -> tuple[int, int]:
        import psutil

        machine = psutil.virtual_memory()
        usages = [(machine.total - machine.available, machine.total)]
        for limit, used, cache in _memory_files(self._root):
            with suppress(OSError, ValueError):
                usages.append((int(used.read_text()) - _inactive_file(cache), int(limit.read_text())))
        return max(usages, key=lambda usage: usage[0] / usage[1])

    def process_memory(self, pid: int) -> int:
        import psutil

        with suppress(psutil.Error, OSError):
            memory = psutil.Process(pid).memory_info()
            return int(memory.rss - getattr(memory, "shared", 0))
        return 0

    def machine_usage(self) -> MachineUsage:
        import psutil

        from minray.common.machine_usage import MachineUsage

        if self._gpus is None:
            from minray.platform.process.devices import RealDevices
            from minray.platform.process.gpu_meter import GpuMeter

            self._gpus = GpuMeter(RealDevices(str(self._root)))
        cpu, memory, disk = psutil.cpu_times(), psutil.virtual_memory(), psutil.disk_usage(str(self._root))
        idle_s = cpu.idle + getattr(cpu, "iowait", 0.0)
        guest_s = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)  # Linux counts it as user time, too.
        total_s = sum(cpu) - guest_s
        transfers = psutil.disk_io_counters()
        cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name not in LOOPBACKS]
        return MachineUsage(
            cpu_count=psutil.cpu_count() or 1,
            cpu_busy_s=total_s - idle_s,
            cpu_total_s=total_s,
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            memory_shared=getattr(memory, "shared", 0),
            disk_used=disk.used,
            disk_free=disk.free,
            disk_read_bytes=transfers.read_bytes if transfers else 0,
            disk_written_bytes=transfers.write_bytes if transfers else 0,
            disk_reads=transfers.read_count if transfers else 0,
            disk_writes=transfers.write_count if transfers else 0,
            network_sent_bytes=sum(card.bytes_sent for card in cards),
            network_received_bytes=sum(card.bytes_recv for card in cards),
            gpus=self._gpus.measure(),
        )

    def process_usage(self, pid: int) -> ProcessUsage | None:
        import psutil

        from minray.common.machine_usage import ProcessUsage

        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            with process.oneshot():
                cpu, memory, line = process.cpu_times(), process.memory_info(), process.cmdline()
                return ProcessUsage(
                    cpu_s=cpu.user + cpu.system,
                    rss_bytes=memory.rss,
                    shared_bytes=getattr(memory, "shared", 0),
                    open_files=process.num_fds() if hasattr(process, "num_fds") else -1,
                    title=line[0] if line else "",
                )
        return None

    def shortage(self) -> str:
        return limits.shortage()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def random(self) -> float:
        return random.random()

    def time(self) -> float:
        return time.time()


def raise_file_limit() -> int:
    """Raise the limit of open files to what is allowed, at most ``MOST_FILES``, and return it. Children inherit it.

    Shells often set 1,024. A driver has a connection to each actor that it calls, a raylet several to each worker.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit.
        return MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS has a lower limit that it does not report.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return soft


def runnable_threads(path: str = "/proc/loadavg") -> int:
    """Return how many threads of the whole machine run or could run, this one included; 0 if the system does not say."""
    try:
        descriptor = _open(path, os.O_RDONLY)
        try:
            return int(_read(descriptor, 100).split()[3].partition(b"/")[0])
        finally:
            _close(descriptor)
    except (OSError, ValueError, IndexError):  # macOS; too many open files
        return 0


def _cpu_count(root: Path) -> int:
    try:
        available = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        available = os.cpu_count() or 1
    quotas: list[float] = []
    for group in _groups(root, ""):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
    for group in _groups(root, "cpu"):
        with suppress(OSError, ValueError):
            quota_us = int((group / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                quotas.append(quota_us / int((group / "cpu.cfs_period_us").read_text()))
    return max(1, min([available, *map(int, quotas)]))


def _memory_bytes(root: Path) -> int:
    limits = [_physical_bytes()]
    for limit, _, _ in _memory_files(root):
        with suppress(OSError, ValueError):  # Version 2 says "max" where there is no limit.
            limits.append(int(limit.read_text()))
    return min(limits)


def _physical_bytes() -> int:
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil

    return int(psutil.virtual_memory().total)


def _memory_files(root: Path) -> Iterator[tuple[Path, Path, Path]]:
    """Yield, for each control group that may limit this process, the files of its limit, its use and its statistics."""
    versions = (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    for controller, limit, used in versions:
        for group in _groups(root, controller):
            yield group / limit, group / used, group / "memory.stat"


def _inactive_file(statistics: Path) -> int:
    """Return the bytes of cached files that the kernel gives up when memory is needed."""
    for line in statistics.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of our control group and those above it: of version 2, or, with a controller, of version 1."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and (controller or number == "0"):
                mount = root / "sys/fs/cgroup" / controller
                group = mount / path.lstrip("/")
                yield group
                while group != mount and mount in group.parents:
                    group = group.parent
                    yield group
