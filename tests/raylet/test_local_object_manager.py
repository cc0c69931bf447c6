"""Spilling: which objects, when, and where; nothing is lost or left over, whatever happens in between."""

from __future__ import annotations

import zlib
from itertools import islice
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minray.common.config import SystemConfig
from minray.object_store.allocator import ALIGNMENT, Allocator
from minray.object_store.create_request_queue import CreateRequestQueue, Creation
from minray.object_store.object_entry import ObjectEntry, SpillFile
from minray.object_store.object_table import RESTORING, SPILLED, ObjectTable, Unwanted
from minray.protocol.base import Address
from minray.raylet.local_object_manager import PAUSE_S, LocalObjectManager, SpillBatch

OWNER = Address(b"owner".ljust(16), b"node".ljust(16), "sim:owner")
READER = b"reader".ljust(16)
SIZE = ALIGNMENT
CAPACITY = 10 * SIZE
CONFIG = SystemConfig(min_spilling_size=2 * SIZE, max_fused_object_count=3, max_io_workers=2)


class Node:
    """A table and its manager, without any memory or disk."""

    def __init__(self, config: SystemConfig = CONFIG, directories: int = 1, capacity: int = CAPACITY) -> None:
        self.evicted: list[ObjectEntry] = []
        self.table = ObjectTable(Allocator(capacity), None, self.evicted.append)
        self.manager = LocalObjectManager(self.table, directories, config)
        self.now = 0.0

    def add(self, number: int, size: int = SIZE, is_primary: bool = True) -> ObjectEntry | None:
        entry = self.table.create(object_id(number), 0, size, OWNER, b"", is_primary)
        if entry is not None:
            self.table.seal(entry)
        return entry

    def fill(self, count: int) -> list[ObjectEntry]:
        entries = [self.add(number) for number in range(count)]
        return [entry for entry in entries if entry is not None]

    def assign(self, wanted_bytes: int = 0) -> list[SpillBatch]:
        return self.manager.assign(wanted_bytes, self.now)

    def write(self, batch: SpillBatch, count: int | None = None) -> bool:
        """End a batch; with a ``count`` it fails after that many objects. Return whether its file stays."""
        written = batch.entries[:count]
        return self.manager.on_written(batch, [[0]] * len(written), count is not None, self.now)

    def spill_all(self) -> None:
        for _ in range(CAPACITY // SIZE):
            for batch in self.assign(CAPACITY):
                assert self.write(batch)

    def free(self, number: int) -> list[SpillFile]:
        """Returns the files that go."""
        self.table.free_object(object_id(number), 0)
        return [file for file in self.table.take_unneeded() if self.manager.release(file)]


def object_id(number: int) -> bytes:
    return number.to_bytes(28, "big")


def numbers(batch: SpillBatch) -> list[int]:
    return [int.from_bytes(entry.object_id, "big") for entry in batch.entries]


# --- When and what ---


def test_g85_spilling_starts_when_primary_copies_take_four_fifths() -> None:
    node = Node()
    node.fill(8)
    assert node.assign() == []
    node.add(8)
    (batch,) = node.assign()
    assert numbers(batch) == [0, 1]


def test_g85_secondary_copies_and_spilled_ones_do_not_count() -> None:
    node = Node()
    for number in range(10):
        node.add(number, is_primary=number < 8)
    assert node.assign() == []
    node.spill_all()
    node.add(10)
    assert node.assign() == []


def test_g80_what_somebody_reads_is_not_spilled() -> None:
    node = Node()
    for number, entry in enumerate(node.fill(9)):
        if number != 4:
            node.table.pin(entry, b"%d" % number, READER)
    (batch,) = node.assign()
    assert numbers(batch) == [4]
    assert node.assign(CAPACITY) == []


def test_the_least_recently_used_goes_first() -> None:
    node = Node()
    entries = node.fill(9)
    for number in (0, 2):
        node.table.pin(entries[number], b"pin", READER)
        node.table.unpin([b"pin"])
        node.table._spent.clear()
    (batch,) = node.assign()
    assert numbers(batch) == [1, 3]


def test_who_waits_for_memory_begins_spilling_before_the_threshold() -> None:
    node = Node()
    node.fill(4)
    (batch,) = node.assign(SIZE)
    assert numbers(batch) == [0, 1]
    assert node.assign(2 * SIZE) == [], "so much is on its way already"
    assert len(node.assign(3 * SIZE)) == 1


def test_small_objects_share_a_file_and_wait_for_company_only_while_others_are_written() -> None:
    node = Node(msgspec.structs.replace(CONFIG, min_spilling_size=100 * SIZE))
    node.fill(9)
    first, second = node.assign(CAPACITY)
    assert numbers(first) == [0, 1, 2] and numbers(second) == [3, 4, 5]
    assert node.assign(CAPACITY) == [], "two are written at once"
    node.write(first)
    (third,) = node.assign(CAPACITY)
    assert numbers(third) == [6, 7, 8], "a full file"
    node.add(9)
    node.write(second)
    assert node.assign(CAPACITY) == []
    node.write(third)
    (last,) = node.assign(CAPACITY)
    assert numbers(last) == [9]


# --- What becomes of a batch ---


def test_a_spilled_copy_keeps_its_memory_until_that_is_needed() -> None:
    node = Node()
    entries = node.fill(9)
    (batch,) = node.assign()
    assert node.write(batch)
    assert node.table.is_sealed(entries[0]) and node.table.allocator.used == 9 * SIZE
    assert node.add(10) is not None and node.add(11) is not None
    assert node.table.is_spilled(entries[0]) and not node.table.is_spilled(entries[1])
    assert node.evicted == []


def test_a_restored_copy_is_not_written_again() -> None:
    node = Node()
    first, *_ = node.fill(9)
    node.spill_all()
    while not node.table.is_spilled(first):
        node.add(100 + len(node.table))
    node.spill_all()
    assert node.table.restore(first) is first
    assert node.table.end_restore(first)
    assert first not in node.table.spillable()
    while not node.table.is_spilled(first):
        assert node.add(100 + len(node.table)) is not None


def test_g81_a_file_goes_with_the_last_object_in_it() -> None:
    node = Node()
    node.fill(9)
    (batch,) = node.assign()
    node.write(batch)
    assert node.free(0) == []
    assert node.free(1) == [batch.file]
    assert node.free(2) == []
    assert not node.manager._files


def test_g82_what_is_freed_while_it_is_written_keeps_its_memory_until_then_and_has_no_place_in_the_file() -> None:
    node = Node()
    entries = node.fill(9)
    (batch,) = node.assign()
    assert node.free(0) == []
    assert entries[0] in node.table.entries()
    assert node.write(batch)
    assert entries[0] not in node.table.entries()
    assert node.free(1) == [batch.file]


def test_g82_a_file_that_nobody_needs_when_it_is_written_is_not_kept() -> None:
    node = Node()
    node.fill(9)
    (batch,) = node.assign()
    node.free(0)
    node.free(1)
    assert not node.write(batch)


def test_g83_a_batch_that_fails_at_one_object_has_spilled_those_before() -> None:
    node = Node(msgspec.structs.replace(CONFIG, min_spilling_size=3 * SIZE))
    node.fill(9)
    (batch,) = node.assign()
    assert node.write(batch, count=2)
    assert [entry.spilled is not None for entry in batch.entries] == [True, True, False]
    assert batch.entries[2] in node.table.spillable() and node.table.is_sealed(batch.entries[2])
    assert node.free(0) + node.free(1) == [batch.file]


def test_directories_take_turns_and_one_that_fails_is_left_out_for_a_while() -> None:
    node = Node(directories=3)
    node.fill(10)
    batches = node.assign(4 * SIZE)
    assert [batch.file.directory for batch in batches] == [0, 1]
    node.write(batches[1], count=0)
    node.write(batches[0])
    assert [batch.file.directory for batch in node.assign(4 * SIZE)] == [2, 0]
    node = Node()
    node.fill(10)
    node.write(node.assign()[0], count=0)
    assert node.assign(CAPACITY) == []
    node.now += PAUSE_S
    assert node.assign(CAPACITY) != []


def test_a_directory_where_something_could_be_written_meanwhile_is_not_left_out() -> None:
    node = Node()
    node.fill(10)
    failing, other = node.assign(CAPACITY)
    node.write(failing, 0)
    assert node.assign(CAPACITY) == []
    node.write(other)
    assert node.assign(CAPACITY) != []


def test_room_on_a_full_disk_is_used_at_once() -> None:
    node = Node()
    node.fill(10)
    first, second = node.assign(4 * SIZE)
    node.write(first)
    node.write(second, count=0)
    assert node.assign(CAPACITY) == [] and not node.manager.can_write(node.now)
    assert node.free(0) + node.free(1) == [first.file]
    assert node.manager.can_write(node.now) and node.assign(CAPACITY) != []


def test_nothing_is_spilled_where_that_is_switched_off() -> None:
    node = Node(SystemConfig(automatic_object_spilling_enabled=False))
    node.fill(10)
    assert node.assign(CAPACITY) == [] and not node.manager.can_write(node.now)


def test_without_a_directory_nothing_is_spilled() -> None:
    node = Node(directories=0)
    node.fill(10)
    assert node.assign(CAPACITY) == [] and not node.manager.can_write(node.now)


# --- Who waits for room ---


def test_g79_waiting_goes_on_while_spilling_makes_progress() -> None:
    node = Node()
    node.fill(10)
    queue = CreateRequestQueue(node.table, 2.0, bool)
    answers: list[ObjectEntry | None] = []
    creation = Creation(object_id(99), 0, SIZE, OWNER, b"", True)
    queue.add_request(creation, lambda entry, is_unwanted: answers.append(entry), 0.0)
    assert queue.waiting_bytes == SIZE
    assert queue.advance(1.9, is_spilling=True) == 3.9
    assert queue.advance(3.8, is_spilling=True) == 5.8
    assert queue.advance(5.7) == 5.8 and answers == []
    assert queue.advance(5.8) is None and answers == [None]
    assert queue.waiting_bytes == 0


# --- Everything together ---


class Spilling(RuleBasedStateMachine):
    """A node with memory and files, where reading and writing take a while."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(directories=2)
        self.memory = bytearray(CAPACITY)
        self.files: dict[SpillFile, bytes] = {}
        self.batches: list[SpillBatch] = []
        self.restoring: list[ObjectEntry] = []
        self.live: dict[int, ObjectEntry] = {}
        self.pins: dict[bytes, tuple[int, ObjectEntry]] = {}
        self.count = 0

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5))
    def put(self, sizes: list[int]) -> None:
        for lines in sizes:
            self.count += 1
            entry = self.node.table.create(object_id(self.count), 0, lines * SIZE, OWNER, b"", True)
            if entry is not None:
                self._view(entry)[:] = self._content(entry)
                self.node.table.seal(entry)
                self.live[self.count] = entry

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5))
    def put_what_has_no_room(self, sizes: list[int]) -> None:
        """Most of what was there has no memory afterwards."""
        self.batches += self.node.assign(CAPACITY)
        while self.batches:
            self._end_spill(self.batches.pop(), len(self.batches) % 2)
        self.put(sizes)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[number]
        self.node.table.free_object(object_id(number), 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), times=st.integers(1, 2))
    def read(self, data: Any, times: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        for _ in range(times):
            self._read(number)

    def _read(self, number: int) -> None:
        entry, table = self.live[number], self.node.table
        if table.is_sealed(entry):
            self.count += 1
            pin = b"pin%d" % self.count
            assert table.pin(entry, pin, READER)
            self.pins[pin] = number, entry
        else:
            try:
                restored = table.restore(entry)
            except Unwanted:
                assert entry in self.restoring
            else:
                self.restoring += [restored] if restored is not None else []

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def end_read(self, data: Any) -> None:
        pin = data.draw(st.sampled_from(sorted(self.pins)))
        _, entry = self.pins.pop(pin)
        assert self._view(entry) == self._content(entry)
        self.node.table.unpin([pin])

    @rule()
    def reader_dies(self) -> None:
        self.node.table.on_death(READER)
        self.node.table._dead.clear()
        self.pins.clear()

    @rule(wanted=st.sampled_from([0, SIZE, CAPACITY]), wait_s=st.sampled_from([0.0, PAUSE_S]))
    def spill(self, wanted: int, wait_s: float) -> None:
        self.node.now += wait_s
        self.batches += self.node.assign(wanted)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def end_spill(self, data: Any) -> None:
        batch = self.batches.pop(data.draw(st.integers(0, len(self.batches) - 1)))
        self._end_spill(batch, data.draw(st.sampled_from([0, 0, 1, 2, 3])))

    def _end_spill(self, batch: SpillBatch, missing: int) -> None:
        """End a batch in which all objects but the last ``missing`` are written."""
        count = max(0, len(batch.entries) - missing)
        views = [bytes(self._view(entry)) for entry in batch.entries[:count]]
        for entry, view in zip(batch.entries, views, strict=False):
            assert view == self._content(entry), "its memory was given away while it was written"
        checksums = [[zlib.crc32(view)] for view in views]
        if self.node.manager.on_written(batch, checksums, count < len(batch.entries), self.node.now):
            self.files[batch.file] = b"".join(views)

    @precondition(lambda self: self.restoring)
    @rule(is_lost=st.integers(0, 4).map(lambda number: number == 0))
    def end_restore(self, is_lost: bool) -> None:
        entry = self.restoring.pop()
        spilled, table = entry.spilled, self.node.table
        assert spilled is not None
        content = self.files[spilled.file][spilled.start : spilled.start + entry.size]
        assert [zlib.crc32(content)] == spilled.checksums
        self._view(entry)[:] = content
        if is_lost and table.find(entry.object_id) is entry:
            table.abort(entry)
            del self.live[int.from_bytes(entry.object_id, "big")]
        table.end_restore(entry)

    @invariant()
    def nothing_is_lost_and_nothing_left(self) -> None:
        table = self.node.table
        for file in table.take_unneeded():
            if self.node.manager.release(file):
                del self.files[file]
        for entry in self.live.values():
            if table.is_sealed(entry):
                assert self._view(entry) == self._content(entry)
            else:
                assert table.states.get(entry.key) in (SPILLED, RESTORING)
                assert entry.spilled is not None and entry.spilled.file in self.files
        assert self.node.evicted == [], "all are primary copies (G77)"
        assert table.allocator.used == sum(entry.size for entry in table.entries()) <= CAPACITY
        on_disk = [entry for entry in self._known() if entry.spilled is not None]
        assert {entry.spilled.file for entry in on_disk if entry.spilled} == self.files.keys()
        assert table.spilled_bytes == sum(entry.size for entry in on_disk)
        assert table.unspilled_bytes == sum(entry.size for entry in self.live.values() if entry.spilled is None)
        assert table.spillable_bytes == sum(entry.size for entry in table.spillable())

    def teardown(self) -> None:
        self.node.table.unpin(self.pins)
        for entry in self.restoring:
            self.node.table.end_restore(entry)
        for batch in self.batches:
            if self.node.write(batch):
                self.files[batch.file] = b""
        for number in list(self.live):
            self.node.table.free_object(object_id(number), 0)
        self.live.clear()
        self.nothing_is_lost_and_nothing_left()
        assert (len(self.node.table), self.node.table.allocator.used, self.files) == (0, 0, {})

    def _known(self) -> list[ObjectEntry]:
        """All copies that are not forgotten."""
        return self.node.table.copies()

    def _view(self, entry: ObjectEntry) -> memoryview:
        return memoryview(self.memory)[entry.offset : entry.offset + entry.size]

    def _content(self, entry: ObjectEntry) -> bytes:
        return bytes(islice(iter(lambda: entry.number % 256, None), entry.size))


TestSpilling = Spilling.TestCase
