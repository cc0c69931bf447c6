"""How much of a machine, and of one process, is in use: what the host measures for the system metrics.

Ray: what psutil tells python/ray/dashboard/modules/reporter/reporter_agent.py

Times and counts only grow, so two measurements give the use and the speeds in between (``between``). Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class GpuUsage(NamedTuple):
    """One measurement of a GPU."""

    number: int
    """Place of the GPU in the order of NVIDIA's library."""
    name: str
    """Product name, such as "NVIDIA H100 80GB HBM3"."""
    percent: float | None
    """Share of the last moments in which the GPU worked, in percent; None if it does not tell."""
    memory_used: int
    memory_total: int
    """Bytes of the GPU's own memory."""
    power_milliwatts: float | None
    temperature_celsius: float | None
    """None if the GPU does not tell."""


class MachineUsage(NamedTuple):
    """One measurement of a machine."""

    cpu_count: int
    """Number of logical CPUs of the machine; a limit on this process does not change it."""
    cpu_busy_s: float
    """Seconds that all CPUs together have worked since the machine started."""
    cpu_total_s: float
    """Seconds that all CPUs together have worked or idled."""
    memory_used: int
    memory_total: int
    """Bytes of the machine's memory; a limit on this process does not change them."""
    memory_shared: int
    """Bytes of memory that processes share, such as the arenas of object stores."""
    disk_used: int
    disk_free: int
    """Bytes of the file system at ``/``."""
    disk_read_bytes: int
    disk_written_bytes: int
    disk_reads: int
    disk_writes: int
    """Operations of all disks since the machine started."""
    network_sent_bytes: int
    network_received_bytes: int
    """Bytes on all interfaces but the loopback since the machine started."""
    gpus: tuple[GpuUsage, ...] = ()
    """GPUs that answer, by index; empty without GPUs, or without the library that measures them."""


class ProcessUsage(NamedTuple):
    """One measurement of a process."""

    cpu_s: float
    """Seconds that its threads have worked since it started."""
    rss_bytes: int
    """Resident memory, with what it shares with others."""
    shared_bytes: int
    """Part of the resident memory that others may share."""
    open_files: int
    """Number of open file descriptors; -1 if the system does not tell."""
    title: str
    """Title that lists of processes show, of a worker ``ray::f`` while it runs ``f``; empty if it is not known."""


class MachineSpeeds(NamedTuple):
    """Work of a machine between two measurements."""

    cpu_percent: float
    """Share of all CPUs that worked, in percent."""
    disk_read_bytes: float
    disk_written_bytes: float
    disk_reads: float
    disk_writes: float
    network_sent_bytes: float
    network_received_bytes: float
    """Amounts per second."""


def between(before: MachineUsage, after: MachineUsage, seconds: float) -> MachineSpeeds:
    """Return the speeds between two measurements, ``seconds`` apart. A counter that was reset counts as unchanged."""

    def speed(name: str) -> float:
        grown: float = getattr(after, name) - getattr(before, name)
        return max(0.0, grown) / seconds

    total_s = after.cpu_total_s - before.cpu_total_s
    busy_s = max(0.0, after.cpu_busy_s - before.cpu_busy_s)
    return MachineSpeeds(
        cpu_percent=min(100.0, 100 * busy_s / total_s) if total_s > 0 else 0.0,
        disk_read_bytes=speed("disk_read_bytes"),
        disk_written_bytes=speed("disk_written_bytes"),
        disk_reads=speed("disk_reads"),
        disk_writes=speed("disk_writes"),
        network_sent_bytes=speed("network_sent_bytes"),
        network_received_bytes=speed("network_received_bytes"),
    )


def cpu_percent(before: ProcessUsage, after: ProcessUsage, seconds: float) -> float:
    """Return the CPU use of a process between two measurements: 100 is one CPU."""
    return max(0.0, 100 * (after.cpu_s - before.cpu_s) / seconds)
