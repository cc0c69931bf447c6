"""Blocks and holes: nothing overlaps, nothing is lost, and memory that was written before comes first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from minray.object_store.allocator import ALIGNMENT, Allocator

BLOCKS = 100
CAPACITY = BLOCKS * ALIGNMENT


def allocate(allocator: Allocator, *sizes: int) -> list[int]:
    """Allocate blocks of these sizes, and return their offsets."""
    offsets = [allocator.allocate(size) for size in sizes]
    return [offset for offset in offsets if offset is not None]


# --- Blocks ------------------------------------------------------------------------------------------------------------


def test_sizes_are_rounded_up_and_blocks_lie_side_by_side() -> None:
    allocator = Allocator(CAPACITY)
    assert allocate(allocator, 1, ALIGNMENT, ALIGNMENT + 1, 0, 1) == [0, 64, 128, 256, 320]
    assert allocator.used == 384


def test_an_arena_can_be_used_to_its_last_byte() -> None:
    allocator = Allocator(CAPACITY)
    assert allocate(allocator, CAPACITY - 1) == [0]
    assert allocator.used == CAPACITY
    assert allocator.holes() == []
    assert allocator.allocate(0) is None


def test_bytes_that_fill_no_line_are_not_handed_out() -> None:
    allocator = Allocator(CAPACITY + ALIGNMENT - 1)
    assert allocator.capacity == CAPACITY
    assert allocator.allocate(CAPACITY + 1) is None
    assert allocator.used == 0
    assert allocator.allocate(CAPACITY) == 0


@pytest.mark.parametrize("capacity", [0, 1, ALIGNMENT - 1])
def test_an_arena_without_room_for_anything(capacity: int) -> None:
    allocator = Allocator(capacity)
    assert (allocator.capacity, allocator.largest_hole(), allocator.fragmentation(), allocator.holes()) == (0, 0, 0.0, [])
    assert allocator.allocate(0) is None


def test_what_was_not_handed_out_cannot_be_given_back() -> None:
    allocator = Allocator(CAPACITY)
    first, _ = allocate(allocator, 200, 200)
    for offset in (first + ALIGNMENT, 2 * CAPACITY, -1):
        with pytest.raises(AssertionError, match=f"no block begins at {offset}"):
            allocator.free(offset)
    allocator.free(first)
    with pytest.raises(AssertionError, match="no block begins at 0"):
        allocator.free(first)


# --- Holes -------------------------------------------------------------------------------------------------------------


def test_a_freed_block_joins_the_holes_on_both_of_its_sides() -> None:
    allocator = Allocator(CAPACITY)
    _, left, middle, right, _ = allocate(allocator, 64, 64, 128, 64, 64)
    allocator.free(left)
    allocator.free(right)
    assert allocator.holes()[:-1] == [(left, 64), (right, 64)]
    allocator.free(middle)
    assert allocator.holes()[:-1] == [(left, 256)]
    assert allocator.allocate(256) == left


def test_the_largest_hole_is_found_among_many() -> None:
    allocator = Allocator(CAPACITY)
    sizes = [lines * ALIGNMENT for lines in (1, 5, 7, 6, 2)]
    offsets = [offset for size in sizes for offset in allocate(allocator, size, ALIGNMENT)]
    assert allocate(allocator, allocator.largest_hole()) == [26 * ALIGNMENT]
    for offset in offsets[::2]:
        allocator.free(offset)
    assert allocator.largest_hole() == 7 * ALIGNMENT
    assert allocator.allocate(7 * ALIGNMENT + 1) is None


def test_fragmentation_says_how_much_of_what_is_free_is_not_in_the_largest_hole() -> None:
    allocator = Allocator(CAPACITY)
    offsets = allocate(allocator, *[ALIGNMENT] * BLOCKS)
    assert allocator.fragmentation() == 0.0
    allocator.free(offsets[0])
    assert allocator.fragmentation() == 0.0
    for offset in offsets[2::2]:
        allocator.free(offset)
    assert allocator.fragmentation() == pytest.approx(0.98)
    assert allocator.largest_hole() == ALIGNMENT
    assert allocator.allocate(ALIGNMENT + 1) is None
    for offset in offsets[1::2]:
        allocator.free(offset)
    assert allocator.fragmentation() == 0.0
    assert allocator.holes() == [(0, CAPACITY)]


# --- Warm before fresh -------------------------------------------------------------------------------------------------


def test_what_was_freed_last_is_handed_out_first() -> None:
    allocator = Allocator(CAPACITY)
    first, _, second, _, third, _ = allocate(allocator, *[100] * 6)
    for offset in (second, third, first):
        allocator.free(offset)
    assert allocate(allocator, 100, 100, 100) == [first, third, second]


def test_putting_and_freeing_one_object_at_a_time_touches_no_more_memory() -> None:
    allocator = Allocator(CAPACITY)
    for _ in range(3 * BLOCKS):
        assert allocator.allocate(1000) == 0
        allocator.free(0)


def test_a_small_object_leaves_a_large_hole_whole() -> None:
    allocator = Allocator(CAPACITY)
    small, _, large, _ = allocate(allocator, 64, 64, 1024, 64)
    allocator.free(small)
    allocator.free(large)
    assert allocate(allocator, 64, 1024) == [small, large]


def test_a_large_warm_hole_is_better_than_fresh_memory() -> None:
    allocator = Allocator(CAPACITY)
    large, _ = allocate(allocator, 1024, 64)
    allocator.free(large)
    assert allocate(allocator, 64, 64) == [large, large + 64]


def test_a_block_may_begin_in_warm_memory_and_end_in_fresh() -> None:
    allocator = Allocator(CAPACITY)
    _, last = allocate(allocator, 64, 128)
    allocator.free(last)
    assert allocator.holes() == [(last, CAPACITY - last)]
    assert allocator.allocate(CAPACITY - last) == last


def test_fresh_memory_waits_until_no_hole_has_room() -> None:
    allocator = Allocator(CAPACITY)
    hole, wall = allocate(allocator, 128, 64)
    allocator.free(hole)
    assert allocate(allocator, 129, 128) == [wall + 64, hole]


# --- Whatever happens --------------------------------------------------------------------------------------------------


class Arena(RuleBasedStateMachine):
    """A small allocator beside a table of what it has handed out."""

    capacity = 24 * ALIGNMENT
    offsets = Bundle("offsets")
    sizes = st.integers(0, 3 * ALIGNMENT) | st.integers(0, capacity)

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(self.capacity + 1)
        self.blocks: dict[int, int] = {}
        self.touched = 0

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """(offset, size) of what lies between the blocks, up to here."""
        found, begin = [], 0
        for offset, size in [*sorted(self.blocks.items()), (end, 0)]:
            if offset > begin:
                found.append((begin, offset - begin))
            begin = offset + size
        return found

    @rule(target=offsets, size=sizes)
    def allocate(self, size: int) -> Any:
        rounded = max(-(-size // ALIGNMENT), 1) * ALIGNMENT
        warm = {offset: hole for offset, hole in self.gaps(self.touched) if hole >= rounded}
        room = max((hole for _, hole in self.gaps(self.capacity)), default=0)
        offset = self.allocator.allocate(size)
        assert (offset is not None) == (room >= rounded)
        if offset is None:
            return multiple()
        assert not warm or warm[offset] == min(warm.values())
        self.blocks[offset] = rounded
        self.touched = max(self.touched, offset + rounded)
        return offset

    @rule(offset=consumes(offsets))
    def free(self, offset: int) -> None:
        self.allocator.free(offset)
        del self.blocks[offset]

    @rule(target=offsets, offset=consumes(offsets))
    def free_and_allocate_the_same(self, offset: int) -> Any:
        size = self.blocks[offset]
        self.free(offset)
        joined = (offset, size) not in self.gaps(self.touched)
        again = self.allocate(size)
        assert joined or again == offset
        return again

    @invariant()
    def blocks_lie_apart(self) -> None:
        end = 0
        for offset, size in sorted(self.blocks.items()):
            assert offset >= end
            assert offset % ALIGNMENT == 0
            end = offset + size
        assert end <= self.capacity

    @invariant()
    def all_the_rest_is_holes_and_no_two_touch(self) -> None:
        holes = self.gaps(self.capacity)
        largest = max((size for _, size in holes), default=0)
        free = sum(size for _, size in holes)
        assert self.allocator.holes() == holes
        assert self.allocator.used + free == self.capacity
        assert self.allocator.largest_hole() == largest
        assert self.allocator.fragmentation() == (1.0 - largest / free if free else 0.0)

    def teardown(self) -> None:
        for offset in self.blocks:
            self.allocator.free(offset)
        assert self.allocator.holes() == [(0, self.capacity)]
        assert self.allocator.used == 0


TestWhateverHappens = Arena.TestCase
