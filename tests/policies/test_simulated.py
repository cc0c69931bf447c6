"""Policies in a simulated cluster, with all the code of a real one: programs notice nothing but where their tasks run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

import minray
from minray.simulation.cluster import SimCluster, SimulationFailed
from minray.simulation.trace import OUTPUT

FOLDER = "tests.policies.questions"


@minray.remote
def where(*arguments: Any, seconds: float = 0.1) -> str:
    time.sleep(seconds)
    return minray.get_runtime_context().get_node_id()


def places(count: int = 12) -> Counter[str]:
    return Counter(minray.get([where.remote() for _ in range(count)]))


def run(program: Any = places, seed: int = 3, nodes: int = 3, **system_config: Any) -> tuple[Any, str]:
    """Run a program; return its result and the digest of the trace."""
    with SimCluster(nodes, seed, system_config=system_config, show_output=False) as cluster:
        return cluster.run(program), cluster.trace.digest()


@pytest.mark.parametrize("name", ["random", "round_robin", "least_loaded", "power_of_two", "sparrow"])
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    first, again = run(scheduling_policy=name), run(scheduling_policy=name)
    assert first == again
    assert sum(first[0].values()) == 12
    assert first[1] != run()[1], "the policy has decided something"


def test_a_policy_that_answers_none_changes_no_message() -> None:
    assert run(scheduling_policy=f"{FOLDER}:Undecided") == run()


@pytest.mark.parametrize(
    ("policy", "complaint"), [("Broken", "ZeroDivisionError: there is no good node"), ("Lost", "it answered 6e6f7768")]
)
def test_a_failed_scheduling_policy_loses_nothing_and_the_driver_is_told(policy: str, complaint: str) -> None:
    with pytest.raises(SimulationFailed, match=complaint):
        with SimCluster(3, seed=3, system_config={"scheduling_policy": f"{FOLDER}:{policy}"}, show_output=False) as cluster:
            assert sum(cluster.run(places).values()) == 12
            printed = [event for event in cluster.trace.events if event.kind == OUTPUT]
            assert any(complaint in " ".join(event.details) for event in printed)


def test_data_locality_waits_for_the_node_that_has_the_argument() -> None:
    def program() -> set[str]:
        large = minray.put(np.zeros(200_000))
        return set(minray.get([where.remote(large) for _ in range(8)]))

    assert len(run(program, scheduling_policy="data_locality")[0]) == 1
    assert len(run(program)[0]) == 3
