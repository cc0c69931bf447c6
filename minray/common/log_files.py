"""Log files of one node, as its raylet sees them: what it can ask for, whatever world it runs in.

Ray: python/ray/dashboard/modules/log/log_agent.py

The raylet writes the output of workers into log files, and reads all log files of its session for others. The real files
are in ``minray/platform/process/log_directory.py``. A simulated raylet has files in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

MOST_CHARACTERS_OF_A_NAME = 255
"""Longest name of a file that Linux and macOS allow."""


class LogSink(Protocol):
    """An open log file. Its methods may raise OSError, which the caller handles: a full disk must not end a raylet."""

    def write(self, text: str, heading: str = "", /) -> int:
        """Append text. If the file is full and a new one begins, it begins with ``heading``."""

    def close(self) -> None: ...


OpenLog = Callable[[str], LogSink]
"""Function that opens a log file by its name for appending; it may raise OSError."""


class LogEntry(NamedTuple):
    """One log file as it is now."""

    name: str
    size: int
    """Size in bytes."""
    modified: float
    """Wall-clock time of the last write, in seconds since the epoch."""
    inode: int
    """Number that stays with the file when it is renamed."""


class LogDirectory(Protocol):
    """The directory of a session's log files. It shows plain files only, and never follows a link."""

    def open_sink(self, name: str) -> LogSink:
        """Open a log file for appending. Raises OSError."""

    async def entries(self, names: Sequence[str] | None = None) -> list[LogEntry]:
        """Return the files with these names that exist, in this order; None: all files, by name."""

    async def read(self, name: str, inode: int, start: int, size: int) -> bytes | None:
        """Return at most ``size`` bytes from ``start`` on; less only at the end of the file. None: the name is that of
        another file now, or of none. Raises OSError."""


def is_plain_name(name: str) -> bool:
    """Tell whether a name can be that of a log file: it leads to no other directory."""
    return 0 < len(name) <= MOST_CHARACTERS_OF_A_NAME and name not in (".", "..") and not {"/", "\\", "\0"} & set(name)


def series_of(name: str, backup_count: int) -> list[str]:
    """Return the names of a file and its backups, oldest first."""
    return [*(f"{name}.{number}" for number in range(backup_count, 0, -1)), name]
