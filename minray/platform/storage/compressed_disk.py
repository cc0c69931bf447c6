"""A disk whose files are smaller than what is written into them: each piece is compressed for itself.

Ray: the ``compression`` of smart_open, which python/ray/_private/external_storage.py can be told to use

Pieces are compressed one by one so that a part of an object can be read without the rest. Where each of them begins in its
file is remembered here and nowhere else: like the checksums, for the files are worth nothing without their raylet. Checksums
are those of the pieces as they were given, so that a wrong one tells of damage on the disk and of a bad compression alike.

Random bytes do not get smaller; numbers and text do, at about 100 MB/s and thread. It pays where a disk is slow or small.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from minray.platform.base import Buffer, Disk, DiskFailed
from minray.platform.storage.disk_threads import DiskThreads

LEVEL = 1
"""The fastest: the next ones cost more time than they save."""

T = TypeVar("T")


class _Piece(NamedTuple):
    """Where a piece is in its file."""

    start: int
    size: int


class CompressedDisk:
    """See ``base.Disk``. Pieces are read as they were written: none of them in part, or with a part of another."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, dict[int, _Piece]] = {}
        """By name, the pieces by where each would begin if nothing were compressed."""
        self._threads = DiskThreads("minray-zlib")

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        failing = f"{name} could not be written"
        packed = await self._in_threads(failing, (partial(zlib.compress, piece, LEVEL) for piece in pieces))
        checksums = await self._in_threads(failing, (partial(zlib.crc32, piece) for piece in pieces))
        places = self._files[name] = {}
        start = packed_start = 0
        for piece, small in zip(pieces, packed, strict=True):
            places[start] = _Piece(packed_start, len(small))
            start += memoryview(piece).nbytes
            packed_start += len(small)
        try:
            await self._disk.write(name, packed)
        except DiskFailed as error:
            whole = len(error.checksums)
            if not whole:
                del self._files[name]
            raise type(error)(str(error), checksums[:whole]) from error
        return checksums

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        places = self._files.get(name, {})
        found: list[_Piece] = []
        for piece in pieces:
            if start not in places:
                raise DiskFailed(f"{name} could not be read: no such file, or no piece of it begins at byte {start}")
            found.append(places[start])
            start += piece.nbytes
        failing = f"{name} could not be read"
        packed = await self._threads.run(failing, lambda: [memoryview(bytearray(at.size)) for at in found])
        if packed:
            await self._disk.read(name, found[0].start, packed)
        pairs = zip(packed, pieces, strict=True)
        return await self._in_threads(failing, (partial(_unpack, name, *pair) for pair in pairs))

    def remove(self, name: str) -> None:
        self._files.pop(name, None)
        self._disk.remove(name)

    async def close(self) -> None:
        self._threads.close()
        await self._disk.close()

    async def _in_threads(self, failing: str, works: Iterable[Callable[[], T]]) -> list[T]:
        """All of them at once. If one fails, so does the whole, but not before the others have ended."""
        outcomes = await asyncio.gather(*(self._threads.run(failing, work) for work in works), return_exceptions=True)
        done: list[T] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                try:
                    raise outcome
                finally:
                    del outcome, outcomes  # its traceback leads to this frame: they would keep each other, and the pieces
            done.append(outcome)
        return done


def _unpack(name: str, packed: memoryview, piece: memoryview) -> int:
    try:
        data = zlib.decompress(packed)
    except zlib.error as error:
        raise DiskFailed(f"{name} could not be read: it is damaged: {error}") from error
    if len(data) != piece.nbytes:
        raise DiskFailed(f"{name} could not be read: it is shorter than it was")
    piece[:] = data
    return zlib.crc32(data)
