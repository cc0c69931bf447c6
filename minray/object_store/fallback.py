"""Fallback memory: blocks of a mapped file on disk, for objects that do not fit into the arena and cannot wait longer.

Ray: src/ray/object_manager/plasma/plasma_allocator.h (FallbackAllocate)

Its offsets continue those of the arena, so that an offset says where a copy lies. The file has no name. Room is reserved on
the disk before a process writes: a full disk is then an error that can be answered, not a signal that kills the writer.
Blocks are whole pages, so that a freed block is given back to the disk.

Pure, except for its calls to the file (``DiskArena``).
"""

from __future__ import annotations

from minray.object_store.allocator import Allocator
from minray.platform.base import DiskArena, DiskFailed

PAGE_BYTES = 4096
"""Bytes of a page, the unit in which file systems allocate. On machines with larger pages, less is given back."""


class Fallback:
    """Manages the fallback memory of one node."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Offset of the first byte of fallback memory."""
        self.trouble: DiskFailed | None = None
        """Disk error of the last allocation; None if it succeeded or only the file's room was used up."""
        self._arena: DiskArena | None = None
        """The file; None: there is none, so every allocation fails."""
        self._allocator = Allocator(0)

    @property
    def used(self) -> int:
        """Bytes in use on the disk."""
        return self._allocator.used

    def open(self, arena: DiskArena) -> None:
        """Set the file in which blocks are allocated."""
        self._arena = arena
        self._allocator = Allocator(len(arena.view) - len(arena.view) % PAGE_BYTES)

    def has(self, offset: int) -> bool:
        """Tell whether an offset lies in fallback memory."""
        return offset >= self.start

    def allocate(self, size: int) -> int | None:
        """Reserve a block on the disk and return its offset; return None, and perhaps set ``trouble``, if it fails."""
        self.trouble = None
        size = max(size + -size % PAGE_BYTES, PAGE_BYTES)
        start = self._allocator.allocate(size)
        if start is None:
            return None
        assert self._arena is not None, "an allocator without a file has no room"
        try:
            self._arena.reserve(start, size)
        except DiskFailed as error:
            self._allocator.free(start)
            self.trouble = error
            return None
        return self.start + start

    def free(self, offset: int) -> None:
        """Free the block that begins at ``offset``, also on the disk."""
        start = offset - self.start
        size = self._allocator.free(start)
        assert self._arena is not None, "somebody was given this block"
        self._arena.release(start, size)

    def place(self, offset: int) -> tuple[memoryview, int]:
        """Return the whole mapped file, and the position of an offset in it."""
        assert self._arena is not None, "somebody was given a block"
        return self._arena.view, offset - self.start

    async def close(self) -> None:
        """Stop handing the file out to clients."""
        if self._arena is not None:
            await self._arena.close()
