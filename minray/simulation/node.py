"""One simulated machine: its size, what is on its disk, and what is wrong with the disk.

Processes of the machine write here through ``SimDisk``, ``SimDiskArena`` and the simulated storage. The faults of the
world and the steps of a test set what is wrong. What a machine has on its disk outlives its processes, and is gone when
the machine is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Table = dict[str, bytes]


@dataclass
class SimNode:
    """One machine."""

    name: str
    cpu_count: int = 4
    memory_bytes: int = 8 << 30
    memory_used: int = 1 << 30
    process_memory: dict[int, int] = field(default_factory=dict)
    """Bytes that processes use, by pid, where a test has set them."""
    disk: dict[str, dict[str, Table]] = field(default_factory=dict)
    """Durable stores by path."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Contents of spill files, by path; written by ``SimDisk``."""
    directories: dict[str, bytes] = field(default_factory=dict)
    """Packages by the directory to which they were unpacked; written by ``SimUserCode``."""
    reserved: dict[str, dict[int, int]] = field(default_factory=dict)
    """Disk space reserved for arenas: by process, start -> size in bytes; written by ``SimDiskArena``."""
    disk_bytes: int = 1 << 40
    """Size of the disk in bytes, for spill files and reserved space together."""
    disk_full: bool = False
    """Whether nothing can be written."""
    disk_broken: bool = False
    """Whether no file can be read or written."""
    disk_tears: bool = False
    """Whether files are damaged when they are written."""
    lost: bool = False

    def disk_room(self) -> int:
        """Return how many bytes can be written."""
        files = sum(len(content) for content in self.files.values())
        reserved = sum(size for blocks in self.reserved.values() for size in blocks.values())
        return 0 if self.disk_full else max(0, self.disk_bytes - files - reserved)
