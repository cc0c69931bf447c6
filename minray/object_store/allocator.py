"""Which bytes of an arena are free: hands out blocks, takes them back, and prefers memory that was written before.

Ray: src/ray/object_manager/plasma/plasma_allocator.h (Ray uses dlmalloc there)

An arena is blocks (handed out) and holes (free), side by side without a gap, up to the high-water mark. Above it lies
fresh memory: its pages do not exist before they are written, so that the first write to them is many times slower than
the next. Therefore a block comes from a hole whenever one is large enough, and fresh memory is the last resort; if the
last hole touches fresh memory, a block may begin in one and end in the other.

Among the holes the tightest is taken, which leaves the large ones whole, and among equals the one that was made last,
which is likeliest to be in the processor's caches. Holes are sorted by size in one list per power of two, so that a search
is a bisection and an insertion moves few neighbours. A freed block joins the holes on both of its sides. Nothing is ever
moved, because readers have pointers into it: the tight fit and the joining are all that there is against dust.

Rules
  * Offsets and sizes are multiples of ``ALIGNMENT``. No two holes touch.
  * A block is handed out whenever ``largest_hole()`` has room for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 64
"""Bytes: a cache line, and what the vectorised code of numpy and arrow likes best."""

Hole = tuple[int, int, int]
"""(size, number, offset): sorted by size and then by age."""


class Allocator:
    """The free and the taken bytes of one arena."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= 0
        self.capacity = capacity - capacity % ALIGNMENT
        """Bytes that can be handed out."""
        self.used = 0
        """Bytes that are handed out, rounded up as they are."""
        self._touched = 0
        """The high-water mark: no block has ever reached beyond it."""
        self._blocks: dict[int, int] = {}
        """Offset -> size of what is handed out."""
        self._holes: dict[int, Hole] = {}
        """Offset -> what is free below the high-water mark."""
        self._ends: dict[int, Hole] = {}
        """End -> the same holes."""
        self._by_size: list[list[Hole]] = [[] for _ in range(self.capacity.bit_length() + 1)]
        """The same holes, those whose size has n binary digits sorted in the n-th list."""
        self._holes_made = 0
        """How many there have ever been; the latest has this number."""

    def allocate(self, size: int) -> int | None:
        """The offset of a new block of at least this size, and not of nothing; None if no hole has room."""
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
        """Takes back the block that begins here; returns how many bytes that are."""
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
        """(offset, size) of all that is free, by offset; fresh memory and the hole that touches it are one."""
        last = self._free_end()
        holes = sorted((offset, size) for size, _, offset in self._holes.values() if offset < last)
        if last < self.capacity:
            holes.append((last, self.capacity - last))
        return holes

    def largest_hole(self) -> int:
        """The size of the largest block that can be had now; 0 when nothing is free."""
        largest = next((holes[-1][0] for holes in reversed(self._by_size) if holes), 0)
        return max(largest, self.capacity - self._free_end())

    def fragmentation(self) -> float:
        """0.0: all that is free is one hole, or nothing is free. Near 1.0: it is dust."""
        free = self.capacity - self.used
        return 1.0 - self.largest_hole() / free if free else 0.0

    def _free_end(self) -> int:
        """From here on all is free to the end of the arena: the beginning of fresh memory or of the hole that touches it."""
        hole = self._ends.get(self._touched)
        return hole[2] if hole else self._touched

    def _tightest(self, size: int) -> Hole | None:
        """The smallest hole that has room, and the latest of that size."""
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
        """Forgets a hole; returns where it began."""
        size, _, offset = hole
        del self._holes[offset], self._ends[offset + size]
        holes = self._by_size[size.bit_length()]
        del holes[bisect_left(holes, hole)]
        return offset
