"""Issues of Ray about streaming generators."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import minray as ray
from tests.real.support import PATIENCE_S, Files, Journal

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="right")
def test_ray_58080_references_inside_an_item_live_as_long_as_the_item() -> None:
    """References that a generator of an actor yields inside an item are freed before the item's reader has used them."""

    @ray.remote(num_cpus=0)
    class Producer:
        def run(self) -> Iterator[list[Any]]:
            for number in range(30):
                yield [ray.put(number + more) for more in range(3)]

    @ray.remote(num_cpus=0)
    class Consumer:
        def add(self, refs: list[Any]) -> int:
            return int(sum(ray.get(refs)))

    producer, consumer = Producer.remote(), Consumer.remote()
    items = producer.run.options(num_returns="streaming").remote()
    sums = [consumer.add.remote(item) for item in items]
    assert get(sums) == [3 * number + 3 for number in range(30)]


@pytest.mark.ray_issue(ray="right")
def test_ray_38232_no_item_is_lost_between_wait_and_next() -> None:
    """An item that `wait` has found ready is gone when it is read, and the loop never ends."""

    @ray.remote(num_cpus=0)
    def count(number: int) -> Iterator[int]:
        for each in range(number):  # noqa: UP028  (not `yield from`: a streaming generator of Ray has no `send` for that)
            yield each

    generators = [count.options(num_returns="streaming").remote(20) for _ in range(10)]
    found = []
    while generators:
        ready, _ = ray.wait(generators, num_returns=1, timeout=PATIENCE_S)
        assert ready
        for generator in ready:
            try:
                found.append(get(next(generator)))
            except StopIteration:
                generators.remove(generator)
    assert sorted(found) == sorted(list(range(20)) * 10)


@pytest.mark.ray_issue(ray="right")
def test_ray_43914_a_generator_whose_actor_dies_and_restarts_yields_all_items(files: Files) -> None:
    """A generator of an actor is run again after the actor's death, but its reader waits for the next item for ever."""

    @ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
    class Producer:
        def run(self, runs: Journal) -> Iterator[int]:
            first = runs.note() == 1
            for number in range(10):
                if first and number == 5:
                    os._exit(1)
                yield number

    producer = Producer.remote()
    items = producer.run.options(num_returns="streaming").remote(files.journal())
    assert [get(item) for item in items] == list(range(10))
    assert len(files.journal().lines()) == 2
