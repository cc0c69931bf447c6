"""G110a: the head comes back on another machine, with its tables and its name, and with another address."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.judge import judged
from tests.simulation.roles import Cluster

FOUND_S = 45.0
"""Seconds within which all find the head again: channels to a silent machine break after 30 s."""
NODES = [{"num_cpus": 0, "resources": {"head": 1}}, {"num_cpus": 2}, {"num_cpus": 2}]


@minray.remote(max_retries=-1)
def work(number: int) -> int:
    time.sleep(0.5)
    return number


@minray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def ask(self, name: str) -> Any:
        """Find another actor by its name, and call it."""
        return minray.get(minray.get_actor(name).add.remote())


def move(cluster: Cluster, how: str, after_s: float, pause_s: float) -> None:
    """End the head's machine, in silence or with closed sockets, and start it anew with another address."""
    if how == "silent":
        cluster.after(after_s).node("head").lose()
    else:
        cluster.after(after_s).do(lambda: [cluster.kill(name) for name in ("gcs", "raylet/head")])
    cluster.after(after_s + pause_s).do(partial(cluster.move_head, "head2", num_cpus=0, resources={"head": 1}))


def work_through_the_move() -> list[Any]:
    """Call detached actors and run tasks before, while and after the head moves; return all results, and the nodes."""
    steady = Counter.options(name="steady", lifetime="detached").remote()
    at_head = {"num_cpus": 0, "resources": {"head": 1}, "max_restarts": -1, "max_task_retries": -1}
    follows = Counter.options(name="follows", lifetime="detached", **at_head).remote()
    values: list[Any] = minray.get([steady.add.remote(), follows.add.remote()])
    values += [minray.get([work.remote(10 * step + i) for i in range(4)]) for step in range(3)]
    time.sleep(FOUND_S)
    values += [minray.get(steady.add.remote()), minray.get(steady.ask.remote("follows"))]
    values.append(minray.get(follows.ask.remote("steady")))
    newer = Counter.options(name="newer", lifetime="detached").remote()
    values.append(minray.get(newer.ask.remote("steady")))
    values.append(sorted((node["NodeName"], node["Alive"]) for node in minray.nodes()))
    for actor in (steady, follows, newer):
        minray.kill(actor)
    return values


STEPS = [[10 * step + i for i in range(4)] for step in range(3)]
AFTERWARDS = [("head", False), ("head2", True), ("n1", True), ("n2", True)]
FAULTS = FaultPlan({"delay": 0.1, "unsynced": 0.5, "crash_prefix": 0.5})


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("how", ["silent", "closed"])
def test_g110a_nodes_drivers_and_actors_find_a_head_that_comes_back_with_another_address(how: str, seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        move(cluster, how, 2 + seed, 5)

    places: dict[str, Any] = {"nodes": NODES, "driver_node": "n1", "storage": "gcs.db"}
    result, _ = judged(work_through_the_move, strike, seed=seed, faults=FAULTS, **places)
    assert result == [1, 1, *STEPS, 2, 1, 3, 4, AFTERWARDS]
