"""Objects on their way to disk and back, between a real store and a pretended disk."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import pytest

from minray.object_store.allocator import ALIGNMENT
from minray.object_store.create_request_queue import Creation
from minray.object_store.object_entry import ObjectEntry
from minray.object_store.store import ObjectStore
from minray.platform.base import DiskBusy, DiskFailed
from minray.protocol.object_store import GET, PINNED, Pinned, Wanted
from minray.raylet import io_workers
from minray.raylet.io_workers import IoWorkers
from tests.object_store.copies import OWNERS, WORKERS, FakeArena, object_id
from tests.platform_record import platform_record, raylet_config
from tests.rpc.fake_network import in_virtual_time, pass_time

BLOCKS = 4
A, B, C = map(object_id, "abc")


class Disk:
    """Does what it is told as soon as the test opens the gate."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.room = 1 << 20
        """How many pieces it takes before it fails."""
        self.reads = 0
        self.busy = 0
        """Number of the next reads that cannot even be tried."""
        self.is_closed = False

    async def write(self, name: str, pieces: Sequence[memoryview]) -> list[int]:
        await self.gate.wait()
        whole, self.room = [*pieces[: self.room]], self.room - len(pieces)
        checksums = [zlib.crc32(piece) for piece in whole]
        if whole:
            self.files[name] = b"".join(whole)
        if len(whole) == len(pieces):
            return checksums
        self.room = 0
        raise DiskFailed("no more pieces", checksums)

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        await self.gate.wait()
        self.reads += 1
        if self.busy:
            self.busy -= 1
            raise DiskBusy("can't start new thread")
        if name not in self.files:
            raise DiskFailed(f"there is no {name}")
        for piece in pieces:
            piece[:] = self.files[name][start : start + len(piece)]
            start += len(piece)
        return [zlib.crc32(piece) for piece in pieces]

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    async def close(self) -> None:
        self.is_closed = True


class Node:
    """A store of four blocks with a disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.fetched: list[bytes] = []
        self.evicted: list[bytes] = []
        platform = platform_record(open_disk=lambda directory: self.disk)
        spilling = {"min_spilling_size": 2 * ALIGNMENT, "max_io_workers": 1, "object_spilling_threshold": 1.0}
        config = raylet_config(b"node", spill_directories=["/disk"], spill_checksum_bytes=ALIGNMENT, **spilling)
        self.store = ObjectStore(
            platform,
            BLOCKS * ALIGNMENT,
            2.0,
            lambda: OWNERS[0],
            lambda key, *_: self.fetched.append(key),
            lambda entry: self.evicted.append(entry.object_id),
            lambda: self.io,
            bool,
        )
        self.store.arena = FakeArena(BLOCKS * ALIGNMENT)
        self.io = IoWorkers(platform, config, self.store, lambda: None)

    def put(self, key: bytes, blocks: int, value: int) -> list[ObjectEntry | None]:
        """A copy that must stay, as soon as there is room."""
        made: list[ObjectEntry | None] = []

        def on_created(entry: ObjectEntry | None, is_unwanted: bool) -> None:
            made.append(entry)
            if entry is not None:
                self.store.view(entry)[:] = bytes([value]) * entry.size
                self.store.seal(entry)

        self.store.create(Creation(key, 0, blocks * ALIGNMENT, OWNERS[0], WORKERS[0], True), on_created)
        return made

    def read(self, key: bytes, pin: bytes = b"pin") -> list[Pinned]:
        answers: list[Pinned] = []
        self.store.pin_together(WORKERS[1], [Wanted(key, OWNERS[0], pin, 0)], GET, answers.extend)
        return answers

    def bytes_of(self, key: bytes) -> bytes:
        entry = self.store.table.find(key)
        assert entry is not None
        return bytes(self.store.view(entry)[::ALIGNMENT])

    def spilled(self, key: bytes) -> ObjectEntry:
        entry = self.store.table.find(key)
        assert entry is not None and self.store.table.is_spilled(entry)
        return entry


async def with_a_on_disk() -> Node:
    node = Node()
    node.put(A, 2, 1)
    node.put(B, 4, 2)
    await pass_time(0)
    node.spilled(A)
    return node


@in_virtual_time
async def test_g79_what_must_stay_makes_room_on_disk_and_comes_back() -> None:
    node = Node()
    node.disk.gate.clear()
    node.put(A, 2, 1)
    made = node.put(B, 4, 2)
    assert made == [] and node.io.is_progressing
    await pass_time(1.0)
    assert made == []
    node.disk.gate.set()
    await pass_time(0)
    assert made != [] and not node.io.is_progressing and [*node.disk.files.values()] == [bytes([1]) * 2 * ALIGNMENT]
    node.store.table.free_object(B, 0)
    answers = node.read(A)
    await pass_time(0)
    assert [answer.status for answer in answers] == [PINNED] and node.bytes_of(A) == bytes([1, 1])
    stats = node.io.stats()
    assert (stats.spilled_objects, stats.spilled_bytes) == (1, 2 * ALIGNMENT)
    assert (stats.restored_objects, stats.restored_bytes) == (1, 2 * ALIGNMENT)
    node.store.unpin([b"pin"])
    node.put(C, 4, 3)
    await pass_time(0)
    assert len(node.disk.files) == 1, "it is there still, and not written again"


@in_virtual_time
async def test_a_file_goes_with_the_last_of_its_objects() -> None:
    node = Node()
    node.put(A, 1, 1)
    node.put(B, 1, 2)
    node.put(C, 4, 3)
    await pass_time(0)
    assert [*node.disk.files.values()] == [bytes([1]) * ALIGNMENT + bytes([2]) * ALIGNMENT]
    node.store.table.free_object(A, 0)
    node.store.unpin([])
    assert len(node.disk.files) == 1
    node.store.table.free_object(B, 0)
    node.store.unpin([])
    assert node.disk.files == {}


@in_virtual_time
async def test_what_is_freed_while_it_is_written_leaves_no_file() -> None:
    node = Node()
    node.disk.gate.clear()
    node.put(A, 2, 1)
    node.put(B, 4, 2)
    node.store.table.free_object(A, 0)
    node.disk.gate.set()
    await pass_time(0)
    assert node.disk.files == {} and node.bytes_of(B) == bytes([2] * 4)


@in_virtual_time
async def test_of_a_batch_that_fails_the_first_objects_are_on_disk_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.disk.room = 1
    node.put(A, 1, 1)
    node.put(B, 2, 2)
    made = node.put(C, 3, 3)
    await pass_time(1.0)
    assert isinstance(node.io.trouble, DiskFailed) and "objects stay in memory" in caplog.text
    assert node.io.stats().spilled_objects == 1 and [*node.disk.files.values()] == [bytes([1]) * ALIGNMENT]
    assert made == [] and node.bytes_of(B) == bytes([2, 2])
    node.store.table.free_object(B, 0)
    node.store.unpin([])
    assert made != [] and node.bytes_of(C) == bytes([3] * 3)


@pytest.mark.parametrize("damage", ["lost", "torn"])
@in_virtual_time
async def test_what_comes_back_other_than_it_was_is_lost_and_looked_for_elsewhere(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = await with_a_on_disk()
    (name,) = node.disk.files
    node.disk.files[name] = bytes(2 * ALIGNMENT)
    if damage == "lost":
        del node.disk.files[name]
    node.store.table.free_object(B, 0)
    answers = node.read(A)
    await pass_time(0)
    assert answers == [] and node.fetched == node.evicted == [A] and node.store.table.find(A) is None
    assert "the copy of object" in caplog.text and node.io.stats().restored_objects == 0
    assert node.store.table.allocator.used == 0 and node.disk.files == {}


@in_virtual_time
async def test_some_bytes_are_read_without_bringing_all_back() -> None:
    node = Node()
    (made,) = node.put(A, 3, 0)
    assert made is not None
    content = bytes(range(3 * ALIGNMENT))
    node.store.view(made)[:] = content
    node.put(B, 4, 2)
    await pass_time(0)
    entry = node.spilled(A)
    for start, size in ((0, 1), (ALIGNMENT - 1, 2), (ALIGNMENT, ALIGNMENT), (10, 2 * ALIGNMENT), (2 * ALIGNMENT, ALIGNMENT)):
        chunk = await node.io.read(entry, start, size)
        assert chunk is not None and bytes(chunk) == content[start : start + size]
    assert node.io.stats().streamed_bytes == 1 + 2 + 4 * ALIGNMENT and node.spilled(A) is entry
    node.disk.files.clear()
    assert await node.io.read(entry, 0, 1) is None
    assert node.evicted == [A] and node.store.table.find(A) is None
    assert await node.io.read(entry, 0, 1) is None
    assert node.evicted == [A], "nobody needs it any more"


@pytest.mark.parametrize("times", [1, len(io_workers.PAUSES_S), len(io_workers.PAUSES_S) + 1])
@in_virtual_time
async def test_what_cannot_be_read_for_want_of_a_thread_is_asked_for_again_for_a_while(times: int) -> None:
    node = await with_a_on_disk()
    node.store.table.free_object(B, 0)
    node.disk.busy = times
    answers = node.read(A)
    await pass_time(sum(io_workers.PAUSES_S) - 0.1)
    assert bool(answers) is (times == 1)
    await pass_time(0.2)
    if times <= len(io_workers.PAUSES_S):
        assert [answer.status for answer in answers] == [PINNED] and node.bytes_of(A) == bytes([1, 1])
    else:
        assert node.fetched == [A] and node.evicted == [A]


@in_virtual_time
async def test_a_copy_is_not_lost_for_want_of_memory_for_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await with_a_on_disk()
    entry = node.spilled(A)

    def none_left(size: int) -> bytearray:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(io_workers, "bytearray", none_left, raising=False)
        assert await node.io.read(entry, 0, 1) is None
    assert node.spilled(A) is entry
    chunk = await node.io.read(entry, 0, 1)
    assert chunk is not None and bytes(chunk) == bytes([1])


@in_virtual_time
async def test_a_node_that_ends_neither_writes_nor_reads() -> None:
    node = await with_a_on_disk()
    node.disk.gate.clear()
    node.store.table.free_object(B, 0)
    reading = node.read(A)
    await pass_time(0)
    await node.io.close()
    assert node.disk.is_closed
    node.disk.gate.set()
    await pass_time(0)
    assert reading == [] and node.disk.reads == 0
    node.io.restore(node.store.table.copies()[0])
    node.put(C, 2, 3)
    node.io.maybe_spill(4 * ALIGNMENT)
    await pass_time(0)
    assert node.disk.reads == 0 and len(node.disk.files) == 1
