"""Copies in an arena: S6, G77, G112 and the rules in the head of ``object_table``, against a table of what must be there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minray.object_store.allocator import ALIGNMENT
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.object_store.object_table import ObjectTable, Unwanted
from minray.protocol.base import Address
from tests.object_store.copies import OWNERS, RAYLET, WORKERS, SmallTable, object_id, rounded

A, B, C = map(object_id, "abc")
NEVER = 1 << 30


def create(
    table: ObjectTable, key: bytes, attempt: int = 0, creator: bytes = WORKERS[0], blocks: int = 1
) -> ObjectEntry | None:
    return table.create(key, attempt, blocks * ALIGNMENT, OWNERS[0], creator, creator != RAYLET)


# --- One rule at a time -------------------------------------------------------------------------------------------------


def test_g77_spare_copies_go_the_least_recently_used_first_and_primaries_stay() -> None:
    table = SmallTable(4)
    table.put("primary")
    first, second, third = (table.put(name, is_primary=False) for name in "abc")
    table.pin(first, b"pin", WORKERS[0])
    table.unpin([b"pin"])
    assert create(table, object_id("d"), blocks=2) is not None
    assert table.evicted == [second, third]
    assert create(table, object_id("e"), blocks=2) is None
    assert table.evicted == [second, third, first]
    assert table.find(object_id("primary")) is not None


def test_g77_a_death_that_concerns_no_copy_makes_none_of_them_look_used() -> None:
    table = SmallTable(3)
    first, second = (table.put(name, is_primary=False) for name in "ab")
    table.pin(first, b"pin", WORKERS[0])
    table.unpin([b"pin"])
    table.on_death(WORKERS[1])
    create(table, C, blocks=2)
    assert table.evicted == [second]


def test_g112_a_copy_that_is_sealed_once_more_does_not_look_used() -> None:
    table = SmallTable(2)
    first, second = table.put("a", is_primary=False), table.put("b", is_primary=False)
    assert table.seal(first)
    table.put("c")
    assert table.evicted == [first]
    table.abort(second)
    assert not table.seal(second)


def test_nothing_is_evicted_for_what_is_larger_than_the_arena() -> None:
    table = SmallTable(4)
    table.put("a", is_primary=False)
    assert create(table, B, blocks=5) is None
    assert table.evicted == []


def test_g66_a_promoted_copy_is_not_evicted() -> None:
    table = SmallTable(2)
    table.put("a", is_primary=False)
    table.promote(A, 1)
    table.put("b", is_primary=False)
    table.promote(B, 0)
    assert create(table, C, blocks=2) is None
    assert [entry.object_id for entry in table.evicted] == [A]


def test_s6_memory_that_is_written_or_read_is_not_given_away_when_its_object_is_freed() -> None:
    table = SmallTable(2)
    written, read = create(table, A), table.put("b")
    assert written is not None and table.pin(read, b"pin", WORKERS[1])
    table.free_object(A, 0)
    table.free_object(B, 0)
    assert table.find(A) is table.find(B) is None
    assert create(table, C) is None
    assert table.seal(written) is False
    assert create(table, C) is not None
    assert create(table, object_id("d")) is None
    table.unpin([b"pin"])
    assert create(table, object_id("d")) is not None


def test_g112_a_pin_is_one_copy_until_it_is_given_back() -> None:
    """The question comes again when a later attempt's copy has taken the place of what was pinned."""
    table = SmallTable(2)
    first = table.put("a")
    assert table.pin(first, b"pin", WORKERS[1])
    second = table.put("a", attempt=1)
    assert table.pinned_as(b"pin") is first
    assert not table.pin(second, b"pin", WORKERS[1])
    table.unpin([b"pin"])
    assert table.entries() == [second] and not second.in_use()


@pytest.mark.parametrize("owner_dies", [True, False])
def test_g62_g59_late_creations_of_what_was_freed_or_whose_owner_died_are_unwanted(owner_dies: bool) -> None:
    table = SmallTable(2)
    table.put("a")
    if owner_dies:
        table.on_death(OWNERS[0].worker_id)
    else:
        table.free_object(A, 3)
    assert len(table) == table.allocator.used == 0
    with pytest.raises(Unwanted):
        create(table, A, attempt=3)
    assert owner_dies or create(table, A, attempt=4) is not None


def test_g112_a_copy_that_was_lost_is_not_created_again_by_a_repeated_wish() -> None:
    table = SmallTable(2)
    table.abort(table.put("a"))
    with pytest.raises(Unwanted):
        create(table, A)
    assert create(table, A, creator=RAYLET) is not None and create(table, A, attempt=1) is not None


def test_s5_an_earlier_attempt_never_takes_the_place_of_a_later_one() -> None:
    table = SmallTable(3)
    later = table.put("a", attempt=1)
    for attempt, creator in ((0, WORKERS[1]), (1, WORKERS[1]), (1, RAYLET)):
        with pytest.raises(Unwanted):
            create(table, A, attempt, creator)
    assert table.find(A) is later


def test_the_memory_of_a_writer_that_dies_is_free_and_what_it_has_sealed_is_not() -> None:
    table = SmallTable(2)
    create(table, A)
    sealed = table.put("b")
    table.on_death(WORKERS[0])
    assert table.entries() == [sealed]
    with pytest.raises(Unwanted):
        create(table, C)


# --- Whatever happens ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Model:
    """One copy as it must be."""

    object_id: bytes
    attempt: int
    size: int
    owner: Address
    creator: bytes
    is_primary: bool
    offset: int
    is_written: bool = False
    is_sealed: bool = False
    used_at: int = 0
    pins: dict[bytes, bytes] = field(default_factory=dict)

    def in_use(self) -> bool:
        return not self.is_written or bool(self.pins)


objects = st.sampled_from([A, B, C])
attempts = st.integers(0, 2)
creators = st.sampled_from([*WORKERS, RAYLET])
pins = st.sampled_from([b"pin-%d" % number for number in range(12)])


class Copies(RuleBasedStateMachine):
    """A table of a few blocks beside a list of what it must have."""

    BLOCKS = 6
    LIVES = 4
    """Ids of workers and nodes that die come from a supply, so that a run does not end with everybody dead."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SmallTable(self.BLOCKS)
        self.wanted: dict[bytes, Model] = {}
        self.doomed: list[Model] = []
        self.freed: dict[bytes, int] = {}
        self.aborted: set[tuple[bytes, int, bytes]] = set()
        self.dead: set[bytes] = set()
        self.spent: set[bytes] = set()
        self.clock = 0

    # --- what must follow

    def copies(self) -> list[Model]:
        return [*self.wanted.values(), *self.doomed]

    def spare(self) -> list[Model]:
        spare = [copy for copy in self.wanted.values() if not copy.is_primary and not copy.in_use()]
        return sorted(spare, key=lambda copy: copy.used_at)

    def largest_gap(self, copies: list[Model]) -> int:
        end, largest = 0, 0
        blocks = sorted((copy.offset, rounded(copy.size)) for copy in copies)
        for offset, size in [*blocks, (self.BLOCKS * ALIGNMENT, 0)]:
            largest, end = max(largest, offset - end), offset + size
        return largest

    def doom(self, copy: Model) -> None:
        if self.wanted.get(copy.object_id) is copy:
            del self.wanted[copy.object_id]
            self.doomed.append(copy)
        self.forget()

    def forget(self) -> None:
        self.doomed = [copy for copy in self.doomed if copy.in_use()]

    def touch(self, copy: Model) -> None:
        self.clock += 1
        copy.used_at = self.clock

    def entry_of(self, copy: Model) -> ObjectEntry:
        (entry,) = [entry for entry in self.table.entries() if entry.offset == copy.offset]
        return entry

    # --- what happens

    @rule(
        key=objects,
        attempt=attempts,
        size=st.integers(0, 3 * ALIGNMENT) | st.integers(0, BLOCKS * ALIGNMENT + 1),
        owner=st.sampled_from(OWNERS),
        creator=creators,
    )
    def create(self, key: bytes, attempt: int, size: int, owner: Address, creator: bytes) -> None:
        known = self.wanted.get(key)
        is_repeated = known is not None and (known.attempt, known.creator) == (attempt, creator)
        is_late = known is not None and known.attempt >= attempt and not is_repeated
        is_over = self.freed.get(key, -1) >= attempt or (creator != RAYLET and (key, attempt, creator) in self.aborted)
        is_over = is_over or bool(self.dead & {owner.worker_id, owner.node_id, creator})
        before, spare = len(self.table.evicted), self.spare()
        try:
            entry = self.table.create(key, attempt, size, owner, creator, creator != RAYLET)
        except Unwanted:
            assert is_over or is_late
            return
        assert not is_over and not is_late
        if known is not None and is_repeated:
            assert entry is self.entry_of(known)
            return
        if known is not None:
            self.doom(known)
        spare = [copy for copy in spare if copy is not known]
        evicted = self.table.evicted[before:]
        for copy, gone in zip(spare, evicted, strict=False):
            assert (copy.offset, copy.object_id) == (gone.offset, gone.object_id)
            assert self.largest_gap(self.copies()) < rounded(size)
            self.doom(copy)
        assert len(evicted) <= len(spare)
        if entry is None:
            assert size > self.BLOCKS * ALIGNMENT or self.largest_gap(self.copies()) < rounded(size)
            assert size > self.BLOCKS * ALIGNMENT or not self.spare()
        else:
            self.wanted[key] = Model(key, attempt, size, owner, creator, creator != RAYLET, entry.offset)

    @precondition(lambda self: self.copies())
    @rule(data=st.data(), ending=st.sampled_from(["seal", "seal", "seal", "abort"]))
    def finish(self, data: Any, ending: str) -> None:
        """Also again, late, and of what is doomed."""
        copy = data.draw(st.sampled_from(self.copies()))
        entry = self.table.copy_of(copy.object_id, copy.attempt, copy.creator)
        may_be = [one for one in self.copies() if (one.object_id, one.attempt) == (copy.object_id, copy.attempt)]
        if entry is None:
            assert copy in self.doomed and copy.is_written
            return
        (copy,) = [one for one in may_be if one.offset == entry.offset]
        copy.is_written = True
        if ending == "seal":
            is_wanted = copy in self.wanted.values()
            assert self.table.seal(entry) is is_wanted
            if is_wanted and not copy.pins and not copy.is_sealed:
                self.touch(copy)
            copy.is_sealed = is_wanted or copy.is_sealed
            self.forget()
        else:
            self.table.abort(entry)
            self.aborted.add((copy.object_id, copy.attempt, copy.creator))
            self.doom(copy)

    @rule(key=objects, pin=pins, client=creators)
    def pin(self, key: bytes, pin: bytes, client: bytes) -> None:
        """As the store does: what is pinned under that name already is the answer."""
        taken = [copy for copy in self.copies() if pin in copy.pins]
        copy = self.wanted.get(key)
        if taken:
            assert self.table.pinned_as(pin) is self.entry_of(taken[0])
        elif copy is not None and copy.is_sealed:
            is_alive = pin not in self.spent and client not in self.dead
            assert self.table.pin(self.entry_of(copy), pin, client) is is_alive
            if is_alive:
                copy.pins[pin] = client
        else:
            assert self.table.pinned_as(pin) is None

    @rule(names=st.lists(pins, max_size=3))
    def unpin(self, names: list[bytes]) -> None:
        self.table.unpin(names)
        for name in names:
            self.spent.add(name)
            self.take_pins(lambda copy, pin, name=name: pin == name)

    def take_pins(self, is_over: Callable[[Model, bytes], bool]) -> None:
        for copy in self.copies():
            over = [pin for pin in copy.pins if is_over(copy, pin)]
            for pin in over:
                del copy.pins[pin]
            if over and not copy.in_use():
                self.touch(copy)
        self.forget()

    @rule(key=objects, attempt=attempts)
    def promote(self, key: bytes, attempt: int) -> None:
        self.table.promote(key, attempt)
        copy = self.wanted.get(key)
        if copy is not None and copy.attempt == attempt:
            copy.is_primary = True

    @rule(key=objects, attempt=attempts)
    def free(self, key: bytes, attempt: int) -> None:
        self.table.free_object(key, attempt)
        self.freed[key] = max(attempt, self.freed.get(key, -1))
        copy = self.wanted.get(key)
        if copy is not None and copy.attempt <= attempt:
            self.doom(copy)

    @precondition(lambda self: len(self.dead) < 2)
    @rule(who=st.sampled_from([WORKERS[0], *(owner.worker_id for owner in OWNERS), OWNERS[0].node_id, OWNERS[1].node_id]))
    def die(self, who: bytes) -> None:
        self.table.on_death(who)
        self.dead.add(who)
        self.take_pins(lambda copy, pin: copy.pins[pin] == who)
        for copy in self.copies():
            is_left = copy.creator == who and not copy.is_written
            copy.is_written = copy.is_written or is_left
            if is_left or who in (copy.owner.worker_id, copy.owner.node_id):
                self.doom(copy)
        self.forget()

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def hear_of_a_death_again(self, data: Any) -> None:
        self.table.on_death(data.draw(st.sampled_from(sorted(self.dead))))

    # --- what must always hold

    @invariant()
    def the_table_is_what_it_must_be(self) -> None:
        there = {(entry.object_id, entry.attempt, entry.offset, entry.size, *entry.pins) for entry in self.table.entries()}
        assert there == {(copy.object_id, copy.attempt, copy.offset, copy.size, *copy.pins) for copy in self.copies()}
        assert len(self.table) == len(self.copies())
        for key, copy in self.wanted.items():
            entry = self.table.find(key)
            assert entry is not None and entry.offset == copy.offset
            assert self.table.is_sealed(entry) is copy.is_sealed
        assert all(self.table.find(key) is None for key in (A, B, C) if key not in self.wanted)

    @invariant()
    def s6_memory_is_that_of_the_copies_and_none_is_used_twice(self) -> None:
        end = 0
        for offset, size in sorted((copy.offset, rounded(copy.size)) for copy in self.copies()):
            assert offset >= end
            end = offset + size
        assert end <= self.BLOCKS * ALIGNMENT
        assert self.table.allocator.used == sum(rounded(copy.size) for copy in self.copies())

    def teardown(self) -> None:
        """Owners free everything, readers and writers end: nothing is left."""
        for key in (A, B, C):
            self.table.free_object(key, NEVER)
        self.table.unpin([pin for copy in self.copies() for pin in copy.pins])
        for entry in self.table.entries():
            self.table.seal(entry)
        assert len(self.table) == self.table.allocator.used == 0
        assert len(self.table.states) == 0 and self.table._by_pin == {} and not self.table._spare


TestWhateverHappens = Copies.TestCase


def test_whether_what_an_attempt_has_made_is_here() -> None:
    table = SmallTable(4)
    table.put("a", attempt=1)
    assert [table.has(object_id("a"), attempt) for attempt in (0, 1, 2)] == [False, True, False]
    table.create(object_id("b"), 0, ALIGNMENT, OWNERS[0], RAYLET, False)
    assert not table.has(object_id("b"), 0) and not table.has(object_id("c"), 0)


def test_g87_room_is_what_is_free_and_what_may_go() -> None:
    table = SmallTable(4)
    table.put("stays")
    for name in "ab":
        table.put(name, is_primary=False)
    assert [table.has_room(blocks * ALIGNMENT) for blocks in (1, 2, 3, 4)] == [True, True, True, False]


class TableMachine(RuleBasedStateMachine):
    """Any events of copies in any order: the sums of the table are those of its copies, and nothing is left at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SmallTable(6)
        self.moving: list[ObjectEntry] = []
        self.pins: list[bytes] = []
        self.count = 0

    def _next(self) -> bytes:
        self.count += 1
        return self.count.to_bytes(8, "big")

    def _some(self, data: st.DataObject, entries: Iterable[ObjectEntry]) -> ObjectEntry | None:
        those = [*entries]
        return data.draw(st.sampled_from(those)) if those else None

    @rule(
        name=st.sampled_from("abcd"),
        attempt=st.integers(0, 2),
        blocks=st.integers(1, 3),
        is_primary=st.booleans(),
        owner=st.sampled_from(OWNERS),
    )
    def create(self, name: str, attempt: int, blocks: int, is_primary: bool, owner: Address) -> None:
        creator = WORKERS[0] if is_primary else RAYLET
        with suppress(Unwanted):
            self.table.create(object_id(name), attempt, blocks * ALIGNMENT, owner, creator, is_primary)

    @rule(data=st.data(), aborts=st.booleans())
    def end_writing(self, data: st.DataObject, aborts: bool) -> None:
        entry = self._some(data, (entry for entry in self.table.copies() if not entry.is_written))
        if entry is not None:
            (self.table.abort if aborts else self.table.seal)(entry)

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        entry = self._some(data, (entry for entry in self.table.copies() if self.table.is_sealed(entry)))
        if entry is not None:
            self.pins.append(self._next())
            self.table.pin(entry, self.pins[-1], WORKERS[1])

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.table.unpin([data.draw(st.sampled_from(self.pins))])

    @rule(name=st.sampled_from("abcd"), attempt=st.integers(0, 2))
    def promote(self, name: str, attempt: int) -> None:
        self.table.promote(object_id(name), attempt)

    @rule(name=st.sampled_from("abcd"))
    def evict(self, name: str) -> None:
        self.table.evict(object_id(name))

    @rule(data=st.data())
    def begin_spill(self, data: st.DataObject) -> None:
        entry = self._some(data, self.table.spillable())
        if entry is not None:
            self.table.begin_spill(entry)
            self.moving.append(entry)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        entry = self._some(data, (entry for entry in self.table.primaries() if self.table.is_spilled(entry)))
        if entry is not None and self.table.restore(entry) is not None:
            self.moving.append(entry)

    @precondition(lambda self: self.moving)
    @rule(succeeds=st.booleans())
    def end_moving(self, succeeds: bool) -> None:
        entry = self.moving.pop(0)
        if entry.spilled is None:
            self.table.end_spill(entry, Spilled(SpillFile(0, "file"), 0, []) if succeeds else None)
            return
        if not succeeds:
            self.table.abort(entry)
        self.table.end_restore(entry)

    @rule(name=st.sampled_from("abcd"), attempt=st.integers(0, 1))
    def free(self, name: str, attempt: int) -> None:
        self.table.free_object(object_id(name), attempt)

    @rule(who=st.sampled_from([OWNERS[2].worker_id, OWNERS[1].worker_id]))
    def die(self, who: bytes) -> None:
        self.table.on_death(who)

    @invariant()
    def sums_agree(self) -> None:
        table, copies = self.table, self.table.copies()
        wanted = [entry for entry in copies if table.find(entry.object_id) is entry]
        must_stay = [entry for entry in wanted if entry.is_primary and entry.spilled is None]
        idle = [entry for entry in wanted if table.is_sealed(entry) and not entry.in_use()]
        assert table.allocator.used == sum(entry.size for entry in table.entries())
        assert table.unspilled_bytes == sum(entry.size for entry in must_stay)
        assert table.spilled_bytes == sum(entry.size for entry in copies if entry.spilled is not None)
        spillable = {entry.object_id: entry for entry in idle if entry in must_stay}
        assert {entry.object_id for entry in table.spillable()} == spillable.keys()
        assert table.spillable_bytes == sum(entry.size for entry in spillable.values())
        assert table._spare.keys() == {entry.object_id for entry in idle} - spillable.keys()
        assert all(entry.in_use() for entry in copies if entry not in wanted)

    def teardown(self) -> None:
        while self.moving:
            self.end_moving(True)
        for entry in self.table.copies():
            self.table.free_object(entry.object_id, entry.attempt)
            if not entry.is_written:
                self.table.abort(entry)
        self.table.unpin(self.pins)
        assert len(self.table) == self.table.allocator.used == self.table.unspilled_bytes == self.table.spilled_bytes == 0


TestTableMachine = TableMachine.TestCase
