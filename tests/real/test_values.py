"""Values when they arrive: references replaced, arrays read-only, any size, identity (G11, G13-G15, G76)."""

from __future__ import annotations

import os
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minray as ray
from tests.helpers import wait_for_condition
from tests.real.support import Files, api, core, echo, hold

pytestmark = pytest.mark.usefixtures("cluster")
Point = namedtuple("Point", "x y")
LIMIT = 100 * 1024
"""max_direct_call_object_size."""


@dataclass
class Pair:
    left: Any
    right: Any


@ray.remote
def types_of(*args: Any, **kwargs: Any) -> tuple[list[str], dict[str, str]]:
    return [type(value).__name__ for value in args], {name: type(value).__name__ for name, value in kwargs.items()}


# --- G11


def test_g11_top_level_references_become_values_and_nested_ones_stay() -> None:
    one = ray.put(1)
    args, kwargs = ray.get(types_of.remote(one, [one], (one,), {"a": one}, Pair(one, one), word=one, words={one}))
    assert args == ["int", "list", "tuple", "dict", "Pair"]
    assert kwargs == {"word": "int", "words": "set"}

    @ray.remote
    def inner_types(values: list[Any], pair: Pair) -> set[str]:
        return {type(value).__name__ for value in [*values, pair.left, pair.right[0]]}

    assert ray.get(inner_types.remote([one], Pair(one, [one]))) == {"ObjectRef"}


def test_g11_nested_references_do_not_delay_a_task(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    slow = hold.remote(started, release, "late")

    @ray.remote
    def peek(refs: list[Any]) -> bool:
        return ray.wait(refs, timeout=0)[0] == []

    assert ray.get(peek.remote([slow]))
    release.set()
    assert ray.get(slow) == "late"


def test_g11_nested_references_move_no_data() -> None:
    large = ray.put(np.zeros(5_000_000, dtype=np.uint8))
    before = ray.get_runtime_context().rpc_counters()["bytes"]
    assert ray.get(types_of.remote([large]))[0] == ["list"]
    assert ray.get_runtime_context().rpc_counters()["bytes"] - before < 100_000


def test_g11_one_reference_in_several_places() -> None:
    one = ray.put([1])

    @ray.remote
    def look(a: Any, b: Any, refs: list[Any]) -> Any:
        return a, b, ray.get(refs), refs[0] == refs[1]

    assert ray.get(look.remote(one, one, [one, one])) == ([1], [1], [[1], [1]], True)


# --- G13, G14


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_g13_arrays_arrive_read_only(size: int) -> None:
    array = np.arange(size)

    @ray.remote
    def try_to_write(given: Any, nested: list[Any]) -> list[str]:
        outcomes = []
        for target in (given, ray.get(nested[0])):
            try:
                target[0] = 7
                outcomes.append("written")
            except ValueError:
                outcomes.append("read-only")
        return outcomes

    put = ray.put(array)
    assert ray.get(try_to_write.remote(array, [put])) == ["read-only", "read-only"]
    for received in (ray.get(put), ray.get(echo.remote(array)), ray.get(echo.remote([array]))[0]):
        assert np.array_equal(received, array)
        with pytest.raises(ValueError):
            received[0] = 7


def test_g13_the_original_may_be_changed_after_the_call() -> None:
    array = np.zeros(1000)
    put, task = ray.put(array), echo.remote(array)
    array[:] = 1
    assert ray.get(put).sum() == 0 and ray.get(task).sum() == 0


def test_g14_an_object_referenced_twice_arrives_once() -> None:
    shared: list[Any] = []
    array = np.zeros(100_000)

    @ray.remote
    def is_one(a: Any, b: Any, c: Any = None, *, d: Any = None) -> list[bool]:
        return [a[0] is a[1], a[0] is b, b is c, c is d]

    assert ray.get(is_one.remote([shared, shared], shared, shared, d=shared)) == [True] * 4
    assert ray.get(is_one.remote([array, array], array, array, d=array))[0]
    cycle: list[Any] = [shared, array]
    cycle.append(cycle)
    back = ray.get(echo.remote([cycle, shared]))
    assert back[0][2] is back[0] and back[0][0] is back[1]
    put = ray.get(ray.put([array, array]))
    assert put[0] is put[1]


# --- sizes


@pytest.mark.parametrize("size", [0, LIMIT - 200, LIMIT, LIMIT + 1, 1_000_000])
def test_g76_c9_values_around_the_inline_limit(size: int) -> None:
    text, data, array = "x" * size, b"y" * size, np.ones(size, dtype=np.uint8)
    assert ray.get(echo.remote(text)) == text
    assert ray.get(echo.remote(data)) == data
    assert np.array_equal(ray.get(echo.remote(array)), array)
    assert ray.get(echo.remote(echo.remote(text))) == text
    assert np.array_equal(ray.get(echo.remote(ray.put(array))), array)


def test_g76_c9_small_arguments_travel_in_the_message_and_large_ones_beside_it() -> None:
    @ray.remote(resources={"none": 1})
    def never_runs(*arguments: object) -> None: ...

    def travels_by_reference(*arguments: object) -> int:
        """How many arguments of a task were put and are passed by reference."""
        task = never_runs.remote(*arguments)
        wait_for_condition(lambda: core().submission.tasks.tasks)
        (waiting,) = core().submission.tasks.tasks.values()
        ray.cancel(task)
        wait_for_condition(lambda: not core().submission.tasks.tasks)
        return len(waiting.slots or ())

    assert travels_by_reference(b"x" * (LIMIT - 100)) == 0
    assert travels_by_reference(b"x" * (LIMIT + 1)) == 1
    assert travels_by_reference(b"x" * (LIMIT - 100), b"y" * (LIMIT + 1), "z") == 1


def test_large_arrays_and_strings() -> None:
    array = np.arange(50_000_000 // 8)
    back = ray.get(echo.remote(array))
    assert np.array_equal(back, array) and not back.flags.writeable
    text = "ä" * 35_000_000
    assert ray.get(echo.remote(text)) == text


def test_many_large_arguments_together() -> None:
    arrays = [np.full(300_000, number) for number in range(10)]

    @ray.remote
    def add_up(*given: Any, last: Any) -> int:
        return int(sum(array[0] for array in given) + last[0])

    refs = [ray.put(array) for array in arrays[:5]]
    assert ray.get(add_up.remote(*refs, *arrays[5:9], last=arrays[9])) == sum(range(10))


def test_g76_c9_many_values_that_are_small_one_by_one() -> None:
    """Together they are more than a message may have."""
    texts = [os.urandom(90_000) for _ in range(1000)]

    @ray.remote
    def digest(*args: bytes, **kwargs: bytes) -> list[bytes]:
        return [text[:8] for text in [*args, *kwargs.values()]]

    expected = [text[:8] for text in texts]
    assert ray.get(digest.remote(*texts)) == expected
    assert ray.get(digest.remote(*texts[:500], **{f"a{index}": text for index, text in enumerate(texts[500:])})) == expected
    several = echo.options(num_returns=1000).remote(texts)
    assert ray.get(several) == texts
    store = core().store
    from minray.common.config import TASK_RPC_INLINED_BYTES_LIMIT

    places = [store.objects[ref.binary()].place for ref in several]
    assert sum(place is None for place in places) == TASK_RPC_INLINED_BYTES_LIMIT // (90_000 + 100)
    refs = [ray.put(text) for text in texts]
    assert ray.get(digest.remote(*refs)) == expected


def test_a_function_that_captures_too_much_is_an_error_at_its_call() -> None:
    large = b"x" * 60_000_000

    @ray.remote
    def use() -> int:
        return len(large)

    for _ in range(2):
        with pytest.raises(ValueError, match="use is too large"):
            use.remote()


def test_an_exception_may_be_large() -> None:
    @ray.remote
    def fail() -> None:
        raise ValueError(b"x" * 70_000_000)

    with pytest.raises(ValueError) as caught:
        ray.get(fail.remote())
    assert len(caught.value.cause.args[0]) == 70_000_000


def test_many_small_buffers() -> None:
    arrays = [np.full(3, number) for number in range(2000)]
    back = ray.get(echo.remote(arrays))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))


def test_kinds_of_values() -> None:
    values: list[Any] = [None, True, 3, 2**100, 1.5, "text", b"bytes", (1, [2, {3: {4}}]), range(3), ...]
    values += [Point(1, 2), Pair(1, 2)]
    assert ray.get(echo.remote(values)) == values
    assert ray.get([echo.remote(value) for value in values]) == values
    assert ray.get([ray.put(value) for value in values]) == values
    function = ray.get(echo.remote(lambda number: number + 1))
    assert function(1) == 2


# --- G15 and functions


counter = 1


def test_g15_c8_a_function_is_pickled_at_its_first_call() -> None:
    box = {"value": "at the definition"}

    @ray.remote
    def look() -> Any:
        return box["value"], helper()

    def helper() -> str:
        return "defined later"

    box["value"] = "at the first call"
    first = look.remote()
    box["value"] = "later"
    calls = [first, look.remote(), look.options(name="other").remote()]
    assert ray.get(calls) == [("at the first call", "defined later")] * 3


def test_g15_rebinding_globals_does_not_change_what_workers_run() -> None:
    global counter

    @ray.remote
    def look() -> int:
        return counter

    assert ray.get(look.remote()) == 1
    counter = 2
    assert ray.get(look.remote()) == 1

    @ray.remote
    def look_again() -> int:
        return counter

    assert ray.get(look_again.remote()) == 2
    counter = 1


def test_g15_a_definition_is_exported_once() -> None:
    exports = []
    connected: Any = api()
    original = connected._export

    def export(*arguments: Any) -> None:
        exports.append(arguments[1])
        original(*arguments)

    connected._export = export
    try:

        @ray.remote
        def work(number: int) -> int:
            return number

        ray.get([work.remote(1), work.options(num_cpus=0.5).remote(2), work.options(name="x").remote(3)])
    finally:
        connected._export = original
    assert len(exports) == 1


def test_recursive_and_mutually_recursive_functions() -> None:
    @ray.remote
    def fibonacci(number: int) -> int:
        return number if number < 2 else sum(ray.get([fibonacci.remote(number - 1), fibonacci.remote(number - 2)]))

    @ray.remote
    def is_even(number: int) -> bool:
        return number == 0 or ray.get(is_odd.remote(number - 1))

    @ray.remote
    def is_odd(number: int) -> bool:
        return number != 0 and ray.get(is_even.remote(number - 1))

    assert ray.get(fibonacci.remote(6)) == 8
    assert ray.get(is_even.remote(4))


def test_a_remote_function_travels_as_an_argument_and_a_result() -> None:
    @ray.remote
    def double(number: int) -> int:
        return 2 * number

    @ray.remote
    def apply(function: Any, number: int) -> Any:
        return function, ray.get(function.remote(number))

    function, value = ray.get(apply.remote(double, 4))
    assert value == 8 and ray.get(function.remote(5)) == 10


def test_methods_partials_and_lambdas_are_remote_functions() -> None:
    import functools

    assert ray.get(ray.remote(lambda number: number + 1).remote(1)) == 2
    assert ray.get(ray.remote(functools.partial(lambda a, b: a - b, 5)).remote(2)) == 3
    assert ray.get(ray.remote("abc".upper).remote()) == "ABC"
    what = ray.remote(functools.partial(lambda: ray.get_runtime_context().get_task_function_name()))
    assert ray.get(what.remote()) == "functools.partial"
    assert ray.get(ray.remote(len).remote([1, 2])) == 2


def test_keyword_arguments_defaults_and_wrong_ones() -> None:
    @ray.remote
    def work(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> Any:
        return a, b, rest, c, more

    assert ray.get(work.remote(1)) == (1, 2, (), 3, {})
    assert ray.get(work.remote(1, 4, 5, c=6, d=7)) == (1, 4, (5,), 6, {"d": 7})
    with pytest.raises(TypeError, match="argument"):
        ray.get(work.remote())


@ray.remote
def misaligned(*values: Any) -> list[int]:
    """Places of the arrays in this process that do not begin at a multiple of 64 bytes."""
    flat = [array for value in values for array in (value if isinstance(value, list) else [value])]
    return [index for index, array in enumerate(flat) if array.ctypes.data % 64]


def test_arrays_begin_at_multiples_of_64_bytes_wherever_they_come_from() -> None:
    values = [np.arange(n) for n in (1, 3, 10, 100, 1000, 5000, 100_000)]
    values_and_lists = [*values, values[:4], values[3:]]
    refs = [ray.put(value) for value in values_and_lists]
    returned = ray.get([echo.remote(value) for value in values_and_lists] + refs)
    got = [array for value in returned for array in (value if isinstance(value, list) else [value])]
    assert [index for index, array in enumerate(got) if array.ctypes.data % 64] == []
    assert ray.get([misaligned.remote(*values_and_lists), misaligned.remote(*refs)]) == [[], []]


def test_arrays_that_travel_beside_their_message_are_aligned_too() -> None:
    """Together the results exceed what goes into one message, and each alone is too small for the store."""

    @ray.remote(num_returns=150)
    def many() -> list[Any]:
        return [np.full(90_000, number, np.uint8) for number in range(150)]

    got = ray.get(many.remote())
    assert [int(array[-1]) for array in got] == list(range(150))
    assert [index for index, array in enumerate(got) if array.ctypes.data % 64] == []
