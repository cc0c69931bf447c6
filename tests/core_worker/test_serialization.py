"""Values to bytes and back: references by number, arrays read-only, arguments in slots."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE, TASK_RPC_INLINED_BYTES_LIMIT
from minray.util import deregister_serializer, register_serializer
from minray.values.object_ref import ObjectRef, set_default_hooks
from minray.values.serialization import (
    ALIGNMENT,
    SHELF_BELOW,
    Serialized,
    deserialize,
    fill_slots,
    serialize,
    serialize_call,
)
from tests.core_worker.parts import object_id

LIMIT = MAX_DIRECT_CALL_OBJECT_SIZE


def ref(name: str) -> ObjectRef[Any]:
    return ObjectRef(object_id(name), "owner", None)


def round_trip(value: Any) -> Any:
    serialized = serialize(value)
    return deserialize(serialized.data, serialized.buffers, serialized.refs)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(plain)
def test_plain_values_survive(value: Any) -> None:
    assert round_trip(value) == value


def test_functions_and_classes_of_the_main_program_survive() -> None:
    assert round_trip(lambda x: x + 1)(1) == 2


def test_what_only_cloudpickle_can_do_takes_its_references_and_buffers_once() -> None:
    a, array = ref("a"), np.arange(5)
    serialized = serialize([a, array, lambda: 7, a])
    assert serialized.refs == [a] and len(serialized.buffers) == 1
    out = deserialize(serialized.data, serialized.buffers, [a])
    assert out[0] is out[3] is a and list(out[1]) == [0, 1, 2, 3, 4] and out[2]() == 7


def test_a_module_that_was_registered_travels_by_value() -> None:
    here = sys.modules[__name__]
    assert b"round_trip" in serialize([round_trip]).data and len(serialize([round_trip]).data) < 200
    cloudpickle.register_pickle_by_value(here)
    try:
        assert len(serialize([round_trip]).data) > 200
    finally:
        cloudpickle.unregister_pickle_by_value(here)


def test_what_cannot_be_pickled_is_said_as_pickle_says_it() -> None:
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
        serialize([threading.Lock()])


def test_g13_arrays_come_back_read_only_and_the_original_may_change() -> None:
    array = np.arange(1000)
    serialized = serialize({"a": array, "b": np.zeros(3)})
    array[0] = 99
    value = deserialize(serialized.data, serialized.buffers, [])
    assert value["a"][0] == 0
    for out in value.values():
        with pytest.raises(ValueError, match="read-only"):
            out[0] = 1


SIZES = st.sampled_from([0, 1, 7, 8, 16, 1000, SHELF_BELOW - 1, SHELF_BELOW, SHELF_BELOW + 1])


@given(st.lists(SIZES, max_size=8))
def test_g13_small_buffers_share_one_and_come_back_read_only_and_aligned(sizes: list[int]) -> None:
    arrays = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    serialized = serialize(arrays).copied()
    small = sum(size < SHELF_BELOW for size in sizes)
    assert len(serialized.buffers) == (len(sizes) - small) + (1 if small > 1 else small)
    for out, array in zip(deserialize(serialized.data, serialized.buffers, []), arrays, strict=True):
        np.testing.assert_array_equal(out, array)
        assert not out.flags.writeable
        assert out.ctypes.data % ALIGNMENT == 0 or not array.nbytes


@given(st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_arrays_are_aligned_wherever_their_bytes_lie(sizes: list[int], is_alone: bool) -> None:
    kept = [bytes(size) for size in sizes]  # so that the next bytes lie elsewhere
    arrays = [np.full(size, 7, np.uint8) for size in sizes]
    values = [[array] for array in arrays] if is_alone else [arrays]
    for value in values:
        serialized = serialize(value)
        for out in deserialize(serialized.data, [bytes(buffer) for buffer in serialized.buffers], []):
            assert (out == 7).all() and not out.flags.writeable
            assert out.ctypes.data % ALIGNMENT == 0 or not out.nbytes
    del kept


def test_a_shelf_may_be_beside_references() -> None:
    a = ref("a")
    serialized = serialize([np.arange(3), a, np.arange(4.0)])
    out = deserialize(serialized.data, serialized.buffers, [a])
    assert out[1] is a and list(out[0]) == [0, 1, 2] and len(serialized.buffers) == 1


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_value_may_arrive_in_any_kind_of_buffer(kind: Any) -> None:
    serialized = serialize([np.arange(3), np.arange(4)])
    out = deserialize(kind(serialized.data), [kind(buffer) for buffer in serialized.buffers], [])
    assert [list(array) for array in out] == [[0, 1, 2], [0, 1, 2, 3]]
    assert not any(array.flags.writeable for array in out)


def test_arrays_of_any_layout_survive() -> None:
    array = np.arange(24).reshape(4, 6)
    for each in (array.T, array[::2, ::3], np.asfortranarray(array), array[:0], np.array(5)):
        np.testing.assert_array_equal(round_trip(each), each)


TYPES = [*"?bBhHiIlLqQefdgFDG", ">i4", "<f8", ">c16", "M8[ns]", "m8[3h]", "S5", "U3", "V7", "i4,f8", "O"]


@pytest.mark.parametrize("code", TYPES)
@pytest.mark.parametrize("also", [(), (lambda: 0,)], ids=["C pickler", "cloudpickle"])
def test_arrays_of_every_type_and_order_keep_them(code: str, also: tuple[Any, ...]) -> None:
    plain = np.arange(12).reshape(3, 4).astype(code) if code not in ("V7", "i4,f8") else np.zeros((3, 4), code)
    for each in (plain, np.asfortranarray(plain), plain[:0], plain[1, 2:3].reshape(()), plain[::2]):
        out = round_trip((each, *also))[0]
        assert (out.shape, out.dtype, type(out)) == (each.shape, each.dtype, np.ndarray)
        assert out.flags.f_contiguous == each.copy("K").flags.f_contiguous
        np.testing.assert_array_equal(out, each)


def test_what_a_type_says_of_itself_is_kept() -> None:
    told = np.arange(3).astype(np.dtype(int, metadata={"unit": "m"}))
    assert round_trip(told).dtype.metadata == told.dtype.metadata
    assert round_trip(told.astype(int)).dtype.metadata is None


def test_large_buffers_are_not_in_the_stream() -> None:
    serialized = serialize(np.zeros(100_000))
    assert len(serialized.data) < 1000 and serialized.size() > 800_000


@pytest.mark.parametrize(
    "given",
    [
        np.arange(4).astype("datetime64[s]"),
        np.array([1, "two", None, 4.0]),
        np.array([1, 0, "two", 0, None, 0])[::2],
        np.ma.masked_array(np.arange(4), [False] * 4),
    ],
    ids=["dates", "objects", "objects with gaps", "masked"],
)
def test_g13_an_array_that_numpy_copies_is_the_readers_own(given: Any) -> None:
    """Whether one reader may write into it or not, the next one finds what was put."""
    serialized = serialize(given)
    first, second = [deserialize(serialized.data, serialized.buffers, []) for _ in range(2)]
    if first.flags.writeable:
        first[0] = first[1]
    assert second.tolist() == given.tolist()


@pytest.mark.parametrize("also", [(), (lambda: 0,)], ids=["C pickler", "cloudpickle"])
@pytest.mark.parametrize("of", [np.arange(300.0).reshape(10, 30)[1:-1, 1:-1], np.arange(300)[::-1], np.array(5)[..., None]])
def test_g13_a_view_with_gaps_is_read_where_it_lies_too(of: Any, also: tuple[Any, ...]) -> None:
    serialized = serialize([of, *also])
    assert [view.nbytes for view in serialized.buffers] == [of.nbytes] and len(serialized.data) < 1000
    out = deserialize(serialized.data, serialized.buffers, [])[0]
    assert np.array_equal(out, of) and out.dtype == of.dtype
    copied = serialized.copied()
    assert not deserialize(copied.data, copied.buffers, [])[0].flags.writeable


RECORDS = np.zeros(200, dtype=[("id", np.int64), ("value", np.float64)]).view(np.recarray)
MAPPED = np.arange(300.0).view(np.memmap)


@pytest.mark.parametrize("also", [(), (lambda: 0,)], ids=["C pickler", "cloudpickle"])
@pytest.mark.parametrize("of", [RECORDS, RECORDS[::2], MAPPED], ids=["records", "gaps", "mapped"])
def test_g13_arrays_of_numpys_own_classes_are_read_where_they_lie_too(of: Any, also: tuple[Any, ...]) -> None:
    serialized = serialize([of, *also])
    assert [view.nbytes for view in serialized.buffers] == [of.nbytes] and len(serialized.data) < 1000
    out = deserialize(serialized.data, serialized.buffers, [])[0]
    assert type(out) is type(of) and out.dtype == of.dtype and np.array_equal(out, of)


def test_records_with_objects_inside_travel() -> None:
    records = np.rec.array([(1, "one"), (2, None)], dtype=[("id", int), ("value", object)])
    out = round_trip(records)
    assert type(out) is np.recarray and out.value.tolist() == ["one", None]


def test_a_serializer_of_the_users_for_arrays_goes_first() -> None:
    register_serializer(np.ndarray, serializer=lambda array: int(array.sum()), deserializer=int)
    try:
        assert round_trip([np.arange(4)[::2]]) == [2]
        assert type(round_trip(RECORDS)) is np.recarray
    finally:
        deregister_serializer(np.ndarray)


def test_g14_an_object_referenced_twice_arrives_once() -> None:
    inner: list[int] = []
    first, second = round_trip([inner, inner])
    assert first is second


def test_references_travel_as_numbers_in_order_and_once_each() -> None:
    a, b = ref("a"), ref("b")
    serialized = serialize([b, {"x": a}, b])
    assert serialized.refs == [b, a] and object_id("a") not in serialized.data
    out = deserialize(serialized.data, serialized.buffers, [b, a])
    assert out[0] is out[2] is b and out[1]["x"] is a


def test_a_message_cannot_be_unpickled_on_its_own() -> None:
    data = serialize([ref("a")]).data
    with pytest.raises(RuntimeError, match="part of a minray message"):
        pickle.loads(data)


def test_what_a_value_pickles_by_itself_notes_its_references_and_takes_no_numbers() -> None:
    class Sealed:
        def __reduce__(self) -> Any:
            return bytes, (pickle.dumps(a),)

    a = ref("a")
    set_default_hooks(cast(Any, Hooks()))
    try:
        serialized = serialize([Sealed(), a])
        sealed, again = deserialize(serialized.data, serialized.buffers, serialized.refs)
        assert serialized.refs == [a] and again is a and pickle.loads(sealed) == ("unpickled", a._id)
    finally:
        set_default_hooks(None)


class Hooks:
    def pickle_out_of_band(self, ref: ObjectRef[Any], *, pinned: bool) -> tuple[bytes, bytes]:
        assert not pinned
        return ref._id, b"owner"

    def unpickle_out_of_band(self, object_id: bytes, _owner: bytes) -> tuple[str, bytes]:
        return "unpickled", object_id


def test_a_value_that_serialises_others_on_its_way_keeps_its_own_references() -> None:
    class Nosy:
        def __reduce__(self) -> Any:
            serialize([ref("another")])
            return list, ()

    serialized = serialize([ref("a"), Nosy(), ref("b")])
    assert serialized.refs == [ref("a"), ref("b")]


def test_what_fails_to_pickle_leaves_nothing_behind() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        serialize([ref("a"), (i for i in "x")])
    assert serialize([ref("b")]).refs == [ref("b")]


def test_a_reference_says_that_it_is_dropped() -> None:
    dropped: list[bytes] = []
    made: ObjectRef[Any] = ObjectRef(object_id("a"), "owner", dropped.append)
    del made
    gc.collect()
    assert dropped == [object_id("a")]


# --- calls


class Puts:
    """Where arguments that are too large go."""

    def __init__(self) -> None:
        self.values: list[Serialized] = []

    def __call__(self, value: Serialized) -> ObjectRef[Any]:
        self.values.append(value)
        return ref(f"put-{len(self.values)}")


def call(*args: Any, **kwargs: Any) -> tuple[Any, list[ObjectRef[Any]], Puts]:
    puts = Puts()
    value, slots = serialize_call(args, kwargs, LIMIT, puts)
    assert value is not None
    return deserialize(value.data, value.buffers, value.refs), slots, puts


def test_a_call_without_arguments_is_nothing() -> None:
    assert serialize_call((), {}, LIMIT, Puts()) == (None, [])


def test_g11_top_level_references_become_slots_and_nested_ones_stay() -> None:
    out, slots, _ = call(ref("a"), [ref("b")], key=ref("c"))
    assert slots == [ref("a"), ref("c")]
    assert fill_slots(out, ["A", "C"]) == (("A", [ref("b")]), {"key": "C"})


def test_g14_an_object_in_two_arguments_arrives_once() -> None:
    shared: list[int] = []
    (args, kwargs), _, _ = call(shared, key=[shared])
    assert args[0] is kwargs["key"][0]


def test_g14_a_large_object_in_two_arguments_is_put_once_and_arrives_once() -> None:
    large, small = bytearray(LIMIT + 1), [0]
    (args, kwargs), slots, puts = call(large, small, large, key=large, other=small)
    assert len(slots) == len(puts.values) == 1
    (first, *others), kwargs = fill_slots((args, kwargs), [bytearray(1)])
    assert first is others[1] is kwargs["key"] and others[0] is kwargs["other"]


def test_g76_c9_an_argument_above_the_limit_is_put(
    over: int = len(pickle.dumps(b"x" * LIMIT, 5)) - LIMIT,
) -> None:
    for size, puts_expected in ((LIMIT - over, 0), (LIMIT - over + 1, 1)):
        out, slots, puts = call(b"x" * size, 1)
        assert (len(puts.values), len(slots)) == (puts_expected, puts_expected)
        assert out[0][1] == 1


def test_g76_many_arguments_below_the_limit_do_not_make_an_endless_message() -> None:
    """Those that do not fit into 10 MiB any more are put like large ones."""
    arguments = [bytes([number]) * 90_000 for number in range(200)]
    puts = Puts()
    value, slots = serialize_call(tuple(arguments), {}, LIMIT, puts)
    assert value is not None and value.size() <= TASK_RPC_INLINED_BYTES_LIMIT + 200_000
    (args, kwargs), values = deserialize(value.data, value.buffers, []), [pickle.loads(put.data) for put in puts.values]
    assert len(slots) == len(values) > 0
    assert fill_slots((args, kwargs), values) == (tuple(arguments), {})
