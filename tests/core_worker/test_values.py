"""Values between the store and the wire: small ones inside the record, large ones beside it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE, TASK_RPC_INLINED_BYTES_LIMIT
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import from_value, from_values, to_value, to_values
from minray.protocol.base import decode, encode
from minray.protocol.core_worker import RefInfo, Value
from minray.protocol.object_store import Place
from tests.core_worker.parts import address, object_id, stored

LIMIT = MAX_DIRECT_CALL_OBJECT_SIZE
SIZES = st.sampled_from([1, 100, LIMIT // 2, LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT])
INSIDE = (RefInfo(object_id("inside"), address("owner"), b"ticket"),)


@st.composite
def objects(draw: st.DrawFn) -> StoredObject:
    buffers = [memoryview(bytes(size)) for size in draw(st.lists(SIZES, max_size=3))]
    return StoredObject(b"d" * draw(SIZES), buffers, draw(st.booleans()), draw(st.sampled_from([(), INSIDE])))


@given(st.lists(objects(), max_size=4))
def test_several_values_of_one_message_come_out_as_they_went_in(values: list[StoredObject]) -> None:
    beside: list[Any] = []
    records = [decode(Value, encode(to_value(value, value.nested, beside))) for value in values]
    start = 0
    for value, record in zip(values, records, strict=True):
        out = from_value(record, beside, start)
        start += record.buffer_count
        assert out.data == value.data and list(map(bytes, out.buffers)) == list(map(bytes, value.buffers))
        assert (out.is_error, out.nested) == (value.is_error, value.nested)
    assert start == len(beside)


@given(objects())
def test_g76_what_travels_inside_the_record_is_small(value: StoredObject) -> None:
    beside: list[Any] = []
    record = to_value(value, [], beside)
    assert len(record.data) + sum(map(len, record.inline_buffers)) <= LIMIT
    assert (value.size() <= LIMIT) == (beside == [])


@given(st.lists(objects(), max_size=4))
def test_the_values_of_one_message_find_their_buffers(values: list[StoredObject]) -> None:
    beside: list[Any] = []
    records = to_values([(value, value.nested) for value in values], beside)
    back = from_values([decode(Value, encode(record)) for record in records], beside)
    assert [(one.data, list(map(bytes, one.buffers))) for one in back] == [
        (one.data, list(map(bytes, one.buffers))) for one in values
    ]
    assert [(one.is_error, one.nested) for one in back] == [(one.is_error, one.nested) for one in values]


def test_of_a_value_in_an_object_store_only_its_place_travels() -> None:
    place = Place(3, 10 * LIMIT, address("raylet"))
    beside: list[Any] = []
    values = [(StoredObject(b"", (), False, (), place), INSIDE), (stored(b"small"), [])]
    first, second = from_values(to_values(values, beside), beside)
    assert (first.place, first.size(), first.nested) == (place, 10 * LIMIT, INSIDE)
    assert (second.place, second.data, beside) == (None, b"small", [])


def test_a_message_takes_only_so_much_into_itself_and_the_rest_goes_beside_it() -> None:
    fits = TASK_RPC_INLINED_BYTES_LIMIT // LIMIT
    left = TASK_RPC_INLINED_BYTES_LIMIT - fits * LIMIT
    data, short = bytes(LIMIT), bytes(left + 1)
    values = [stored(data)] * fits + [stored(short), stored(data), stored(short[:left])]
    beside: list[Any] = []
    records = to_values([(value, []) for value in values], beside)
    assert [record.buffer_count for record in records] == [0] * fits + [1, 1, 0]
    assert sum(len(record.data) for record in records) == TASK_RPC_INLINED_BYTES_LIMIT
    assert [value.data for value in from_values(records, beside)] == [value.data for value in values]


def test_missing_buffers_are_the_peers_mistake() -> None:
    record = to_value(stored(b"x" * (LIMIT + 1)), [], [])
    with pytest.raises(ValueError, match="names 1 buffers, but 0 came"):
        from_value(record, [])
