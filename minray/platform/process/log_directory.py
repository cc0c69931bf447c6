"""The log files of a session: written with rotation, listed, and read in pieces without leaving their directory.

Ray: python/ray/dashboard/modules/log/log_agent.py (which joins the name to the path, and checks the result)

Rules
  * A file is opened relative to the open directory, by a name without a directory.
  * A link is never followed, and only plain files are opened, so nothing outside can be read and no pipe holds up a reader.
  * Reading happens in threads: a log of half a gigabyte may not be in the kernel's cache.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from minray.common.log_files import LogEntry, is_plain_name
from minray.platform.process.rotating_log import RotatingLog

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class SessionLogs:
    """Implements ``LogDirectory`` with a directory of this machine."""

    def __init__(self, path: str, max_bytes: int, backup_count: int) -> None:
        """``max_bytes`` and ``backup_count``: see ``RotatingLog``."""
        self._path = path
        self._max_bytes = max_bytes
        self._backup_count = backup_count

    def open_sink(self, name: str) -> RotatingLog:
        return RotatingLog(os.path.join(self._path, name), self._max_bytes, self._backup_count)

    async def entries(self, names: Sequence[str] | None = None) -> list[LogEntry]:
        return await asyncio.to_thread(self._entries, names)

    async def read(self, name: str, inode: int, start: int, size: int) -> bytes | None:
        return await asyncio.to_thread(self._read, name, inode, start, size)

    def _entries(self, names: Sequence[str] | None) -> list[LogEntry]:
        found: list[LogEntry] = []
        with self._open_directory() as directory:
            for name in sorted(os.listdir(directory)) if names is None else names:
                with suppress(FileNotFoundError):  # it was removed or renamed meanwhile
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and _is_text(name):
                        found.append(LogEntry(name, status.st_size, status.st_mtime, status.st_ino))
        return found

    def _read(self, name: str, inode: int, start: int, size: int) -> bytes | None:
        assert is_plain_name(name), name
        with self._open_directory() as directory:
            try:
                descriptor = os.open(name, _FLAGS, dir_fd=directory)
            except FileNotFoundError:
                return None
            try:
                status = os.fstat(descriptor)
                is_it = status.st_ino == inode and stat.S_ISREG(status.st_mode)
                return _read_fully(descriptor, start, size) if is_it else None
            finally:
                os.close(descriptor)

    @contextmanager
    def _open_directory(self) -> Iterator[int]:
        directory = os.open(self._path, _FLAGS | os.O_DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)


def _read_fully(descriptor: int, start: int, size: int) -> bytes:
    """Read ``size`` bytes, or all up to the end of the file. One call may return less, when a signal arrives."""
    pieces: list[bytes] = []
    while size and (piece := os.pread(descriptor, size, start)):
        pieces.append(piece)
        start += len(piece)
        size -= len(piece)
    return b"".join(pieces)


def _is_text(name: str) -> bool:
    """Tell whether a name can travel in a message: one with bytes that are no text cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
