"""Policies in a simulated cluster, with all the code of a real one: programs notice nothing but where their tasks run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

import minray
from minray.common.labels import SPEED_LABEL
from minray.policies.making import HOOKS
from minray.simulation.cluster import SimCluster, SimulationFailed
from minray.simulation.trace import OUTPUT, SEND
from minray.util.placement_group import placement_group, remove_placement_group

FOLDER = "tests.policies.questions"


@minray.remote
def where(*arguments: Any, seconds: float = 0.1) -> str:
    time.sleep(seconds)
    return minray.get_runtime_context().get_node_id()


def places(count: int = 12) -> Counter[str]:
    return Counter(minray.get([where.remote() for _ in range(count)]))


def run(program: Any = places, seed: int = 3, nodes: Any = 3, **system_config: Any) -> tuple[Any, str]:
    """Run a program; return its result and the digest of the trace."""
    with SimCluster(nodes, seed, system_config=system_config, show_output=False) as cluster:
        return cluster.run(program), cluster.trace.digest()


@pytest.mark.parametrize("name", ["random", "round_robin", "least_loaded", "power_of_two", "sparrow"])
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    first, again = run(scheduling_policy=name), run(scheduling_policy=name)
    assert first == again
    assert sum(first[0].values()) == 12
    assert first[1] != run()[1], "the policy has decided something"


def test_sparrow_makes_two_requests_for_each_task_and_cancels_the_late_ones() -> None:
    config = {"scheduling_policy": "sparrow", "lease_requests_per_task": 2}
    with SimCluster(4, seed=3, system_config=config, show_output=False) as cluster:
        assert sum(cluster.run(lambda: places(4)).values()) == 4
        sent = Counter(event.details[0] for event in cluster.trace.events if event.kind == SEND)
    assert sent["RequestWorkerLease"] >= 8 and sent["CancelWorkerLease"] >= 1


@minray.remote(num_cpus=2)
class Sitting:
    """Fills a node for good."""

    def where(self) -> str:
        return minray.get_runtime_context().get_node_id()


@pytest.mark.parametrize("name", ["sparrow", "power_of_two"])
def test_tasks_do_not_wait_for_ever_at_a_node_that_is_full_for_good(name: str) -> None:
    def program() -> bool:
        sitting = [Sitting.remote(), Sitting.remote()]
        full = set(minray.get([each.where.remote() for each in sitting]))
        # Needs of its own give each task a request of its own, which no worker of another task can spare it.
        ran = minray.get([where.options(num_cpus=1 + index / 100).remote() for index in range(8)])
        return len(full) == 2 and not full & set(ran)

    assert run(program, scheduling_policy=name)[0]


def test_a_policy_sees_the_speeds_of_nodes() -> None:
    speeds = [{"labels": {SPEED_LABEL: text}} for text in ("0.5", "2.5")]
    nodes = [{"num_cpus": 2, **speed} for speed in ({}, *speeds)]

    def program() -> bool:
        (fastest,) = (node["NodeID"] for node in minray.nodes() if node["Labels"].get(SPEED_LABEL) == "2.5")
        return set(places()) == {fastest}

    assert run(program, nodes=nodes, scheduling_policy=f"{FOLDER}:Fastest")[0]


def test_a_policy_that_answers_none_changes_no_message() -> None:
    assert run(scheduling_policy=f"{FOLDER}:Undecided") == run()


@minray.remote
def make(number: int) -> Any:
    return np.full(400_000 + 100_000 * (number % 5), number)


@minray.remote
def total(first: Any, second: Any) -> int:
    time.sleep(0.2)
    return int(first[0] + second[0])


def work() -> tuple[int, ...]:
    """Move, evict, spill and restore objects in small stores, and reserve bundles; return what does not depend on places."""
    large = [make.options(scheduling_strategy="SPREAD").remote(number) for number in range(16)]
    group = placement_group([{"CPU": 0.5}] * 3, strategy="PACK")
    minray.get(group.ready())
    sums = [total.remote(large[number], large[(number * 7 + 5) % 16]) for number in range(16)]
    result = minray.get(sums)
    remove_placement_group(group)
    return tuple(result)


WORKED = tuple(number + (number * 7 + 5) % 16 for number in range(16))
STORES = [{"num_cpus": 2, "object_store_memory": 20 << 20}] * 3
OTHERS = {
    "locality_policy": "largest_argument",
    "eviction_policy": "largest",
    "spill_policy": "largest",
    "transfer_policy": "holders",
    "bundle_policy": "emptiest_first",
}


@pytest.mark.slow
def test_failed_policies_lose_nothing_and_fail_a_simulated_run() -> None:
    broken = {"min_spilling_size": 1, **dict.fromkeys(HOOKS, f"{FOLDER}:Broken")}
    with pytest.raises(SimulationFailed) as caught:
        with SimCluster(STORES, seed=3, system_config=broken, show_output=False) as cluster:
            assert cluster.run(work) == WORKED
    for setting in HOOKS:
        said = f"{setting} '{FOLDER}:Broken' has failed, so the default policy decides: ZeroDivisionError"
        assert said in str(caught.value)


@pytest.mark.slow
def test_programs_work_with_other_policies_and_runs_repeat() -> None:
    first, again = (run(work, nodes=STORES, min_spilling_size=1, **OTHERS) for _ in range(2))
    assert first == again and first[0] == WORKED


def test_the_driver_is_told_of_a_failed_policy() -> None:
    config = {"scheduling_policy": f"{FOLDER}:Lost"}
    with pytest.raises(SimulationFailed, match="it answered 6e6f7768, which is none of the question's 3 nodes"):
        with SimCluster(3, seed=3, system_config=config, show_output=False) as cluster:
            assert sum(cluster.run(places).values()) == 12
            printed = [event for event in cluster.trace.events if event.kind == OUTPUT]
            assert any("it answered 6e6f7768" in " ".join(event.details) for event in printed)


def test_data_locality_waits_for_the_node_that_has_the_argument() -> None:
    def program() -> set[str]:
        large = minray.put(np.zeros(200_000))
        return set(minray.get([where.remote(large) for _ in range(8)]))

    assert len(run(program, scheduling_policy="data_locality")[0]) == 1
    assert len(run(program)[0]) == 3
