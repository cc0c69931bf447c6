"""G110 and G112 for actors, S2, S3, S8 and S10: the gcs restarts, processes and nodes die at every message, channels break.

The ``Watch`` of each run (see ``actor_watch``) says when a property of a moment is broken; the tests look at outcomes.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.protocol import actor as protocol
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.actors import DEAD, UNAVAILABLE, Counter, deaths, gcs_states
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(2)
FROM_GCS = ["RegisterActor reply", "CreateActor reply", "RequestWorkerLease", "PushTask", "ReturnWorkerLease", "ExitActor"]
LIFE = ["RegisterActor", "CreateActor", "RequestWorkerLease", "PushTask", "PushActorTask", "ReturnWorkerLease", "EndActor"]


def restart_gcs_at(cluster: Cluster, word: str, number: int = 1) -> None:
    """Kill the gcs when it is about to send this message, and start the next one."""
    cluster.when(word).of("gcs").kill(number)

    def revive() -> None:
        if not cluster.processes["gcs"].alive:
            cluster.start_gcs()
        else:
            cluster.after(1).do(revive)

    cluster.after(1).do(revive)


def whole_life() -> list[Any]:
    actor = Counter.remote()
    counts = [outcome_of(actor.add.remote(i)) for i in range(3)]
    del actor
    time.sleep(5)
    return counts


# --- the gcs


@pytest.mark.parametrize("seed", SEEDS)
def test_g110_living_actors_never_notice_that_the_gcs_restarts(seed: int) -> None:
    def body() -> list[Any]:
        actor = Counter.options(name="n", namespace="x").remote()
        counts = []
        for step in range(20):
            counts.append(outcome_of(actor.add.remote(step)))
            time.sleep(1)
        return [*counts, minray.get(minray.get_actor("n", "x").get.remote())]

    plan = FaultPlan({"delay": 0.2, "unsynced": 0.5, "crash_prefix": 0.5})
    strike = lambda cluster: cluster.after(2 + seed).gcs.restart(8)  # noqa: E731
    result, cluster = judged(body, strike, seed=seed, faults=plan, storage="gcs.db")
    assert result == [*range(1, 21), 20] and printed(cluster).count("made 0") == 1


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("word", FROM_GCS)
def test_g110_ray_9286_a_gcs_that_dies_while_it_creates_or_ends_an_actor_goes_on(word: str, number: int) -> None:
    """The next gcs knows the leases from storage: the actor is made once, and nothing is left."""
    strike = lambda cluster: restart_gcs_at(cluster, word, number)  # noqa: E731
    result, cluster = judged(whole_life, strike, storage="gcs.db")
    assert result == [1, 2, 3] and printed(cluster).count("made 0") == 1
    assert deaths(cluster) == [protocol.OUT_OF_SCOPE]


@pytest.mark.parametrize("seed", SEEDS)
def test_g110_what_happens_to_actors_while_the_gcs_is_away_is_known_afterwards(seed: int) -> None:
    """One crashes and begins anew, one crashes for good, one is dropped, one is made."""

    def body() -> list[Any]:
        again, once = Counter.options(max_restarts=1, max_task_retries=-1).remote(), Counter.remote()
        dropped = Counter.remote(7)
        outcomes = [outcome_of(actor.add.remote()) for actor in (again, once, dropped)]
        time.sleep(3)
        del dropped
        new = Counter.remote()
        outcomes += [outcome_of(actor.add.remote(), timeout=100) for actor in (again, once, new)]
        return outcomes

    def strike(cluster: Cluster) -> None:
        cluster.after(2).gcs.restart(10)
        for _ in range(2):
            cluster.after(2.5).do(kill_one_that_counts_from_0, cluster)

    result, cluster = judged(body, strike, seed=seed, nodes=2, faults=FaultPlan({"delay": 0.1}), storage="gcs.db")
    assert result == [1, 1, 8, 1, DEAD, 1]
    assert printed(cluster).count("shut down after 8") == 1


@minray.remote(num_cpus=0)
class Born:
    def __init__(self) -> None:
        print("born")
        time.sleep(5)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_g35_g110_a_worker_that_dies_in_the_constructor_while_the_gcs_is_away_uses_up_a_restart(max_restarts: int) -> None:
    def body() -> Any:
        actor = Born.options(max_restarts=max_restarts).remote()
        return outcome_of(actor.__ray_ready__.options(max_task_retries=-1).remote(), timeout=100)

    def strike(cluster: Cluster) -> None:
        cluster.wait_until(lambda: printed(cluster) == ["born"])
        cluster.now.gcs.kill()
        executors = {name: core.execution.executor for name, core in cluster.cores.items()}
        cluster.process(next(name for name, executor in executors.items() if executor.current is not None)).kill()
        cluster.after(3).gcs.start()

    outcome, cluster = judged(body, strike, storage="gcs.db")
    assert outcome == (DEAD if max_restarts == 0 else True) and len(printed(cluster)) == 1 + max_restarts


def kill_one_that_counts_from_0(cluster: Cluster) -> None:
    alive = {process.name for process in cluster.workers()}
    for name, core in cluster.cores.items():
        actor = core.execution.executor.actor
        if name in alive and actor is not None and actor.count == 1:
            cluster.process(name).kill()
            return


@pytest.mark.parametrize("seed", SEEDS)
def test_g26_g110_detached_actors_survive_their_driver_and_the_gcs(seed: int) -> None:
    def first() -> int:
        actor = Counter.options(name="n", namespace="x", lifetime="detached", max_restarts=-1).remote()
        return int(minray.get(actor.add.remote()))

    def second() -> list[Any]:
        actor = minray.get_actor("n", "x")
        counts = [outcome_of(actor.add.remote())]
        minray.kill(actor, no_restart=False)
        time.sleep(3)
        counts.append(outcome_of(actor.add.remote()))
        minray.kill(actor)
        return counts

    with Cluster([{"num_cpus": 2}] * 2, seed, show_output=False, storage="gcs.db") as cluster:
        assert cluster.run(first) == 1
        cluster.after(1 + seed).gcs.restart(5)
        cluster.settle(60)
        assert gcs_states(cluster) == [protocol.ALIVE]
        assert cluster.run(second) == [2, 1]
        cluster.settle()
        assert gcs_states(cluster) == [protocol.DEAD]


# --- messages


@pytest.mark.parametrize("seed", seeds(2))
def test_g112_every_message_about_actors_may_come_twice_or_be_answered_into_the_void(seed: int) -> None:
    words = [*LIFE, *FROM_GCS, "KillActor", "ReportActorExit", "GetNamedActor"]

    def strike(cluster: Cluster) -> None:
        cluster.when(*[word for name in words for word in (name, f"{name} reply")]).break_channels(at_most=15, one_in=3)
        cluster.when().replay()

    def body() -> list[Any]:
        named, other = Counter.options(name="n", namespace="x").remote(), Counter.options(max_restarts=1).remote()
        found = minray.get_actor("n", "x")
        counts = [outcome_of(ref) for ref in [actor.add.remote(i) for i in range(3) for actor in (named, other, found)]]
        minray.kill(other)
        return [*counts, outcome_of(other.add.remote())]

    result, cluster = judged(body, strike, seed=seed, faults=FaultPlan({"delay": 0.2, "preempt": 0.1}))
    assert [result[0:9:3], result[1:9:3], result[2:9:3], result[9]] == [[1, 3, 5], [1, 2, 3], [2, 4, 6], DEAD]
    assert printed(cluster).count("made 0") == 2


@pytest.mark.parametrize("role", ["worker/", "gcs"])
@pytest.mark.parametrize("word", ["PushTask", "PushTask reply", "PushActorTask reply", "ReportActorExit", "CreateActor"])
def test_s3_s10_processes_may_die_at_every_message_of_an_actors_life(word: str, role: str) -> None:
    def strike(cluster: Cluster) -> None:
        if role == "gcs":
            restart_gcs_at(cluster, word)
        else:
            cluster.when(word).of(role).kill(1, 3)

    def body() -> list[Any]:
        actor = Counter.options(max_restarts=-1, max_task_retries=-1).remote()
        return [type(outcome_of(actor.add.remote(i))).__name__ for i in range(4)]

    result, _ = judged(body, strike, storage="gcs.db", faults=FaultPlan({"orphan": 1.0, "delay": 0.1}))
    assert result == ["int"] * 4


# --- everything


@minray.remote(max_retries=-1)
def call_often(handles: list[Any], name: str) -> list[Any]:
    return [outcome_of(handles[0].add.remote(f"{name}.{i}", 0.02)) for i in range(4)]


def busy() -> list[Any]:
    """Actors that call actors, tasks that call actors, handles everywhere, one killed, one restarted by its user."""
    plain = Counter.options(max_restarts=-1).remote()
    sure = Counter.options(max_restarts=-1, max_task_retries=-1).remote()
    keeper = Counter.remote()
    outcomes = [outcome_of(keeper.keep.remote([plain, sure]))]
    refs = [call_often.remote([actor], f"{index}") for index, actor in enumerate((plain, sure, keeper))]
    outcomes += [outcome_of(actor.add.remote(f"d{i}")) for i in range(4) for actor in (plain, sure)]
    minray.kill(plain, no_restart=False)
    outcomes += [value for ref in refs for value in minray.get(ref)]
    minray.kill(keeper)
    return [*outcomes, outcome_of(keeper.add.remote())]


ALLOWED = (UNAVAILABLE, DEAD, None)


@pytest.mark.parametrize("seed", seeds(4))
def test_s2_s3_s8_s10_whatever_fails_every_call_resolves_and_nothing_is_left(seed: int) -> None:
    result, _ = judged(busy, seed=seed, nodes=3, faults=FaultPlan.swarm(seed, ("worker/", "raylet/n"), budget=3))
    assert all(isinstance(value, int) or value in ALLOWED for value in result) and result[-1] == DEAD


@pytest.mark.parametrize("seed", seeds(2))
def test_s3_s10_an_isolated_node_is_dead_and_its_actors_live_on_elsewhere(seed: int) -> None:
    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, *[{"num_cpus": 1, "resources": {"r": 1}}] * 2]

    def strike(cluster: Cluster) -> None:
        cluster.after(2 + 0.1 * seed).node_of_actor().isolate(90)

    def body() -> list[Any]:
        options = {"max_restarts": 1, "max_task_retries": -1, "resources": {"r": 1}, "num_cpus": 0}
        actor = Counter.options(**options).remote()
        counts = []
        for step in range(8):
            counts.append(outcome_of(actor.add.remote(step, 0.5)))
        return counts

    result, cluster = judged(body, strike, nodes=nodes, seed=seed, faults=FaultPlan({"delay": 0.1}))
    assert len(result) == 8 and all(isinstance(value, int) for value in result)
    assert printed(cluster).count("made 0") == 2 and result[-1] < 8
