"""``num_returns="dynamic"``: one reference, whose value refers to all that the generator has yielded."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.exceptions import RayError, RayTaskError, TaskCancelledError, WorkerCrashedError
from tests.helpers import wait_for_condition
from tests.real.support import Files, Journal, Signal, core

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore:.*dynamic:DeprecationWarning")]


def count(most: int, fails_at: int = -1) -> Iterator[int]:
    for number in range(most):
        if number == fails_at:
            raise ValueError("no")
        yield number
    if fails_at == most:
        raise ValueError("at the end")


def arrays(most: int) -> Iterator[Any]:
    for number in range(most):
        yield np.full(200_000, number)


def dynamic(function: Any, **options: Any) -> Any:
    return ray.remote(num_returns="dynamic", **options)(function)


@ray.remote
def read(generator: Any) -> tuple[str, int, list[Any]]:
    number = len(generator)
    return type(generator).__name__, number, ray.get(list(generator))


def outcomes(ref: Any) -> list[object]:
    found: list[object] = []
    for item in ray.get(ref):
        try:
            found.append(ray.get(item))
        except RayError as error:
            found.append(type(error).__name__)
    return found


def test_the_value_is_a_generator_of_references() -> None:
    ref = dynamic(count).remote(3)
    assert isinstance(ref, ray.ObjectRef) and ray.wait([ref]) == ([ref], [])
    generator = ray.get(ref)
    assert isinstance(generator, ray.DynamicObjectRefGenerator) and len(generator) == 3
    refs = list(generator)
    assert ray.get(refs) == [0, 1, 2] and {item.task_id() for item in refs} == {ref.task_id()}
    assert list(generator) == [] and len(generator) == 0, "iterating takes the references out"
    assert len(ray.get(ref)) == 3, "and each get has all of them"
    assert outcomes(dynamic(count).remote(0)) == []
    assert outcomes(ray.remote(count).options(num_returns="dynamic").remote(2)) == [0, 1]


def test_it_is_passed_to_tasks_as_a_reference_and_as_a_value() -> None:
    ref = dynamic(count).remote(3)
    assert ray.get(read.remote(ref)) == ("DynamicObjectRefGenerator", 3, [0, 1, 2])
    assert ray.get(read.remote(ray.get(ref))) == ("DynamicObjectRefGenerator", 3, [0, 1, 2])

    @ray.remote
    def outer() -> Any:
        return ray.get(dynamic(arrays).remote(2))  # its owner is this worker

    assert [array[0] for array in ray.get(list(ray.get(outer.remote())))] == [0, 1]


@pytest.mark.parametrize(("fails_at", "items"), [(0, []), (2, [0, 1]), (3, [0, 1, 2])])
def test_an_error_of_the_body_is_the_last_item(fails_at: int, items: list[int]) -> None:
    assert outcomes(dynamic(count, max_retries=0).remote(3, fails_at)) == [*items, "RayTaskError(ValueError)"]


def test_the_error_of_the_system_is_the_value() -> None:
    def die(most: int) -> Iterator[int]:
        yield most
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerCrashedError):
        ray.get(dynamic(die, max_retries=0).remote(1))


def test_methods_of_actors_too() -> None:
    @ray.remote
    class Counting:
        @ray.method(num_returns="dynamic")
        def declared(self, most: int) -> Iterator[int]:
            for number in range(most):  # noqa: UP028 (Ray cannot delegate to an iterator)
                yield number

        def plain(self, most: int) -> Iterator[int]:
            for number in range(most):  # noqa: UP028 (Ray cannot delegate to an iterator)
                yield number

    counting: Any = Counting.remote()
    for ref in (counting.declared.remote(3), counting.plain.options(num_returns="dynamic").remote(3)):
        assert outcomes(ref) == [0, 1, 2]
    assert [ray.get(item) for item in counting.declared.options(num_returns="streaming").remote(2)] == [0, 1]


def test_coroutine_generators_too() -> None:
    @ray.remote
    class Counting:
        @ray.method(num_returns="dynamic")
        async def count(self, most: int) -> AsyncIterator[int]:
            for number in range(most):
                yield number

    assert outcomes(Counting.remote().count.remote(3)) == [0, 1, 2]  # type: ignore[attr-defined]


def test_an_attempt_that_dies_is_made_again(files: Files) -> None:
    journal = files.journal()

    def dies_once(journal: Journal) -> Iterator[int]:
        first = journal.note("begun") == 1
        yield 1
        if first:
            os.kill(os.getpid(), signal.SIGKILL)
        yield 2

    assert outcomes(dynamic(dies_once).remote(journal)) == [1, 2] and len(journal.lines()) == 2


def test_a_cancelled_one_is_an_error(files: Files) -> None:
    begun = files.signal()

    def hang(begun: Signal) -> Iterator[int]:
        yield 1
        begun.set()
        threading.Event().wait(60)

    ref = dynamic(hang).remote(begun)
    begun.wait()
    ray.cancel(ref)
    with pytest.raises((TaskCancelledError, RayTaskError)):
        ray.get(ref)


def test_what_nobody_refers_to_is_freed(files: Files) -> None:
    before = len(core().store.objects)
    ref = dynamic(arrays).remote(3)
    kept = list(ray.get(ref))[1]
    del ref
    gc.collect()
    wait_for_condition(lambda: len(core().store.objects) == before + 1)
    assert ray.get(kept)[0] == 1
    begun, release = files.signal("begun"), files.signal("release")

    def held(begun: Signal, release: Signal) -> Iterator[int]:
        yield 1
        begun.set()
        release.wait()
        yield 2

    dynamic(held).remote(begun, release)  # the reference is dropped while the generator runs
    begun.wait()
    release.set()
    del kept
    gc.collect()
    wait_for_condition(lambda: len(core().store.objects) == before and not core().submission.generators.streams)


def test_it_is_deprecated() -> None:
    for use in (lambda: ray.remote(num_returns="dynamic")(count), lambda: ray.remote(count).options(num_returns="dynamic")):
        with pytest.warns(DeprecationWarning, match="deprecated.*streaming") as caught:
            use()
        assert caught[0].filename == __file__
