"""Converts stored objects to message records and back: small values go inside the message, long ones beside it.

Ray: src/ray/core_worker/common.h (inlined returns), src/ray/common/ray_object.h

A value of at most ``MAX_DIRECT_CALL_OBJECT_SIZE`` bytes travels inside its record (G76). For a value in the object store
only the place travels. Other values, such as long errors, travel out of band, in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE, TASK_RPC_INLINED_BYTES_LIMIT
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.core_worker import RefInfo, Value


def to_value(
    stored: StoredObject, nested: Sequence[RefInfo], beside: list[Any], room: int = TASK_RPC_INLINED_BYTES_LIMIT
) -> Value:
    """Return the record of a value; bytes that do not fit are appended to ``beside``, the message's out-of-band buffers.

    ``room`` is the number of bytes of values that may still go into the message itself.
    """
    if stored.place is not None:
        return Value(b"", False, (), 0, tuple(nested), stored.place)
    most = min(MAX_DIRECT_CALL_OBJECT_SIZE, room)
    if stored.size() <= most:
        inline = tuple(map(bytes, stored.buffers))
        return Value(stored.data, stored.is_error, inline, 0, tuple(nested))
    if len(stored.data) > most:
        beside.append(stored.data)
        beside.extend(stored.buffers)
        return Value(b"", stored.is_error, (), 1 + len(stored.buffers), tuple(nested))
    beside.extend(stored.buffers)
    return Value(stored.data, stored.is_error, (), len(stored.buffers), tuple(nested))


def to_values(values: Iterable[tuple[StoredObject, Sequence[RefInfo]]], beside: list[Any]) -> tuple[Value, ...]:
    """Return the records of one message's values; at most ``TASK_RPC_INLINED_BYTES_LIMIT`` bytes go into the message."""
    records: list[Value] = []
    room = TASK_RPC_INLINED_BYTES_LIMIT
    for stored, nested in values:
        value = to_value(stored, nested, beside, room)
        room -= len(value.data) + sum(map(len, value.inline_buffers))
        records.append(value)
    return tuple(records)


def from_value(value: Value, beside: Sequence[Any], start: int = 0) -> StoredObject:
    """Return the stored object of a record, the inverse of ``to_value``; its out-of-band buffers begin at ``start``."""
    if not value.buffer_count:
        return StoredObject(value.data, value.inline_buffers, value.is_error, value.nested, value.place)
    buffers = list(beside[start : start + value.buffer_count])
    if len(buffers) != value.buffer_count:
        raise ValueError(f"a value names {value.buffer_count} buffers, but {len(buffers)} came with it")
    data = value.data or buffers.pop(0)
    return StoredObject(data, buffers, value.is_error, value.nested)


def from_values(values: Iterable[Value], beside: Sequence[Any]) -> list[StoredObject]:
    """Return the stored objects of one message's records, whose out-of-band buffers follow each other."""
    if not beside:
        return [from_value(value, ()) for value in values]
    stored: list[StoredObject] = []
    start = 0
    for value in values:
        stored.append(from_value(value, beside, start))
        start += value.buffer_count
    return stored
