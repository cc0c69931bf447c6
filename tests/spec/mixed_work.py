"""``make chaos``: ten minutes of mixed work on three nodes, whose processes are killed at random.

    python -m tests.spec.mixed_work --seconds 600 --seed 1

One driver keeps making nested tasks, large values, actors with and without restarts, and handles that are passed on.
Meanwhile ``kill -9`` ends workers, and now and then a whole node. The driver checks that every ``get`` ends in time, with
the right value or an error that such a death explains. When the killing stops, all resources must become free again.
Afterwards ``make leak-check`` shows whether anything of the cluster is left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import click
import numpy as np
import psutil

import minray as ray
from minray.cluster_utils import Cluster
from tests.helpers import wait_for_condition
from tests.spec.until_stopped import UntilStopped

GET_S = 120.0
"""Seconds that a ``get`` may take. One that takes longer counts as one that never ends."""
LARGE = 40_000
"""Numbers of eight bytes in an array: 320 kB, more than the 100 KiB that travel in a message."""
EXPLAINED = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.RayActorError,
)
"""Errors that a death may give a result without retries left."""


@ray.remote(max_retries=-1)
def leaf(number: int) -> int:
    return number + sum(range(1000)) * 0


@ray.remote(max_retries=-1)
def tree(number: int, depth: int) -> int:
    if depth == 0:
        return number
    return sum(ray.get([tree.remote(number, depth - 1) for _ in range(2)]))


@ray.remote
def array(number: int) -> Any:
    return np.full(LARGE, number)


@ray.remote
def added(left: Any, right: Any) -> Any:
    return left + right


class _Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def call(self, other: Any, number: int) -> int:
        return int(ray.get(other.echo.remote(number)))

    def echo(self, number: int) -> int:
        return number


Lasting = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0)(_Counter)
Mortal = ray.remote(num_cpus=0)(_Counter)


def tasks(dice: Random) -> None:
    numbers = [dice.randrange(100) for _ in range(20)]
    assert ray.get([leaf.remote(number) for number in numbers], timeout=GET_S) == numbers
    assert ray.get(tree.remote(3, 3), timeout=GET_S) == 24


def large_values(dice: Random) -> None:
    numbers = [dice.randrange(100) for _ in range(4)]
    arrays = [array.options(scheduling_strategy="SPREAD").remote(number) for number in numbers]
    total = added.remote(added.remote(arrays[0], arrays[1]), added.remote(arrays[2], arrays[3]))
    assert ray.get(total, timeout=GET_S)[-1] == sum(numbers)


def lasting_actors(dice: Random) -> None:
    first, second = Lasting.remote(), Lasting.remote()
    counts = ray.get([first.add.remote() for _ in range(10)], timeout=GET_S)
    assert len(counts) == 10 and all(count >= 1 for count in counts)
    number = dice.randrange(100)
    assert ray.get(first.call.remote(second, number), timeout=GET_S) == number


def mortal_actors(dice: Random) -> None:
    actor = Mortal.options(scheduling_strategy="SPREAD").remote()
    counts = [ray.get(count, timeout=GET_S) for count in [actor.add.remote() for _ in range(10)]]
    assert counts == list(range(1, 11))


KINDS: tuple[Callable[[Random], None], ...] = (tasks, large_values, lasting_actors, mortal_actors)


class Killer(UntilStopped):
    """Kills processes of a cluster until it is told to stop."""

    def __init__(self, cluster: Cluster, dice: Random) -> None:
        self.deaths: Counter[str] = Counter()
        self._cluster = cluster
        self._dice = dice
        super().__init__()

    def _run(self) -> None:
        while not self._over.wait(self._dice.expovariate(2.0)):
            if self._dice.random() < 0.05:
                self._kill_node()
            else:
                self._kill_worker()

    def _kill_worker(self) -> None:
        workers = [pid for node in self._cluster.list_all_nodes() for pid in _workers_of(node.pids())]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(self._dice.choice(workers), signal.SIGKILL)
                self.deaths["worker"] += 1

    def _kill_node(self) -> None:
        node = self._dice.choice(sorted(self._cluster.worker_nodes, key=lambda node: str(node.node_id)))
        self._cluster.remove_node(node, allow_graceful=False)
        self.deaths["node"] += 1
        self._cluster.add_node(num_cpus=1, wait=False)


def _workers_of(others: dict[str, int]) -> list[int]:
    """Pids of a node's workers: the children of its zygote that are neither raylet nor gcs."""
    with suppress(psutil.Error, KeyError):
        children = psutil.Process(others["zygote"]).children()
        return sorted(child.pid for child in children if child.pid not in others.values())
    return []


def is_at_rest() -> bool:
    total, free = ray.cluster_resources(), ray.available_resources()
    return all(free.get(name) == amount for name, amount in total.items() if name != "object_store_memory")


@click.command()
@click.option("--seconds", default=600.0, help="How long work is made.")
@click.option("--seed", default=1, help="Decides who is killed when; not what then happens.")
def main(seconds: float, seed: int) -> None:
    """Make mixed work while processes are killed. Exit with 1 if a ``get`` ends wrongly or resources do not become free."""
    dice, outcomes = Random(seed), Counter[str]()
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 2})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    killer = Killer(cluster, Random(seed + 1))
    wrong = 0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            kind = dice.choice(KINDS)
            try:
                kind(dice)
                outcomes[f"{kind.__name__}: right"] += 1
            except EXPLAINED as error:
                outcomes[f"{kind.__name__}: {type(error).__name__}"] += 1
            except (AssertionError, ray.exceptions.GetTimeoutError) as error:
                wrong += 1
                print(f"{kind.__name__}: {error!r}", file=sys.stderr)
        killer.stop()
        wait_for_condition(is_at_rest, timeout_s=60, message="free resources")
    finally:
        killer.stop()
        cluster.shutdown()
    for name, count in sorted(outcomes.items()):
        print(f"{count:6} {name}")
    print(f"killed: {dict(killer.deaths)}; wrong: {wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
