"""Threads that wait, in simulated clusters: what they lack is fetched, and the task that stands still blocks nobody else."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

import minray
from minray.core_worker.fetching.blocked_tasks import LENDS_AFTER_S
from minray.core_worker.ownership.memory_store import Waiter
from minray.core_worker.records.user_calls import call_for
from minray.exceptions import GetTimeoutError, OwnerDiedError, RaySystemError
from minray.platform.threads.user_code import LockParker
from tests.core_worker.cores import Core, Cores, cores, let_pass, outcome_of, pause
from tests.core_worker.test_core_worker import process_id


@minray.remote(max_retries=0)
def echo(value: Any) -> Any:
    return value


@minray.remote(max_retries=0)
def rest(seconds: float) -> None:
    let_pass(seconds)


@minray.remote(max_retries=0)
def own(value: Any) -> list[Any]:
    return [minray.put(value), rest.remote(1)]


@minray.remote(max_retries=0)
def nested(depth: int) -> int:
    return 1 + minray.get(nested.remote(depth - 1)) if depth else 0


@minray.remote(max_retries=0)
def block_twice() -> None:
    for _ in range(2):
        minray.get(rest.remote(0.1))


def blocked(cluster: Cores) -> list[tuple[int, bool]]:
    """Reports of workers from now on about blocked tasks: sequence number, and whether the task is blocked."""
    said: list[tuple[int, bool]] = []
    for raylet in cluster.raylets.values():
        broker: Any = raylet._broker
        on_blocked = broker.on_blocked

        def noting(worker_id: bytes, sequence: int, is_blocked: bool, then: Any = on_blocked) -> None:
            said.append((sequence, is_blocked))
            then(worker_id, sequence, is_blocked)

        broker.on_blocked = noting
    return said


def test_what_others_own_is_asked_for_and_what_is_ones_own_is_not(driver: Core) -> None:
    def program() -> None:
        there, late = minray.get(own.remote("there"))
        assert minray.get(there) == "there" and minray.get([late, echo.remote(1)]) == [None, 1]
        assert driver.worker.futures.open_requests() == 0

    driver.run(program)


def test_g101_nested_tasks_of_any_depth_run_on_one_cpu() -> None:
    with cores(1) as cluster:
        driver = cluster.driver()
        assert driver.run(lambda: minray.get(nested.remote(5))) == 5


def test_g101_a_raylet_is_told_each_time_that_a_task_stands_still_and_goes_on() -> None:
    with cores(1) as cluster:
        driver = cluster.driver()
        said = blocked(cluster)
        driver.run(lambda: minray.get(block_twice.remote()))
        cluster.settle(1)
        assert said == [(1, True), (2, False), (3, True), (4, False)]


@minray.remote(max_retries=0, num_returns="streaming", _generator_backpressure_num_objects=1)
def count(most: int) -> Any:
    yield from range(most)


def test_g101_a_generator_that_is_held_up_lends_its_cpu() -> None:
    """The reader needs the CPU for its work on each item."""
    with cores(1) as cluster:
        driver = cluster.driver()
        said = blocked(cluster)
        assert driver.run(lambda: [minray.get(echo.remote(ref)) for ref in count.remote(5)]) == [0, 1, 2, 3, 4]
        cluster.settle(1)
        assert said and [is_blocked for _, is_blocked in said] == [True, False] * (len(said) // 2)


def test_a_generator_whose_reader_is_quick_lends_nothing() -> None:
    with cores(1) as cluster:
        driver = cluster.driver()
        said = blocked(cluster)
        assert driver.run(lambda: [minray.get(ref) for ref in count.remote(50)]) == list(range(50))
        assert said == []


def test_threads_that_wait_without_a_task_block_nobody(cluster: Cores, driver: Core) -> None:
    said = blocked(cluster)

    def program() -> None:
        minray.get(rest.remote(1))

    driver.run(program)
    assert said == []


@minray.remote
class Actor:
    def wait(self) -> None:
        minray.get(rest.remote(0.1))


def test_calls_of_actors_lend_nothing(cluster: Cores, driver: Core) -> None:
    said = blocked(cluster)
    driver.run(lambda: minray.get(Actor.remote().wait.remote()))
    assert said == []


def test_who_waits_no_longer_is_forgotten(driver: Core) -> None:
    def program() -> None:
        ref = rest.remote(5)
        with pytest.raises(GetTimeoutError):
            minray.get(ref, timeout=0.5)
        assert minray.wait([ref, minray.put(1)], num_returns=2, timeout=0.5)[1] == [ref]
        let_pass(0.1)
        assert driver.worker.store.awaited() == []
        minray.get(ref)

    driver.run(program)


def test_a_reference_of_a_cluster_that_was_left_is_an_error_that_says_so(cluster: Cores, driver: Core) -> None:
    """No process has counted this reference here."""
    other = cluster.driver("other")
    ref = other.act(lambda: minray.put("x"))
    error = driver.do(outcome_of(ref))
    assert isinstance(error, OwnerDiedError) and "left the cluster" in str(error)
    assert other.worker.address.endpoint in str(error)


# --- futures


@pytest.mark.parametrize("given_up", [False, True])
def test_a_future_that_is_over_waits_for_nothing_and_goes_by_itself(
    driver: Core, given_up: bool, no_garbage_collection: None
) -> None:
    """A value that was awaited used to stay until the garbage collector came."""

    async def story() -> None:
        ref = rest.remote(5)
        future = ref.future()
        await pause(0.1)
        store, alive = driver.worker.store, weakref.ref(future)
        assert store.awaited() == [ref._id]
        if given_up:
            future.cancel()
        else:
            await ref
        await pause(0.1)
        assert store.awaited() == []
        del future
        assert alive() is None

    driver.do(story())


# --- several threads of one task, and what mostly comes at once


class Threads:
    """Threads of a task that runs in a worker, as its loop hears of them."""

    def __init__(self, cluster: Cores, driver: Core) -> None:
        pid = driver.do(self._first(driver))
        self.worker = cluster.worker_of(pid)
        self.said = blocked(cluster)
        self.resting = driver.begin(self._rest())
        cluster.settle(1)
        (self.task,) = self.worker.worker.execution.receiver.unanswered()
        self.missing = (b"m" * 28, self.worker.worker.address)

    async def _first(self, driver: Core) -> int:
        pid: int = await process_id.remote()
        return pid

    async def _rest(self) -> None:
        await rest.remote(10)

    def begin(self, task: Any = None) -> Waiter:
        waiter = Waiter(1, True, lambda: None)
        self.worker.act(self.worker.worker.waiting.begin_wait, [self.missing], waiter, task or self.task)
        return waiter

    def end(self, waiter: Waiter) -> None:
        self.worker.act(self.worker.worker.waiting.end_wait, [self.missing[0]], waiter)

    def heard(self) -> list[bool]:
        self.worker.cluster.settle(0.1)
        return [is_blocked for _, is_blocked in self.said]


@pytest.fixture
def threads(cluster: Cores, driver: Core) -> Threads:
    return Threads(cluster, driver)


def test_a_task_stands_still_as_long_as_any_thread_of_it_waits(threads: Threads) -> None:
    first, second = threads.begin(), threads.begin()
    threads.end(first)
    assert threads.heard() == [True]
    threads.end(second)
    assert threads.heard() == [True, False]
    threads.end(second)
    assert threads.heard() == [True, False]


def test_what_comes_soon_is_not_worth_a_word(threads: Threads) -> None:
    def lend(pause_s: float) -> None:
        blocked = threads.worker.worker.blocked

        def begin() -> None:
            asyncio.get_running_loop().call_later(pause_s, blocked.lend_soon(threads.task))

        threads.worker.act(begin)

    lend(0.9 * LENDS_AFTER_S)
    assert threads.heard() == []
    lend(1.1 * LENDS_AFTER_S)
    assert threads.heard() == [True, False]


def test_what_a_task_has_left_behind_blocks_nobody(threads: Threads, cluster: Cores) -> None:
    first, second = threads.begin(), threads.begin()
    assert threads.heard() == [True]
    cluster.wait_for(threads.resting)
    assert threads.heard() == [True, False]
    late = threads.begin()
    threads.end(first)
    threads.end(late)
    assert threads.heard() == [True, False]
    assert threads.worker.worker.store.awaited() != [] and second.needed
    threads.end(second)
    assert threads.worker.worker.store.awaited() == []


def test_the_next_task_stands_still_for_its_own_threads_alone(threads: Threads, cluster: Cores, driver: Core) -> None:
    threads.begin()
    cluster.wait_for(threads.resting)
    driver.begin(threads._rest())
    cluster.settle(1)
    (following,) = threads.worker.worker.execution.receiver.unanswered()
    waiter = threads.begin(following)
    threads.worker.act(threads.worker.worker.blocked.on_task_over, threads.task)
    assert threads.heard() == [True, False, True]
    threads.end(waiter)
    assert threads.heard() == [True, False, True, False]


def test_a_thread_for_which_a_callback_of_ours_fails_is_told() -> None:
    def fail() -> None:
        raise KeyError("x")

    parker = LockParker()
    with pytest.raises(KeyError):
        call_for(parker, fail)
    with pytest.raises(RaySystemError, match="minray itself has failed: KeyError: 'x'"):
        parker.wait(0)
