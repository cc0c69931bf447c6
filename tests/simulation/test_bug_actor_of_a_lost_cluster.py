"""A driver that made an actor after it had lost its cluster broke its loop: the constructor had failed before it waited."""

from __future__ import annotations

import time

import minray
from tests.simulation.actors import Counter
from tests.simulation.judge import outcome_of
from tests.simulation.roles import Cluster


def test_bug_an_actor_of_a_lost_cluster_is_dead() -> None:
    def program() -> list[str]:
        minray.get(minray.put("connected"))
        time.sleep(1)
        return [outcome_of(Counter.remote().add.remote())]

    with Cluster([{"num_cpus": 1}], show_output=False) as cluster:
        driver = cluster.start_driver(program)
        cluster.after(0.5).raylet("head").kill()
        outcomes = cluster.wait_for(driver)
    assert outcomes[0] in ("ActorDiedError", "LocalRayletDiedError")
