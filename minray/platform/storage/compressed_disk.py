"""A disk that compresses what it writes, each piece separately.

Ray: the ``compression`` of smart_open, which python/ray/_private/external_storage.py can be told to use

Pieces are compressed one by one so that a part of an object can be read without the rest. Only this object remembers where
each piece begins in its file. That is enough, as for the checksums: the files are worth nothing without their raylet. A
checksum is that of the uncompressed piece, so that it reveals damage on the disk and a wrong decompression alike.

Random bytes do not get smaller. Numbers and text do, at about 100 MB/s per thread. It pays where a disk is slow or small.
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
"""zlib's compression level: the fastest. The next ones cost more time than they save."""

T = TypeVar("T")


class _Piece(NamedTuple):
    """The place of a compressed piece in its file, in bytes."""

    start: int
    size: int


class CompressedDisk:
    """Implements ``base.Disk``. Each piece must be read exactly as it was written: whole, and not joined with another."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, dict[int, _Piece]] = {}
        """The pieces of each file: by file name, then by the offset that the piece would have without compression."""
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
        """Run all works at once and return their results. If one fails, raise its error after all have ended."""
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
        raise DiskFailed(f"{name} could not be read: a piece does not have the size that was written")
    piece[:] = data
    return zlib.crc32(data)
