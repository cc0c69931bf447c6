"""G108 to G111: nodes that end, a gcs that is gone for a while or for good, drivers that die."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.interference import watch_sends
from tests.simulation.judge import judged, leftovers, outcome_of
from tests.simulation.roles import Cluster


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


@pytest.mark.parametrize("seed", seeds(3))
def test_g110_work_goes_on_while_the_gcs_is_restarted_with_its_storage(seed: int) -> None:
    plan = FaultPlan({"delay": 0.1, "unsynced": 0.5, "crash_prefix": 0.5})
    result, _ = judged(
        steps,
        lambda cluster: cluster.after(0.3 + 0.7 * seed).gcs.restart(20),
        seed=seed,
        nodes=3,
        faults=plan,
        storage="gcs.db",
    )
    assert result == EXPECTED


@pytest.mark.parametrize("seed", seeds(2))
def test_g110_a_restarted_gcs_learns_of_the_nodes_and_deaths_that_it_missed(seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        cluster.after(1).gcs.restart(10)
        cluster.after(3 + seed).node("n1").lose()
        cluster.after(5).node("n9").join()

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
    """The gcs crashes when it has answered the raylet. The owner has lent to the dead worker, and hears nothing."""
    is_told = False

    def strike(cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal is_told
            if word == "ReportWorkerDeath reply" and not is_told:
                is_told = True
                cluster.after(0.01).gcs.kill()
                cluster.after(1).gcs.start()
            return word != "Poll reply" or not is_told or cluster.gcs is not first

        first = cluster.gcs
        watch_sends(cluster, on_send)

    def body() -> list[Any]:
        ref = minray.put(1)
        return [outcome_of(borrow_and_die.remote([ref])), minray.get(ref)]

    assert judged(body, strike, storage="gcs.db")[0] == ["WorkerCrashedError", 1] and is_told


def test_g110_an_actor_whose_row_the_gcs_has_deleted_is_dead_for_a_restarted_gcs_too() -> None:
    """A process that never heard of the actor gets its handle late. Its owner lives, so it might be about to register it."""

    def body() -> str:
        actors = [Lasting.remote() for _ in range(3)]
        minray.get([actor.ask.remote() for actor in actors])
        for actor in actors:
            minray.kill(actor)
        time.sleep(10)
        return str(minray.get(call_late.remote([actors[0]])))

    strike = lambda cluster: cluster.after(5).gcs.restart(1)  # noqa: E731
    few = {"maximum_gcs_destroyed_actor_cached_count": 1}
    result, _ = judged(body, strike, nodes=1, storage="gcs.db", system_config=few)
    assert result == "ActorDiedError"


@minray.remote(num_cpus=0)
class Lasting:
    def ask(self) -> int:
        return 1


@minray.remote
def call_late(handles: list[Any]) -> Any:
    return outcome_of(handles[0].ask.remote())


def test_g110_a_job_whose_driver_is_known_to_be_dead_is_finished_by_a_restarted_gcs() -> None:
    """The first one dies when it has stored the death, and not yet the end of the job."""

    def on_send(end: Any, message: Any, word: str) -> bool:
        gcs: Any = cluster.gcs
        if cluster.processes["gcs"].alive and gcs is first and gcs._workers._deaths and gcs._jobs.running():
            cluster.world.loop.world.call_soon(cluster.kill, "gcs")
            cluster.after(1).gcs.start()
        return True

    with Cluster([{"num_cpus": 2}], storage="gcs.db", show_output=False) as cluster:
        first = cluster.gcs
        watch_sends(cluster, on_send)
        cluster.start_driver(lambda: time.sleep(100), "driver/x")
        cluster.wait_until(lambda: "driver/x" in cluster.cores)
        cluster.process("driver/x").kill()
        cluster.settle()
        assert cluster.gcs is not first and leftovers(cluster) == []


def test_g110_a_driver_that_ends_after_its_job_is_missed_by_a_restarted_gcs() -> None:
    """Others may hold what it owns, and would wait for it."""

    with Cluster([{"num_cpus": 2}], storage="gcs.db", show_output=False) as cluster:
        cluster.when("FinishJob reply").always.soon.gcs.kill()
        cluster.when("FinishJob reply").always.later(1).gcs.start()
        cluster.run(lambda: None)
        cluster.settle()
        driver = next(core for name, core in cluster.cores.items() if name.startswith("driver/"))
        assert cluster.gcs is not None and cluster.gcs.worker_death(driver.process.address) is not None


@pytest.mark.parametrize("seed", seeds(3))
def test_g110_every_request_to_the_gcs_may_be_answered_into_the_void(seed: int) -> None:
    words = ["KvPut", "KvGet", "GetJob", "Poll", "ReportResources", "ReportWorkerDeath", "RegisterNode"]

    plan = FaultPlan({"crash": 0.01}, budget=2)
    assert (
        judged(
            steps,
            lambda cluster: cluster.when(*words, *[f"{word} reply" for word in words]).break_channels(at_most=20, one_in=3),
            seed=seed,
            faults=plan,
        )[0]
        == EXPECTED
    )


@pytest.mark.parametrize("storage", ["gcs.db", ""])
def test_g110_a_driver_hears_why_its_raylet_has_ended(storage: str) -> None:
    """The raylet is refused by a gcs that has found an empty disk; or the cluster has no storage."""

    def begin_anew(cluster: Cluster) -> None:
        cluster.now.gcs.kill()
        if storage:
            cluster.world.nodes["head"].disk.clear()
            cluster.start_gcs()

    def program() -> str:
        with pytest.raises(minray.exceptions.LocalRayletDiedError) as caught:
            minray.get(work.remote(1, 1000))
        return str(caught.value)

    with Cluster(storage=storage, show_output=False) as cluster:
        cluster.world.loop.world.call_later(5, begin_anew, cluster)
        told = cluster.run(program)
        assert ("refused by the gcs: node" in told and "its tables are empty" in told) if storage else "the gcs" in told


def test_g110_without_storage_the_end_of_the_gcs_is_the_end_of_the_cluster() -> None:
    def program() -> list[Any]:
        return [outcome_of(ref) for ref in [work.remote(i, 1000) for i in range(3)]]

    with Cluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        cluster.after(5).gcs.kill()
        assert cluster.run(program) == ["LocalRayletDiedError"] * 3
        cluster.settle()
        assert not any(raylet.alive for name, raylet in cluster.processes.items() if name.startswith("raylet/"))
        assert not cluster.workers()


@pytest.mark.parametrize("seed", seeds(5))
def test_g110_a_task_that_ran_when_the_cluster_ended_fails_with_its_cluster(seed: int) -> None:
    """The raylet kills the worker, and channels break before it is seen dead: meanwhile the raylet can be asked."""
    plan = FaultPlan({"reap": 1.0})
    with Cluster([{"num_cpus": 1}], seed, storage="", show_output=False, faults=plan) as cluster:
        cluster.after(5).gcs.kill()
        outcome = cluster.run(lambda: outcome_of(work.options(max_retries=0).remote(1, 1000)))
        assert outcome == "LocalRayletDiedError"


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_g111_a_raylet_that_cannot_reach_the_gcs_for_a_minute_ends(node: str) -> None:
    def body() -> list[Any]:
        result = steps()
        time.sleep(150)
        return result

    result, cluster = judged(body, lambda cluster: cluster.after(2).partition(node, "head", 300), nodes=3)
    assert result == EXPECTED
    assert not cluster.processes[f"raylet/{node}"].alive and not cluster.workers(node)
    assert "not reached for 60 s" in cluster.raylets[node].reason


@pytest.mark.parametrize("with_its_node", [False, True])
@pytest.mark.parametrize("seed", seeds(3))
def test_g108_what_a_dead_driver_had_is_free_again(seed: int, with_its_node: bool) -> None:
    """The driver has leases on all nodes, and tasks that wait; a lost node tells nobody that its driver is dead."""
    with Cluster([{"num_cpus": 2}] * 2, seed, show_output=False) as cluster:
        cluster.start_driver(lambda: minray.get([work.remote(i, 1000) for i in range(10)]), "driver/x", "n1")
        survivor = cluster.start_driver(lambda: [outcome_of(work.remote(i, 1)) for i in range(3)], "driver/y")
        moment = cluster.after(0.02 * 10**seed)
        moment.node("n1").lose() if with_its_node else moment.process("driver/x").kill()
        assert cluster.wait_for(survivor) == [0, 1, 2]
        cluster.settle(100)
        assert leftovers(cluster) == []


@pytest.mark.parametrize("seed", seeds(3))
def test_g108_a_raylet_that_dies_takes_its_workers_along(seed: int) -> None:
    """Orphaned workers live on for up to a second, and may answer meanwhile."""
    plan = FaultPlan({"orphan": 1.0, "delay": 0.1})

    result, cluster = judged(
        steps, lambda cluster: cluster.after(0.7 + 0.3 * seed).raylet("n1").kill(), seed=seed, faults=plan
    )
    assert result == EXPECTED and not cluster.workers("n1")


@minray.remote(max_retries=0, resources={"parent": 1})
def parent() -> int:
    return sum(minray.get([work.options(resources={"child": 1}).remote(i, 1000) for i in range(2)]))


def test_g108_the_leases_of_workers_on_a_lost_node_end() -> None:
    """The lost node was the owner of leases elsewhere, and its job goes on."""
    nodes: list[dict[str, Any]] = [{"num_cpus": 2, "resources": {"child": 2}}, {"num_cpus": 1, "resources": {"parent": 1}}]

    def strike(cluster: Cluster) -> None:
        cluster.until_leased("head", 2)
        cluster.node("n1").lose()

    assert judged(lambda: outcome_of(parent.remote()), strike, nodes=nodes)[0] == "NodeDiedError"
