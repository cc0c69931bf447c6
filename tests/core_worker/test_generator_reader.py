"""Reading a generator: each step waits for one item and takes it, for any waiter and any end of the waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import minray
from minray.exceptions import LocalRayletDiedError, RayTaskError
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.core_worker.cores import Core, Cores, cores, failed_future, let_pass, pause
from tests.simulation.judge import core_leftovers

LARGE = b"x" * 10_000


@pytest.fixture
def cluster() -> Iterator[Cores]:
    with cores(2, 2, max_direct_call_object_size=1000, record_ref_creation_sites=True) as made:
        yield made


@minray.remote(max_retries=0)
def count(most: int, pause_s: float = 1.0) -> Iterator[int]:
    for number in range(1, most + 1):
        let_pass(pause_s)
        yield number


@minray.remote(max_retries=0)
def large() -> Iterator[bytes]:
    yield LARGE


@minray.remote(max_retries=0)
def fail_after_one() -> Iterator[int]:
    yield 1
    raise ValueError("no more")


def left(cluster: Cores, driver: Core) -> list[str]:
    cluster.settle(5)
    return core_leftovers(driver.worker)


def test_a_thread_waits_for_each_item_and_for_the_end(cluster: Cores, driver: Core) -> None:
    def program() -> list[Any]:
        generator = count.remote(2)
        seen: list[Any] = [(generator.next_ready(), generator.is_finished())]
        for ref in generator:
            seen.append((minray.get(ref), generator.next_ready(), generator.is_finished()))
        return [*seen, (generator.next_ready(), generator.is_finished())]

    assert driver.run(program) == [(False, False), (1, False, False), (2, False, False), (False, True)]
    assert left(cluster, driver) == []


def test_what_is_here_is_taken_without_waiting_also_behind_the_end(driver: Core) -> None:
    def program() -> None:
        generator = count.remote(2, 0.0)
        minray.get(generator.completed())
        assert generator.next_ready() and not generator.is_finished()
        assert [minray.get(next(generator)), minray.get(next(generator))] == [1, 2]
        assert [next(generator, "end"), next(generator, "end")] == ["end", "end"] and generator.is_finished()

    driver.run(program)


def test_who_awaits_an_item_goes_on_when_it_has_come_or_at_the_end(cluster: Cores, driver: Core) -> None:
    async def story() -> list[Any]:
        generator = count.remote(2)
        first = [await ref async for ref in generator]
        return [*first, await anext(generator, "end")]

    assert driver.do(story()) == [1, 2, "end"]
    assert left(cluster, driver) == []


def test_of_items_that_are_here_none_is_waited_for_on_a_loop(driver: Core) -> None:
    async def story() -> None:
        generator = count.remote(2, 0.0)
        await generator.completed()
        assert [await ref async for ref in generator] == [1, 2]

    driver.do(story())


def test_the_error_of_a_generator_is_its_last_item(driver: Core) -> None:
    async def story() -> None:
        refs = [ref async for ref in fail_after_one.remote()]
        assert await refs[0] == 1
        with pytest.raises(RayTaskError, match="no more"):
            await refs[1]

    driver.do(story())


def test_who_has_lost_patience_may_ask_again_and_misses_nothing(cluster: Cores, driver: Core) -> None:
    async def story() -> list[Any]:
        generator = count.remote(3)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(generator), 0.2)
        return [await ref async for ref in generator]

    assert driver.do(story()) == [1, 2, 3]
    assert left(cluster, driver) == []


@pytest.mark.parametrize("read", [0, 1])
def test_a_generator_that_is_dropped_after_it_was_awaited_in_vain_leaves_nothing(
    cluster: Cores, driver: Core, read: int
) -> None:
    """The next item will never be made. No process is told of it, and none waits for it any more."""

    async def story() -> None:
        generator = count.remote(4)
        for number in range(read):
            assert await (await anext(generator)) == number + 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(generator), 0.2)
        del generator
        await pause(10)

    driver.do(story())
    assert left(cluster, driver) == []


def test_an_item_on_another_node_is_known_but_not_here(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        there = NodeAffinitySchedulingStrategy(cluster.raylets["n1"].address.node_id.hex(), soft=False)
        generator = large.options(scheduling_strategy=there).remote()
        minray.get(generator.completed())
        assert not generator.next_ready() and not generator.is_finished()
        assert minray.get(next(generator)) == LARGE

    driver.run(program)


def test_where_an_item_was_taken_is_noted_until_it_goes(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        ref = next(count.remote(1, 0.0))
        sites = driver.worker.call_sites
        assert sites is not None and sites.of(ref._id).startswith("(generator item) | ")
        assert "in program" in sites.of(ref._id) or ":program:" in sites.of(ref._id)

    driver.run(program)
    assert left(cluster, driver) == [] and len(driver.worker.call_sites or ()) == 0


def test_a_reader_that_waits_for_an_item_is_told_that_its_cluster_is_gone(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        generator = count.remote(3)
        waiting = asyncio.create_task(anext(generator))
        await pause(0.1)
        driver.worker.submission.outcomes.fail_all("it was told to")
        with pytest.raises(LocalRayletDiedError):
            await (await waiting)
        assert await anext(generator, "end") == "end"

    driver.do(story())


def test_items_that_have_come_can_be_awaited_when_the_driver_has_left(driver: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a thread can read them; that used to raise "Future in unexpected state"."""

    async def story() -> None:
        generator, unfinished = count.remote(1, 0.0), count.remote(1)
        await generator.completed()
        monkeypatch.setattr(driver.worker.platform.user_code, "future", failed_future)
        assert [await ref async for ref in generator] == [1]
        with pytest.raises(LocalRayletDiedError):
            await anext(unfinished)

    driver.do(story())
