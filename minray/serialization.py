"""Values to bytes and back.

Ray: python/ray/_private/serialization.py

A value becomes a pickle stream, its large buffers apart from it (pickle protocol 5), and the references that it
contains, in order. Arrays come back read-only, since several readers may share them (G13). Functions and classes of
``__main__`` go through cloudpickle; plain values take the C pickler, which is several times faster to set up.

The arguments of a call are one value, ``(args, kwargs)``, so that an object passed twice arrives once (G14); a reference
at the top level is replaced by an ``ArgumentSlot``, whose place the executing worker fills with the referenced value (G11).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle

from minray.common.config import TASK_RPC_INLINED_BYTES_LIMIT
from minray.object_ref import ObjectRef, serialising

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose instances can contain neither functions nor references nor buffers."""


class Serialized(NamedTuple):
    """A value as bytes."""

    data: bytes
    buffers: list[bytes]
    """Copies: the caller may change the original at once."""
    refs: list[ObjectRef[Any]]
    """In the order of their numbers in the stream."""

    def size(self) -> int:
        return len(self.data) + sum(map(len, self.buffers))


class ArgumentSlot:
    """Stands for top-level argument ``index`` that was passed as a reference."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[ArgumentSlot], tuple[int]]:
        return ArgumentSlot, (self.index,)


def serialize(value: Any) -> Serialized:
    """Raises whatever pickling raises (TypeError, PicklingError, ...) for what cannot be pickled."""
    if type(value) in PLAIN_TYPES:
        return Serialized(pickle.dumps(value, 5), [], [])
    return _serialize_any(value)


class _TooLarge(Exception):
    """The stream has passed its limit; what was pickled so far is of no use."""


class _LimitedStream(io.BytesIO):
    """Refuses to grow beyond a limit, so that a large value is not pickled in vain to its end."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise _TooLarge
        return super().write(data)


def _serialize_any(value: Any, limit: int | None = None) -> Serialized:
    """Raises _TooLarge if the value makes more than ``limit`` bytes."""
    refs: list[ObjectRef[Any]] = []
    numbers: dict[bytes, int] = {}
    buffers: list[pickle.PickleBuffer] = []

    def collect(ref: ObjectRef[Any]) -> int:
        number = numbers.setdefault(ref._id, len(refs))
        if number == len(refs):
            refs.append(ref)
        return number

    outer, serialising.collect = serialising.collect, collect
    try:
        stream = io.BytesIO() if limit is None else _LimitedStream(limit)
        cloudpickle.Pickler(stream, 5, buffers.append).dump(value)
    finally:
        serialising.collect = outer
    data, views = stream.getvalue(), [buffer.raw() for buffer in buffers]
    if limit is not None and len(data) + sum(view.nbytes for view in views) > limit:
        raise _TooLarge
    return Serialized(data, [bytes(view) for view in views], refs)


def deserialize(data: Any, buffers: Sequence[Any], refs: list[ObjectRef[Any]]) -> Any:
    """Raises whatever the value's own unpickling raises."""
    if not refs:
        return pickle.loads(data, buffers=buffers) if buffers else pickle.loads(data)
    outer, serialising.refs = serialising.refs, refs
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        serialising.refs = outer


class SerializedCall(NamedTuple):
    """The arguments of a call as bytes."""

    value: Serialized | None
    """None: no arguments."""
    slots: list[ObjectRef[Any]]
    """What the ArgumentSlots stand for."""


def serialize_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], limit: int, put: Callable[[Serialized], ObjectRef[Any]]
) -> SerializedCall:
    """Serialise the arguments; one of more than ``limit`` bytes is ``put`` and passed by reference, and so are those
    that would make ``TASK_RPC_INLINED_BYTES_LIMIT`` bytes with the ones before them (G76)."""
    if not args and not kwargs:
        return SerializedCall(None, [])
    if not kwargs and PLAIN_TYPES.issuperset(map(type, args)):
        data = pickle.dumps((args, kwargs), 5)
        if len(data) <= limit:
            return SerializedCall(Serialized(data, [], []), [])
    slots: list[ObjectRef[Any]] = []

    def slot_for(ref: ObjectRef[Any]) -> ArgumentSlot:
        slots.append(ref)
        return ArgumentSlot(len(slots) - 1)

    def replace(argument: Any) -> Any:
        return slot_for(argument) if type(argument) is ObjectRef else argument

    args = tuple(map(replace, args))
    kwargs = {name: replace(argument) for name, argument in kwargs.items()}
    try:
        return SerializedCall(_serialize_any((args, kwargs), limit), slots)
    except _TooLarge:
        pass
    room = TASK_RPC_INLINED_BYTES_LIMIT

    def put_if_large(argument: Any) -> Any:
        nonlocal room
        if type(argument) is ArgumentSlot:
            return argument
        alone = serialize(argument)
        if alone.size() > min(limit, room):
            return slot_for(put(alone))
        room -= alone.size()
        return argument

    args = tuple(map(put_if_large, args))
    kwargs = {name: put_if_large(argument) for name, argument in kwargs.items()}
    return SerializedCall(_serialize_any((args, kwargs)), slots)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def fill_slots(call: Arguments, values: Sequence[Any]) -> Arguments:
    """Put values where ArgumentSlots stand."""
    args, kwargs = call

    def fill(argument: Any) -> Any:
        return values[argument.index] if type(argument) is ArgumentSlot else argument

    return tuple(map(fill, args)), {name: fill(argument) for name, argument in kwargs.items()}
