"""Simulated disks: files of a node in a dict, whose reads and writes take virtual time and can be struck by faults.

Rules
  * A file appears when it is complete. It vanishes with its process, as a session's files go with the session.
  * A write reads its memory again at its end, and a read fills its memory only then. So code that changes or frees that
    memory meanwhile is found out.
  * Tests turn faults on with switches of the node. In campaigns the oracle decides. Its keys contain process, operation,
    file and how often that was done: ``("disk_error", "raylet/n1", "write 3", 1)``.
  * A torn file has the right length, but zeros in its second half: only checksums reveal it.

Left out: a disk that is stalled for ever.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

from minray.platform.base import Buffer, DiskBusy, DiskFailed, DiskFull
from minray.simulation.costs import READ, WRITE, Costs
from minray.simulation.faults import SLOW_DISK_S, Oracle
from minray.simulation.loop import SimProcess
from minray.simulation.node import SimNode


class SimDisk:
    """Implements ``base.Disk`` with a directory on a simulated node."""

    def __init__(
        self, node: SimNode, path: str, process: SimProcess, oracle: Oracle, costs: Costs | None = None
    ) -> None:
        self._costs = costs or Costs()
        self._node = node
        self._path = path
        self._process = process
        self._oracle = oracle
        self._writing: set[str] = set()
        """Paths of files that are being written."""
        process.on_death.append(self._vanish)

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        place = self._place(name)
        assert place not in self._node.files and place not in self._writing, f"{place} is written twice"
        self._writing.add(place)
        checksums = [zlib.crc32(piece) for piece in pieces]
        await self._take_time(WRITE, name, sum(len(piece) for piece in pieces))
        self._writing.discard(place)
        assert checksums == [zlib.crc32(piece) for piece in pieces], f"{place}: memory changed while it was written"
        if self._node.disk_broken or self._is_struck("disk_error", "write", name):
            raise DiskFailed(f"{place} could not be written: input/output error")
        room = self._node.disk_room()
        if self._is_struck("disk_full", "write", name):
            room = sum(len(piece) for piece in pieces) // 2
        whole = _how_many_fit(pieces, room)
        content = b"".join(pieces[:whole])
        if self._node.disk_tears or self._is_struck("torn_write", "write", name):
            content = content[: len(content) // 2] + bytes(len(content) - len(content) // 2)
        if whole:
            self._node.files[place] = content
        if whole < len(pieces):
            raise DiskFull(f"{place} could not be written: no space left on device", checksums[:whole])
        return checksums

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        place = self._place(name)
        size = sum(len(piece) for piece in pieces)
        await self._take_time(READ, name, size)
        if self._node.disk_broken or self._is_struck("disk_error", "read", name):
            raise DiskFailed(f"{place} could not be read: input/output error")
        if self._is_struck("disk_busy", "read", name):
            raise DiskBusy(f"{place} could not be read: too many open files")
        if place not in self._node.files:
            raise DiskFailed(f"{place} could not be read: no such file")
        if start + size > len(self._node.files[place]):
            raise DiskFailed(f"{place} could not be read: it is shorter than when it was written")
        checksums: list[int] = []
        for piece in pieces:
            piece[:] = self._node.files[place][start : start + len(piece)]
            checksums.append(zlib.crc32(piece))
            start += len(piece)
        return checksums

    def remove(self, name: str) -> None:
        self._node.files.pop(self._place(name), None)

    async def close(self) -> None:
        pass

    def _vanish(self) -> None:
        for place in [place for place in self._node.files if place.startswith(f"{self._path}/")]:
            del self._node.files[place]

    def _place(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def _take_time(self, what: str, name: str, size: int) -> None:
        key = ("slow_disk", self._process.name, f"{what} {name}", self._process.next_ordinal(f"slow {what} {name}"))
        extra_s = SLOW_DISK_S[self._oracle.choose(key, len(SLOW_DISK_S))]
        await asyncio.sleep(self._costs.disk_s(self._process, what, size) + extra_s)

    def _is_struck(self, kind: str, what: str, name: str) -> bool:
        ordinal = self._process.next_ordinal(f"{kind} {what} {name}")
        return bool(self._oracle.choose((kind, self._process.name, f"{what} {name}", ordinal), 2))


def _how_many_fit(pieces: Sequence[Buffer], room: int) -> int:
    for count, piece in enumerate(pieces):
        room -= len(piece)
        if room < 0:
            return count
    return len(pieces)
