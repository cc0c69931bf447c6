"""Values between the store and the wire: small ones inside the record, large ones beside it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE
from minray.core_worker.memory_store import StoredObject
from minray.core_worker.values import from_value, to_value
from minray.protocol.base import decode, encode
from minray.protocol.core_worker import RefInfo, Value
from tests.core_worker.parts import address, object_id, stored

LIMIT = MAX_DIRECT_CALL_OBJECT_SIZE
SIZES = st.sampled_from([1, 100, LIMIT // 2, LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT])
INSIDE = [RefInfo(object_id("inside"), address("owner"), b"ticket")]


@st.composite
def objects(draw: st.DrawFn) -> StoredObject:
    buffers = [memoryview(bytes(size)) for size in draw(st.lists(SIZES, max_size=3))]
    return StoredObject(b"d" * draw(SIZES), buffers, draw(st.booleans()), draw(st.sampled_from([[], INSIDE])))


@given(st.lists(objects(), max_size=4))
def test_several_values_of_one_message_come_out_as_they_went_in(values: list[StoredObject]) -> None:
    beside: list[Any] = []
    records = [decode(Value, encode(to_value(value, list(value.nested), beside))) for value in values]
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


def test_missing_buffers_are_the_peers_mistake() -> None:
    record = to_value(stored(b"x" * (LIMIT + 1)), [], [])
    with pytest.raises(ValueError, match="names 1 buffers, but 0 came"):
        from_value(record, [])
