"""G16, G17, G22: what becomes of tasks whose workers and nodes die, on simulated clusters."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.raylet.start_failures import MAX_FAILED_IN_A_ROW
from minray.simulation import FaultPlan
from minray.simulation.trace import LIFE
from tests.seeds import seeds
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(3)


@minray.remote(max_retries=2)
def work(number: int) -> int:
    print(f"work {number}")
    time.sleep(0.2)
    return number * number


@minray.remote
def crash() -> None:
    print("crash")
    os._exit(3)


@minray.remote(max_retries=0, resources={"there": 1})
def stay() -> None:
    time.sleep(1000)


@minray.remote(max_restarts=-1, num_cpus=0)
class Place:
    def get(self) -> str:
        return "here"


def lose(node: str, kill: Callable[[Cluster], None]) -> Callable[[Cluster], None]:
    """Do it a second after the node's first worker is leased."""

    def strike(cluster: Cluster) -> None:
        cluster.until_leased(node)
        cluster.wait(1)
        kill(cluster)

    return strike


@pytest.mark.parametrize("seed", SEEDS)
def test_g16_a_task_whose_worker_dies_runs_again(seed: int) -> None:
    plan = FaultPlan({"crash": 0.02, "delay": 0.1, "crash_prefix": 0.5}, budget=2)
    results, cluster = judged(lambda: [outcome_of(work.remote(i)) for i in range(6)], seed=seed, faults=plan)
    assert results == [i * i for i in range(6)], "two crashes can use up no task's two retries"
    assert max(Counter(printed(cluster)).values()) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_g16_no_task_runs_more_often_than_it_may(seed: int) -> None:
    plan = FaultPlan({"crash": 0.2, "crash_prefix": 0.5}, budget=10)
    results, cluster = judged(
        lambda: [outcome_of(ref) for ref in [work.remote(i) for i in range(6)]], seed=seed, faults=plan
    )
    assert all(result in (i * i, "WorkerCrashedError") for i, result in enumerate(results))
    assert max(Counter(printed(cluster)).values()) <= 3


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_g17_after_the_last_attempt_the_error_names_the_worker(max_retries: int) -> None:
    task = crash.options(max_retries=max_retries)
    result, cluster = judged(lambda: outcome_of(task.remote()), seed=max_retries, nodes=1)
    assert result == "WorkerCrashedError"
    assert printed(cluster).count("crash") == max_retries + 1


@pytest.mark.parametrize("kill", [lambda cluster: cluster.node("n1").lose(), lambda cluster: cluster.raylet("n1").kill()])
def test_g17_g108_a_dead_node_is_named_too(kill: Callable[[Cluster], None]) -> None:
    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, {"num_cpus": 1, "resources": {"there": 1}}]
    result, cluster = judged(lambda: outcome_of(stay.remote()), lose("n1", kill), nodes=nodes)
    assert result == "NodeDiedError"
    assert not cluster.workers("n1"), "a dead raylet is a dead node: its workers die"


@pytest.mark.parametrize("seed", SEEDS)
def test_g22_a_worker_that_dies_before_it_answers_has_run_for_nothing(seed: int) -> None:
    result, cluster = judged(
        lambda: outcome_of(work.remote(5)), lambda cluster: cluster.when("PushTask reply").of("worker").kill(1, 2), seed=seed
    )
    assert result == 25
    assert printed(cluster).count("work 5") == 3


def test_g22_workers_that_die_before_a_task_begins_take_none_of_its_retries() -> None:
    strike = lambda cluster: cluster.when("GetJob").of("worker").kill(*range(1, MAX_FAILED_IN_A_ROW), code=3)  # noqa: E731
    task = work.options(max_retries=0)
    result, cluster = judged(lambda: outcome_of(task.remote(5)), strike, nodes=1)
    assert (result, printed(cluster)) == (25, ["work 5"])


def test_workers_that_all_die_before_a_task_begins_are_not_replaced_for_ever() -> None:
    strike = lambda cluster: cluster.when("GetJob").of("worker").kill(*range(1, 1000), code=3)  # noqa: E731
    program = lambda: [outcome_of(work.remote(5)), outcome_of(Place.remote().get.remote())]  # noqa: E731
    results, cluster = judged(program, strike, nodes=1)
    assert results == ["TaskUnschedulableError", "ActorUnschedulableError"]
    workers = {event.process for event in cluster.trace.events if event.kind == LIFE and event.process.startswith("worker/")}
    assert len(workers) == MAX_FAILED_IN_A_ROW + 1, "one was ready and waits"


@pytest.mark.parametrize("seed", SEEDS)
def test_g22_an_answer_that_is_lost_with_its_channel_is_given_again_and_not_worked_for_again(seed: int) -> None:
    refs = lambda: [outcome_of(ref) for ref in [work.options(max_retries=0).remote(i) for i in range(5)]]  # noqa: E731
    results, cluster = judged(
        refs, lambda cluster: cluster.when("PushTask", "PushTask reply").break_channels(at_most=4), seed=seed
    )
    assert results == [i * i for i in range(5)]
    assert sorted(printed(cluster)) == sorted(f"work {i}" for i in range(5))


@pytest.mark.parametrize("seed", SEEDS)
def test_g109_work_goes_on_when_a_node_dies(seed: int) -> None:
    plan = FaultPlan({"node_loss": 0.02}, budget=1, targets=("raylet/n", "worker/"))
    task = work.options(max_retries=-1)
    results, _ = judged(lambda: minray.get([task.remote(i) for i in range(12)]), nodes=3, seed=seed, faults=plan)
    assert results == [i * i for i in range(12)]
