"""A driver whose node is declared dead, because its raylet hangs: each of its errors says that, and says it at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import minray
from minray.exceptions import LocalRayletDiedError
from minray.simulation import SimCluster

HANGS_S = 75.0
DECLARED_S = 70.0
"""Seconds after which the gcs has counted five silent health checks."""
SAID = "the node of this driver was declared dead by the gcs: its raylet is gone: no answer to 5 health checks in a row"


@minray.remote
def same(value: int) -> int:
    return value


@minray.remote
class Counter:
    def count(self) -> int:
        return 1


class Hanging:
    """A cluster of two nodes, in which the raylet of the driver's node stands still from ``hang()`` on."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.counter = Counter.remote()
        assert minray.get([same.remote(1), self.counter.count.remote()]) == [1, 1]

    def hang(self) -> None:
        loop = self._cluster.world.loop
        loop.call_soon_threadsafe(loop.stall, self._cluster.processes["raylet/head"], HANGS_S)


CALLS: dict[str, Callable[[Hanging], object]] = {
    "task": lambda hanging: minray.get(same.remote(2)),
    "call": lambda hanging: minray.get(hanging.counter.count.remote()),
    "new actor": lambda hanging: minray.get(Counter.remote().count.remote()),
    "put": lambda hanging: minray.put(bytes(300_000)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begins_s", [0.1, DECLARED_S, HANGS_S + 5])
def test_an_error_says_that_the_node_was_declared_dead(name: str, begins_s: float) -> None:

    def program() -> float:
        hanging = Hanging(cluster)
        hanging.hang()
        begun = time.monotonic()
        time.sleep(begins_s)
        if (name, begins_s) == ("call", 0.1):
            assert CALLS[name](hanging) == 1, "actors are called without the raylet"
            return 0.0
        with pytest.raises(LocalRayletDiedError, match=SAID):
            CALLS[name](hanging)
        return time.monotonic() - begun

    with SimCluster(nodes=[{"num_cpus": 2}, {"num_cpus": 2}], seed=1) as cluster:
        assert cluster.run(program) < max(DECLARED_S, begins_s + 1)
        cluster.settle(HANGS_S)
        assert cluster.raylets["head"].reason.startswith("refused by the gcs: "), cluster.raylets["head"].reason
