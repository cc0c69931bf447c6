"""Issues of Ray about references: how long objects live, and values that lie in shared memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.exceptions import RayError, RayTaskError
from tests.real.support import PATIENCE_S, echo

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


# -- Lifetimes


@pytest.mark.ray_issue(ray="right")
def test_ray_18723_a_chain_of_tasks_that_return_tasks_is_followed() -> None:
    """Deep recursion over references that contain references ends the driver with a failed check."""

    @ray.remote(num_cpus=0)
    def countdown(number: int) -> Any:
        return countdown.remote(number - 1) if number else "end"

    value = countdown.remote(60)
    while isinstance(value, ray.ObjectRef):
        value = get(value)
    assert value == "end"


@pytest.mark.ray_issue(ray="right")
def test_ray_18557_references_inside_values_can_be_dropped_in_any_order() -> None:
    """A failed check ends the driver when a value goes while its owner still tells about the references inside it."""

    @ray.remote(num_cpus=0)
    def wrap(refs: list[Any]) -> list[Any]:
        return [ray.put(refs), *refs]

    for _ in range(20):
        inner = [ray.put(number) for number in range(5)]
        outer = wrap.remote(wrap.remote(inner))
        del inner
        kept = get(outer)
        del outer
        deep = get(kept[0])
        del kept
        assert get(get(deep[0])[3]) == 3
        assert get(deep[1:]) == list(range(5))


@pytest.mark.ray_issue(ray="not run: Ray 2.60 has no `free` any more")
def test_ray_52324_a_get_of_a_freed_object_ends() -> None:
    """`get` of an object that was freed by hand never returns."""
    from minray.internal import free

    ref = ray.put(np.zeros(100_000))
    free([ref])
    with pytest.raises(RayError):
        get(ref)


# -- Values


@pytest.mark.ray_issue(ray="wrong: two `get` have two copies, which can be written")
def test_ray_37573_a_record_array_is_read_where_it_lies() -> None:
    """A `numpy.recarray` is copied by each `get`, unlike other arrays."""
    ref = ray.put(np.zeros(100_000, dtype=[("id", np.int64), ("value", np.float64)]).view(np.recarray))
    first, second = get(ref), get(ref)
    assert isinstance(first, np.recarray) and first.id[7] == 0
    assert np.shares_memory(first, second) and not first.flags.writeable


@pytest.mark.ray_issue(ray="right")
def test_ray_5531_arrays_with_negative_strides_travel() -> None:
    """An array with negative strides cannot be serialized."""
    array = np.arange(300_000).reshape(100, 1000, 3)[:, :, ::-1]
    assert np.array_equal(get(echo.remote(array)), array)


class Named(np.ndarray):
    name: str


@pytest.mark.ray_issue(ray="right")
def test_ray_7376_a_subclass_of_arrays_keeps_its_class() -> None:
    """An array of a user's subclass arrives as a plain array."""
    value = get(ray.put(np.zeros(100_000).view(Named)))
    assert type(value).__name__ == "Named" and value.shape == (100_000,)


@pytest.mark.ray_issue(pull=True, ray="wrong: two `get` have two copies, with a warning")
def test_ray_50731_an_array_with_gaps_is_read_where_it_lies() -> None:
    """A large array that is a view with gaps is copied for each reader."""
    ref = ray.put(np.zeros((1000, 1000))[:, ::2])
    first, second = get(ref), get(ref)
    assert first.shape == (1000, 500) and np.shares_memory(first, second)


# -- Exceptions


class Locked(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@pytest.mark.ray_issue(ray="right")
def test_ray_36893_an_exception_that_cannot_be_pickled_ends_no_worker() -> None:
    """An exception that cannot be pickled ends the worker, and the caller learns only that the worker died."""

    @ray.remote(num_cpus=0, max_retries=0)
    def fail() -> None:
        raise Locked("the text of the error")

    with pytest.raises(RayTaskError, match="the text of the error"):
        get(fail.remote())


@pytest.mark.ray_issue(pull=True, ray="right")
def test_ray_44878_an_actor_whose_exception_cannot_be_pickled_lives() -> None:
    """An actor whose method raises an exception that cannot be pickled ends, and so does its caller."""

    @ray.remote(num_cpus=0)
    class Callee:
        def fail(self) -> None:
            raise Locked("the text of the error")

        def answer(self) -> str:
            return "answer"

    @ray.remote(num_cpus=0)
    class Caller:
        def call(self, callee: Any) -> str:
            ref = callee.fail.remote()
            ray.wait([ref])
            return str(ray.get(callee.answer.remote()))

    callee = Callee.remote()
    assert get(Caller.remote().call.remote(callee)) == "answer"
    assert get(callee.answer.remote()) == "answer"


class StatusError(Exception):
    def __init__(self, *, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@pytest.mark.ray_issue(ray="wrong: an error about the exception's own arguments")
def test_ray_20830_an_exception_may_take_keywords_alone() -> None:
    """An exception whose constructor takes only keywords cannot be made again at the caller."""

    @ray.remote(num_cpus=0)
    def fail() -> None:
        raise StatusError(status_code=404)

    with pytest.raises(StatusError) as raised:
        get(fail.remote())
    assert raised.value.status_code == 404
