"""Two processes that exported one definition at the same moment got each other's export, and one waited for ever.

Simulated processes share a module's globals, remote functions among them. While one process was handing its export over
to its loop, another could replace it; what the first then returned was never marked as done in its own process.
"""

from __future__ import annotations

import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.roles import Cluster


@minray.remote
def double(x: int) -> int:
    return 2 * x


@pytest.mark.parametrize("seed", seeds(6))
def test_bug_a_definition_may_be_exported_by_several_processes_at_once(seed: int) -> None:
    def program() -> list[int]:
        return [minray.get(double.options(name=f"double {i}").remote(i)) for i in range(4)]

    with Cluster(seed=seed, faults=FaultPlan({"preempt": 0.5}), show_output=False) as cluster:
        drivers = [cluster.start_driver(program, f"driver/{i}") for i in range(3)]
        assert [cluster.wait_for(driver) for driver in drivers] == [[0, 2, 4, 6]] * 3
