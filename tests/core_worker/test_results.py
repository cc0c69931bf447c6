"""Results of a task, kept for the owner: small values in the answer if there is room, others in the object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minray.common.bounds import BOUNDS
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.records.received_task import Result
from minray.protocol.base import Address
from minray.protocol.object_store import Place
from minray.values.object_ref import ObjectRef
from minray.values.serialization import Serialized, serialize
from tests.core_worker.parts import OWN, address, object_id

OWNER = address("owner-of-the-task")
PLACE = Place(2, 1000, OWN)
LIMIT = 100


class Store:
    """As ``StoreProvider``."""

    def __init__(self) -> None:
        self.kept: list[tuple[bytes, int, Address]] = []
        self.discarded: list[tuple[bytes, int, Callable[[], None]]] = []

    def put(self, key: bytes, attempt: int, value: Serialized, owner: Address) -> Place:
        self.kept.append((key, attempt, owner))
        return PLACE

    def discard_value(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        self.discarded.append((object_id, attempt, on_discarded))


def keep(value: Serialized, **room: int) -> tuple[Result, Store]:
    store: Any = Store()
    return ResultKeeper(store, LIMIT).keep_result(object_id("a"), 2, value, OWNER, **room), store


def of_size(size: int) -> Serialized:
    value = serialize(b"")
    return Serialized(bytes(size), [], value.refs)


def test_a_small_value_travels_as_a_copy_of_its_own() -> None:
    data = bytearray(b"abc")
    result, store = keep(Serialized(b"stream", [memoryview(data)], []))
    data[:] = b"xyz"
    assert (result.stored.data, [bytes(buffer) for buffer in result.stored.buffers]) == (b"stream", [b"abc"])
    assert (result.stored.place, result.stored.is_error, result.inlined, store.kept) == (None, False, 9, [])


ROOMS = [(100, 100, True), (101, 1000, False), (50, 49, False), (50, 50, True)]


@pytest.mark.parametrize(("size", "room", "is_small"), ROOMS)
def test_what_is_too_large_or_has_no_room_in_the_answer_goes_to_the_store(size: int, room: int, is_small: bool) -> None:
    result, store = keep(of_size(size), room=room)
    if is_small:
        assert (store.kept, result.inlined, len(result.stored.data)) == ([], size, size)
    else:
        assert store.kept == [(object_id("a"), 2, OWNER)]
        assert (result.stored.place, result.stored.data, result.inlined) == (PLACE, b"", 0)


def test_references_inside_live_as_long_as_the_result_wherever_it_is() -> None:
    inside = ObjectRef(object_id("inside"), OWN)
    small, _ = keep(serialize([inside]))
    large, _ = keep(serialize([inside]), room=1)
    assert [ref.binary() for result in (small, large) for ref in result.refs] == [object_id("inside")] * 2


def test_a_result_with_more_references_than_an_answer_can_carry_is_refused() -> None:
    refs = [ObjectRef(object_id("inside"), OWN)] * (BOUNDS.max_references_per_answer + 1)
    assert keep(Serialized(b"", [], refs[1:]))[0].refs == refs[1:]
    with pytest.raises(ValueError, match="values hold 250,001 references, and at most 250,000 fit"):
        keep(Serialized(b"", [], refs))


def test_what_is_discarded_leaves_the_store_as_this_attempt_has_put_it() -> None:
    store: Any = Store()
    ResultKeeper(store, LIMIT).discard_result(object_id("a"), 2, store.discarded.clear)
    ((name, attempt, on_discarded),) = store.discarded
    assert (name, attempt) == (object_id("a"), 2)
    on_discarded()
    assert store.discarded == []
