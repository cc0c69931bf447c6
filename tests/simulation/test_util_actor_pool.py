"""``ActorPool`` in the simulation: who gets which work, in which order results come, what a time-out takes away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.simulation import run
from minray.util import ActorPool


@minray.remote
class Sleeper:
    def __init__(self) -> None:
        self.served = 0

    def rest(self, seconds: float) -> float:
        self.served += 1
        time.sleep(seconds)
        return seconds

    def fail(self, number: int) -> int:
        raise KeyError(number)

    def count(self) -> int:
        return self.served


def rest(actor: Any, seconds: float) -> Any:
    return actor.rest.remote(seconds)


def fail(actor: Any, number: int) -> Any:
    return actor.fail.remote(number)


def pooled(use: Callable[[ActorPool[Any], list[Any]], Any], actors: int = 2) -> Any:
    """Return what ``use`` does with a pool and its actors."""

    def body() -> Any:
        sleepers = [Sleeper.remote() for _ in range(actors)]
        minray.get([sleeper.count.remote() for sleeper in sleepers])
        return use(ActorPool(sleepers), sleepers)

    return run(body, nodes=1)


def test_map_keeps_the_order_and_map_unordered_gives_what_is_there() -> None:
    def use(pool: ActorPool[Any], _: list[Any]) -> Any:
        return list(pool.map(rest, [3, 1, 2, 0])), list(pool.map_unordered(rest, [4, 1, 1, 1]))

    assert pooled(use) == ([3, 1, 2, 0], [1, 1, 1, 4])


def test_an_actor_that_could_not_be_called_stays_in_the_pool() -> None:
    def use(pool: ActorPool[Any], _: list[Any]) -> Any:
        with pytest.raises(AttributeError):
            pool.submit(lambda actor, value: actor.no_such_method.remote(value), 1)
        return list(pool.map(rest, [1, 2]))

    assert pooled(use, actors=1) == [1, 2]


def test_an_actor_takes_the_next_piece_when_it_is_through() -> None:
    def use(pool: ActorPool[Any], sleepers: list[Any]) -> Any:
        before = time.monotonic()
        list(pool.map_unordered(rest, [9, 1, 1, 1, 1, 1]))
        return round(time.monotonic() - before), sorted(minray.get([one.count.remote() for one in sleepers]))

    assert pooled(use) == (9, [1, 5])


def test_get_next_raises_what_the_call_has_raised_and_goes_on() -> None:
    def use(pool: ActorPool[Any], _: list[Any]) -> Any:
        for call, value in [(rest, 1), (fail, 7), (rest, 2)]:
            pool.submit(call, value)
        first = pool.get_next()
        with pytest.raises(KeyError, match="7"):
            pool.get_next()
        return first, pool.get_next(), pool.has_next()

    assert pooled(use) == (1, 2, False)


@pytest.mark.parametrize("name", ["get_next", "get_next_unordered"])
def test_a_time_out_leaves_the_result_or_gives_it_up(name: str) -> None:
    def use(pool: ActorPool[Any], _: list[Any]) -> Any:
        pool.submit(rest, 5)
        get = getattr(pool, name)
        with pytest.raises(TimeoutError, match="no result within 1 s$"):
            get(timeout=1)
        with pytest.raises(TimeoutError, match="given up"):
            get(timeout=1, ignore_if_timedout=True)
        with pytest.raises(StopIteration):
            get()
        pool.submit(rest, 1)
        return get(timeout=10), pool.has_free()

    assert pooled(use, actors=1) == (1, True)


def test_results_taken_out_of_order_are_not_there_in_order() -> None:
    def use(pool: ActorPool[Any], _: list[Any]) -> None:
        pool.submit(rest, 5)
        pool.submit(rest, 1)
        assert pool.get_next_unordered() == 1
        with pytest.raises(ValueError, match="cannot follow get_next_unordered"):
            pool.get_next()

    pooled(use)


def test_map_drops_what_was_submitted_before() -> None:
    def use(pool: ActorPool[Any], _: list[Any]) -> Any:
        for seconds in (5, 6, 7):
            pool.submit(rest, seconds)
        return list(pool.map(rest, [1, 2]))

    assert pooled(use) == [1, 2]


def test_actors_come_and_go() -> None:
    def use(pool: ActorPool[Any], sleepers: list[Any]) -> Any:
        assert pool.pop_idle() in sleepers and not pool.has_free() and pool.pop_idle() is None
        pool.submit(rest, 1)
        assert not pool.has_next()
        pool.push(sleepers[0])
        with pytest.raises(ValueError, match="belongs to the pool"):
            pool.push(sleepers[0])
        taken = pool.get_next(), pool.has_free()
        with pytest.raises(ValueError, match="belongs to the pool"):
            pool.push(sleepers[0])
        return taken

    assert pooled(use, actors=1) == (1, True)
