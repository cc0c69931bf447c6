"""G21, G35, G109: a node that is told to leave: what runs there may end, nothing new comes, and it costs nobody a retry."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import minray
from minray.protocol import gcs as protocol
from minray.protocol.gcs import IDLE_TERMINATION
from minray.simulation import FaultPlan
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from minray.util.state import list_actors
from tests.seeds import seeds
from tests.simulation.actors import Counter as CountingActor
from tests.simulation.interference import replay_requests
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.leaving import ask_to_leave, node
from tests.simulation.roles import Cluster

SEEDS = seeds(4)
HEAD = {"num_cpus": 1}
THERE = {"num_cpus": 2, "resources": {"there": 2}}
LARGE = 200_000
FAULTY = FaultPlan({"delay": 0.2, "preempt": 0.1, "duplicate": 0.05, "break": 0.005})


def lose_one_after_the_other(*names: str) -> None:
    """Nodes that join when the one before has gone, a second after something has begun there."""
    for name in names:
        while name not in [one["NodeName"] for one in minray.nodes()]:
            time.sleep(0.05)
        time.sleep(1)
        ask_to_leave(name, remaining_s=2.0)
        until_gone(name)


def let_others_join(cluster: Cluster, *names: str) -> None:
    """n1 is there."""
    for last, name in zip(["n1", *names], names, strict=False):
        cluster.wait_until(lambda last=last: bool(cluster.raylets[last].reason))  # type: ignore[misc]
        cluster.add_node(name, **THERE)
        cluster.wait_until(lambda name=name: name in cluster.raylets)  # type: ignore[misc]


def until_gone(*names: str) -> list[int]:
    """How these nodes have ended."""
    while any(node(name)["Alive"] for name in names):
        time.sleep(0.05)
    return [node(name)["DeathReason"] for name in names]


@minray.remote(resources={"there": 1})
def where(seconds: float = 0.0) -> str:
    found = minray.get_runtime_context().get_node_id()
    print("begins")
    time.sleep(seconds)
    return next(one["NodeName"] for one in minray.nodes() if one["NodeID"] == found)


@minray.remote(resources={"there": 1}, max_retries=0)
def make(number: int) -> Any:
    print(f"make {number}")
    return numpy.full(LARGE, number)


# --- Leaving


@pytest.mark.parametrize("seed", SEEDS)
def test_g21_what_runs_on_a_node_that_leaves_may_end_and_the_next_runs_elsewhere(seed: int) -> None:
    def body() -> tuple[bool, list[str], list[int]]:
        running = [where.options(max_retries=0).remote(8.0) for _ in range(2)]
        waiting = [where.remote() for _ in range(3)]
        time.sleep(3)
        accepted = ask_to_leave("n1").is_accepted
        later = [where.remote() for _ in range(3)]
        return accepted, minray.get([*running, *waiting, *later]), until_gone("n1")

    def strike(cluster: Cluster) -> None:
        cluster.wait_until(lambda: len(printed(cluster)) == 2)
        cluster.add_node("n2", **THERE)

    (accepted, nodes, reasons), cluster = judged(body, strike, nodes=[HEAD, THERE], seed=seed, faults=FAULTY)
    assert accepted and nodes[:2] == ["n1", "n1"] and set(nodes[2:]) == {"n2"}
    assert reasons == [protocol.DRAINED_PREEMPTED]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("disturb", [lambda cluster: None, replay_requests], ids=["quiet", "replayed"])
def test_g21_a_preemption_uses_up_no_retry(seed: int, disturb: Callable[[Cluster], None]) -> None:
    def body() -> tuple[Any, list[int]]:
        ref = where.options(max_retries=1).remote(20.0)
        lose_one_after_the_other("n1", "n2", "n3")
        return outcome_of(ref), until_gone("n1", "n2", "n3")

    def strike(cluster: Cluster) -> None:
        disturb(cluster)
        let_others_join(cluster, "n2", "n3", "n4")

    (outcome, reasons), cluster = judged(body, strike, nodes=[HEAD, THERE], seed=seed, faults=FAULTY)
    assert outcome == "n4" and reasons == [protocol.DRAINED_PREEMPTED] * 3
    assert len(printed(cluster)) == 4


def test_g21_a_task_without_retries_is_lost_with_its_preempted_node() -> None:
    def body() -> Any:
        ref = where.options(max_retries=0).remote(20.0)
        time.sleep(1)
        ask_to_leave("n1", remaining_s=2.0)
        return outcome_of(ref)

    outcome, cluster = judged(body, nodes=[HEAD, THERE])
    assert outcome == "NodeDiedError" and len(printed(cluster)) == 1


def test_g21_a_node_that_dies_long_before_its_time_was_not_preempted() -> None:
    def body() -> list[int]:
        ask_to_leave("n1", remaining_s=1000.0)
        print("asked")
        return until_gone("n1")

    holder = where.options(max_retries=0)

    def holding() -> list[int]:
        ref = holder.remote(500.0)
        time.sleep(1)
        reasons = body()
        outcome_of(ref)
        return reasons

    def strike(cluster: Cluster) -> None:
        cluster.until_leaving("n1")
        cluster.raylet("n1").kill()

    reasons, _ = judged(holding, strike, nodes=[HEAD, THERE])
    assert reasons == [protocol.UNEXPECTED_TERMINATION]


@minray.remote(num_cpus=0)
class Made:
    def __init__(self, value: int) -> None:
        self.value = value

    def read(self) -> int:
        return self.value


@minray.remote(num_cpus=0)
class Opened:
    def __init__(self, box: list[Any]) -> None:
        self.value = minray.get(box[0])

    def read(self) -> Any:
        return self.value


@minray.remote(resources={"there": 1}, max_retries=0)
def make_detached(at: str, value: Any, is_lent: bool = False) -> None:
    """Make a detached actor with a value that travels in the call, or with one that this worker lends."""
    here = NodeAffinitySchedulingStrategy(node(at)["NodeID"], soft=False)
    options = {"name": "n", "namespace": "x", "lifetime": "detached", "max_restarts": 1}
    actor_class, argument = (Opened, [minray.put(value)]) if is_lent else (Made, minray.put(value))
    made = actor_class.options(scheduling_strategy=here, **options).remote(argument)
    assert minray.get(made.read.remote()) == value


def test_g26_the_maker_of_a_detached_actor_may_leave_and_the_actor_restarts_without_it() -> None:
    def body() -> tuple[list[int], int]:
        minray.get(make_detached.remote("head", 7))
        ask_to_leave("n1")
        reasons = until_gone("n1")
        made = minray.get_actor("n", "x")
        minray.kill(made, no_restart=False)
        value = minray.get(made.read.options(max_task_retries=-1).remote())
        minray.kill(made)
        return reasons, value

    result, _ = judged(body, nodes=[HEAD, THERE])
    assert result == ([protocol.DRAINED_PREEMPTED], 7)


def test_g26_who_owns_what_a_detached_actor_begins_anew_with_stays_until_that_is_over() -> None:
    def body() -> tuple[bool, int, list[int]]:
        minray.get(make_detached.remote("head", 7, is_lent=True))
        ask_to_leave("n1")
        made = minray.get_actor("n", "x")
        time.sleep(30)
        stays = bool(node("n1")["Alive"])
        minray.kill(made, no_restart=False)
        value = minray.get(made.read.options(max_task_retries=-1).remote())
        minray.kill(made)
        return stays, value, until_gone("n1")

    result, _ = judged(body, nodes=[HEAD, THERE])
    assert result == (True, 7, [protocol.DRAINED_PREEMPTED])


# --- Choosing


def test_g21_a_node_that_leaves_is_not_chosen_any_more() -> None:
    """G102: hard affinity to it fails, soft goes elsewhere."""

    def body() -> tuple[Any, Any, set[str], Any]:
        keeper = CountingActor.options(num_cpus=0, resources={"there": 1}).remote()
        minray.get(keeper.get.remote())
        node_id = node("n1")["NodeID"]
        ask_to_leave("n1")
        anywhere = where.options(resources={})
        soft = anywhere.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True)).remote()
        hard = anywhere.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()
        spread = [anywhere.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
        impossible = where.remote()
        outcomes = outcome_of(soft), outcome_of(hard), set(minray.get(spread)), outcome_of(impossible, timeout=5)
        minray.cancel(impossible)
        return outcomes

    result, _ = judged(body, nodes=[HEAD, THERE])
    assert result == ("head", "TaskUnschedulableError", {"head"}, "GetTimeoutError")


def test_g107_bundles_of_a_node_that_leaves_move_to_another() -> None:
    def body() -> tuple[str, str, list[int]]:
        group = placement_group([{"there": 1}])
        minray.get(group.ready())
        inside = where.options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0))
        first = minray.get(inside.remote())
        ask_to_leave(first)
        reasons = until_gone(first)
        second = minray.get(inside.remote())
        remove_placement_group(group)
        return first, second, reasons

    (first, second, reasons), _ = judged(body, nodes=[HEAD, THERE, THERE])
    assert {first, second} == {"n1", "n2"} and reasons == [protocol.DRAINED_PREEMPTED]


@pytest.mark.parametrize("seed", SEEDS)
def test_g21_g107_a_group_works_on_elsewhere_while_one_of_its_actors_keeps_a_node_that_leaves(seed: int) -> None:
    def body() -> tuple[str, str, int, str, list[int]]:
        group = placement_group([{"there": 1}, {"there": 1}], strategy="STRICT_PACK")
        minray.get(group.ready())
        inside = PlacementGroupSchedulingStrategy(group, 0)
        resident = CountingActor.options(num_cpus=0, resources={"there": 1}, scheduling_strategy=inside).remote()
        minray.get(resident.add.remote())
        beside = where.options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, 1))
        first = minray.get(beside.remote())
        ask_to_leave(first)
        second = minray.get(beside.remote())
        value = minray.get(resident.add.remote())
        remove_placement_group(group)
        reasons = until_gone(first)
        return first, second, value, str(outcome_of(resident.add.remote())), reasons

    (first, second, value, error, reasons), _ = judged(body, nodes=[HEAD, THERE, THERE], seed=seed, faults=FAULTY)
    assert {first, second} == {"n1", "n2"} and value == 2
    assert error == "ActorDiedError" and reasons == [protocol.DRAINED_PREEMPTED]


def test_g21_an_idle_termination_is_refused_by_a_node_that_works() -> None:
    def body() -> tuple[bool, str, bool, list[int]]:
        ref = where.remote(2.0)
        time.sleep(1)
        refused = ask_to_leave("n1", IDLE_TERMINATION)
        minray.get(ref)
        while not (reply := ask_to_leave("n1", IDLE_TERMINATION)).is_accepted:
            time.sleep(0.1)
        reasons = until_gone("n1")
        assert ask_to_leave("n1", IDLE_TERMINATION).is_accepted, "it is gone"
        return refused.is_accepted, refused.rejection, reply.is_accepted, reasons

    result, _ = judged(body, nodes=[HEAD, THERE])
    assert result == (False, "it is not idle (any more)", True, [protocol.DRAINED_IDLE])


def test_g21_an_idle_termination_sets_no_time_to_a_node_that_leaves_and_works() -> None:
    def body() -> tuple[bool, bool, str]:
        ref = where.remote(8.0)
        time.sleep(1)
        leaves = ask_to_leave("n1").is_accepted
        refused = ask_to_leave("n1", IDLE_TERMINATION, remaining_s=2.0)
        return leaves, refused.is_accepted, minray.get(ref)

    (leaves, hurries, ran_on), lines = judged(body, nodes=[HEAD, THERE, THERE])
    assert (leaves, hurries, ran_on, printed(lines)) == (True, False, "n1", ["begins"])


def test_the_head_does_not_leave() -> None:
    reply, _ = judged(lambda: ask_to_leave("head").rejection)
    assert "it is the head" in reply


# --- Objects


@pytest.mark.parametrize("seed", SEEDS)
def test_g21_objects_of_a_node_that_leaves_move_to_another(seed: int) -> None:
    def body() -> tuple[list[int], list[int]]:
        refs = [make.remote(number) for number in range(12)]
        minray.wait(refs, num_returns=len(refs), fetch_local=False)
        return ask_to_leave("n1") and until_gone("n1"), [int(minray.get(ref)[-1]) for ref in refs]

    (reasons, values), cluster = judged(body, nodes=[HEAD, THERE, {"num_cpus": 1}], seed=seed, faults=FAULTY)
    assert reasons == [protocol.DRAINED_PREEMPTED] and values == list(range(12))
    assert max(Counter(printed(cluster)).values()) == 1, "nothing was made again"


@pytest.mark.parametrize("seed", SEEDS)
def test_g21_objects_are_freed_and_nodes_die_while_a_node_leaves(seed: int) -> None:
    def body() -> list[int]:
        refs = [make.options(max_retries=3).remote(number) for number in range(12)]
        minray.wait(refs, num_returns=len(refs), fetch_local=False)
        del refs[::3]
        ask_to_leave("n1")
        del refs[::3]
        until_gone("n1")
        return [int(minray.get(ref)[-1]) for ref in refs]

    def strike(cluster: Cluster) -> None:
        cluster.until_leaving("n1")
        cluster.raylet("n2").kill()
        cluster.add_node("n3", **THERE)

    values, _ = judged(body, strike, nodes=[HEAD, THERE, {"num_cpus": 0}], seed=seed, faults=FAULTY)
    assert values == [2, 4, 7, 8, 11]


# --- Actors


@pytest.mark.parametrize("seed", SEEDS)
def test_g35_a_preempted_actor_begins_anew_without_using_up_a_restart(seed: int) -> None:
    def body() -> tuple[int, int]:
        options = {"max_restarts": 1, "max_task_retries": -1, "num_cpus": 0, "resources": {"there": 1}}
        actor = CountingActor.options(**options).remote()
        minray.get(actor.add.remote())
        lose_one_after_the_other("n1", "n2", "n3")
        return minray.get(actor.add.remote()), list_actors()[0].num_restarts

    def strike(cluster: Cluster) -> None:
        let_others_join(cluster, "n2", "n3", "n4")

    result, _ = judged(body, strike, nodes=[HEAD, THERE], seed=seed, faults=FAULTY)
    assert result == (1, 3)


def test_g21_a_node_waits_for_its_actors_and_their_callers_hear_of_the_preemption() -> None:
    def body() -> tuple[bool, bool]:
        actor = CountingActor.options(num_cpus=0, resources={"there": 1}).remote()
        minray.get(actor.add.remote())
        ask_to_leave("n1")
        time.sleep(30)
        still_there = node("n1")["Alive"] and minray.get(actor.add.remote()) == 2
        ask_to_leave("n1", remaining_s=1.0)
        until_gone("n1")
        try:
            minray.get(actor.add.remote())
        except minray.exceptions.ActorDiedError as error:
            return still_there, error.preempted
        return still_there, False

    result, _ = judged(body, nodes=[HEAD, THERE])
    assert result == (True, True)


# --- Trouble


@pytest.mark.parametrize("seed", SEEDS)
def test_g110_a_gcs_that_dies_meanwhile_still_knows_who_leaves(seed: int) -> None:
    def body() -> tuple[list[str], list[int]]:
        refs = [where.remote(3.0) for _ in range(2)]
        time.sleep(1)
        ask_to_leave("n1", remaining_s=60.0)
        refs += [where.remote() for _ in range(2)]
        return minray.get(refs), until_gone("n1")

    def strike(cluster: Cluster) -> None:
        cluster.wait_until(lambda: bool(printed(cluster)))
        cluster.when("DrainNode", "DrainNode reply", "DrainRaylet", "LeaveNode", "UnregisterNode").break_channels(at_most=4)
        cluster.until_leaving("n1")
        cluster.now.gcs.kill()
        cluster.start_gcs()

    result, _ = judged(body, strike, nodes=[HEAD, THERE, THERE], seed=seed, faults=FAULTY, storage="gcs.db")
    assert result[1] == [protocol.DRAINED_PREEMPTED]
