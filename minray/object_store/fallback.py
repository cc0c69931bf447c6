"""Memory of last resort: blocks of a file that is mapped as the arena is, for what neither fits into that nor can wait.

Ray: src/ray/object_manager/plasma/plasma_allocator.h (FallbackAllocate)

Its offsets go on where those of the arena end, so that an offset says where a copy lies. The file has no name, and room is
reserved on the disk before anybody writes: a full disk is an answer, not a signal that kills whoever writes. Blocks are
whole pages, so that what is given back is given back to the disk.

Pure, but for what it asks of the file.
"""

from __future__ import annotations

from minray.object_store.allocator import Allocator
from minray.platform.base import DiskArena, DiskFailed

PAGE_BYTES = 4096
"""What file systems give and take; the pages of some machines are larger, and what is given back there is less."""


class Fallback:
    """That of one node."""

    def __init__(self, start: int) -> None:
        self.start = start
        """The offset of its first byte."""
        self.trouble: DiskFailed | None = None
        """Why the last block could not be had."""
        self._arena: DiskArena | None = None
        """None: there is no such file, so that no block is ever had."""
        self._allocator = Allocator(0)

    @property
    def used(self) -> int:
        """Bytes on the disk."""
        return self._allocator.used

    def open(self, arena: DiskArena) -> None:
        """From now on, blocks lie in this file."""
        self._arena = arena
        self._allocator = Allocator(len(arena.view) - len(arena.view) % PAGE_BYTES)

    def has(self, offset: int) -> bool:
        """Whether what lies there lies in the file."""
        return offset >= self.start

    def allocate(self, size: int) -> int | None:
        """The offset of a new block, for which the disk has room; None, and perhaps ``trouble``, if there is none."""
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
        """Gives the block that begins here back, to the disk too."""
        start = offset - self.start
        size = self._allocator.free(start)
        assert self._arena is not None, "somebody was given this block"
        self._arena.release(start, size)

    def place(self, offset: int) -> tuple[memoryview, int]:
        """The whole file, and where in it this offset lies."""
        assert self._arena is not None, "somebody was given a block"
        return self._arena.view, offset - self.start

    async def close(self) -> None:
        """Hand it out no more."""
        if self._arena is not None:
            await self._arena.close()
