"""Answers of a node's store to clients and owners, for questions in any order and any number (G59, G79, G112)."""

from __future__ import annotations

from typing import Any

import pytest

from minray.object_store.allocator import ALIGNMENT
from minray.object_store.create_request_queue import Creation
from minray.object_store.fallback import PAGE_BYTES
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.object_store.store import ObjectStore
from minray.platform.base import MemoryFailed
from minray.protocol.base import DONE
from minray.protocol.object_store import (
    CHANGED,
    CREATED,
    FREED,
    FULL,
    GET,
    LOST,
    NO_ROOM,
    NOT_HERE,
    PINNED,
    TASK_ARGUMENTS,
    UNWANTED,
    AbortObject,
    Copy,
    CreateObject,
    FreeObjects,
    Pinned,
    PinObjects,
    ReleasePins,
    SealObject,
    Wanted,
)
from tests.object_store.copies import OWNERS, WORKERS, FakeArena, FakeSpilling, object_id
from tests.platform_record import platform_record
from tests.rpc.fake_network import in_virtual_time, pass_time
from tests.rpc.recording_call import RecordingCall

BLOCKS = 4
GRACE_S = 2.0
WRITER, READER = WORKERS
A, B = object_id("a"), object_id("b")


class Scene:
    """A store of four blocks, and what it has answered and asked for."""

    def __init__(self) -> None:
        self.arenas: dict[str, FakeArena] = {}
        """By the endpoint that hands them out."""
        self.fetched: list[bytes] = []
        self.evicted: list[bytes] = []
        self.has_fallback = True
        self.disk: Any = FakeSpilling()
        self.store = ObjectStore(
            platform_record(memory=self),
            BLOCKS * ALIGNMENT,
            GRACE_S,
            lambda: OWNERS[0],
            lambda key, *_: self.fetched.append(key),
            lambda entry: self.evicted.append(entry.object_id),
            lambda: self.disk,
            bool,
        )

    async def create_arena(self, endpoint: str, size: int) -> FakeArena:
        return self.arenas.setdefault(endpoint, FakeArena(size))

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> FakeArena:
        if not self.has_fallback:
            raise MemoryFailed(f"{directory} cannot be written")
        return self.arenas.setdefault(endpoint, FakeArena(4 * PAGE_BYTES))

    def closed(self) -> list[str]:
        """The endpoints of arenas that are not handed out any more."""
        return [endpoint for endpoint, arena in self.arenas.items() if arena.is_closed]

    def ask(self, request: Any, peer: bytes = WRITER) -> list[Any]:
        """The answers, as they come."""
        call = RecordingCall(peer)
        answer = getattr(self.store, f"handle_{type(request).__name__}")(request, call)
        return call.replies if answer is None else [answer]

    def create(self, key: bytes = A, blocks: int = 1, attempt: int = 0) -> list[Any]:
        return self.ask(CreateObject(key, attempt, blocks * ALIGNMENT, OWNERS[0], WRITER))

    def seal(self, key: bytes = A) -> None:
        assert self.ask(SealObject(key, 0)) == [DONE]

    def put(self, key: bytes = A, blocks: int = 1) -> None:
        (reply,) = self.create(key, blocks)
        assert reply.status == CREATED
        self.seal(key)

    def free(self, key: bytes = A) -> None:
        self.ask(FreeObjects([Copy(key, 0)]))

    def pin(
        self, *keys: bytes, name: str = "pin", attempt: int = 0, purpose: int = GET, timeout_s: float | None = None
    ) -> list[Any]:
        wanted = [Wanted(key, OWNERS[0], f"{name} {index}".encode(), attempt) for index, key in enumerate(keys)]
        return self.ask(PinObjects(READER, wanted, purpose, timeout_s), READER)

    def spill(self, key: bytes = A, blocks: int = 1) -> ObjectEntry:
        """A copy that is on disk alone."""
        self.put(key, blocks)
        entry = self.store.table.find(key)
        assert entry is not None
        self.store.table.begin_spill(entry)
        self.store.table.end_spill(entry, Spilled(SpillFile(0, "file"), 0, []))
        self.put(B, BLOCKS)
        assert self.store.table.is_spilled(entry)
        return entry

    def is_empty(self) -> bool:
        return len(self.store.table) == self.store.table.allocator.used == 0


def statuses(answers: list[Any]) -> list[int]:
    (reply,) = answers
    return [pinned.status for pinned in reply.pinned]


@in_virtual_time
async def test_what_is_here_is_pinned_at_once_and_what_is_not_is_waited_for() -> None:
    scene = Scene()
    scene.put(A)
    assert statuses(scene.pin(A)) == [PINNED]
    both = scene.pin(A, B, name="both")
    assert both == [] and scene.fetched == [B]
    scene.create(B)
    assert both == []
    scene.seal(B)
    assert statuses(both) == [PINNED, PINNED]


@in_virtual_time
async def test_one_that_cannot_come_does_not_keep_the_others() -> None:
    scene = Scene()
    scene.put(A)
    answers = scene.pin(B, A)
    scene.store.fail(B, Pinned(LOST, reason="gone"))
    assert statuses(answers) == [LOST, PINNED]


@pytest.mark.parametrize("is_freed", [True, False])
@in_virtual_time
async def test_g112_a_question_that_comes_again_has_the_same_answer(is_freed: bool) -> None:
    """The answer was lost with its channel; meanwhile the owner has freed the object, which is in use here."""
    scene = Scene()
    scene.put(A)
    (first,) = scene.pin(A)
    if is_freed:
        scene.free(A)
    assert scene.pin(A) == [first] and scene.fetched == []
    scene.ask(ReleasePins([b"pin 0"]), READER)
    if not is_freed:
        assert statuses(scene.pin(A)) == [LOST]
        scene.free(A)
    assert scene.is_empty()


@in_virtual_time
async def test_g112_a_question_that_comes_again_late_gets_nothing_that_nobody_waits_for() -> None:
    """The question was refused. The reader gives its pin back while the question waits again, and it comes a third time."""
    scene = Scene()
    refused = scene.pin(A)
    scene.store.fail(A, Pinned(NO_ROOM))
    assert statuses(refused) == [NO_ROOM]
    scene.pin(A)
    scene.ask(ReleasePins([b"pin 0"]), READER)
    scene.put(A)
    scene.pin(A)
    scene.free(A)
    assert scene.is_empty()


@in_virtual_time
async def test_g61_g62_a_dead_reader_uses_nothing_and_a_dead_owner_owns_nothing() -> None:
    scene = Scene()
    scene.put(A)
    scene.pin(A)
    scene.store.on_death(OWNERS[0].worker_id)
    assert not scene.is_empty()
    scene.store.on_death(READER)
    assert scene.is_empty()


@in_virtual_time
async def test_who_waits_for_a_copy_that_goes_is_served_from_elsewhere() -> None:
    scene = Scene()
    scene.create(A)
    answers = scene.pin(A)
    assert scene.fetched == []
    scene.ask(AbortObject(A, 0))
    assert scene.fetched == [A] and scene.is_empty()
    scene.store.fail(A, Pinned(FREED))
    assert statuses(answers) == [FREED]


@in_virtual_time
async def test_g79_who_waits_for_room_gets_it_or_hears_who_has_it() -> None:
    scene = Scene()
    scene.put(A, 3)
    waiting = scene.create(B, 2)
    await pass_time(GRACE_S / 2)
    assert waiting == []
    await pass_time(GRACE_S)
    (reply,) = waiting
    assert reply.status == FULL and A.hex() in reply.reason and "192 of 256" in reply.reason
    waiting = scene.create(B, 2)
    await pass_time(GRACE_S / 2)
    scene.free(A)
    assert waiting[0].status == CREATED


@pytest.mark.parametrize("can_spill", [False, True])
@in_virtual_time
async def test_g79_who_waits_hears_it_although_others_read_what_is_there_if_nothing_can_be_spilled(can_spill: bool) -> None:
    scene = Scene()
    scene.disk.can_spill = can_spill
    scene.put(A, 2)
    scene.put(B, 1)
    waiting = scene.create(object_id("c"), 2)
    for turn in range(5):
        scene.pin(A, B, name=f"turn {turn}")
        for index in range(2):
            scene.ask(ReleasePins([f"turn {turn} {index}".encode()]), READER)
        await pass_time(GRACE_S / 4)
    assert [reply.status for reply in waiting] == ([] if can_spill else [FULL])


@pytest.mark.parametrize("blocks", [1, 2])
@in_virtual_time
async def test_g112_who_has_given_up_gets_no_room_later(blocks: int) -> None:
    """No process would ever seal the copy, or take it back. The request has waited for room, or comes once more."""
    scene = Scene()
    scene.put(A, 3)
    first = scene.create(B, blocks)
    assert len(first) == (1 if blocks == 1 else 0)
    assert scene.ask(AbortObject(B, 0)) == [DONE]
    scene.free(A)
    again = scene.create(B, blocks)
    assert [reply.status for reply in [*first, *again]] == ([CREATED, UNWANTED] if blocks == 1 else [UNWANTED] * 2)
    assert scene.is_empty()
    assert scene.create(B, attempt=1)[0].status == CREATED


@in_virtual_time
async def test_an_aborted_copy_goes_also_if_it_was_sealed() -> None:
    scene = Scene()
    scene.put(A)
    scene.ask(AbortObject(A, 0))
    scene.ask(AbortObject(A, 0))
    assert scene.is_empty()


@in_virtual_time
async def test_g67_a_reader_gets_only_a_copy_of_the_attempt_that_it_knows() -> None:
    """A copy of a later attempt changes what the reader knows. One of an earlier attempt is a leftover."""
    scene = Scene()
    scene.put(A)
    later = scene.pin(A, attempt=1, name="later")
    assert later == [] and scene.fetched == [A]
    scene.create(A, attempt=1)
    assert scene.ask(SealObject(A, 1)) == [DONE] and statuses(later) == [PINNED]
    assert statuses(scene.pin(A, name="earlier")) == [CHANGED]
    assert statuses(scene.pin(A, attempt=1, name="same")) == [PINNED]


@in_virtual_time
async def test_g67_tasks_do_not_wait_for_what_is_being_made_again() -> None:
    scene = Scene()
    reader, task = scene.pin(A, name="reader"), scene.pin(B, A, name="task", purpose=TASK_ARGUMENTS)
    scene.store.pass_over_arguments(A)
    assert reader == task == [] and scene.store.is_wanted(A)
    scene.put(B)
    assert statuses(task) == [PINNED, NOT_HERE]
    scene.put(A)
    assert statuses(reader) == [PINNED]


@in_virtual_time
async def test_who_waits_with_a_time_out_is_answered_once() -> None:
    scene = Scene()
    in_time, in_vain = scene.pin(A, name="a", timeout_s=1.0), scene.pin(A, B, name="b", timeout_s=1.0)
    scene.put(A)
    assert statuses(in_time) == [PINNED] and in_vain == []
    await pass_time(2.0)
    assert statuses(in_time) == [PINNED] and statuses(in_vain) == [PINNED, NOT_HERE]
    assert not scene.store.is_wanted(A) and not scene.store.is_wanted(B)
    scene.put(B)
    assert len(in_vain) == 1


@in_virtual_time
async def test_who_goes_on_waiting_is_not_forgotten_with_who_does_not() -> None:
    scene = Scene()
    impatient, patient = scene.pin(A, name="a", timeout_s=1.0), scene.pin(A, name="b")
    await pass_time(1.0)
    assert statuses(impatient) == [NOT_HERE] and scene.store.is_wanted(A)
    scene.put(A)
    assert statuses(patient) == [PINNED]


@in_virtual_time
async def test_who_waits_for_what_is_not_fetched_to_its_end_has_it_fetched_again() -> None:
    scene = Scene()
    scene.store.create(Creation(A, 0, ALIGNMENT, OWNERS[0], b"", False), lambda entry, is_unwanted: None)
    entry = scene.store.table.find(A)
    assert entry is not None
    answers = scene.pin(A)
    assert scene.fetched == []
    scene.store.abort(entry)
    assert scene.fetched == [A] and answers == [] and scene.is_empty()


@in_virtual_time
async def test_g84_what_is_on_disk_is_read_once_for_all_who_wait_for_it() -> None:
    scene = Scene()
    entry = scene.spill()
    first, second = scene.pin(A, name="a"), scene.pin(A, name="b")
    assert scene.disk.restoring == [] and scene.fetched == [], "there is no room yet"
    scene.free(B)
    third = scene.pin(A, name="c")
    assert scene.disk.restoring == [entry] and first == second == third == []
    scene.store.on_restored(entry)
    assert [statuses(answers) for answers in (first, second, third)] == [[PINNED]] * 3
    scene.ask(ReleasePins([b"a 0", b"b 0", b"c 0"]))
    scene.free(A)
    assert scene.is_empty() and scene.disk.unneeded == [SpillFile(0, "file")]


@in_virtual_time
async def test_what_cannot_be_read_from_disk_is_lost_and_looked_for_elsewhere() -> None:
    scene = Scene()
    entry = scene.spill()
    answers = scene.pin(A)
    scene.free(B)
    assert scene.store.lose(entry)
    scene.store.on_restored(entry)
    assert scene.evicted == scene.fetched == [A] and answers == [] and scene.is_empty()
    assert not scene.store.lose(entry)
    assert scene.evicted == [A]


@in_virtual_time
async def test_g79_what_is_on_disk_and_finds_no_memory_is_refused() -> None:
    scene = Scene()
    scene.spill(blocks=2)
    scene.pin(B, name="reads")
    answers = scene.pin(A)
    await pass_time(GRACE_S / 2)
    assert answers == []
    await pass_time(GRACE_S)
    assert statuses(answers) == [NO_ROOM] and answers[0].pinned[0].size == 2 * ALIGNMENT
    assert f"{B.hex()} (256 bytes, read by {READER.hex()[:8]})" in answers[0].pinned[0].reason


@pytest.mark.parametrize("has_fallback", [True, False])
@in_virtual_time
async def test_g79_memory_on_disk_is_used_if_there_is_some(has_fallback: bool, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.has_fallback = has_fallback
    await scene.store.start("memory")
    await scene.store.start_fallback("disk", "/tmp/x", 0.9)
    assert ("could not be created on disk: /tmp/x cannot be written" in caplog.text) == (not has_fallback)
    scene.put(A, BLOCKS)
    waiting = scene.create(B)
    await pass_time(GRACE_S)
    assert [reply.status for reply in waiting] == [CREATED if has_fallback else FULL]
    if has_fallback:
        entry = scene.store.table.find(B)
        assert entry is not None and entry.offset >= BLOCKS * ALIGNMENT
        scene.store.view(entry)[:] = b"b" * entry.size
        assert bytes(scene.store.table.fallback.place(entry.offset)[0][: entry.size]) == b"b" * entry.size
        assert "on disk" in scene.store.why_full(1) and "being written" in scene.store.why_full(1)
    await scene.store.close()
    assert scene.closed() == ["memory", "disk"][: 1 + has_fallback]


@in_virtual_time
async def test_a_closed_store_waits_for_nothing() -> None:
    scene = Scene()
    scene.put(A, BLOCKS)
    waiting = scene.create(B)
    await scene.store.close()
    await pass_time(2 * GRACE_S)
    assert waiting == []


@in_virtual_time
async def test_who_waits_for_room_gets_that_of_a_freed_object_when_its_last_reader_has_gone() -> None:
    scene = Scene()
    scene.put(A, BLOCKS)
    scene.pin(A)
    scene.free(A)
    waiting = scene.create(B)
    assert waiting == []
    scene.ask(ReleasePins([b"pin 0"]), READER)
    assert [reply.status for reply in waiting] == [CREATED]


@in_virtual_time
async def test_who_waits_for_what_is_being_written_here_looks_elsewhere_when_that_is_freed() -> None:
    scene = Scene()
    scene.create(A)
    answers = scene.pin(A)
    scene.free(A)
    assert scene.fetched == [A] and answers == []


@in_virtual_time
async def test_g87_nothing_is_fetched_for_the_dead() -> None:
    scene = Scene()
    scene.pin(A, B, timeout_s=100.0)
    scene.store.pin_together(b"", [Wanted(B, OWNERS[0], b"argument", 0)], TASK_ARGUMENTS, lambda pinned: None)
    assert scene.fetched == [A, B, B]
    scene.store.on_death(READER)
    assert not scene.store.is_wanted(A) and scene.store.is_wanted(B) and scene.fetched == [A, B, B, B]
