"""The allocator of an arena: hands out blocks, takes them back, and prefers memory that was written before.

Ray: src/ray/object_manager/plasma/plasma_allocator.h (Ray uses dlmalloc there)

Up to the high-water mark, an arena consists of blocks (handed out) and holes (free), side by side without a gap. Above the
mark lies fresh memory: its pages do not exist before they are written, so the first write to them is many times slower than
the next. Therefore a block comes from a hole whenever one is large enough, and fresh memory is the last resort. If the
last hole touches fresh memory, a block may begin in the hole and end in fresh memory.

The tightest hole is taken, which leaves large holes whole. Among equals it is the latest, which is most likely in the
processor's caches. Holes are sorted by size in one list per power of two, so that a search is a bisection and an insertion
moves few neighbours. A freed block joins the holes on both of its sides. Blocks are never moved, because readers have
pointers into them: best fit and joining are the only means against fragmentation.

Rules
  * Offsets and sizes are multiples of ``ALIGNMENT``. No two holes touch.
  * A block is handed out whenever ``largest_hole()`` has room for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 64
"""Alignment of blocks in bytes: a cache line, and the best alignment for the vectorised code of numpy and arrow."""

Hole = tuple[int, int, int]
"""A hole as (size, number, offset): it sorts by size and then by age."""


class Allocator:
    """Keeps the free and the allocated bytes of one arena."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= 0
        self.capacity = capacity - capacity % ALIGNMENT
        """Bytes that can be handed out."""
        self.used = 0
        """Bytes that are handed out, including the rounding of blocks to ``ALIGNMENT``."""
        self._touched = 0
        """The high-water mark: no block has ever reached beyond it."""
        self._blocks: dict[int, int] = {}
        """Size of each block by its offset."""
        self._holes: dict[int, Hole] = {}
        """Holes below the high-water mark by offset."""
        self._ends: dict[int, Hole] = {}
        """Holes by end."""
        self._by_size: list[list[Hole]] = [[] for _ in range(self.capacity.bit_length() + 1)]
        """Holes by size: the n-th list holds, sorted, those whose size has n binary digits."""
        self._holes_made = 0
        """Number of holes ever made; the latest hole has this number."""

    def allocate(self, size: int) -> int | None:
        """Allocate a block of at least ``size`` bytes (never empty) and return its offset; None if there is no room."""
        assert size >= 0
        size = max(size + -size % ALIGNMENT, ALIGNMENT)
        hole = self._tightest(size)
        if hole is not None:
            offset = self._remove(hole)
            if hole[0] > size:
                self._add(offset + size, hole[0] - size)
        else:
            offset = self._free_end()
            if offset + size > self.capacity:
                return None
            if offset < self._touched:
                self._remove(self._holes[offset])
            self._touched = offset + size
        self._blocks[offset] = size
        self.used += size
        return offset

    def free(self, offset: int) -> int:
        """Free the block that begins at ``offset``, and return its size."""
        assert offset in self._blocks, f"no block begins at {offset}"
        size = self._blocks.pop(offset)
        self.used -= size
        end = offset + size
        if after := self._holes.get(end):
            self._remove(after)
            end += after[0]
        if before := self._ends.get(offset):
            offset = self._remove(before)
        self._add(offset, end - offset)
        return size

    def holes(self) -> list[tuple[int, int]]:
        """Return (offset, size) of all free ranges, by offset; fresh memory and the hole that touches it are one."""
        last = self._free_end()
        holes = sorted((offset, size) for size, _, offset in self._holes.values() if offset < last)
        if last < self.capacity:
            holes.append((last, self.capacity - last))
        return holes

    def largest_hole(self) -> int:
        """Return the size of the largest block that can be allocated now; 0 when nothing is free."""
        largest = next((holes[-1][0] for holes in reversed(self._by_size) if holes), 0)
        return max(largest, self.capacity - self._free_end())

    def fragmentation(self) -> float:
        """Return the fragmentation: 0.0 if the free bytes are one range, or none; near 1.0 if they are many small ones."""
        free = self.capacity - self.used
        return 1.0 - self.largest_hole() / free if free else 0.0

    def _free_end(self) -> int:
        """Return the offset from which all is free to the arena's end: that of the last hole, or of fresh memory."""
        hole = self._ends.get(self._touched)
        return hole[2] if hole else self._touched

    def _tightest(self, size: int) -> Hole | None:
        """Return the smallest hole that has room, and the latest of that size; None if no hole has."""
        for holes in self._by_size[size.bit_length() :]:
            index = bisect_left(holes, (size, 0, 0))
            if index < len(holes):
                tightest, _, _ = holes[index]
                return holes[bisect_left(holes, (tightest + 1, 0, 0)) - 1]
        return None

    def _add(self, offset: int, size: int) -> None:
        self._holes_made += 1
        hole = (size, self._holes_made, offset)
        self._holes[offset] = self._ends[offset + size] = hole
        insort(self._by_size[size.bit_length()], hole)

    def _remove(self, hole: Hole) -> int:
        """Remove a hole, and return its offset."""
        size, _, offset = hole
        del self._holes[offset], self._ends[offset + size]
        holes = self._by_size[size.bit_length()]
        del holes[bisect_left(holes, hole)]
        return offset
