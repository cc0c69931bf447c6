"""Simulated memory: arenas that the processes of a simulated node share.

All of them are in one real process, so that every view of an arena is the same one. It is mapped, not allocated: like
the real one it is full of zeros, and takes memory only where it was written.

Rules
  * An arena is handed out by its creator: nobody can attach any more when that has died, or on another node.
  * Views outlive the creator, and the node: a dead process's last writes are seen, nothing else happens to them.

Left out: a creator that is stalled hands out memory all the same; a real one lets others wait, and then fail.
"""

from __future__ import annotations

import mmap

from minray.platform.base import MemoryFailed
from minray.simulation.loop import SimProcess


class SimArena:
    """See ``base.Arena``."""

    def __init__(self, arenas: dict[str, SimArena], endpoint: str, size: int, creator: SimProcess) -> None:
        self.view = memoryview(mmap.mmap(-1, size))
        self.node = creator.node
        self._arenas = arenas
        self._endpoint = endpoint
        arenas[endpoint] = self
        creator.on_death.append(self._withdraw)

    async def close(self) -> None:
        self._withdraw()

    def _withdraw(self) -> None:
        if self._arenas.get(self._endpoint) is self:
            del self._arenas[self._endpoint]


class SimMemory:
    """See ``base.Memory``; one per process, over the arenas of its world."""

    def __init__(self, arenas: dict[str, SimArena], process: SimProcess, memory_bytes: int) -> None:
        self._arenas = arenas
        self._process = process
        self._memory_bytes = memory_bytes
        """What the node has; a larger arena is refused."""
        self._views: dict[str, memoryview] = {}
        """What was attached, by endpoint."""

    async def create_arena(self, endpoint: str, size: int) -> SimArena:
        _check(endpoint)
        if size <= 0:
            raise MemoryFailed(f"an arena of {size} bytes: object_store_memory must be positive")
        if size > self._memory_bytes:
            raise MemoryFailed(f"no arena of {size} bytes: out of memory; choose a smaller object_store_memory")
        if endpoint in self._arenas:
            raise MemoryFailed(f"no arena of {size} bytes at {endpoint}: another process listens there")
        return SimArena(self._arenas, endpoint, size, self._process)

    def attach(self, endpoint: str) -> memoryview:
        if endpoint not in self._views:
            _check(endpoint)
            arena = self._arenas.get(endpoint)
            if arena is None or arena.node != self._process.node:
                raise MemoryFailed(f"{endpoint}: nobody hands out memory there, its raylet has ended")
            self._views[endpoint] = arena.view
        return self._views[endpoint]


def _check(endpoint: str) -> None:
    if not endpoint.startswith("sim:") or len(endpoint) == 4:
        raise MemoryFailed(f"{endpoint}: not a simulated endpoint; those look like sim:name")
