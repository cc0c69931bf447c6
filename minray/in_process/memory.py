"""Memory of the in-process world: arenas that all processes of a world see, since they are in one process of the system.

Ray: has no counterpart

The arena for objects that a full store cannot keep, which a real raylet has on disk, is in memory too. It has a fixed size.
When the creator of an arena has ended, no further process can attach. Views outlive the creator and the cluster.
"""

from __future__ import annotations

from minray.in_process.process import LocalProcess
from minray.platform.base import Buffer, DiskFull, MemoryFailed
from minray.platform.storage.copier import copy_in_parts
from minray.platform.storage.listed_arena import ListedArena

MOST_FALLBACK_BYTES = 1 << 30
"""Size of an arena for what does not fit into the store, in bytes."""


class LocalDiskArena(ListedArena):
    """Implements ``base.DiskArena`` in memory, up to its size."""

    _reserved = 0
    """Bytes that are reserved."""

    def reserve(self, start: int, size: int) -> None:
        if self._reserved + size > len(self.view):
            used = f"{self._reserved} of {len(self.view)} are in use"
            raise DiskFull(f"{size} bytes could not be reserved in this process, where fallback memory is: {used}")
        self._reserved += size

    def release(self, start: int, size: int) -> None:
        self._reserved -= size
        self.view[start : start + size] = bytes(size)


class LocalMemory:
    """Implements ``base.Memory``; one for each process, over the arenas of its world."""

    def __init__(self, arenas: dict[str, ListedArena], process: LocalProcess) -> None:
        self._arenas = arenas
        self._process = process
        self._views: dict[str, memoryview] = {}
        """The views of attached arenas, by endpoint."""
        process.on_death.append(self._views.clear)

    async def create_arena(self, endpoint: str, size: int) -> ListedArena:
        self._check(endpoint)
        if size <= 0:
            raise MemoryFailed(f"an arena of {size} bytes: object_store_memory must be positive")
        try:
            return ListedArena(self._arenas, endpoint, size, self._process.on_death)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryFailed(f"no arena of {size} bytes: {error}; choose a smaller object_store_memory") from error

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> LocalDiskArena:
        self._check(endpoint)
        return LocalDiskArena(self._arenas, endpoint, MOST_FALLBACK_BYTES, self._process.on_death)

    def _check(self, endpoint: str) -> None:
        if not endpoint.startswith("local:") or len(endpoint) == len("local:"):
            raise MemoryFailed(f"{endpoint}: not an endpoint of this process; those look like local:name")
        if endpoint in self._arenas:
            raise MemoryFailed(f"no arena at {endpoint}: another process listens there")

    def attach(self, endpoint: str) -> memoryview:
        if endpoint not in self._views:
            arena = self._arenas.get(endpoint)
            if arena is None:
                raise MemoryFailed(f"{endpoint}: no process hands out memory there; its raylet has ended")
            self._views[endpoint] = arena.view
        return self._views[endpoint]

    def copy(self, target: memoryview, source: Buffer) -> None:
        copy_in_parts(target, source)
