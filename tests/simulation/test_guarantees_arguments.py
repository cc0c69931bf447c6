"""Tasks with large arguments: where they run (G103), what is brought there before they begin, and how much memory that may
take (G86). ``judged`` looks for what is left: leases, pins, pulls.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minray
from minray.protocol.base import decode
from minray.protocol.raylet import SPILLBACK, LeaseReply
from minray.simulation import FaultPlan
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.seeds import seeds
from tests.simulation.interference import watch_sends
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

CONFIG = {"max_direct_call_object_size": 100, "object_manager_default_chunk_size": 1000, "min_spilling_size": 16_000}
SIZE = 10_000
STORE_BYTES = 100_000
SEEDS = seeds(3)


@minray.remote
def make(number: int, size: int = SIZE) -> Any:
    return np.full(size, number, np.uint8)


@minray.remote
def more(array: Any) -> Any:
    return array + np.uint8(1)


@minray.remote
def read(*arrays: Any) -> int:
    return sum(int(array[0]) for array in arrays)


@minray.remote
def where(array: Any, pause_s: float = 0.0) -> str:
    time.sleep(pause_s)
    return minray.get_runtime_context().get_node_id()


@minray.remote
def through(refs: list[Any]) -> str:
    """Pass a borrowed object on."""
    result: str = minray.get(where.remote(refs[0]))
    return result


def node(name: str, **options: Any) -> dict[str, Any]:
    return {"num_cpus": 2, "resources": {name: 8}, **options}


def on(name: str, function: Any) -> Any:
    return function.options(resources={name: 1})


class Wire:
    """Counts the messages sent, and the most bytes that arguments of running leases took."""

    def __init__(self, trouble: Callable[[Cluster], None] | None = None) -> None:
        self.words: Counter[str] = Counter()
        self.spillbacks = 0
        self.most_pinned = 0
        self._trouble = trouble

    def watch(self, cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            self.words[word] += 1
            if word == "RequestWorkerLease reply":
                self.spillbacks += decode(LeaseReply, message.payload).kind == SPILLBACK
            for raylet in cluster.raylets.values():
                self.most_pinned = max(self.most_pinned, raylet._broker.arguments.manager.pinned_bytes)
            return bool(end.pipe.source.alive)

        watch_sends(cluster, on_send)
        if self._trouble is not None:
            self._trouble(cluster)


def ran(body: Callable[[], Any], wire: Wire | None = None, *nodes: dict[str, Any], **options: Any) -> Any:
    described = [{"num_cpus": 2}, *(nodes or (node("a"), node("b")))]
    config = {**CONFIG, **options.pop("config", {})}
    result, _ = judged(body, (wire or Wire()).watch, nodes=described, system_config=config, **options)
    return result


# --- where


def test_g103_a_chain_of_tasks_on_large_values_stays_where_they_are() -> None:
    """No byte of them moves, and nobody is asked for a worker in vain."""

    def body() -> int:
        array = on("a", make).remote(1)
        for _ in range(10):
            array = more.remote(array)
        return minray.get(read.remote(array))

    wire = Wire()
    assert ran(body, wire) == 11
    assert wire.words["ReadChunk"] == 0
    assert wire.spillbacks == 1, "of the first task, whose resource only one node has"


def test_g103_without_the_policy_a_chain_begins_at_home() -> None:
    def body() -> int:
        return minray.get(read.remote(more.remote(on("a", make).remote(1))))

    wire = Wire()
    assert ran(body, wire, config={"locality_aware_leasing_enabled": False}) == 2
    assert wire.words["ReadChunk"] > 0


def test_g103_a_borrowed_object_draws_its_tasks_too() -> None:
    def body() -> list[str]:
        array = on("a", make).remote(1)
        minray.wait([array], fetch_local=False)
        first = minray.get(where.remote(array))
        time.sleep(1)
        return [first, minray.get(on("b", through).remote([array]))]

    wire = Wire()
    first, second = ran(body, wire)
    assert first == second and wire.words["ReadChunk"] == 0


def test_g103_affinity_and_spreading_override_locality() -> None:
    def body() -> list[Any]:
        array = on("a", make).remote(1)
        minray.wait([array], fetch_local=False)
        home = minray.get(where.remote(array))
        other = next(one["NodeID"] for one in minray.nodes() if one["NodeID"] != home)
        bound = where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(other, soft=False))
        spread = where.options(scheduling_strategy="SPREAD")
        there = minray.get(bound.remote(array)) == other
        return [there, len(set(minray.get([spread.remote(array, 1.0) for _ in range(3)])))]

    assert ran(body) == [True, 3]


def test_g103_a_full_node_sends_its_owner_on() -> None:
    """The awaited task runs elsewhere meanwhile; its arguments are brought there before."""

    @minray.remote
    def rest() -> None:
        time.sleep(100)

    def body() -> float:
        array = on("a", make).remote(1)
        resting = [on("a", rest).remote() for _ in range(2)]
        minray.wait([array], fetch_local=False)
        time.sleep(1)
        began = time.monotonic()
        assert minray.get(read.remote(array)) == 1
        took = time.monotonic() - began
        minray.get(resting)
        return took

    wire = Wire()
    assert ran(body, wire) < 2
    assert wire.words["ReadChunk reply"] == SIZE // 1000 + 1


# --- how much


def test_g86_arguments_of_running_tasks_take_at_most_a_part_of_the_store() -> None:
    """Twelve tasks at a time could run; the arguments of seven fit."""

    @minray.remote
    def slowly(array: Any) -> int:
        time.sleep(1)
        return int(array[0])

    def body() -> list[int]:
        refs = [make.remote(number) for number in range(30)]
        return minray.get([slowly.remote(ref) for ref in refs])

    wire = Wire()
    nodes = [{"num_cpus": 12, "object_store_memory": STORE_BYTES}]
    result, cluster = judged(body, wire.watch, nodes=nodes, system_config=CONFIG)
    assert result == list(range(30))
    assert 6 * SIZE < wire.most_pinned <= 0.7 * STORE_BYTES
    assert cluster.raylets["head"].io_workers.spilled_objects > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_g86_nested_tasks_with_large_arguments_do_not_wait_for_each_other(seed: int) -> None:
    """Each level takes half of the store, and waits for the next."""

    @minray.remote
    def down(array: Any, rest: list[Any]) -> int:
        below = minray.get(down.remote(rest[0], rest[1:])) if rest else 0
        return int(array[0]) + below

    def body() -> list[int]:
        chains = [[minray.put(np.full(4 * SIZE, level, np.uint8)) for level in range(2)] for _ in range(3)]
        return minray.get([down.remote(chain[0], chain[1:]) for chain in chains])

    nodes = [{"num_cpus": 1, "object_store_memory": STORE_BYTES}]
    result, _ = judged(body, nodes=nodes, system_config=CONFIG, seed=seed, faults=FaultPlan({"delay": 0.2}))
    assert result == [1] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_g86_who_waits_for_a_resource_does_not_keep_back_what_its_holder_waits_for(seed: int) -> None:
    """The holder's child has too large an argument to be one of many; a grandchild of another task wants the resource."""

    def holder(array: Any, rest: list[Any]) -> int:
        time.sleep(4)
        return int(minray.get(read.remote(rest[0])))

    @minray.remote
    def down(rest: list[Any], depth: int) -> int:
        below = down.remote(rest, depth - 1) if depth else on("r", read).remote(rest[0])
        return int(minray.get(below))

    def body() -> list[int]:
        first, second, third = (minray.put(np.full(size * SIZE, size, np.uint8)) for size in (5, 4, 1))
        held = on("r", minray.remote(holder)).remote(first, [second])
        time.sleep(1)
        return minray.get([held, down.remote([third], 1)], timeout=60)

    nodes = [{"num_cpus": 8, "resources": {"r": 1}, "object_store_memory": STORE_BYTES}]
    result, _ = judged(body, nodes=nodes, system_config=CONFIG, seed=seed)
    assert result == [4, 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_g86_more_arguments_than_memory_come_from_another_node(seed: int) -> None:
    """Arguments that came too early have made room for others; they come once more before their task begins."""

    def body() -> list[int]:
        refs = [on("a", make).remote(number) for number in range(40)]
        minray.wait(refs, num_returns=len(refs), fetch_local=False)
        return minray.get([on("b", read).remote(ref, refs[0]) for ref in refs])

    wire = Wire()
    nodes = [node("a"), node("b", num_cpus=4, object_store_memory=STORE_BYTES)]
    assert ran(body, wire, *nodes, seed=seed, faults=FaultPlan({"delay": 0.2, "preempt": 0.1})) == list(range(40))
    assert wire.most_pinned <= 0.7 * STORE_BYTES


def test_an_argument_that_no_store_can_hold_is_an_error() -> None:
    def body() -> Any:
        return outcome_of(on("b", read).remote(on("a", make).remote(1, 2 * STORE_BYTES)))

    nodes = node("a"), node("b", object_store_memory=STORE_BYTES)
    assert "ObjectStoreFullError" in ran(body, None, *nodes, config={"automatic_object_spilling_enabled": False})
    assert ran(body, None, *nodes) == 1, "there is memory on disk"


# --- whoever dies


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("when", ["fetching", "running"])
def test_no_pin_is_left_when_the_owner_of_a_lease_dies(when: str, seed: int) -> None:
    """The leased workers of a dead owner are killed, and its requests withdrawn.

    A worker that was killed leaked pins in Ray: #62093.
    """

    @minray.remote
    def forever(array: Any) -> None:
        time.sleep(10_000)

    @minray.remote(max_retries=0)
    def own(refs: list[Any]) -> None:
        minray.wait([on("b", forever).remote(ref) for ref in refs])

    def body() -> Any:
        refs = [on("a", make).remote(number, 200_000 if when == "fetching" else SIZE) for number in range(4)]
        minray.wait(refs, num_returns=4, fetch_local=False)
        return outcome_of(on("a", own).remote(refs))

    def strike(cluster: Cluster) -> None:
        arguments = cluster.raylets["n2"]._broker.arguments
        is_due = arguments._questions if when == "fetching" else arguments.manager._active_count == 2
        if is_due:
            submitters = {name: core.submission.submitter for name, core in cluster.cores.items()}
            owner = next(process for process in cluster.workers("n1") if submitters[process.name]._keys)
            owner.exit(None, 9)
        else:
            cluster.world.loop.world.call_later(0.001, strike, cluster)

    assert ran(body, Wire(strike), seed=seed) == "WorkerCrashedError"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_pin_is_left_of_what_is_cancelled_on_its_way(seed: int) -> None:
    def body() -> list[Any]:
        refs = [on("a", make).remote(number, 300_000) for number in range(4)]
        minray.wait(refs, num_returns=4, fetch_local=False)
        reads = [on("b", read).remote(ref) for ref in refs]
        time.sleep(0.002)
        for ref in reads[::2]:
            minray.cancel(ref)
        return [outcome_of(ref) for ref in reads]

    assert ran(body, seed=seed) == ["TaskCancelledError", 1, "TaskCancelledError", 3]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trouble", ["break", "repeat"])
def test_g112_requests_with_arguments_that_come_late_or_twice(trouble: str, seed: int) -> None:
    words = ["RequestWorkerLease", "ReturnWorkerLease", "CancelWorkerLease", "GetObjectLocations", "PinObjects"]

    def strike(cluster: Cluster) -> None:
        if trouble == "break":
            cluster.when(*words, *(f"{word} reply" for word in words)).break_channels(at_most=12, one_in=5)
        else:
            cluster.when(*words).replay()

    def body() -> list[int]:
        refs = [on("a", make).remote(number) for number in range(12)]
        return minray.get([on("b", read).remote(ref, refs[0]) for ref in refs] + [read.remote(ref) for ref in refs])

    plan = FaultPlan({"delay": 0.3, "preempt": 0.1, "long_delay": 0.002}, budget=1)
    nodes = [node("a"), node("b", object_store_memory=STORE_BYTES)]
    assert ran(body, Wire(strike), *nodes, seed=seed, faults=plan) == [*range(12), *range(12)]


@pytest.mark.parametrize("victim", ["n1", "n2"])
@pytest.mark.parametrize("number", [1, 8, 20])
def test_g109_nodes_die_while_arguments_are_on_their_way(victim: str, number: int) -> None:
    """A task that was to run on the node that dies runs elsewhere; one whose arguments are gone has a typed error."""

    def strike(cluster: Cluster) -> None:
        cluster.when("ReadChunk").number(number).node(victim).lose()

    def body() -> list[Any]:
        refs = [on("a", make).options(max_retries=0, resources={"a": 1}).remote(number) for number in range(4)]
        minray.wait(refs, num_returns=4, fetch_local=False)
        return [outcome_of(ref) for ref in [on("b", read).remote(ref) for ref in refs]]

    outcomes = ran(body, Wire(strike), node("a"), node("b"), node("b"), settle_s=300)
    lost = "RayTaskError(ObjectReconstructionFailedError)"
    assert all(outcome in (number, lost) for number, outcome in enumerate(outcomes))
    assert victim == "n1" or outcomes == [0, 1, 2, 3]
