"""Streaming generators on a real cluster (G90-G98): order, back-pressure, large items, kill -9, cancellation, drops."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.exceptions import RayTaskError, TaskCancelledError, WorkerCrashedError
from tests.helpers import wait_for_condition
from tests.real.support import Files, Journal, Signal, words

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def count(most: int) -> Iterator[int]:
    for number in range(1, most + 1):  # noqa: UP028 (Ray cannot delegate to an iterator)
        yield number


@ray.remote
def noted(most: int, journal: Journal) -> Iterator[int]:
    """Writes down each item before it is yielded."""
    for number in range(1, most + 1):
        journal.note(number)
        yield number


@ray.remote
def pid_and_hold(release: Signal) -> Iterator[int]:
    yield os.getpid()
    release.wait()
    yield os.getpid()


@ray.remote
def arrays(most: int) -> Iterator[Any]:
    for number in range(most):
        yield np.full(200_000, number)


def test_coroutines_share_a_generator_and_each_item_goes_to_one_of_them(files: Files) -> None:
    generator = count.options(_generator_backpressure_num_objects=1).remote(20)

    async def read() -> list[int]:
        return [await ref async for ref in generator]

    async def main() -> list[list[int]]:
        return await asyncio.gather(read(), read(), read())

    assert sorted(number for numbers in asyncio.run(main()) for number in numbers) == list(range(1, 21))


def test_a_generator_that_another_thread_is_reading_says_so(files: Files) -> None:
    """As Python's own do; afterwards it goes on."""
    release = files.signal("release")
    generator = pid_and_hold.remote(release)
    next(generator)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(next(generator)))
    reader.start()
    wait_for_condition(generator._reading.locked)
    with pytest.raises(ValueError, match="another thread is already reading this generator"):
        next(generator)
    release.set()
    reader.join()
    assert len(got) == 1 and list(generator) == []


def test_g90_items_come_while_the_task_runs(files: Files) -> None:
    release = files.signal("release")
    generator = pid_and_hold.remote(release)
    first = next(generator)
    assert ray.wait([generator.completed()], timeout=0) == ([], [generator.completed()])
    release.set()
    assert ray.get([first, *generator]) == [ray.get(first)] * 2
    assert generator.is_finished() and ray.get(generator.completed()) is None


def test_g90_thousands_of_items_arrive_in_order() -> None:
    assert [ray.get(ref) for ref in count.remote(5000)] == list(range(1, 5001))


def test_g90_large_items_are_views_of_the_store() -> None:
    values = [ray.get(ref) for ref in arrays.remote(20)]
    assert [value[-1] for value in values] == list(range(20)) and not any(value.flags.writeable for value in values)


def test_g90_a_loop_reads_two_generators_at_once() -> None:
    async def add_up(most: int) -> int:
        return sum([await ref async for ref in count.remote(most)])

    async def both() -> list[int]:
        return await asyncio.gather(add_up(100), add_up(200))

    assert asyncio.run(both()) == [5050, 20100]


def test_g91_backpressure_holds_the_body_back(files: Files) -> None:
    journal = files.journal()
    generator = noted.options(_generator_backpressure_num_objects=2).remote(50, journal)
    for number in range(1, 11):
        wait_for_condition(lambda: len(journal.lines()) >= number + 1)  # noqa: B023
        assert ray.get(next(generator)) == number
        assert len(journal.lines()) <= number + 2
    assert [ray.get(ref) for ref in generator] == list(range(11, 51))


@pytest.mark.parametrize("max_retries", [0, 1])
def test_g93_g94_after_kill_9_the_stream_goes_on_or_says_why_not(files: Files, max_retries: int) -> None:
    release = files.signal("release")
    generator = pid_and_hold.options(max_retries=max_retries).remote(release)
    first = ray.get(next(generator))
    os.kill(first, signal.SIGKILL)
    release.set()
    (rest,) = generator
    if max_retries:
        assert ray.get(rest) != first
    else:
        for ref in (rest, generator.completed()):
            with pytest.raises(WorkerCrashedError):
                ray.get(ref)


@pytest.mark.parametrize("limit", [-1, 1])
def test_g97_what_is_dropped_is_freed_and_the_body_runs_to_its_end(files: Files, limit: int) -> None:
    """(That nothing is left in the driver, the fixture looks for.)"""
    journal = files.journal()
    generator = noted.options(_generator_backpressure_num_objects=limit).remote(200, journal)
    next(generator)
    completed = generator.completed()
    del generator
    gc.collect()
    ray.get(completed)
    assert len(journal.lines()) == 200


def test_g98_a_generator_cannot_be_pickled() -> None:
    generator = count.remote(1)
    for attempt in (pickle.dumps, ray.put, count.remote):
        with pytest.raises(TypeError, match=words("cannot be pickled")):
            attempt(generator)
    assert ray.get(generator) is generator


@pytest.mark.parametrize("limit", [-1, 1])
def test_g41_a_cancelled_generator_ends_wherever_it_waits(files: Files, limit: int) -> None:
    """In its body, or for its reader."""
    generator = pid_and_hold.options(_generator_backpressure_num_objects=limit).remote(files.signal("release"))
    wait_for_condition(generator.next_ready)
    ray.cancel(generator)
    first, error = generator
    assert ray.get(first) > 0
    with pytest.raises(TaskCancelledError):
        ray.get(error)


def test_g92_num_returns_of_a_generator_and_its_error(files: Files) -> None:
    first, second, third = count.options(num_returns=3).remote(2)
    assert ray.get([first, second]) == [1, 2]
    with pytest.raises(RayTaskError, match=words("yielded 2 objects")):
        ray.get(third)


def test_an_async_generator_function_is_refused() -> None:
    async def numbers() -> Any:
        yield 1

    with pytest.raises(ValueError, match="async generator"):
        ray.remote(numbers)


@ray.remote
class Counter:
    """Coroutines and asynchronous generators run on one loop, and a plain generator too."""

    async def count(self, most: int) -> AsyncIterator[int]:
        for number in range(1, most + 1):
            yield number

    def arrays(self, most: int) -> Iterator[Any]:
        for number in range(most):
            yield np.full(200_000, number)

    async def wait(self, number: int) -> AsyncIterator[int]:
        self.may_go_on = asyncio.Event()
        yield number
        await self.may_go_on.wait()

    async def go_on(self) -> None:
        self.may_go_on.set()


def test_g90_g91_an_async_actor_streams_and_answers_others_meanwhile() -> None:
    actor = Counter.remote()
    held_up = actor.count.options(_generator_backpressure_num_objects=1).remote(5)
    waiting = actor.wait.remote(7)
    assert ray.get(next(held_up)) == 1 and ray.get(next(waiting)) == 7
    assert sum(ray.get(ref) for ref in actor.count.remote(1000)) == 500_500
    assert [ray.get(ref)[0] for ref in actor.arrays.remote(3)] == [0, 1, 2]
    ray.get(actor.go_on.remote())
    assert list(waiting) == [] and [ray.get(ref) for ref in held_up] == [2, 3, 4, 5]


def test_g45_an_async_generator_of_an_actor_can_be_cancelled() -> None:
    actor = Counter.remote()
    generator = actor.wait.remote(1)
    assert ray.get(next(generator)) == 1
    ray.cancel(generator)
    with pytest.raises(TaskCancelledError):
        ray.get(next(generator))
    ray.get(actor.go_on.remote())


def test_a_thread_that_waits_is_not_the_only_one() -> None:
    """Generators of several threads do not hold each other up."""
    sums: list[int] = []
    threads = [
        threading.Thread(target=lambda: sums.append(sum(ray.get(ref) for ref in count.remote(300)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [45150] * 4
