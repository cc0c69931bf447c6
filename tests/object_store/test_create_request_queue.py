"""Requests that wait for room: first come, first served, and none waits longer than nothing happens (G79)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.object_store.allocator import ALIGNMENT
from minray.object_store.create_request_queue import CreateRequestQueue, Creation, Restoration
from minray.object_store.fallback import PAGE_BYTES
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from tests.object_store.copies import OWNERS, RAYLET, WORKERS, FakeArena, SmallTable, object_id

GRACE_S = 2.0


class Line:
    """A queue for a table of four blocks, and what those who wait have heard."""

    def __init__(self, blocks: int = 4) -> None:
        self.table = SmallTable(blocks)
        self.others_give_way: Callable[[], bool] = bool
        self.queue = CreateRequestQueue(self.table, GRACE_S, lambda: self.others_give_way())
        self.heard: dict[str, str] = {}
        """By name: created, full or unwanted."""
        self.order: list[str] = []

    def add(
        self, name: str, blocks: int = 1, now: float = 0.0, then: Callable[[ObjectEntry | None], None] | None = None
    ) -> None:
        creation = Creation(object_id(name), 0, blocks * ALIGNMENT, OWNERS[0], WORKERS[0], True)

        def on_created(entry: ObjectEntry | None, is_unwanted: bool) -> None:
            assert name not in self.heard, "called back twice"
            self.heard[name] = "created" if entry is not None else "unwanted" if is_unwanted else "full"
            self.order.append(name)
            if then is not None:
                then(entry)

        self.queue.add_request(creation, on_created, now)

    def open_fallback(self, blocks: int) -> None:
        self.table.fallback.open(FakeArena(blocks * PAGE_BYTES))

    def is_on_disk(self, name: str) -> bool:
        entry = self.table.find(object_id(name))
        assert entry is not None
        return self.table.fallback.has(entry.offset)

    def free(self, name: str) -> None:
        entry = self.table.find(object_id(name))
        assert entry is not None
        self.table.seal(entry)
        self.table.free_object(object_id(name), 0)


def test_who_finds_room_does_not_wait() -> None:
    line = Line()
    line.add("a", 4)
    assert line.heard == {"a": "created"} and len(line.queue) == 0 and line.queue.advance(0.0) is None


def test_a_small_one_does_not_overtake_a_large_one() -> None:
    line = Line()
    for name, blocks in (("a", 2), ("b", 3), ("c", 1)):
        line.add(name, blocks)
    assert line.queue.advance(0.5) == 0.5 + GRACE_S and line.order == ["a"]
    line.free("a")
    assert line.queue.advance(1.0) is None and line.order == ["a", "b", "c"]


@pytest.mark.parametrize("rest", [0, 1, 3])
def test_g79_what_does_not_fit_is_refused_when_nothing_becomes_free_for_a_while(rest: int) -> None:
    """Also if memory is free, but not enough of it, or not in one piece."""
    line = Line()
    line.add("a", 4 - rest)
    line.add("b", 4, now=10.0)
    again_at = line.queue.advance(10.0)
    assert again_at == 10.0 + GRACE_S
    assert line.queue.advance(again_at - 0.1) == again_at and "b" not in line.heard
    assert line.queue.advance(again_at) is None and line.heard["b"] == "full"


def test_g79_each_one_in_line_has_a_while_of_its_own() -> None:
    line = Line()
    for name in "abc":
        line.add(name, 4)
    assert line.queue.advance(GRACE_S) == 2 * GRACE_S and line.order == ["a", "b"]
    assert line.queue.advance(2 * GRACE_S) is None and line.order == ["a", "b", "c"]


def test_g79_whatever_becomes_free_is_progress() -> None:
    line = Line()
    for name in "abcd":
        line.add(name)
    line.add("large", 4)
    now = 0.0
    for name in "acbd":
        assert "large" not in line.heard
        now += GRACE_S - 0.1
        line.free(name)
        line.queue.advance(now)
    assert line.heard["large"] == "created"


def test_g79_free_memory_in_pieces_is_no_progress() -> None:
    line = Line()
    for name in "abcd":
        line.add(name)
    line.free("a")
    line.free("c")
    line.add("large", 2, now=5.0)
    assert line.queue.advance(6.0) == 6.0 + GRACE_S or line.queue.advance(6.0) == 5.0 + GRACE_S
    for now in (7.0, 8.0):
        line.queue.advance(now)
    assert line.heard["large"] == "full"


def test_what_is_larger_than_the_arena_is_refused_at_once() -> None:
    line = Line()
    line.add("a", 5)
    assert line.heard == {"a": "full"} and len(line.queue) == 0
    line.add("b", 4)
    line.add("c", 1)
    line.add("d", 5)
    line.free("b")
    line.queue.advance(1.0)
    assert line.order == ["a", "b", "c", "d"] and line.heard["d"] == "full"


def test_who_is_not_wanted_any_more_does_not_hold_up_the_others() -> None:
    line = Line()
    for name in "abc":
        line.add(name, 4 if name != "c" else 1)
    line.table.free_object(object_id("b"), 0)
    line.queue.advance(0.1)
    assert line.heard == {"a": "created", "b": "unwanted"}
    line.free("a")
    line.queue.advance(0.2)
    assert line.heard["c"] == "created"


def test_what_is_spare_makes_room_until_it_is_enough() -> None:
    line = Line()
    for name in "abcd":
        entry = line.table.create(object_id(name), 0, ALIGNMENT, OWNERS[0], RAYLET, False)
        assert entry is not None
        line.table.seal(entry)
    line.add("large", 3)
    assert line.heard == {"large": "created"} and len(line.table.evicted) == 3


def test_who_gives_its_room_back_at_once_is_served_once() -> None:
    """As a pull does that was given up while it waited."""
    line = Line()

    def give_back(entry: ObjectEntry | None) -> None:
        assert entry is not None
        line.table.abort(entry)
        line.queue.advance(1.0)

    line.add("a", 4)
    line.add("b", 4, then=give_back)
    line.add("c", 4)
    line.free("a")
    line.queue.advance(1.0)
    assert line.order == ["a", "b", "c"] and len(line.queue) == 0


def test_g79_who_comes_when_others_had_to_take_memory_on_disk_need_not_wait_for_it() -> None:
    line = Line()
    line.open_fallback(blocks=2)
    line.add("a", 4)
    line.add("b")
    line.queue.advance(GRACE_S)
    line.add("c", now=GRACE_S)
    assert line.heard == dict.fromkeys("abc", "created") and line.order == ["a", "b", "c"]
    assert [line.is_on_disk(name) for name in "abc"] == [False, True, True]
    line.add("d", now=GRACE_S)
    assert "d" not in line.heard and (len(line.queue), line.queue.waiting_bytes) == (1, ALIGNMENT)
    line.free("a")
    assert line.queue.advance(GRACE_S) is None
    assert line.heard["d"] == "created" and not line.is_on_disk("d") and line.queue.waiting_bytes == 0


def test_what_is_on_disk_alone_waits_for_memory_like_what_is_new() -> None:
    line = Line()
    entry = line.table.put("spilled", 2)
    line.table.begin_spill(entry)
    line.table.end_spill(entry, Spilled(SpillFile(0, "file"), 0, []))
    line.add("a", 4)
    assert line.table.is_spilled(entry)
    given: list[ObjectEntry | None] = []
    line.queue.add_request(Restoration(entry), lambda made, is_unwanted: given.append(made), 0.0)
    assert given == [] and line.queue.waiting_bytes == entry.size
    line.free("a")
    line.queue.advance(0.0)
    assert given == [entry] and not line.table.is_spilled(entry)
    line.queue.add_request(Restoration(entry), lambda made, is_unwanted: given.append(made if is_unwanted else entry), 0.0)
    assert given == [entry, None], "it has memory: nobody wants more"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=12))
def test_everybody_is_answered_once_and_in_order(steps: list[tuple[int, int]]) -> None:
    """Some created objects are freed meanwhile. A request that is told to come again comes then, and not before."""
    line, now = Line(), 0.0
    for index, (blocks, freed) in enumerate(steps):
        line.add(str(index), blocks, now)
        if line.heard.get(str(freed)) == "created" and line.table.find(object_id(str(freed))) is not None:
            line.free(str(freed))
        line.queue.advance(now)
        now += 0.25
    for _ in steps:
        again_at = line.queue.advance(now)
        if again_at is None:
            break
        assert now < again_at <= now + GRACE_S
        now = again_at
    assert len(line.queue) == 0 and line.order == [str(index) for index in range(len(steps))]
    assert line.table.allocator.used == sum(entry.size for entry in line.table.entries())


def test_others_give_way_when_nothing_can_be_spilled_instead() -> None:
    line = Line()
    asked: list[str] = []

    def give_way() -> bool:
        asked.append("asked")
        line.free("a")
        return True

    line.add("a", 4)
    line.others_give_way = give_way
    line.add("b", 4)
    line.queue.advance(0.0, is_spilling=True)
    assert not asked and line.order == ["a"], "memory is about to become free anyway"
    assert line.queue.advance(0.1) is None and asked == ["asked"] and line.order == ["a", "b"]


def test_g79_a_request_waits_for_what_can_be_spilled_since_others_gave_way() -> None:
    line = Line()
    line.open_fallback(4)
    line.add("a", 4)
    copy = line.table.find(object_id("a"))
    assert copy is not None and line.table.seal(copy)
    line.table.pin(copy, b"pin", RAYLET)

    def give_way() -> bool:
        line.table.unpin([b"pin"])
        line.others_give_way = bool
        return True

    line.add("b", 4)
    line.others_give_way = give_way
    assert line.queue.advance(GRACE_S) == 2 * GRACE_S and line.order == ["a"] and line.table.spillable_count() == 1
    line.free("a")
    line.queue.advance(GRACE_S)
    assert line.order == ["a", "b"] and not line.is_on_disk("b")


def test_who_waits_goes_on_waiting_when_others_have_nothing_to_give() -> None:
    line = Line()
    line.add("a", 4)
    line.add("b", 4)
    assert line.queue.advance(0.0) == GRACE_S and line.order == ["a"]
    line.others_give_way = lambda: True  # what they gave is too little
    assert line.queue.advance(0.1) == GRACE_S and line.order == ["a"]
    line.queue.advance(GRACE_S)
    assert line.heard["b"] == "full"
