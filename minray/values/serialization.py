"""Values to bytes and back.

Ray: python/ray/_private/serialization.py

A value becomes a pickle stream, buffers apart from it (pickle protocol 5), and the list of references that it contains.
Arrays come back read-only, since several readers may share them (G13), and aligned (``alignment``). The C pickler is
tried first: it is several times faster to set up, and calls no Python code for each object. cloudpickle pickles what the C
pickler cannot pickle, and functions and classes of ``__main__``, which the C pickler would only name although the other
side cannot import them.

Each separate buffer has the fixed cost of a message part wherever it is sent. So two or more small buffers are joined in one
buffer, the *shelf* (Dask PR #8318; ``benchmarks/small_buffers.py`` measures up to which size this pays):

    data      pickle stream, or if there is a shelf: 0x01, u32 n, n times the size of a buffer, then the stream
    size      u32; SEPARATE for a large buffer
    buffers   the shelf, if there is one, with every piece at a multiple of ALIGNMENT; then the large ones

The arguments of a call are one value, ``(args, kwargs)``, so that an object passed twice arrives once (G14). A reference at
the top level is replaced by an ``ArgumentSlot``, which the executing worker replaces by the referenced value (G11).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from minray import cloudpickle
from minray.common.config import TASK_RPC_INLINED_BYTES_LIMIT
from minray.values.alignment import ALIGNMENT, aligned
from minray.values.object_ref import ObjectRef, numbered, serialising

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose instances can contain neither functions nor references nor buffers."""

SHELF_BELOW = 8 * 1024
"""Size in bytes below which a buffer goes on the shelf. For a larger one, fresh memory for the shelf costs more than a
separate buffer."""
SEPARATE = 0xFFFF_FFFF
"""Value in the place of a size for a buffer that is not on the shelf."""
_SHELF_MARK = 0x01
"""First byte of data with a shelf; no pickle stream begins with it."""
_SHELF_HEAD = struct.Struct("<BI")
_set_dispatch_table: Callable[[Any, Any], None] = vars(pickle.Pickler)["dispatch_table"].__set__
"""Setter of the C pickler's dispatch table. In a subclass of ``Pickler`` a class attribute may hide the slot."""
NUMBERS = "biufc"
"""Kinds of numpy's types whose arrays are buffers of plain numbers."""
BY_VALUE = b"__main__"
"""Module name that a stream must not refer to by name: other processes have another ``__main__``."""


class Serialized(NamedTuple):
    """A value as bytes."""

    data: bytes
    buffers: list[bytes | memoryview]
    """Buffers apart from the stream. Views show the original's memory, which the program may change."""
    refs: list[ObjectRef[Any]]
    """References in the value, in the order of their numbers in the stream."""

    def size(self) -> int:
        return len(self.data) + sum(map(len, self.buffers))

    def copied(self) -> Serialized:
        """Return a copy that shares no memory with the original value."""
        return Serialized(self.data, [bytes(buffer) for buffer in self.buffers], self.refs) if self.buffers else self


class ArgumentSlot:
    """Placeholder of a top-level argument that is passed as a reference: number ``index`` in the list of such references."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[ArgumentSlot], tuple[int]]:
        return ArgumentSlot, (self.index,)


def serialize(value: Any) -> Serialized:
    """Serialise a value. Raises the errors of pickling (TypeError, PicklingError, ...) if it cannot be pickled."""
    if type(value) in PLAIN_TYPES:
        return Serialized(pickle.dumps(value, 5), [], [])
    return _serialize_any(value)


class _TooLarge(Exception):
    """Raised when a stream passes its limit; the bytes pickled so far are dropped."""


class _LimitedStream(io.BytesIO):
    """A stream that raises _TooLarge beyond a limit, so that pickling a too large value stops early."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise _TooLarge
        return super().write(data)


def _serialize_any(value: Any, limit: int | None = None) -> Serialized:
    """Serialise a value. Raises _TooLarge if the result has more than ``limit`` bytes."""
    try:
        data, buffers, refs = _pickled(pickle.Pickler, value, limit)
        is_whole = BY_VALUE not in data
    except (pickle.PicklingError, AttributeError, TypeError):
        is_whole = False
    if not is_whole or cloudpickle.list_registry_pickle_by_value():
        data, buffers, refs = _pickled(cloudpickle.Pickler, value, limit)
    views = [buffer.raw() for buffer in buffers]
    if limit is not None and len(data) + sum(view.nbytes for view in views) > limit:
        raise _TooLarge
    if sum(view.nbytes < SHELF_BELOW for view in views) > 1:
        head, shelved = _shelve(views)
        return Serialized(head + data, shelved, refs)
    return Serialized(data, list(views), refs)


def _pickled(
    pickler: type[Any], value: Any, limit: int | None
) -> tuple[bytes, list[pickle.PickleBuffer], list[ObjectRef[Any]]]:
    """Pickle a value; return the stream, the buffers apart from it, and the references."""
    refs: list[ObjectRef[Any]] = []
    numbers: dict[bytes, int] = {}
    buffers: list[pickle.PickleBuffer] = []

    def collect(ref: ObjectRef[Any]) -> int:
        number = numbers.setdefault(ref._id, len(refs))
        if number == len(refs):
            refs.append(ref)
        return number

    def reduce(ref: ObjectRef[Any]) -> tuple[Callable[..., Any], tuple[int]]:
        return numbered, (collect(ref),)

    stream = io.BytesIO() if limit is None else _LimitedStream(limit)
    ours = pickler(stream, 5, buffer_callback=buffers.append)
    # Only this pickler writes references as numbers. If a value's own __reduce__ pickles a reference with another pickler,
    # the bytes may outlive this stream, so they need the owner's address.
    if pickler is pickle.Pickler:
        _set_dispatch_table(ours, {**_for_arrays(), **copyreg.dispatch_table, ObjectRef: reduce})
    else:
        _set_dispatch_table(ours, ChainMap({ObjectRef: reduce}, *pickler.dispatch_table.maps, _for_arrays()))
    outer, serialising.collect = serialising.collect, collect
    try:
        ours.dump(value)
    finally:
        serialising.collect = outer
    return stream.getvalue(), buffers, refs


_array_reducers: dict[type, Callable[[Any], Any]] = {}
"""Reducers of numpy's arrays and torch's tensors by their class; empty until this process has imported these libraries."""
_known_libraries: set[str] = set()


def _for_arrays() -> dict[type, Callable[[Any], Any]]:
    """Return the reducers of arrays and tensors by their class; empty if this process has not imported numpy and torch."""
    for name, reducers in (("numpy", _reducers_of_numpy), ("torch", _reducers_of_torch)):
        if name not in _known_libraries and name in sys.modules:
            with suppress(AttributeError):  # its import has not ended
                _array_reducers.update(reducers(sys.modules[name]))
                _known_libraries.add(name)
    return _array_reducers


def _reducers_of_numpy(numpy: Any) -> dict[type, Callable[[Any], Any]]:
    return {numpy.ndarray: _reduce_array, **dict.fromkeys((numpy.recarray, numpy.memmap), _reduce_view)}


def _reducers_of_torch(torch: Any) -> dict[type, Callable[[Any], Any]]:
    from minray.values.tensors import tensor_reducers  # Few programs have tensors; the others do not wait for this import.

    return tensor_reducers(torch)


def _reduce_array(array: Any) -> Any:
    """Reduce an array to a buffer apart from the stream, also a view with gaps, which is copied first.

    numpy itself would put such a view into the stream, and each reader would have to copy it out. It describes the type of
    plain numbers so that reading takes twice the time, and writing too.
    """
    dtype = array.dtype
    if not array.flags.forc and not dtype.hasobject:
        array = array.copy()
    if dtype.isbuiltin == 1 and dtype.kind in NUMBERS and dtype.metadata is None:
        order = "C" if array.flags.c_contiguous else "F"
        return type(array), (array.shape, dtype.str, pickle.PickleBuffer(array), 0, None, order)
    return array.__reduce_ex__(5)


def _reduce_view(array: Any) -> Any:
    """Reduce an array of a class of numpy's own that adds no data; numpy itself would put its data into the stream."""
    reduced = _reduce_array(array.view(sys.modules["numpy"].ndarray))
    has_state = len(reduced) > 2  # as with objects inside, which are no buffer
    return array.__reduce_ex__(5) if has_state else (_made_as, (type(array), *reduced))


def _made_as(subclass: type, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make an array, as a view of a class."""
    return make(*arguments).view(subclass)


def _shelve(views: Sequence[memoryview]) -> tuple[bytes, list[bytes | memoryview]]:
    """Return the head that stands before the stream, and the buffers; each small one is copied once, onto the shelf."""
    sizes: list[int] = []
    pieces: list[memoryview | bytes] = []
    separate: list[memoryview] = []
    for view in views:
        if view.nbytes < SHELF_BELOW:
            sizes.append(view.nbytes)
            pieces += view, bytes(-view.nbytes % ALIGNMENT)
        else:
            sizes.append(SEPARATE)
            separate.append(view)
    return _SHELF_HEAD.pack(_SHELF_MARK, len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes), [b"".join(pieces), *separate]


def _from_shelf(data: Any, buffers: Sequence[Any]) -> tuple[memoryview, Iterator[Any]]:
    """Return the pickle stream, and the buffers in the order in which it reads them."""
    stream, shelf, separate = memoryview(data), memoryview(buffers[0]).toreadonly(), iter(buffers[1:])
    _, count = _SHELF_HEAD.unpack_from(stream)
    sizes = struct.unpack_from(f"<{count}I", stream, _SHELF_HEAD.size)

    def spread() -> Iterator[Any]:
        start = 0
        for size in sizes:
            if size == SEPARATE:
                yield next(separate)
            else:
                yield shelf[start : start + size]
                start += size + -size % ALIGNMENT

    return stream[_SHELF_HEAD.size + 4 * count :], spread()


def deserialize(data: Any, buffers: Sequence[Any], refs: list[ObjectRef[Any]]) -> Any:
    """Make the value again. Raises the errors of its own unpickling."""
    if not refs:
        return _unpickle(data, buffers) if buffers else pickle.loads(data)
    outer, serialising.refs = serialising.refs, refs
    try:
        return _unpickle(data, buffers)
    finally:
        serialising.refs = outer


def _unpickle(data: Any, buffers: Sequence[Any]) -> Any:
    buffers = aligned(buffers)
    if buffers and data[0] == _SHELF_MARK:
        stream, spread = _from_shelf(data, buffers)
        return pickle.loads(stream, buffers=spread)
    return pickle.loads(data, buffers=buffers)


class SerializedCall(NamedTuple):
    """The arguments of a call as bytes."""

    value: Serialized | None
    """The pair ``(args, kwargs)``; None if there are no arguments."""
    slots: list[ObjectRef[Any]]
    """References that the ArgumentSlots stand for, by their index."""


def serialize_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], limit: int, put: Callable[[Serialized], ObjectRef[Any]]
) -> SerializedCall:
    """Serialise the arguments of a call. Arguments of more than ``limit`` bytes are stored with ``put`` and passed by
    reference, and so are those that exceed ``TASK_RPC_INLINED_BYTES_LIMIT`` with the ones before them (G76). An argument
    passed twice is stored once (G14)."""
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
    passed: dict[int, Any] = {}
    """The argument itself, or its slot, by the argument's ``id()``."""

    def put_if_large(argument: Any) -> Any:
        nonlocal room
        if type(argument) is ArgumentSlot:
            return argument
        if id(argument) not in passed:
            alone = serialize(argument)
            if alone.size() > min(limit, room):
                passed[id(argument)] = slot_for(put(alone))
            else:
                passed[id(argument)] = argument
                room -= alone.size()
        return passed[id(argument)]

    args = tuple(map(put_if_large, args))
    kwargs = {name: put_if_large(argument) for name, argument in kwargs.items()}
    return SerializedCall(_serialize_any((args, kwargs)), slots)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def fill_slots(call: Arguments, values: Sequence[Any]) -> Arguments:
    """Return the arguments with each ArgumentSlot replaced by its value."""
    args, kwargs = call

    def fill(argument: Any) -> Any:
        return values[argument.index] if type(argument) is ArgumentSlot else argument

    return tuple(map(fill, args)), {name: fill(argument) for name, argument in kwargs.items()}
