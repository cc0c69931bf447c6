"""G99 to G102, and S1: what nodes give out, at every instant, under faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.seeds import seeds
from tests.simulation.interference import replay_requests
from tests.simulation.judge import Account, judged, outcome_of
from tests.simulation.roles import Cluster

LEASES = [
    "RequestWorkerLease",
    "RequestWorkerLease reply",
    "ReturnWorkerLease",
    "ReturnWorkerLease reply",
    "NotifyWorkerBlocked",
]


@minray.remote(max_retries=-1)
def tree(depth: int) -> int:
    time.sleep(0.05)
    return 1 if depth == 0 else 1 + sum(minray.get([tree.remote(depth - 1) for _ in range(2)]))


@minray.remote(max_retries=-1)
def hold(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number


@minray.remote
def where() -> str:
    return minray.get_runtime_context().get_node_id()


def breaking(cluster: Cluster) -> None:
    cluster.when(*LEASES).break_channels(at_most=6, one_in=3)


@pytest.mark.parametrize("interfere", [breaking, replay_requests])
@pytest.mark.parametrize("seed", seeds(2))
def test_g99_g101_no_node_gives_out_more_than_it_has(seed: int, interfere: Callable[[Cluster], None]) -> None:
    """Nested gets deeper than there are CPUs, fractions, whole nodes: sums are right after each step, deadlock is none."""
    accounts = []

    def strike(cluster: Cluster) -> None:
        interfere(cluster)
        accounts.append(Account(cluster))

    def body() -> list[int]:
        refs = [hold.options(num_cpus=cpus).remote(i, 0.1) for i, cpus in enumerate((0.5, 2, 1, 0.5, 0, 2))]
        return [minray.get(tree.remote(3)), *minray.get(refs)]

    plan = FaultPlan({"crash": 0.003, "delay": 0.1, "preempt": 0.1}, budget=2)
    assert judged(body, strike, seed=seed, faults=plan)[0] == [15, 0, 1, 2, 3, 4, 5]
    for account in accounts:
        assert account.problems == [] and account.looks > 100


def test_s1_a_killed_worker_s_resources_are_taken_until_it_is_dead() -> None:
    accounts = []

    def body() -> list[Any]:
        refs = [hold.options(num_cpus=2, max_retries=0).remote(i, 1000) for i in range(2)]
        time.sleep(1)
        for ref in refs:
            minray.cancel(ref, force=True)
        return [outcome_of(ref) for ref in [*refs, hold.options(num_cpus=2).remote(7, 1)]]

    result, _ = judged(body, lambda cluster: accounts.append(Account(cluster)), nodes=1)
    assert result[2] == 7 and set(result[:2]) <= {"TaskCancelledError", "WorkerCrashedError"}
    assert accounts[0].problems == []


@pytest.mark.parametrize("seed", seeds(3))
def test_g100_infeasible_work_waits_for_a_node_that_can_do_it(seed: int) -> None:
    def body() -> list[Any]:
        late = hold.options(num_cpus=8).remote(8, 1)
        return [outcome_of(hold.remote(1, 1)), outcome_of(late, timeout=20), outcome_of(late)]

    def strike(cluster: Cluster) -> None:
        breaking(cluster)
        cluster.after(60).node("large").join(num_cpus=8)

    assert judged(body, strike, seed=seed)[0] == [1, "GetTimeoutError", 8]


@pytest.mark.parametrize("seed", seeds(3))
def test_g102_hard_affinity_to_a_dead_node_fails_and_soft_goes_elsewhere(seed: int) -> None:
    def body() -> list[Any]:
        node_ids = [node["NodeID"] for node in minray.nodes()]
        there = next(node_id for node_id in node_ids if node_id != minray.get_runtime_context().get_node_id())
        hard, soft = (
            where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(there, soft)) for soft in (False, True)
        )
        before = outcome_of(hard.remote())
        time.sleep(200)  # meanwhile the node is lost
        return [before == there, outcome_of(hard.remote()), outcome_of(soft.remote()) in set(node_ids) - {there}]

    result, _ = judged(body, lambda cluster: cluster.after(20).node("n1").lose(), seed=seed)
    assert result == [True, "TaskUnschedulableError", True]


def test_g102_a_busy_node_is_waited_for() -> None:
    def body() -> list[Any]:
        here = minray.get_runtime_context().get_node_id()
        strategy = NodeAffinitySchedulingStrategy(here, soft=True)
        busy = [hold.options(scheduling_strategy=strategy).remote(i, 30) for i in range(2)]
        time.sleep(1)
        return [outcome_of(where.options(scheduling_strategy=strategy).remote()) == here, *map(outcome_of, busy)]

    assert judged(body)[0] == [True, 0, 1]


@minray.remote
class Resident:
    def where(self) -> str:
        return minray.get_runtime_context().get_node_id()


@pytest.mark.parametrize("seed", seeds(2))
def test_actors_without_options_spread_although_each_leaves_its_node_free(seed: int) -> None:
    def body() -> list[int]:
        residents = [Resident.remote() for _ in range(10)]
        found = minray.get([resident.where.remote() for resident in residents])
        holders = [Resident.options(num_cpus=0.01).remote() for _ in range(10)]
        places = minray.get([holder.where.remote() for holder in holders])
        here = minray.get_runtime_context().get_node_id()
        return [min(found.count(node["NodeID"]) for node in minray.nodes()), places.count(here)]

    (fewest, here), _ = judged(body, lambda cluster: None, seed=seed, nodes=[{"num_cpus": 1}] * 2)
    assert fewest > 0 and here == 10


@pytest.mark.parametrize("seed", seeds(2))
def test_fallbacks_are_tried_in_order_by_tasks_and_actors(seed: int) -> None:
    nodes = [{"num_cpus": 0}, {"num_cpus": 1, "labels": {"zone": "b"}}, {"num_cpus": 8, "labels": {"zone": "c"}}]
    options: dict[str, Any] = {
        "label_selector": {"zone": "a"},
        "fallback_strategy": [{"label_selector": {"zone": "b"}}, {"label_selector": {"zone": "c"}}],
    }

    def body() -> list[Any]:
        zones = {node["NodeID"]: node["Labels"].get("zone") for node in minray.nodes()}
        alone = zones[minray.get(where.options(**options).remote())]
        holder = Resident.options(num_cpus=1, **options).remote()
        second = Resident.options(num_cpus=1, **options).remote()
        places = [zones[minray.get(actor.where.remote())] for actor in (holder, second)]
        while_busy = zones[minray.get(where.options(**options).remote())]
        return [alone, *sorted(places), while_busy]

    result, _ = judged(body, lambda cluster: None, seed=seed, nodes=nodes)
    assert result == ["b", "b", "c", "c"]
