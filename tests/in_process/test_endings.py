"""Ends at any moment: of tasks, actors and whole clusters of local mode. Nothing stays, and no answer is wrong."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy
import psutil
import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import ActorDiedError, TaskCancelledError, WorkerCrashedError
from tests.helpers import wait_for_condition
from tests.real.conftest import all_resources_are_free
from tests.real.support import left_in_driver

ENDS = 200
"""Number of tasks and actors that are ended at a random moment."""
CLUSTERS = 200
MOST_GROWTH_BYTES = 20_000_000
"""Largest growth of this process between the middle and the end of that many clusters. Whole ones would take 100 MB."""


def doze() -> None:
    while True:
        time.sleep(0.01)


def wait_for_events() -> None:
    while True:
        threading.Event().wait(0.01)


def count() -> None:
    number = 0
    while True:
        number += 1


def put_and_get() -> None:
    while True:
        assert minray.get(minray.put(numpy.ones(50_000))).sum() == 50_000


def call_others() -> None:
    while True:
        assert minray.get(answer.remote(7)) == 7


def fail_and_go_on() -> None:
    while True:
        try:
            raise ValueError("no")
        except ValueError:
            doze_for_a_moment()


def doze_for_a_moment() -> None:
    time.sleep(0.001)


WORKS: list[Callable[[], None]] = [doze, wait_for_events, count, put_and_get, call_others, fail_and_go_on]


@minray.remote(num_cpus=0.1)
def answer(number: int) -> int:
    return number


@minray.remote(num_cpus=0)
def clock() -> float:
    return time.time()


@minray.remote(num_cpus=0.1, max_retries=0)
def work(kind: int) -> None:
    WORKS[kind]()


@minray.remote(num_cpus=0.1)
class Busy:
    def work(self, kind: int) -> None:
        WORKS[kind]()


@minray.remote(num_cpus=0.1)
class AsyncBusy:
    async def work(self, kind: int) -> None:
        while True:
            await asyncio.sleep(0.0001 * kind)
            assert await answer.remote(kind) == kind


@pytest.fixture
def local() -> Iterator[Any]:
    yield minray.init(local_mode=True, num_cpus=4, logging_level="ERROR")
    minray.shutdown()


def end_a_task(dice: random.Random, patience: int) -> None:
    ref = work.remote(dice.randrange(len(WORKS)))
    for number in range(patience):
        assert minray.get(answer.remote(number)) == number
    force = dice.random() < 0.3
    minray.cancel(ref, force=force)
    with pytest.raises((TaskCancelledError, WorkerCrashedError) if force else TaskCancelledError):
        minray.get(ref, timeout=30)


def end_an_actor(dice: random.Random, patience: int) -> None:
    actor = dice.choice([Busy.remote, Busy.options(max_concurrency=2).remote, AsyncBusy.remote])()
    refs = [actor.work.remote(dice.randrange(len(WORKS))) for _ in range(dice.choice([1, 2]))]
    for number in range(patience):
        assert minray.get(answer.remote(number)) == number
    if "Async" in repr(actor) and dice.random() < 0.5:
        minray.cancel(refs[0])
        with pytest.raises(TaskCancelledError):
            minray.get(refs.pop(0), timeout=30)
    minray.kill(actor)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            minray.get(ref, timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(2))
def test_tasks_and_actors_that_end_at_any_moment_leave_nothing(local: Any, seed: int) -> None:
    dice = random.Random(seed)
    threads = threading.active_count()
    for _ in range(ENDS // 2):
        end = end_a_task if dice.random() < 0.6 else end_an_actor
        end(dice, dice.choice([0, 0, 1, 2, 5]))
    assert minray.get([answer.remote(number) for number in range(20)]) == list(range(20))
    wait_for_condition(all_resources_are_free)
    gc.collect()
    wait_for_condition(lambda: not left_in_driver())
    wait_for_condition(lambda: threading.active_count() <= threads + 8)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_clusters_that_end_while_actors_are_busy_leave_nothing() -> None:
    threads, halfway = threading.active_count(), 0
    dice = random.Random(7)
    for number in range(CLUSTERS):
        with minray.init(local_mode=True, num_cpus=2, logging_level="ERROR"):
            actor = Busy.remote()
            running = actor.work.remote(dice.randrange(len(WORKS)))
            assert minray.get(answer.remote(number)) == number
        assert threading.active_count() == threads
        del actor, running
        if number == CLUSTERS // 2:
            gc.collect()
            halfway = psutil.Process().memory_info().rss
    gc.collect()
    assert psutil.Process().memory_info().rss - halfway < MOST_GROWTH_BYTES


def test_a_cluster_goes_on_when_a_test_stops_the_clocks(local: Any) -> None:
    with mock.patch("time.monotonic", return_value=1e9), mock.patch("time.time", return_value=0.0):
        assert minray.get(clock.remote()) == 0.0
        busy = Busy.remote()
        busy.work.remote(0)
    wait_for_condition(lambda: minray.available_resources()["CPU"] < 4)
    minray.kill(busy)
    wait_for_condition(all_resources_are_free)


def test_a_task_cannot_shut_the_program_s_cluster_down(local: Any) -> None:
    @minray.remote
    def leave() -> Any:
        with pytest.raises(RuntimeError, match="connected already"):
            minray.init()
        minray.shutdown()
        return minray.get(answer.remote(1))

    assert minray.get(leave.remote()) == 1
    assert minray.get(answer.remote(2)) == 2


def test_nodes_of_one_process_spill_to_directories_of_their_own() -> None:
    head = {"num_cpus": 1, "object_store_memory": 10**7, "_system_config": {"transport": "local", "min_spilling_size": 0}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, resources={"there": 1}, object_store_memory=10**7)
    try:
        cluster.connect()
        make = minray.remote(num_cpus=0, resources={"there": 0.01})(numpy.full)
        there = [make.remote(250_000, number) for number in range(12)]
        here = [minray.put(numpy.full(250_000, number)) for number in range(12)]
        assert [int(minray.get(ref)[0]) for ref in [*there, *here]] == [*range(12), *range(12)]
    finally:
        minray.shutdown()
        cluster.shutdown()
