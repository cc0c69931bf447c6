"""G108 to G111: nodes that end, a gcs that is gone for a while or for good, drivers that die."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan, SimCluster
from tests.simulation.interference import break_channels, watch_sends
from tests.simulation.judge import judged, leftovers, outcome_of
from tests.simulation.seeds import seeds


@minray.remote(max_retries=-1)
def work(number: int, seconds: float = 0.5) -> int:
    time.sleep(seconds)
    return number


def steps() -> list[Any]:
    values = []
    for step in range(10):
        values += [outcome_of(ref) for ref in [work.remote(10 * step + i) for i in range(3)]]
    return values


EXPECTED = [10 * step + i for step in range(10) for i in range(3)]


def restart_gcs(cluster: SimCluster, after_s: float, pause_s: float) -> None:
    world = cluster.world.loop.world
    world.call_later(after_s, cluster.kill, "gcs")
    world.call_later(after_s + pause_s, cluster.start_gcs)


@pytest.mark.parametrize("seed", seeds(3))
def test_g110_work_goes_on_while_the_gcs_is_restarted_with_its_storage(seed: int) -> None:
    plan = FaultPlan({"delay": 0.1, "unsynced": 0.5, "crash_prefix": 0.5})
    result, _ = judged(
        steps, lambda cluster: restart_gcs(cluster, 0.3 + 0.7 * seed, 20), seed=seed, nodes=3, faults=plan, storage="gcs.db"
    )
    assert result == EXPECTED


@pytest.mark.parametrize("seed", seeds(2))
def test_g110_a_restarted_gcs_learns_of_the_nodes_and_deaths_that_it_missed(seed: int) -> None:
    def strike(cluster: SimCluster) -> None:
        restart_gcs(cluster, 1, 10)
        cluster.world.loop.world.call_later(3 + seed, cluster.world.lose_node, "n1")
        cluster.world.loop.world.call_later(5, cluster.add_node, "n9")

    def body() -> list[Any]:
        result = steps()
        time.sleep(120)
        return [*result, sorted((node["NodeName"], node["Alive"]) for node in minray.nodes())]

    result, _ = judged(body, strike, seed=seed, nodes=3, storage="gcs.db")
    assert result == [*EXPECTED, [("head", True), ("n1", False), ("n2", True), ("n9", True)]]


@minray.remote(max_retries=0)
def borrow_and_die(refs: list[Any]) -> None:
    minray.get(refs)
    os._exit(1)


def test_g110_a_death_that_the_gcs_was_told_of_is_known_when_it_is_there_again() -> None:
    """It crashes when it has answered the raylet, and the news does not reach the owner, who has lent to the dead."""
    is_told = False

    def strike(cluster: SimCluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal is_told
            if word == "ReportWorkerDeath reply" and not is_told:
                is_told = True
                world = cluster.world.loop.world
                world.call_later(0.01, cluster.kill, "gcs")
                world.call_later(1, cluster.start_gcs)
            return word != "Poll reply" or not is_told or cluster.gcs is not first

        first = cluster.gcs
        watch_sends(cluster, on_send)

    def body() -> list[Any]:
        ref = minray.put(1)
        return [outcome_of(borrow_and_die.remote([ref])), minray.get(ref)]

    assert judged(body, strike, storage="gcs.db")[0] == ["WorkerCrashedError", 1] and is_told


def test_g110_a_job_whose_driver_is_known_to_be_dead_is_finished_by_a_restarted_gcs() -> None:
    """The first one dies when it has stored the death, and not yet the end of the job."""

    def on_send(end: Any, message: Any, word: str) -> bool:
        gcs: Any = cluster.gcs
        if cluster.processes["gcs"].alive and gcs is first and gcs._workers._deaths and gcs._jobs.running():
            cluster.world.loop.world.call_soon(cluster.kill, "gcs")
            cluster.world.loop.world.call_later(1, cluster.start_gcs)
        return True

    with SimCluster([{"num_cpus": 2}], storage="gcs.db", show_output=False) as cluster:
        first = cluster.gcs
        watch_sends(cluster, on_send)
        cluster.start_driver(lambda: time.sleep(100), "driver/x")
        cluster.wait_until(lambda: "driver/x" in cluster.cores)
        cluster.kill("driver/x")
        cluster.settle()
        assert cluster.gcs is not first and leftovers(cluster) == []


def test_g110_a_driver_that_ends_after_its_job_is_missed_by_a_restarted_gcs() -> None:
    """Others may hold what it owns, and would wait for it."""

    def on_send(end: Any, message: Any, word: str) -> bool:
        if word == "FinishJob reply":
            cluster.world.loop.world.call_soon(cluster.kill, "gcs")
            cluster.world.loop.world.call_later(1, cluster.start_gcs)
        return True

    with SimCluster([{"num_cpus": 2}], storage="gcs.db", show_output=False) as cluster:
        watch_sends(cluster, on_send)
        cluster.run(lambda: None)
        cluster.settle()
        driver = next(core for name, core in cluster.cores.items() if name.startswith("driver/"))
        assert cluster.gcs is not None and cluster.gcs.worker_death(driver.process.address) is not None


@pytest.mark.parametrize("seed", seeds(3))
def test_g110_every_request_to_the_gcs_may_be_answered_into_the_void(seed: int) -> None:
    words = ["KvPut", "KvGet", "GetJob", "Poll", "ReportResources", "ReportWorkerDeath", "RegisterNode"]

    def strike(cluster: SimCluster) -> None:
        break_channels(cluster, [*words, *[f"{word} reply" for word in words]], budget=20, one_in=3)

    plan = FaultPlan({"crash": 0.01}, budget=2)
    assert judged(steps, strike, seed=seed, faults=plan)[0] == EXPECTED


@pytest.mark.parametrize("storage", ["gcs.db", ""])
def test_g110_a_driver_hears_why_its_raylet_has_ended(storage: str) -> None:
    """Refused by a gcs that has found an empty disk; or without one."""

    def begin_anew(cluster: SimCluster) -> None:
        cluster.kill("gcs")
        if storage:
            cluster.world.nodes["head"].disk.clear()
            cluster.start_gcs()

    def program() -> str:
        with pytest.raises(minray.exceptions.LocalRayletDiedError) as caught:
            minray.get(work.remote(1, 1000))
        return str(caught.value)

    with SimCluster(storage=storage, show_output=False) as cluster:
        cluster.world.loop.world.call_later(5, begin_anew, cluster)
        told = cluster.run(program)
        assert ("refused by the gcs: node" in told and "its tables are empty" in told) if storage else "the gcs" in told


def test_g110_without_storage_the_end_of_the_gcs_is_the_end_of_the_cluster() -> None:
    def program() -> list[Any]:
        return [outcome_of(ref) for ref in [work.remote(i, 1000) for i in range(3)]]

    with SimCluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        cluster.world.loop.world.call_later(5, cluster.kill, "gcs")
        assert cluster.run(program) == ["LocalRayletDiedError"] * 3
        cluster.settle()
        assert not any(raylet.alive for name, raylet in cluster.processes.items() if name.startswith("raylet/"))
        assert not cluster.workers()


@pytest.mark.parametrize("seed", seeds(5))
def test_g110_a_task_that_ran_when_the_cluster_ended_fails_with_its_cluster(seed: int) -> None:
    """Its raylet kills its worker, whose channels break before it is seen dead: meanwhile the raylet can be asked."""
    plan = FaultPlan({"reap": 1.0})
    with SimCluster([{"num_cpus": 1}], seed, storage="", show_output=False, faults=plan) as cluster:
        cluster.world.loop.world.call_later(5, cluster.kill, "gcs")
        outcome = cluster.run(lambda: outcome_of(work.options(max_retries=0).remote(1, 1000)))
        assert outcome == "LocalRayletDiedError"


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_g111_a_raylet_that_cannot_reach_the_gcs_for_a_minute_ends(node: str) -> None:
    def strike(cluster: SimCluster) -> None:
        cluster.world.loop.world.call_later(2, cluster.world.wire.cut, node, "head", 300)

    def body() -> list[Any]:
        result = steps()
        time.sleep(150)
        return result

    result, cluster = judged(body, strike, nodes=3)
    assert result == EXPECTED
    assert not cluster.processes[f"raylet/{node}"].alive and not cluster.workers(node)
    assert "not reached for 60 s" in cluster.raylets[node].reason


@pytest.mark.parametrize("with_its_node", [False, True])
@pytest.mark.parametrize("seed", seeds(3))
def test_g108_what_a_dead_driver_had_is_free_again(seed: int, with_its_node: bool) -> None:
    """It has leases on all nodes, and tasks that wait; a lost node tells nobody that its driver is dead."""
    with SimCluster([{"num_cpus": 2}] * 2, seed, show_output=False) as cluster:
        cluster.start_driver(lambda: minray.get([work.remote(i, 1000) for i in range(10)]), "driver/x", "n1")
        survivor = cluster.start_driver(lambda: [outcome_of(work.remote(i, 1)) for i in range(3)], "driver/y")
        kill = cluster.world.lose_node if with_its_node else cluster.kill
        cluster.world.loop.world.call_later(0.02 * 10**seed, kill, "n1" if with_its_node else "driver/x")
        assert cluster.wait_for(survivor) == [0, 1, 2]
        cluster.settle(100)
        assert leftovers(cluster) == []


@pytest.mark.parametrize("seed", seeds(3))
def test_g108_a_raylet_that_dies_takes_its_workers_along(seed: int) -> None:
    """Its orphans live on for up to a second, and may answer meanwhile."""
    plan = FaultPlan({"orphan": 1.0, "delay": 0.1})

    def strike(cluster: SimCluster) -> None:
        cluster.world.loop.world.call_later(0.7 + 0.3 * seed, cluster.kill, "raylet/n1")

    result, cluster = judged(steps, strike, seed=seed, faults=plan)
    assert result == EXPECTED and not cluster.workers("n1")


@minray.remote(max_retries=0, resources={"parent": 1})
def parent() -> int:
    return sum(minray.get([work.options(resources={"child": 1}).remote(i, 1000) for i in range(2)]))


def test_g108_the_leases_of_workers_on_a_lost_node_end() -> None:
    """The lost node was the owner of leases elsewhere, and its job goes on."""
    nodes: list[dict[str, Any]] = [{"num_cpus": 2, "resources": {"child": 2}}, {"num_cpus": 1, "resources": {"parent": 1}}]

    def strike(cluster: SimCluster) -> None:
        cluster.wait_until(lambda: len(cluster.raylets["head"]._broker.entries) == 2)
        cluster.world.lose_node("n1")

    assert judged(lambda: outcome_of(parent.remote()), strike, nodes=nodes)[0] == "NodeDiedError"
