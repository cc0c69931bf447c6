"""A driver that made an actor after it had lost its cluster broke its loop: the constructor had failed before it waited."""

from __future__ import annotations

import time

import minray
from minray.simulation import SimCluster
from tests.simulation.actors import Counter
from tests.simulation.judge import outcome_of


def test_bug_an_actor_of_a_lost_cluster_is_dead() -> None:
    def program() -> list[str]:
        minray.get(minray.put("connected"))
        time.sleep(1)
        return [outcome_of(Counter.remote().add.remote())]

    with SimCluster([{"num_cpus": 1}], show_output=False) as cluster:
        driver = cluster.start_driver(program)
        cluster.world.loop.world.call_later(0.5, cluster.kill, "raylet/head")
        outcomes = cluster.wait_for(driver)
    assert outcomes[0] in ("ActorDiedError", "LocalRayletDiedError")
