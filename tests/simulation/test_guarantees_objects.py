"""G13, G16, G40, G58 to G66 and G79 for objects in shared memory: values above a hundred bytes are large in these clusters.

``judged`` looks for what is left, in the stores of the nodes too.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.judge import INTERRUPTED, judged, outcome_of
from tests.simulation.roles import Cluster

SEEDS = seeds(3)
SIZE = 2000
STORE_WORDS = [
    f"{word}{reply}"
    for word in ("CreateObject", "SealObject", "PinObjects", "ReleasePins", "FreeObjects", "GetObjectLocations", "ReadChunk")
    for reply in ("", " reply")
]
MAKER, READER = {"num_cpus": 2, "resources": {"making": 1}}, {"num_cpus": 2, "resources": {"reading": 1}}


@minray.remote(max_retries=0)
def make(number: int, size: int = SIZE) -> Any:
    return np.full(size, number, np.uint8)


@minray.remote(max_retries=0)
def make_inside(number: int) -> list[Any]:
    return [minray.put(np.full(SIZE, number, np.uint8)), "x" * SIZE]


@minray.remote(max_retries=0)
def read(array: Any) -> int:
    return int(array[0]) if len(set(array.tolist())) == 1 else -1


@minray.remote(max_retries=0)
def read_nested(refs: list[Any]) -> list[int]:
    return [int(array.max()) for array in minray.get(refs)]


def large(body: Any, strike: Any = None, **options: Any) -> Any:
    """The result of a body in a cluster where values are large, travel in pieces, and never go to disk.

    ``judged`` finds its stores empty.
    """
    config = {
        "max_direct_call_object_size": 100,
        "object_manager_default_chunk_size": SIZE,
        "automatic_object_spilling_enabled": False,
    }
    return judged(body, strike, system_config=config, **options)[0]


def breaking(cluster: Cluster) -> None:
    cluster.when(*STORE_WORDS).break_channels(at_most=10, one_in=3)


def repeating(cluster: Cluster) -> None:
    cluster.when(*[word for word in STORE_WORDS if not word.endswith("reply")]).replay()


# --- values


def all_ways() -> list[Any]:
    """Put, returned, passed on, inside others, on all nodes."""
    mine = minray.put(np.full(SIZE, 7, np.uint8))
    made = [make.options(scheduling_strategy="SPREAD").remote(i) for i in range(4)]
    inside = minray.get([make_inside.remote(i) for i in range(2)])
    reads = [read.options(scheduling_strategy="SPREAD").remote(ref) for ref in [mine, *made] * 2]
    nested = read_nested.remote([mine, *made, *(refs[0] for refs in inside)])
    direct = read.remote(np.full(SIZE, 9, np.uint8))
    return [minray.get(reads), minray.get(nested), minray.get(direct), [int(array[0]) for array in minray.get(made)]]


EXPECTED = [[7, 0, 1, 2, 3] * 2, [7, 0, 1, 2, 3, 0, 1], 9, [0, 1, 2, 3]]


@pytest.mark.parametrize("interfere", [None, breaking, repeating])
@pytest.mark.parametrize("seed", SEEDS)
def test_g58_g59_large_values_arrive_everywhere_and_go_everywhere(seed: int, interfere: Any) -> None:
    plan = FaultPlan({"delay": 0.2, "preempt": 0.1, "long_delay": 0.003}, budget=1)
    assert large(all_ways, interfere, seed=seed, nodes=3, faults=plan) == EXPECTED


def test_g13_large_values_are_read_only() -> None:
    def body() -> list[bool]:
        array, inside = minray.get(minray.put(np.zeros(SIZE, np.uint8))), minray.get(make.remote(1))
        return [array.flags.writeable, inside.flags.writeable, array.flags.aligned]

    assert large(body) == [False, False, True]


def test_g60_what_is_inside_a_large_value_lives_as_long_as_it() -> None:
    def body() -> list[int]:
        outer = minray.put([minray.put(np.full(SIZE, 3, np.uint8)), "x" * SIZE])
        returned = make_inside.remote(4)
        time.sleep(30)
        inner = [minray.get(outer)[0], minray.get(returned)[0]]
        del outer, returned
        time.sleep(30)
        return minray.get([read.options(scheduling_strategy="SPREAD").remote(ref) for ref in inner])

    assert large(body, nodes=3) == [3, 4]


# --- pins


def test_g61_a_view_outlives_its_reference_and_its_memory_is_free_when_it_dies() -> None:
    clusters: list[Cluster] = []

    def copies() -> int:
        time.sleep(1)
        return len(clusters[0].raylets["head"].store.table)

    def body() -> list[Any]:
        ref = minray.put(np.full(SIZE, 5, np.uint8))
        part = minray.get(ref)[10:20]
        del ref
        others = [minray.put(np.full(SIZE, 6, np.uint8)) for _ in range(20)]
        seen = [copies()]
        del others
        seen.append(copies())
        values = part.tolist()
        del part
        return [*seen, copies(), values]

    assert large(body, clusters.append, nodes=1) == [21, 1, 0, [5] * 10]


def test_g61_a_worker_that_dies_gives_its_pins_back() -> None:
    @minray.remote(max_retries=0)
    def hold(refs: list[Any], seconds: float) -> None:
        judge.kept[f"{len(judge.kept)}"] = minray.get(refs)
        time.sleep(seconds)

    def body() -> list[Any]:
        refs = [minray.put(np.full(SIZE, 1, np.uint8))]
        holding = [hold.remote(refs, 1000) for _ in range(2)]
        time.sleep(1)
        for ref in holding:
            minray.cancel(ref, force=True)
        return [outcome_of(ref) for ref in holding]

    try:
        assert set(large(body)) <= {"TaskCancelledError", "WorkerCrashedError"}
    finally:
        judge.kept.clear()


# --- owners and nodes that die


@pytest.mark.parametrize("seed", SEEDS)
def test_g62_when_an_owner_dies_all_copies_of_its_objects_go(seed: int) -> None:
    def body() -> list[Any]:
        refs = minray.get(make_inside.options(resources={"making": 1}).remote(1))[:1]
        spread = read_nested.options(scheduling_strategy="SPREAD")
        before = [outcome_of(spread.remote(refs)) for _ in range(4)]
        view = minray.get(refs[0])
        judge.kept["owner"] = refs[0].owner_address().worker_id
        time.sleep(20)
        after = [outcome_of(refs[0]), outcome_of(read.remote(refs[0])), outcome_of(spread.remote(refs)), int(view[0])]
        return [before, after]

    def strike(cluster: Cluster) -> None:
        owner = judge.kept.pop("owner", None)
        if owner is None:
            cluster.world.loop.world.call_later(0.1, strike, cluster)
            return
        (name,) = [name for name, core in cluster.cores.items() if core.process.address.worker_id == owner]
        cluster.after(1 + seed).process(name).kill()

    nodes: list[dict[str, Any]] = [READER, MAKER, {"num_cpus": 2}]
    before, after = large(body, strike, nodes=nodes, seed=seed)
    assert before == [[1]] * 4
    assert after == ["OwnerDiedError", "RayTaskError(OwnerDiedError)", "RayTaskError(OwnerDiedError)", 1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("copies", [0, 2])
def test_g66_when_the_node_of_the_first_copy_dies_another_copy_stands_in(copies: int, seed: int) -> None:
    """No task is run again, and without a copy the object is lost, which tasks with that argument hear too."""

    def body() -> list[Any]:
        ref = make.options(resources={"making": 1}).remote(8)
        minray.wait([ref], fetch_local=False)
        reading = read.options(resources={"reading": 1})
        before = [outcome_of(reading.remote(ref)) for _ in range(copies)]
        time.sleep(1)
        judge.kept["go"] = True
        time.sleep(150)
        fill = [minray.put(np.zeros(SIZE, np.uint8)) for _ in range(30)]
        after = [outcome_of(reading.remote(ref)), outcome_of(read.remote(ref))]
        del fill
        return [*before, *after]

    nodes = [{"num_cpus": 2}, MAKER, READER]
    expected = [8] * 4 if copies else ["RayTaskError(ObjectReconstructionFailedError)"] * 2
    assert large(body, lambda cluster: cluster.told("go").node("n1").lose(), nodes=nodes, seed=seed) == expected


@pytest.mark.parametrize("number", range(1, 4))
@pytest.mark.parametrize("word", ["ReadChunk reply", "UpdateObjectLocations", "GetObjectLocations"])
def test_g66_nodes_die_at_every_message_of_a_transfer(word: str, number: int) -> None:
    """The source, when it sends a chunk, or the receiver: what is asked elsewhere has its value or a typed error.

    The tasks that waited there for their arguments run on the other node that may run them.
    """

    def body() -> list[Any]:
        refs = [make.options(resources={"making": 1}).remote(i, 3 * SIZE) for i in range(2)]
        reading = read.options(resources={"reading": 0.5})
        reads = [reading.remote(ref) for ref in refs]
        outcomes = [outcome_of(ref) for ref in reads]
        return [outcomes, [first(ref) for ref in refs]]

    def first(ref: Any) -> Any:
        value = outcome_of(ref)
        return value if isinstance(value, str) else int(value[0])

    nodes: list[dict[str, Any]] = [{"num_cpus": 2}, MAKER, READER, READER]
    result = large(body, lambda cluster: cluster.when(word).of("raylet/").kill(number), nodes=nodes, settle_s=300)
    lost = {"ObjectReconstructionFailedError", "ObjectLostError", "NodeDiedError", "TaskUnschedulableError"}
    lost |= {"LocalRayletDiedError", *(f"RayTaskError({error})" for error in lost)}
    for outcomes in result:
        assert all(outcome in (number, *lost) for number, outcome in enumerate(outcomes))


# --- a full store

FULL = {"num_cpus": 2, "object_store_memory": 10_000}


def test_g79_a_full_store_is_an_error_after_a_while_and_says_who_fills_it() -> None:
    def body() -> list[Any]:
        refs = [minray.put(np.full(4000, i, np.uint8)) for i in range(2)]
        reading = minray.get(refs[0])
        me = minray.get_runtime_context().get_worker_id()[:8]
        started = time.monotonic()
        try:
            minray.put(np.zeros(4000, np.uint8))
        except minray.exceptions.ObjectStoreFullError as error:
            message = str(error)
        waited = time.monotonic() - started
        try:
            minray.put(np.zeros(20_000, np.uint8))
        except minray.exceptions.ObjectStoreFullError:
            at_once = time.monotonic() - started - waited
        held = all(ref.hex() in message for ref in refs) and all(f"{use} by {me}" in message for use in ("read", "owned"))
        del reading
        values = [int(array[0]) for array in minray.get(refs)]
        del refs
        time.sleep(1)
        return [waited, at_once < 0.5, held, values, int(minray.get(minray.put(np.ones(9000, np.uint8)))[0])]

    waited, *rest = large(body, nodes=[FULL])
    assert 2 <= waited < 3
    assert rest == [True, True, [0, 1], 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_g79_who_waits_for_room_gets_what_becomes_free(seed: int) -> None:
    """Six tasks want more than twice what there is, and each of them is waited for before the next grace period ends."""

    @minray.remote(max_retries=0)
    def pass_on(number: int) -> int:
        ref = minray.put(np.full(4000, number, np.uint8))
        array = minray.get(ref)
        time.sleep(1)
        return int(array[-1])

    def body() -> list[Any]:
        return [outcome_of(ref) for ref in [pass_on.options(num_cpus=0.25).remote(i) for i in range(6)]]

    assert large(body, breaking, nodes=[FULL], seed=seed) == list(range(6))


@pytest.mark.parametrize("seed", SEEDS)
def test_g77_spare_copies_make_room_and_primaries_stay(seed: int) -> None:
    """Many objects of one node are read on another, whose store has room for two of them."""

    def body() -> list[Any]:
        kept = make.options(resources={"reading": 1}).remote(99, 4000)
        minray.wait([kept], fetch_local=False)
        made = [make.options(resources={"making": 0.5}).remote(i, 3000) for i in range(8)]
        reading = read.options(resources={"reading": 1})
        return [outcome_of(reading.remote(ref)) for ref in [*made, kept, *made]]

    nodes: list[dict[str, Any]] = [{"num_cpus": 2}, MAKER, {**READER, "object_store_memory": 10_000}]
    assert large(body, repeating, nodes=nodes, seed=seed) == [*range(8), 99, *range(8)]


# --- writers that die, or are cancelled


@pytest.mark.parametrize("number", range(1, 4))
@pytest.mark.parametrize("word", ["CreateObject", "SealObject", "PushTask reply", "PinObjects", "ReleasePins"])
def test_g16_a_worker_that_dies_while_it_writes_leaves_nothing(word: str, number: int) -> None:
    """Before it asks for room, before it seals, and when it has sealed but not answered: the task is run again."""

    def body() -> list[Any]:
        refs = [make.options(max_retries=3).remote(i) for i in range(4)]
        reads = [read.options(max_retries=3).remote(ref) for ref in refs]
        return [outcome_of(ref) for ref in reads]

    assert large(body, lambda cluster: cluster.when(word).of("worker").kill(number), nodes=1) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [1, 2])
def test_g17_a_result_whose_worker_died_before_it_answered_is_not_kept(number: int) -> None:
    """Sealed, and of a living owner, who has not heard of it and tries no more."""

    def body() -> int:
        outcomes = [outcome_of(ref) for ref in [make.remote(i) for i in range(2)]]
        return [outcome for outcome in outcomes if isinstance(outcome, str)].count("WorkerCrashedError")

    assert large(body, lambda cluster: cluster.when("PushTask reply").of("worker").kill(number), nodes=1) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_g16_the_attempt_that_answers_is_the_one_that_is_read(number: int) -> None:
    """Each attempt returns another value; the first one was sealed on the same node before its worker died."""

    @minray.remote(max_retries=3)
    def count(name: str) -> Any:
        judge.kept[name] = judge.kept.get(name, 0) + 1
        return np.full(SIZE, judge.kept[name], np.uint8)

    def body() -> list[Any]:
        refs = [count.remote(f"{i}") for i in range(2)]
        values = [int(array[0]) for array in minray.get(refs)]
        return [values == [judge.kept[f"{i}"] for i in range(2)], sum(values)]

    try:
        assert large(body, lambda cluster: cluster.when("PushTask reply").of("worker").kill(number), nodes=1) == [True, 3]
    finally:
        judge.kept.clear()


@pytest.mark.parametrize("seed", seeds(6))
def test_g40_a_cancelled_task_leaves_no_result_that_it_has_put(seed: int) -> None:
    """The task has written the first of two values, and waits for room for the second one."""

    @minray.remote(max_retries=0, num_returns=2)
    def two() -> list[Any]:
        return [np.ones(3000, np.uint8), np.ones(6000, np.uint8)]

    def body() -> list[Any]:
        wall = minray.put(np.zeros(4000, np.uint8))
        first, second = two.remote()
        time.sleep(0.2 + 0.3 * seed)
        minray.cancel(first)
        outcomes = [outcome_of(first), outcome_of(second)]
        del wall, first, second
        time.sleep(5)
        return [outcomes, int(minray.get(minray.put(np.ones(9000, np.uint8)))[0])]

    outcomes, value = large(body, nodes=[FULL], seed=seed)
    assert value == 1 and set(outcomes) <= {"TaskCancelledError", INTERRUPTED}


@pytest.mark.parametrize("seed", SEEDS)
def test_g112_who_is_interrupted_while_it_waits_for_room_gets_none_later(seed: int) -> None:
    """The task's request is in the queue of the store when the interrupt takes it back."""

    @minray.remote(max_retries=0)
    def wait_for_room() -> None:
        minray.put(np.ones(6000, np.uint8))

    def body() -> list[Any]:
        wall = minray.put(np.zeros(6000, np.uint8))
        waiting = wait_for_room.remote()
        time.sleep(0.5 + 0.2 * seed)
        minray.cancel(waiting)
        outcome = outcome_of(waiting)
        del wall
        time.sleep(1)
        return [outcome, int(minray.get(minray.put(np.ones(9000, np.uint8)))[0])]

    assert large(body, repeating, nodes=[FULL], seed=seed) == [INTERRUPTED, 1]


# --- races


@pytest.mark.parametrize("seed", seeds(6))
def test_g59_an_object_that_is_freed_while_it_is_pulled_goes_everywhere(seed: int) -> None:
    def body() -> str:
        ref = minray.put(np.ones(20 * SIZE, np.uint8))
        reading = read.options(resources={"reading": 1}).remote(ref)
        time.sleep(0.01 * seed)
        minray.cancel(reading, force=seed % 2 == 0)
        del ref
        return "value" if isinstance(outcome_of(reading), int) else "error"

    plan = FaultPlan({"delay": 0.5, "long_delay": 0.01}, budget=2)
    assert large(body, nodes=[{"num_cpus": 2}, READER], seed=seed, faults=plan) in ("value", "error")


@pytest.mark.parametrize("seed", SEEDS)
def test_l2_nothing_is_left_whatever_crashes(seed: int) -> None:
    def body() -> list[Any]:
        outcomes = []
        for _ in range(3):
            made = [make.options(max_retries=3, scheduling_strategy="SPREAD").remote(i) for i in range(4)]
            outcomes += [outcome_of(read.options(max_retries=3).remote(ref)) for ref in made]
        return outcomes

    plan = FaultPlan({"crash": 0.02, "delay": 0.1, "crash_prefix": 0.3}, budget=3)
    outcomes = large(body, seed=seed, nodes=3, faults=plan)
    assert all(outcome == index % 4 or isinstance(outcome, str) for index, outcome in enumerate(outcomes))


def test_g16_an_answered_task_has_its_result_sealed() -> None:
    """The seal is lost with its worker, on another channel than the answer: the task is run again, or its value is there."""

    def strike(cluster: Cluster) -> None:
        cluster.when("SealObject").of("worker").lose()
        cluster.when("SealObject").of("worker").then.later(0.001).sender.kill()

    def body() -> list[Any]:
        ref = make.options(resources={"making": 1}, max_retries=3).remote(3)
        return [outcome_of(read.options(resources={"reading": 1}).remote(ref), timeout=60)]

    assert large(body, strike, nodes=[{"num_cpus": 2}, MAKER, READER]) == [3]


def test_g66_a_copy_of_which_the_owner_hears_late_stands_in() -> None:
    """The node of the first copy dies before the report of the second one has reached the owner."""

    def strike(cluster: Cluster) -> None:
        cluster.when("UpdateObjectLocations").hold(100)
        cluster.when("UpdateObjectLocations").then.node("n1").lose()

    def body() -> list[Any]:
        ref = make.options(resources={"making": 1}).remote(3)
        reading = read.options(resources={"reading": 1})
        first = outcome_of(reading.remote(ref), timeout=60)
        time.sleep(200)
        return [first, outcome_of(reading.remote(ref), timeout=60)]

    assert large(body, strike, nodes=[{"num_cpus": 2}, MAKER, READER], settle_s=300) == [3, 3]
