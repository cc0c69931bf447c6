"""Files of one directory, written and read in threads, so that the loop of their process never waits for a disk.

Ray: python/ray/_private/external_storage.py (FileSystemStorage), src/ray/common/file_system_monitor.h

Rules
  * Only this user can read a file. A write never reuses a file that existed before.
  * The directory stays open from its first use on, so a link that is put in its place later has no effect. A read checks
    that the file is the one that was written: this user's, with the same inode.
  * A file is written once, and closed before its name is given to anybody. If the disk refuses to take more, the file is
    cut after the last complete piece; a file without any is removed.
  * A file system that is fuller than the threshold counts as full: other programs need the rest.
  * The same threads compute the checksum of each piece right after they write or read it, while it is in the CPU's cache.

Files are not synced: they are worth nothing when their process is gone. The kernel may keep them in its cache for as long as
it has memory to spare.
"""

from __future__ import annotations

import errno
import logging
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial

from minray.platform.base import Buffer, DiskBusy, DiskFailed, DiskFull
from minray.platform.storage.disk_threads import DiskThreads
from minray.platform.storage.private_paths import PlainDirectory, PrivateDirectory, open_directory

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

logger = logging.getLogger(__name__)


class RealDisk:
    """Implements ``base.Disk`` with a directory of this machine."""

    def __init__(self, path: str, capacity_threshold: float) -> None:
        self._path = path
        self._capacity_threshold = capacity_threshold
        self._inodes: dict[str, int] = {}
        """Inodes of the files that were written and not removed, by file name."""
        self._threads = DiskThreads("minray-disk")

    @cached_property
    def _directory(self) -> PrivateDirectory | PlainDirectory:
        return open_directory(self._path)

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        failing = f"{self._place(name)} could not be written"
        return await self._threads.run(failing, partial(self._write, name, pieces, failing))

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        failing = f"{self._place(name)} could not be read"
        return await self._threads.run(failing, partial(self._read, name, start, pieces, failing))

    def remove(self, name: str) -> None:
        self._threads.post(partial(self._remove, name))  # After ``close``, removing the session removes the directory.

    async def close(self) -> None:
        self._threads.close()

    def _place(self, name: str) -> str:
        return os.path.join(self._path, name)

    # --- in the threads

    def _write(self, name: str, pieces: Sequence[Buffer], failing: str) -> list[int]:
        checksums: list[int] = []
        try:
            check_capacity(self._path, sum(memoryview(piece).nbytes for piece in pieces), self._capacity_threshold)
            file = open(self._directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0)
        except OSError as error:
            raise failure(failing, error) from error
        self._inodes[name] = os.fstat(file.fileno()).st_ino
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
                self._remove(name)
            raise failure(failing, error, checksums) from error
        return checksums

    def _read(self, name: str, start: int, pieces: Sequence[memoryview], failing: str) -> list[int]:
        checksums: list[int] = []
        try:
            with open(name, "rb", buffering=0, opener=self._directory.open) as file:
                if os.fstat(file.fileno()).st_ino != self._inodes.get(name):
                    raise DiskFailed(f"{failing}: it is another file than the one that was written")
                file.seek(start)
                for piece in pieces:
                    rest = piece
                    while rest.nbytes:
                        count = file.readinto(rest)
                        if not count:
                            raise DiskFailed(f"{failing}: it is shorter than when it was written")
                        rest = rest[count:]
                    checksums.append(zlib.crc32(piece))
        except OSError as error:
            raise failure(failing, error) from error
        return checksums

    def _remove(self, name: str) -> None:
        self._inodes.pop(name, None)
        with suppress(FileNotFoundError):
            try:
                self._directory.unlink(name)
            except OSError as error:
                logger.warning("%s could not be removed: %s", self._place(name), error.strerror)


def check_capacity(place: str | int, size: int, threshold: float) -> None:
    """Raise OSError if ``size`` more bytes would make a file system fuller than the threshold, a share of it (0 to 1).

    ``place`` is a path or an open descriptor in the file system.
    """
    used, free = _used_and_free(place)
    if used + size > threshold * (used + free):
        percent = 100 * used / (used + free) if used + free else 100.0
        most = f"{100 * threshold:g} %"
        message = f"its file system is {percent:.1f} % full; with {size} bytes more it would be fuller than {most}"
        raise OSError(errno.ENOSPC, message)


def _used_and_free(place: str | int) -> tuple[int, int]:
    """Return the bytes of a file system that are in use, and those that this user may use."""
    if not hasattr(os, "statvfs"):
        import shutil

        usage = shutil.disk_usage(place)
        return usage.used, usage.free
    system = os.statvfs(place)
    return (system.f_blocks - system.f_bfree) * system.f_frsize, system.f_bavail * system.f_frsize


def _write_piece(descriptor: int, piece: Buffer) -> None:
    rest = memoryview(piece).cast("B")
    while rest.nbytes:
        rest = rest[os.write(descriptor, rest) :]


def failure(what: str, error: OSError, checksums: Sequence[int] = ()) -> DiskFailed:
    """Return the ``DiskFailed`` that reports this error above the seam."""
    return kind_of(error)(f"{what}: {error.strerror}", checksums)


def kind_of(error: Exception) -> type[DiskFailed]:
    """Return the class of ``DiskFailed`` that fits this error."""
    number = error.errno if isinstance(error, OSError) else None
    if number in BUSY or isinstance(error, MemoryError | ConnectionError | TimeoutError):
        return DiskBusy
    return DiskFull if number in FULL else DiskFailed
