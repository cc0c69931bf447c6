"""Simulated memory: arenas that the processes of a simulated node share.

Rules
  * The creator hands the arena out. A process cannot attach when the creator has died, or from another node.
  * Views outlive the creator and the node: others see a dead process's last writes, and nothing else happens to them.
  * Reserved disk space takes from the room that files have, and is released with the creator. Disk faults strike it too.

Left out: a stalled creator. A simulated one hands out memory all the same; a real one lets others wait, and then fail.
"""

from __future__ import annotations

from minray.platform.base import Buffer, DiskFailed, DiskFull, MemoryFailed
from minray.platform.storage.copier import copy_in_parts
from minray.platform.storage.listed_arena import ListedArena
from minray.simulation.faults import Oracle
from minray.simulation.loop import SimProcess
from minray.simulation.node import SimNode

MOST_DISK_BYTES = 1 << 25
"""The largest arena on a simulated disk, in bytes. In a browser each raylet really takes this memory."""


class SimArena(ListedArena):
    """An arena on a simulated node."""

    def __init__(self, arenas: dict[str, SimArena], endpoint: str, size: int, creator: SimProcess) -> None:
        super().__init__(arenas, endpoint, size, creator.on_death)
        self.creator = creator
        self.node = creator.node


class SimDiskArena(SimArena):
    """Implements ``base.DiskArena`` with reserved bytes of a node's disk."""

    def __init__(
        self, arenas: dict[str, SimArena], endpoint: str, directory: str, node: SimNode, creator: SimProcess, oracle: Oracle
    ) -> None:
        super().__init__(arenas, endpoint, min(node.disk_bytes, MOST_DISK_BYTES), creator)
        self._directory = directory
        self._disk = node
        self._oracle = oracle
        self._blocks = node.reserved.setdefault(creator.name, {})
        creator.on_death.append(self._blocks.clear)

    def reserve(self, start: int, size: int) -> None:
        trouble = f"{size} bytes could not be reserved in {self._directory}"
        if self._disk.disk_broken or self._is_struck("disk_error"):
            raise DiskFailed(f"{trouble}: input/output error")
        if size > self._disk.disk_room() or self._is_struck("disk_full"):
            raise DiskFull(f"{trouble}: no space left on device")
        self._blocks[start] = size

    def _is_struck(self, kind: str) -> bool:
        ordinal = self.creator.next_ordinal(f"{kind} reserve")
        return bool(self._oracle.choose((kind, self.creator.name, "reserve", ordinal), 2))

    def release(self, start: int, size: int) -> None:
        assert self._blocks.pop(start) == size, "released as it was reserved"
        self.view[start : start + size] = bytes(size)

    async def close(self) -> None:
        await super().close()
        self._blocks.clear()


class SimMemory:
    """Implements ``base.Memory``; one per process, over the arenas of its world."""

    def __init__(self, arenas: dict[str, SimArena], process: SimProcess, node: SimNode, oracle: Oracle) -> None:
        self._arenas = arenas
        self._process = process
        self._node = node
        """The process's machine, whose memory and disk limit the size of arenas."""
        self._oracle = oracle
        self._views: dict[str, memoryview] = {}
        """The views of attached arenas, by endpoint."""

    async def create_arena(self, endpoint: str, size: int) -> SimArena:
        _check(endpoint)
        if size <= 0:
            raise MemoryFailed(f"an arena of {size} bytes: object_store_memory must be positive")
        if size > self._node.memory_bytes:
            raise MemoryFailed(f"no arena of {size} bytes: out of memory; choose a smaller object_store_memory")
        if endpoint in self._arenas:
            raise MemoryFailed(f"no arena of {size} bytes at {endpoint}: another process listens there")
        return SimArena(self._arenas, endpoint, size, self._process)

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> SimDiskArena:
        _check(endpoint)
        if endpoint in self._arenas:
            raise MemoryFailed(f"no arena on disk at {endpoint}: another process listens there")
        return SimDiskArena(self._arenas, endpoint, directory, self._node, self._process, self._oracle)

    def attach(self, endpoint: str) -> memoryview:
        if endpoint not in self._views:
            _check(endpoint)
            arena = self._arenas.get(endpoint)
            if arena is None or arena.node != self._process.node:
                raise MemoryFailed(f"{endpoint}: no process hands out memory there; its raylet has ended")
            self._views[endpoint] = arena.view
        return self._views[endpoint]

    def copy(self, target: memoryview, source: Buffer) -> None:
        copy_in_parts(target, source)


def _check(endpoint: str) -> None:
    if not endpoint.startswith("sim:") or len(endpoint) == 4:
        raise MemoryFailed(f"{endpoint}: not a simulated endpoint; those look like sim:name")
