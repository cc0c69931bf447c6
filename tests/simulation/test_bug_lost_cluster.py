"""When a driver's raylet died, tasks that depend on each other were failed twice, and the driver's loop broke.

Failing the first task failed the second, whose argument it was; then the second was failed once more, which no state
table allows. Answers that came later, from workers of other nodes, did the same.

And when the gcs had died with it, whatever asked the gcs waited for its return for a minute.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.exceptions import RaySystemError
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.judge import outcome_of
from tests.simulation.roles import Cluster


@minray.remote(scheduling_strategy="SPREAD")
def step(value: int) -> int:
    time.sleep(0.1)
    return value + 1


@pytest.mark.parametrize("seed", seeds(8))
def test_bug_every_task_ends_once_when_the_cluster_is_lost(seed: int) -> None:
    def program() -> list[Any]:
        refs = [step.remote(i) for i in range(4)]
        for _ in range(3):
            refs += [step.remote(ref) for ref in refs[-4:]]
        outcomes = [outcome_of(ref) for ref in refs]
        time.sleep(5)  # Workers of other nodes answer now.
        return outcomes

    plan = FaultPlan({"orphan": 1.0, "delay": 0.2, "preempt": 0.1})
    with Cluster([{"num_cpus": 2}] * 2, seed, plan, show_output=False) as cluster:
        driver = cluster.start_driver(program)
        cluster.after(0.05 + 0.05 * seed).raylet("head").kill()
        outcomes = cluster.wait_for(driver)
    lost = ("LocalRayletDiedError", "RayTaskError(LocalRayletDiedError)")
    assert all(outcome in (i % 4 + i // 4 + 1, *lost) for i, outcome in enumerate(outcomes))
    assert outcomes[-1] in lost


@pytest.mark.parametrize("seed", seeds(4))
def test_bug_who_asks_a_cluster_that_is_gone_is_told_soon(seed: int) -> None:
    def program() -> float:
        began = time.monotonic()
        with pytest.raises(RaySystemError, match="the cluster does not answer"):
            while True:
                minray.nodes()
                time.sleep(0.1)
        return time.monotonic() - began

    with Cluster([{"num_cpus": 2}], seed, show_output=False) as cluster:
        driver = cluster.start_driver(program)
        cluster.after(0.5).gcs.kill()
        cluster.after(0.5 + 0.5 * seed).raylet("head").kill()
        assert cluster.wait_for(driver) < 5
