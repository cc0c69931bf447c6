"""How large values are put into the object store of the node, and what comes of reading there.

``Node`` is the store's client, as far as a provider sees it: what it is asked is written down, and the test answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from minray.core_worker.fetching.store_provider import CHANGED_VALUE, StoreProvider
from minray.core_worker.records.large_object import LargeObject
from minray.exceptions import (
    LocalRayletDiedError,
    ObjectFreedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OwnerDiedError,
    RayError,
)
from minray.object_store import layout
from minray.platform.base import MemoryFailed
from minray.platform.storage.copier import Copier, copy_in_parts
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo
from minray.protocol.object_store import (
    CHANGED,
    CREATED,
    FREED,
    FULL,
    GET,
    LOST,
    NO_ROOM,
    NOT_HERE,
    OUT_OF_DISK,
    OWNER_DIED,
    UNWANTED,
    WAIT,
    CreateReply,
    Pinned,
    Place,
)
from minray.values.serialization import Serialized
from tests.core_worker.parts import OWN, address, object_id
from tests.core_worker.peers import unreachable
from tests.core_worker.user_thread import UserThread
from tests.platform_record import platform_record

A, B = object_id("a"), object_id("b")
RAYLET, OWNER = address("raylet"), address("the-owner")
VALUE = Serialized(b"stream", [b"first buffer", b""], [])
SIZE = layout.stored_size([6, 12, 0])
OFFSET = 64
ROOM = CreateReply(CREATED, RAYLET, OFFSET)
INSIDE = [RefInfo(object_id("inside"), OWNER, b"")]


class Node:
    """See the head of this file."""

    def __init__(self) -> None:
        self.thread = UserThread()
        self.memory = bytearray(1000)
        self.has_memory = True
        self.asked: list[tuple[Any, ...]] = []
        """Requests to the store, in order, without their callbacks."""
        self.told: list[Any] = []
        """Callbacks for the answers to those."""
        self.results: list[list[Any]] = []
        """Values that were fetched, a list for each fetch."""
        platform = platform_record(user_code=self.thread, memory=Copier())
        client: Any = self
        self.provider = StoreProvider(platform, client)

    # --- as the client

    def is_own(self, owner: Address) -> bool:
        return owner == OWN

    def create(self, object_id: bytes, attempt: int, size: int, owner: Address, on_created: Any) -> None:
        self.asked.append(("create", object_id, attempt, size, owner))
        self.told.append(on_created)

    def seal(self, object_id: bytes, attempt: int, on_sealed: Any) -> None:
        assert self.memory.count(0) < len(self.memory), "it is written before it is sealed"
        self.asked.append(("seal", object_id, attempt))
        self.told.append(on_sealed)

    def abort(self, object_id: bytes, attempt: int, on_aborted: Any) -> None:
        self.asked.append(("abort", object_id, attempt))
        self.told.append(on_aborted)

    def view(self, offset: int, size: int) -> memoryview:
        if not self.has_memory:
            raise MemoryFailed("no arena")
        return memoryview(self.memory)[offset : offset + size]

    def pin(self, wanted: Any, purpose: int, timeout_s: float | None, on_pinned: Any) -> None:
        self.asked.append(("pin", wanted, purpose, timeout_s))
        self.told.append(on_pinned)

    # --- what a test says

    def begin_put(self, owner: Address = OWNER) -> None:
        """A user thread puts ``VALUE``."""
        self.thread.begin(lambda: self.provider.put(A, 3, VALUE, owner))
        assert self.asked == [("create", A, 3, SIZE, owner)]

    def answer(self, *answer: Any) -> None:
        """Answer the last request."""
        self.told.pop()(*answer)
        self.thread.work()

    def words(self) -> list[str]:
        return [words[0] for words in self.asked]

    def written(self) -> list[bytes]:
        return [bytes(piece) for piece in layout.read(memoryview(self.memory)[OFFSET : OFFSET + SIZE])]


def test_what_belongs_to_another_process_is_put_when_the_store_knows_that_it_is_complete() -> None:
    node = Node()
    node.begin_put()
    node.answer(ROOM, None)
    assert node.asked[1:] == [("seal", A, 3)] and node.written() == [b"stream", b"first buffer", b""]
    assert node.thread.waits_at is not None
    node.answer(None)
    assert node.thread.result() == Place(3, SIZE, RAYLET) and node.words() == ["create", "seal"]


@pytest.mark.parametrize("error", [None, unreachable()])
def test_nobody_waits_for_that_with_what_is_ones_own(error: Any) -> None:
    node = Node()
    node.begin_put(OWN)
    node.answer(ROOM, None)
    assert node.thread.result() == Place(3, SIZE, RAYLET) and node.asked[1:] == [("seal", A, 3)]
    node.answer(error)
    assert node.words() == ["create", "seal"]


def test_what_nobody_wants_any_more_is_not_written() -> None:
    node = Node()
    node.begin_put(OWN)
    node.memory[-1] = 1
    node.answer(CreateReply(UNWANTED, RAYLET), None)
    assert node.thread.result() == Place(3, SIZE, RAYLET) and not any(node.memory[:-1])


@pytest.mark.parametrize(
    ("reply", "error", "expected", "words"),
    [
        (CreateReply(FULL, RAYLET, reason="much is held"), None, ObjectStoreFullError, "much is held"),
        (CreateReply(OUT_OF_DISK, RAYLET, reason="the disk is full"), None, OutOfDiskError, "the disk is full"),
        (None, unreachable(), LocalRayletDiedError, "nobody listens"),
    ],
)
def test_what_cannot_be_put_raises_and_is_taken_back(reply: Any, error: Any, expected: type[RayError], words: str) -> None:
    node = Node()
    node.begin_put()
    node.answer(reply, error)
    assert node.asked[1:] == [("abort", A, 3)] and node.thread.waits_at is not None
    node.answer()
    with pytest.raises(expected, match=words):
        node.thread.result()


def test_nobody_waits_until_ones_own_is_taken_back() -> None:
    """The program may have been interrupted, and wants to go on; what it owns ends with it anyway."""
    node = Node()
    node.begin_put(OWN)
    node.answer(CreateReply(FULL, RAYLET), None)
    with pytest.raises(ObjectStoreFullError):
        node.thread.result()
    assert node.asked[1:] == [("abort", A, 3)]


def test_a_full_store_says_how_much_was_needed() -> None:
    node = Node()
    node.begin_put()
    node.answer(CreateReply(FULL, RAYLET), None)
    node.answer()
    with pytest.raises(ObjectStoreFullError) as raised:
        node.thread.result()
    assert raised.value.needed_bytes == SIZE


def test_memory_that_cannot_be_mapped_is_a_dead_raylet() -> None:
    node = Node()
    node.has_memory = False
    node.begin_put()
    node.answer(ROOM, None)
    node.answer()
    with pytest.raises(LocalRayletDiedError, match="no arena"):
        node.thread.result()
    assert node.words() == ["create", "abort"]


def test_a_raylet_that_dies_before_it_knows_of_a_value_is_an_error_for_others_values() -> None:
    node = Node()
    node.begin_put()
    node.answer(ROOM, None)
    node.answer(unreachable())
    node.answer()
    with pytest.raises(LocalRayletDiedError, match="nobody listens"):
        node.thread.result()
    assert node.words() == ["create", "seal", "abort"]


@pytest.mark.parametrize("is_written", [False, True])
def test_what_was_being_put_when_its_thread_was_interrupted_is_taken_back(is_written: bool) -> None:
    """The store's answer after that does not matter."""
    node = Node()
    node.begin_put()
    if is_written:
        node.answer(ROOM, None)
    node.thread.interrupt(KeyboardInterrupt())
    assert node.words() == ["create", *["seal"] * is_written, "abort"] and node.thread.waits_at is not None
    node.answer()
    with pytest.raises(KeyboardInterrupt):
        node.thread.result()
    node.answer(*[None] if is_written else [ROOM, None])
    assert node.words()[-1] == "abort"


def test_nothing_large_is_put_in_the_loops_own_thread() -> None:
    node = Node()
    node.thread.is_loop = True
    node.thread.begin(lambda: node.provider.put(A, 3, VALUE, OWNER))
    with pytest.raises(RuntimeError, match="would block"):
        node.thread.result()
    assert node.asked == []


def test_what_an_attempt_has_put_can_be_taken_back() -> None:
    node = Node()
    heard: list[str] = []
    node.provider.discard_value(A, 2, lambda: heard.append("dropped"))
    node.thread.work()
    assert node.asked == [("abort", A, 2)] and heard == []
    node.answer()
    assert heard == ["dropped"]


# --- reading


def fetched(*pinned: Any, **how: Any) -> list[Any]:
    """Values that a fetch of ``A`` and its neighbours brings after these answers."""
    node = Node()
    known = [LargeObject(name, OWNER, INSIDE, attempt) for attempt, name in enumerate([A, B][: len(pinned)], 1)]
    node.provider.fetch(known, node.results.append, **how)
    wanted = [(A, OWNER, 1), (B, OWNER, 2)][: len(pinned)]
    assert node.asked == [("pin", wanted, how.get("purpose", GET), how.get("timeout_s"))] and node.results == []
    node.answer(list(pinned))
    (values,) = node.results
    return values


def in_store() -> memoryview:
    memory = bytearray(SIZE)
    layout.write(memoryview(memory), [b"stream", b"first buffer", b""], copy_in_parts)
    return memoryview(memory).toreadonly()


def test_a_value_lies_where_it_is_with_what_is_known_to_be_inside() -> None:
    where = in_store()
    value, late = fetched(where, Pinned(NOT_HERE), purpose=WAIT, timeout_s=1.5)
    assert late is None and bytes(value.data) == b"stream" and not value.is_error and value.nested == INSIDE
    assert [bytes(buffer) for buffer in value.buffers] == [b"first buffer", b""]
    assert value.buffers[0].obj is where.obj, "not a copy"


def test_what_is_not_as_it_was_known_is_called_so() -> None:
    assert fetched(Pinned(CHANGED)) == [CHANGED_VALUE]


@pytest.mark.parametrize(
    ("status", "expected"),
    [(LOST, ObjectLostError), (FREED, ObjectFreedError), (OWNER_DIED, OwnerDiedError)],
)
def test_why_there_is_no_value(status: int, expected: type[RayError]) -> None:
    (error,) = fetched(Pinned(status, reason="so it is"))
    assert type(error) is expected
    assert all(part in str(error) for part in ("so it is", A.hex(), OWNER.endpoint))


def test_a_value_that_has_no_room_says_how_much_it_needs() -> None:
    (error,) = fetched(Pinned(NO_ROOM, size=5000, reason="so it is"))
    assert type(error) is ObjectStoreFullError and error.needed_bytes == 5000 and "so it is" in str(error)


def test_a_damaged_value_is_lost() -> None:
    (error,) = fetched(in_store()[:-20])
    assert type(error) is ObjectLostError and "damaged" in str(error) and A.hex() in str(error)
