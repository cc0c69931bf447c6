"""Memory that is on disk: who gets it, what may go from it, and that all of it comes back."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minray.object_store.allocator import ALIGNMENT
from minray.object_store.create_request_queue import CreateRequestQueue, Creation
from minray.object_store.fallback import PAGE_BYTES, Fallback
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.object_store.object_table import NOWHERE, SPILLED
from minray.platform.base import DiskFull
from tests.object_store.copies import OWNERS, WORKERS, SmallTable, object_id

GRACE_S = 2.0


class Room:
    """A file of some pages, on a disk that has room for some of them."""

    def __init__(self, pages: int = 8, room: int = 8) -> None:
        self.view = memoryview(bytearray(pages * PAGE_BYTES))
        self.room = room * PAGE_BYTES
        self.blocks: dict[int, int] = {}
        self.is_closed = False

    def reserve(self, start: int, size: int) -> None:
        if sum(self.blocks.values()) + size > self.room:
            raise DiskFull("no space left on device")
        assert all(start + size <= other or other + its <= start for other, its in self.blocks.items())
        self.blocks[start] = size

    def release(self, start: int, size: int) -> None:
        assert self.blocks.pop(start) == size

    async def close(self) -> None:
        self.is_closed = True


class Line:
    """A queue for a table of four blocks with a fallback, and who got what when."""

    def __init__(self, room: int = 8) -> None:
        self.table = SmallTable(4)
        self.disk = Room(room=room)
        self.table.fallback.open(self.disk)
        self.queue = CreateRequestQueue(self.table, GRACE_S, bool)
        self.heard: dict[str, str] = {}

    def add(self, name: str, blocks: int, now: float, is_spilling: bool = False, can_spill: bool = True) -> None:
        creation = Creation(object_id(name), 0, blocks * ALIGNMENT, OWNERS[0], WORKERS[0], True)

        def on_created(entry: ObjectEntry | None, is_unwanted: bool) -> None:
            place = "refused" if entry is None else "disk" if self.table.fallback.has(entry.offset) else "memory"
            self.heard[name] = place

        self.queue.add_request(creation, on_created, now, is_spilling, can_spill)


def test_g79_after_a_while_without_progress_all_who_wait_get_memory_on_disk() -> None:
    line = Line()
    for name, blocks in (("a", 4), ("b", 1), ("c", 2)):
        line.add(name, blocks, 0.0)
    assert line.queue.advance(1.9) == GRACE_S and line.heard == {"a": "memory"}
    assert line.queue.advance(GRACE_S) is None
    assert line.heard == {"a": "memory", "b": "disk", "c": "disk"}
    assert sorted(line.disk.blocks.values()) == [PAGE_BYTES] * 2


def test_g79_who_comes_while_nothing_has_changed_does_not_wait_again() -> None:
    line = Line()
    line.add("a", 4, 0.0)
    line.add("b", 1, 0.0)
    line.queue.advance(GRACE_S)
    line.add("c", 1, 5.0)
    assert line.heard["c"] == "disk"
    line.add("d", 1, 6.0, is_spilling=True)
    assert "d" not in line.heard, "memory is being made free"


def test_g79_what_could_be_spilled_is_no_reason_to_wait_where_no_disk_takes_it() -> None:
    line = Line()
    line.table.put("a", 4)
    line.add("b", 1, 0.0, can_spill=False)
    line.queue.advance(GRACE_S, can_spill=False)
    line.add("c", 1, 5.0, can_spill=False)
    assert line.heard == {"b": "disk", "c": "disk"}
    line.add("d", 1, 6.0)
    assert "d" not in line.heard


def test_g79_memory_that_becomes_free_is_taken_first() -> None:
    line = Line()
    line.add("a", 4, 0.0)
    line.add("b", 1, 0.0)
    line.queue.advance(GRACE_S)
    entry = line.table.find(object_id("a"))
    assert entry is not None
    line.table.seal(entry)
    line.table.free_object(object_id("a"), 0)
    line.add("c", 4, 5.0)
    assert line.heard["c"] == "memory"


def test_g79_what_is_larger_than_the_arena_goes_to_disk_at_once() -> None:
    line = Line()
    line.add("a", 5, 0.0)
    assert line.heard == {"a": "disk"}


def test_g79_a_full_disk_refuses_and_is_remembered() -> None:
    line = Line(room=1)
    for name in "abc":
        line.add(name, 4, 0.0)
    line.queue.advance(GRACE_S)
    assert line.heard == {"a": "memory", "b": "disk", "c": "refused"} and isinstance(line.table.fallback.trouble, DiskFull)


def test_without_a_file_nothing_is_had_and_nothing_is_to_be_closed() -> None:
    fallback = Fallback(100)
    assert fallback.allocate(1) is None
    asyncio.run(fallback.close())


def test_the_file_is_closed_at_the_end() -> None:
    fallback, room = Fallback(100), Room()
    fallback.open(room)
    asyncio.run(fallback.close())
    assert room.is_closed


def test_of_the_disks_trouble_the_last_time_is_told() -> None:
    fallback, room = Fallback(100), Room(room=1)
    fallback.open(room)
    first = fallback.allocate(1)
    assert fallback.allocate(1) is None and isinstance(fallback.trouble, DiskFull)
    assert first is not None and fallback.used == PAGE_BYTES
    fallback.free(first)
    assert fallback.allocate(1) == first and fallback.trouble is None


@pytest.fixture
def table() -> SmallTable:
    """Full, with room for two pages on the disk."""
    table = SmallTable(1)
    table.fallback.open(Room(room=2))
    table.put("resident")
    return table


def in_fallback(table: SmallTable, name: str, is_primary: bool = True) -> ObjectEntry:
    entry = table.create(object_id(name), 0, PAGE_BYTES, OWNERS[0], WORKERS[0], is_primary, in_fallback=True)
    assert entry is not None
    table.seal(entry)
    return entry


def test_what_is_on_disk_needs_no_memory_and_is_not_spilled(table: SmallTable) -> None:
    in_fallback(table, "a")
    assert table.unspilled_bytes == ALIGNMENT
    assert [entry.object_id for entry in table.spillable()] == [object_id("resident")]
    table.free_object(object_id("a"), 0)
    assert table.unspilled_bytes == ALIGNMENT and table.fallback.used == 0


def test_further_copies_on_disk_make_room_for_others_there_and_only_there(table: SmallTable) -> None:
    spare = in_fallback(table, "a", is_primary=False)
    in_fallback(table, "b")
    assert table.create(object_id("c"), 0, ALIGNMENT, OWNERS[0], WORKERS[0], True) is None
    assert table.evicted == []
    in_fallback(table, "c")
    assert table.evicted == [spare] and table.fallback.used == 2 * PAGE_BYTES


def test_a_further_copy_that_becomes_the_first_stays(table: SmallTable) -> None:
    in_fallback(table, "a", is_primary=False)
    in_fallback(table, "b")
    table.promote(object_id("a"), 0)
    assert table.create(object_id("c"), 0, 1, OWNERS[0], WORKERS[0], True, in_fallback=True) is None
    assert table.evicted == [] and table.unspilled_bytes == ALIGNMENT


def test_a_copy_may_go_because_its_owner_says_so(table: SmallTable) -> None:
    in_fallback(table, "a", is_primary=False)
    table.evict(object_id("a"))
    assert table.fallback.used == 0 and len(table.evicted) == 1


def test_what_was_restored_on_disk_gives_that_memory_back_when_others_need_it(table: SmallTable) -> None:
    resident = table.find(object_id("resident"))
    assert resident is not None
    table.begin_spill(resident)
    table.end_spill(resident, Spilled(SpillFile(0, "file"), 0, [0]))
    table.put("other")
    assert resident.offset == NOWHERE and table.restore(resident) is None
    assert table.restore(resident, in_fallback=True) is resident
    assert table.end_restore(resident)
    in_fallback(table, "a")
    in_fallback(table, "b")
    assert table.states.get(resident.key) == SPILLED and resident.offset == NOWHERE


class EverythingTogether(RuleBasedStateMachine):
    """Copies come and go in memory and on disk; what they take is what is given out, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SmallTable(4)
        self.disk = Room(room=6)
        self.table.fallback.open(self.disk)
        self.live: dict[str, ObjectEntry] = {}
        self.pins: list[bytes] = []
        self.count = 0

    @rule(size=st.integers(1, 3), is_primary=st.booleans(), on_disk=st.booleans())
    def create(self, size: int, is_primary: bool, on_disk: bool) -> None:
        self.count += 1
        name = f"object {self.count}"
        bytes_ = size * (PAGE_BYTES if on_disk else ALIGNMENT)
        entry = self.table.create(object_id(name), 0, bytes_, OWNERS[0], WORKERS[0], is_primary, on_disk)
        if entry is not None:
            assert self.table.fallback.has(entry.offset) == on_disk
            self.table.seal(entry)
            self.live[name] = entry

    @precondition(lambda self: self.live)
    @rule(data=st.data(), how=st.sampled_from(["free", "evict", "promote", "pin"]))
    def use(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        entry = self.live[name]
        if how == "free":
            self.table.free_object(object_id(name), 0)
            del self.live[name]
        elif how == "evict":
            self.table.evict(object_id(name))
        elif how == "promote":
            self.table.promote(object_id(name), 0)
        elif self.table.find(object_id(name)) is entry:
            self.count += 1
            pin = b"%d" % self.count
            assert self.table.pin(entry, pin, WORKERS[1])
            self.pins.append(pin)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin = data.draw(st.sampled_from(self.pins))
        self.pins.remove(pin)
        self.table.unpin([pin])

    @invariant()
    def what_is_given_out_is_what_copies_take(self) -> None:
        on_disk = [entry for entry in self.table.entries() if self.table.fallback.has(entry.offset)]
        in_memory = [entry for entry in self.table.entries() if not self.table.fallback.has(entry.offset)]
        assert self.table.fallback.used == sum(self.disk.blocks.values()) == sum(entry.size for entry in on_disk)
        assert self.table.allocator.used == sum(entry.size for entry in in_memory)
        askable = [entry for entry in in_memory if self.table.find(entry.object_id) is entry]
        assert self.table.unspilled_bytes == sum(entry.size for entry in askable if entry.is_primary)

    def teardown(self) -> None:
        self.table.unpin(self.pins)
        for name in self.live:
            self.table.free_object(object_id(name), 0)
        assert (self.table.allocator.used, self.table.fallback.used, self.disk.blocks) == (0, 0, {})


TestEverythingTogether = EverythingTogether.TestCase
