"""Files of one directory, written and read in threads, so that the loop of their process never waits for a disk.

Ray: python/ray/_private/external_storage.py (FileSystemStorage), src/ray/common/file_system_monitor.h

Rules
  * Only this user can read a file, and it is never a file that was there before.
  * A file is written once, and closed before anybody hears of it. If the disk refuses to take more, the file is cut after
    the last piece that is whole; a file without any is removed.
  * A file system that is fuller than the threshold is full: others need the rest.
  * Checksums are made in the same threads, of each piece while it is warm.

Files are not synced: they are worth nothing when their process is gone, and the kernel may keep them in its cache for as
long as it has memory to spare.
"""

from __future__ import annotations

import errno
import logging
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from minray.platform.base import Buffer, DiskBusy, DiskFailed, DiskFull
from minray.platform.disk_threads import DiskThreads

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

logger = logging.getLogger(__name__)


class RealDisk:
    """See ``base.Disk``."""

    def __init__(self, path: str, capacity_threshold: float) -> None:
        self._path = path
        self._capacity_threshold = capacity_threshold
        self._threads = DiskThreads("minray-disk")

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        place = self._place(name)
        return await self._threads.run(f"{place} could not be written", partial(self._write, place, pieces))

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        place = self._place(name)
        return await self._threads.run(f"{place} could not be read", partial(_read, place, start, pieces))

    def remove(self, name: str) -> None:
        self._threads.post(partial(_remove, self._place(name)))  # If it is closed, the directory goes with its session.

    async def close(self) -> None:
        self._threads.close()

    def _place(self, name: str) -> str:
        return os.path.join(self._path, name)

    # --- in the threads

    def _write(self, place: str, pieces: Sequence[Buffer]) -> list[int]:
        checksums: list[int] = []
        try:
            check_capacity(self._path, sum(memoryview(piece).nbytes for piece in pieces), self._capacity_threshold)
            file = open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", buffering=0)
        except OSError as error:
            raise failure(f"{place} could not be written", error) from error
        size = 0
        try:
            with file:
                try:
                    for piece in pieces:
                        _write_piece(file.fileno(), piece)
                        checksums.append(zlib.crc32(piece))
                        size += memoryview(piece).nbytes
                finally:
                    os.ftruncate(file.fileno(), size)
        except OSError as error:
            if not size:
                _remove(place)
            raise failure(f"{place} could not be written", error, checksums) from error
        return checksums


def check_capacity(place: str | int, size: int, threshold: float) -> None:
    """Raises OSError if so many bytes more would make a file system, by path or open file, fuller than the threshold."""
    system = os.statvfs(place)
    used, free = system.f_blocks - system.f_bfree, system.f_bavail
    if used * system.f_frsize + size > threshold * (used + free) * system.f_frsize:
        percent = 100 * used / (used + free) if used + free else 100.0
        most = f"{100 * threshold:g} %"
        message = f"its file system is {percent:.1f} % full; with {size} bytes more it would be fuller than {most}"
        raise OSError(errno.ENOSPC, message)


def _write_piece(descriptor: int, piece: Buffer) -> None:
    rest = memoryview(piece).cast("B")
    while rest.nbytes:
        rest = rest[os.write(descriptor, rest) :]


def _read(place: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
    checksums: list[int] = []
    try:
        with open(place, "rb", buffering=0) as file:
            file.seek(start)
            for piece in pieces:
                rest = piece
                while rest.nbytes:
                    count = file.readinto(rest)
                    if not count:
                        raise DiskFailed(f"{place} could not be read: it is shorter than it was")
                    rest = rest[count:]
                checksums.append(zlib.crc32(piece))
    except OSError as error:
        raise failure(f"{place} could not be read", error) from error
    return checksums


def _remove(place: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(place)
        except OSError as error:
            logger.warning("%s could not be removed: %s", place, error.strerror)


def failure(what: str, error: OSError, checksums: Sequence[int] = ()) -> DiskFailed:
    """As it is told above the seam."""
    return kind_of(error)(f"{what}: {error.strerror}", checksums)


def kind_of(error: Exception) -> type[DiskFailed]:
    """Which of them tells of this error."""
    number = error.errno if isinstance(error, OSError) else None
    if number in BUSY or isinstance(error, MemoryError | ConnectionError | TimeoutError):
        return DiskBusy
    return DiskFull if number in FULL else DiskFailed
