"""G66 to G75: objects that are lost with their nodes are made again by their owner. All values are large in these clusters.

Things are made on ``n1``. ``lose`` kills it, and another node with the same resources takes its place; ``judged`` looks for
lineage that is left when nothing refers to it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minray
from minray.exceptions import ObjectReconstructionFailedError
from minray.simulation import FaultPlan
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.interference import watch_sends
from tests.simulation.judge import INTERRUPTED, judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(3)
SIZE = 2000
CONFIG = {"max_direct_call_object_size": 100, "object_manager_default_chunk_size": SIZE}
MAKER: dict[str, Any] = {"num_cpus": 2, "resources": {"making": 2}}
READER: dict[str, Any] = {"num_cpus": 2, "resources": {"reading": 2}}
NODES = [{"num_cpus": 2}, MAKER, READER]
LOST = "ObjectReconstructionFailedError"


def making(function: Any, **options: Any) -> Any:
    return function.options(resources={"making": 1}, **options)


def reading(function: Any, **options: Any) -> Any:
    return function.options(resources={"reading": 0.5}, **options)


@minray.remote
def make(number: int, size: int = SIZE) -> Any:
    print(f"make {number}")
    return np.full(size, number, np.uint8)


@minray.remote
def add(*values: Any) -> Any:
    """Arrays, or references to some."""
    arrays = [value if isinstance(value, np.ndarray) else minray.get(value[0]) for value in values]
    print(f"add {[int(array[0]) for array in arrays]}")
    return sum(arrays[1:], arrays[0])


@minray.remote
def first(value: Any) -> int:
    return int((value if isinstance(value, np.ndarray) else minray.get(value[0]))[0])


def made(*refs: Any) -> None:
    """Wait until these exist, wherever that is."""
    minray.wait(list(refs), num_returns=len(refs), fetch_local=False)


def lose(seconds: float = 1.0, name: str = "n1") -> None:
    """The node is killed, and another one takes its place."""
    judge.kept["lose"] = name
    time.sleep(seconds)


def lineage(
    body: Callable[[], Any], strike: Any = None, config: dict[str, Any] | None = None, **options: Any
) -> tuple[Any, Counter[str]]:
    """Return the result of a body, and the number of runs of each task."""
    losses = 0

    def listen(cluster: Cluster) -> None:
        nonlocal losses
        name = judge.kept.pop("lose", None)
        if name is not None:
            losses += 1
            cluster.raylet(name).kill()
            cluster.add_node(f"spare{losses}", **(MAKER if name == "n1" or name.startswith("spare") else READER))
        cluster.world.loop.world.call_later(0.05, listen, cluster)

    def strikes(cluster: Cluster) -> None:
        listen(cluster)
        if strike is not None:
            strike(cluster)

    try:
        options = {"nodes": NODES, **options}
        result, cluster = judged(body, strikes, system_config={**CONFIG, **(config or {})}, **options)
    finally:
        judge.kept.clear()
    return result, Counter(printed(cluster))


def values_of(*refs: Any) -> list[Any]:
    return [value if isinstance(value, str) else int(value[0]) for value in map(outcome_of, refs)]


def reason_of(ref: Any) -> str:
    try:
        minray.get(ref)
    except ObjectReconstructionFailedError as error:
        return error.reason
    return "none"


# --- made again


@pytest.mark.parametrize("seed", SEEDS)
def test_g67_a_lost_object_is_made_again(seed: int) -> None:
    def body() -> list[Any]:
        ref = making(make).remote(8)
        made(ref)
        lose()
        return [*values_of(ref), minray.get(reading(first).remote(ref))]

    assert lineage(body, seed=seed) == ([8, 8], {"make 8": 2})


def test_g67_a_whole_machine_may_go_without_a_word() -> None:
    def body() -> list[Any]:
        ref = make.options(resources={"making": 1}).remote(8)
        made(ref)
        judge.kept["go"] = True
        time.sleep(100)
        return values_of(ref)

    def strike(cluster: Cluster) -> None:
        told = cluster.told("go")
        told.node("n1").lose()
        told.node("n3").join(**MAKER)

    assert lineage(body, strike) == ([8], {"make 8": 2})


def test_g101_who_fetches_what_is_lost_lends_its_cpu_to_the_task_that_makes_it_again() -> None:
    """The node dies without a word, so that the value is still known to be there when somebody asks for it."""

    def body() -> int:
        ref = make.options(scheduling_strategy=node_affinity("n1", soft=True)).remote(8)
        made(ref)
        judge.kept["go"] = True
        time.sleep(0.1)
        return int(minray.get(first.options(scheduling_strategy=node_affinity("head", soft=False)).remote([ref])))

    def node_affinity(name: str, soft: bool) -> NodeAffinitySchedulingStrategy:
        return NodeAffinitySchedulingStrategy(judge.kept[name], soft=soft)

    def strike(cluster: Cluster) -> None:
        judge.kept.update({name: raylet.address.node_id.hex() for name, raylet in cluster.raylets.items()})
        cluster.wait_until(lambda: "go" in judge.kept)
        cluster.node("n1").lose()

    assert lineage(body, strike, nodes=[{"num_cpus": 1}] * 2) == (8, {"make 8": 2})


@pytest.mark.parametrize("seed", SEEDS)
def test_g67_so_are_the_arguments_of_its_task_and_theirs_though_nobody_else_needs_them(seed: int) -> None:
    def body() -> list[Any]:
        one, two = making(make).remote(1), making(make).remote(2)
        three = making(add).remote(one, [two])
        four = making(add).remote(three, three)
        made(four)
        del one, two, three
        time.sleep(1)
        lose()
        return values_of(four)

    again = {"make 1": 2, "make 2": 2, "add [1, 2]": 2, "add [3, 3]": 2}
    assert lineage(body, seed=seed) == ([6], again)


def test_g67_only_what_is_lost_is_made_again() -> None:
    def body() -> list[Any]:
        one = making(make).remote(1)
        two = reading(add).remote(one, one)
        three = making(add).remote(two, two)
        made(three)
        lose()
        return values_of(three, two, one)

    assert lineage(body) == ([4, 2, 1], {"make 1": 1, "add [1, 1]": 1, "add [2, 2]": 2})


def test_g67_a_task_that_is_to_run_again_keeps_what_was_put_for_it() -> None:
    """A value that was put cannot be made again: lineage holds the value itself. Small values are part of the task."""

    def body() -> list[Any]:
        large, small, inside = (minray.put(np.full(size, 1, np.uint8)) for size in (SIZE, 1, SIZE))
        ref = making(add).remote(large, np.full(1, 2, np.uint8), small, [inside], np.full(SIZE, 3, np.uint8))
        made(ref)
        del large, small, inside
        time.sleep(1)
        lose()
        return values_of(ref)

    assert lineage(body) == ([8], {"add [1, 2, 1, 1, 3]": 2})


@pytest.mark.parametrize("seed", SEEDS)
def test_g67_a_long_chain_whose_links_are_lost_everywhere(seed: int) -> None:
    def body() -> list[Any]:
        one = minray.put(np.full(SIZE, 1, np.uint8))
        ref = making(make).remote(0)
        for index in range(20):
            ref = (making if index % 2 else reading)(add).remote(ref, one)
        made(ref)
        lose()
        lose(name="n2")
        return values_of(ref)

    (value,), runs = lineage(body, seed=seed)
    assert value == 20 and runs["make 0"] in (1, 2) and max(runs.values()) <= 3


@minray.remote(max_retries=0)
def look_later(refs: list[Any], read: Any) -> Any:
    """Learns where an object is, and reads it when that is not so any more."""
    made(*refs)
    judge.kept["known"] = judge.kept.get("known", 0) + 1
    while "lost" not in judge.kept:
        time.sleep(0.1)
    return read(refs[0])


def lose_what_is_known(count: int = 1) -> None:
    """Lose the node once this number of tasks knows where the value is."""
    while judge.kept.get("known", 0) < count:
        time.sleep(0.1)
    lose()
    judge.kept["lost"] = True


def test_g67_what_is_inside_of_a_lost_value_is_new_when_that_is_made_again() -> None:
    """The worker that owned what was inside is dead as well: the next attempt puts other objects into its value."""

    @minray.remote
    def make_inside() -> list[Any]:
        return [minray.put(np.full(SIZE, 5, np.uint8)), "x" * SIZE]

    def read_inside(ref: Any) -> int:
        return int(minray.get(minray.get(ref)[0])[0])

    def body() -> list[Any]:
        ref = making(make_inside).remote()
        made(ref)
        borrower = reading(look_later).remote([ref], read_inside)
        lose_what_is_known()
        return [read_inside(ref), minray.get(borrower)]

    assert lineage(body)[0] == [5, 5]


# --- once, and nothing else


@pytest.mark.parametrize("seed", SEEDS)
def test_g74_however_many_wait_it_is_made_once(seed: int) -> None:
    def body() -> list[Any]:
        ref = making(make).remote(7)
        made(ref)
        early = [reading(look_later).remote([ref], lambda ref: int(minray.get(ref)[0])) for _ in range(2)]
        lose_what_is_known(2)
        late = [reading(first).remote(ref), first.remote(ref), reading(first).remote([ref]), first.remote([ref])]
        return [*values_of(ref, ref), *minray.get([*early, *late])]

    assert lineage(body, seed=seed) == ([7] * 8, {"make 7": 2})


@minray.remote(num_returns=2)
def count_two(size: int = SIZE) -> list[Any]:
    count = judge.kept["count"] = judge.kept.get("count", 0) + 1
    return [np.full(size, 10 * count, np.uint8), np.full(SIZE, 10 * count + 1, np.uint8)]


def test_g67_a_result_that_still_exists_stays_as_it_is() -> None:
    """A task with two results makes others each time; one of them has a copy elsewhere."""

    def body() -> list[Any]:
        one, two = making(count_two).remote()
        before = minray.get(reading(first).remote(two))
        lose()
        made(one, two)
        lose(name="spare1")
        return [before, *values_of(one, two, one)]

    assert lineage(body)[0] == [11, 30, 11, 30]


def test_g67_a_result_that_is_lost_while_its_task_runs_for_another_one_is_made_after_that() -> None:
    @minray.remote(num_returns=2)
    def two() -> list[Any]:
        count = judge.kept["count"] = judge.kept.get("count", 0) + 1
        time.sleep(5 if count > 1 else 0)
        return [np.full(SIZE, 10 * count, np.uint8), np.full(SIZE, 10 * count + 1, np.uint8)]

    def body() -> list[Any]:
        one, other = making(two).remote()
        minray.get(reading(first).remote(other))
        lose()
        lose(name="n2")
        return values_of(one, other)

    assert lineage(body)[0] == [20, 31]


def test_g67_a_crash_while_one_result_is_made_again_leaves_the_other_where_it_is() -> None:
    """The only copy of the other one is on the node where the worker dies."""

    def body() -> list[Any]:
        one, two = making(count_two).remote()
        made(one, two)
        judge.kept["add"] = True
        minray.get(reading(first).remote(two))
        judge.kept["kill"] = True
        time.sleep(1)
        return values_of(one, two)

    def strike(cluster: Cluster) -> None:
        if judge.kept.pop("add", None):
            cluster.add_node("n2", num_cpus=2, resources={"making": 2, "reading": 2})
        if judge.kept.pop("kill", None):
            cluster.raylet("n1").kill()
            cluster.when("PushTask reply").of("worker").kill()
        cluster.world.loop.world.call_later(0.05, strike, cluster)

    nodes = [{"num_cpus": 0}, MAKER]
    assert lineage(body, strike, nodes=nodes)[0] == [30, 11]


def test_g66_a_copy_elsewhere_is_enough() -> None:
    def body() -> list[Any]:
        ref = making(make).remote(3)
        minray.get(reading(first).remote(ref))
        lose()
        return values_of(ref)

    assert lineage(body) == ([3], {"make 3": 1})


# --- what cannot be made again


def test_g70_each_time_uses_up_a_retry() -> None:
    def body() -> list[Any]:
        never, once, always = (making(make, max_retries=n).remote(n % 7) for n in (0, 1, -1))
        made(never, once, always)
        found = []
        for name in ("n1", "spare1", "spare2"):
            lose(name=name)
            made(never, once, always)
            found.append([reason_of(never), reason_of(once), *values_of(always)])
            time.sleep(1)
        return found

    fates = [["RETRIES_DISABLED", "none", 6], ["RETRIES_DISABLED", "MAX_ATTEMPTS_EXCEEDED", 6]]
    values, runs = lineage(body)
    assert values[0] == fates[0]
    assert values[1:] == fates[:1] * 2 or values[1:] == fates[1:] * 2  # the driver's own copy may be the one that is left
    assert runs["make 0"] == 1 and runs["make 1"] <= 2


def test_g70_without_retries_left_the_reason_says_so() -> None:
    def body() -> list[str]:
        ref = making(make, max_retries=1).remote(1)
        made(ref)
        lose()
        made(ref)
        lose(name="spare1")
        return [reason_of(ref), reason_of(ref), outcome_of(reading(first).remote(ref)), outcome_of(first.remote([ref]))]

    wrapped = f"RayTaskError({LOST})"
    assert lineage(body) == (["MAX_ATTEMPTS_EXCEEDED"] * 2 + [wrapped] * 2, {"make 1": 2})


def test_g70_an_argument_that_only_lineage_needs_runs_out_of_retries_too() -> None:
    """Once it cannot be made again its value is kept; then that is lost as well."""

    def body() -> list[str]:
        one = making(make, max_retries=1).remote(1)
        two = making(add, max_retries=-1).remote(one)
        made(two)
        del one
        found = []
        for name in ("n1", "spare1"):
            lose(name=name)
            made(two)
            found.append(name)
        return [*found, reason_of(two)]

    value, runs = lineage(body)
    assert value == ["n1", "spare1", "MAX_ATTEMPTS_EXCEEDED"] and runs == {"make 1": 2, "add [1]": 2}


@pytest.mark.parametrize("seed", SEEDS)
def test_g70_a_crash_while_it_is_made_again_uses_one_more(seed: int) -> None:
    """The worker of the second attempt dies when it answers."""

    def body() -> list[Any]:
        ref = making(make, max_retries=2).remote(1)
        made(ref)
        lose()
        return values_of(ref)

    assert lineage(body, lambda cluster: cluster.when("PushTask reply").of("worker").kill(2), seed=seed) == (
        [1],
        {"make 1": 3},
    )


def test_g68_what_was_put_cannot_be_made_again() -> None:
    """The spill file of the value is gone."""

    def body() -> list[str]:
        refs = [minray.put(np.full(4000, number, np.uint8)) for number in range(8)]
        judge.kept["spilled"] = True
        time.sleep(2)
        return sorted({reason_of(ref) for ref in refs})

    nodes = [{"num_cpus": 2, "object_store_memory": 10_000}]
    strike = lambda cluster: cluster.told("spilled", every_s=0.5).node("head").lose_files()  # noqa: E731
    assert lineage(body, strike, {"min_spilling_size": 4000}, nodes=nodes)[0] == ["PUT", "none"]


def test_g72_when_there_are_too_many_the_older_half_is_forgotten() -> None:
    def body() -> list[str]:
        refs = [making(make).remote(number) for number in range(6)]
        for ref in refs:
            made(ref)
        lose()
        return [reason_of(ref) for ref in refs]

    found, _ = lineage(body, config={"max_lineage_bytes": 5500})
    assert found == ["LINEAGE_EVICTED"] * 4 + ["none"] * 2


def test_g72_so_are_arguments_that_only_a_remembered_task_needs() -> None:
    def body() -> list[str]:
        one = making(make).remote(1)
        made(one)
        two = making(add).remote(one)
        made(two)
        del one
        others = [making(make).remote(number) for number in range(4)]
        made(*others)
        del others
        lose()
        return [reason_of(two)]

    assert lineage(body, config={"max_lineage_bytes": 1500})[0] == ["LINEAGE_EVICTED"]


def test_g72_what_only_a_forgotten_task_has_held_is_freed() -> None:
    """The judge sees whether it is; the results of that task are still here."""

    def body() -> int:
        value = minray.put(np.full(SIZE, 1, np.uint8))
        two = making(add).remote(value)
        made(two)
        del value
        others = [making(make).remote(number) for number in range(4)]
        made(*others)
        return int(outcome_of(two)[0])

    assert lineage(body, config={"max_lineage_bytes": 1500})[0] == 1


def test_g73_without_lineage_what_is_lost_is_lost() -> None:
    def body() -> list[str]:
        ref = making(make).remote(1)
        made(ref)
        lose()
        return [reason_of(ref)]

    assert lineage(body, config={"lineage_pinning_enabled": False}) == (["LINEAGE_DISABLED"], {"make 1": 1})


# --- who waits


def test_g71_only_the_owner_makes_it_again_and_everybody_gets_it() -> None:
    """The owner is a worker on the third node; the driver and another task have borrowed."""

    @minray.remote
    def own() -> list[Any]:
        ref = making(make).remote(4)
        made(ref)
        return [ref]

    def body() -> list[Any]:
        (ref,) = minray.get(reading(own).remote())
        got = values_of(ref) if judge.kept.get("got") else []
        lose(0.2)
        waiting = [first.remote([ref]), first.remote(ref)]
        return [*got, *values_of(ref), *minray.get(waiting)]

    assert lineage(body) == ([4, 4, 4], {"make 4": 2})


def test_g71_a_task_of_a_borrower_waits_until_its_argument_is_made_again() -> None:
    """And is not tried in vain all the time."""
    pushes: list[str] = []

    def submit(ref: Any) -> int:
        return int(minray.get(reading(first).remote(ref)))

    def body() -> int:
        ref = making(waver).remote("large")
        made(ref)
        borrower = reading(look_later).remote([ref], submit)
        lose_what_is_known()
        return int(minray.get(borrower))

    assert lineage(body, lambda cluster: cluster.when("PushTask").note(pushes))[0] == 2
    assert len(pushes) <= 6


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.1])
def test_g67_a_reader_at_the_moment_of_the_loss_gets_the_value_later(delay: float) -> None:
    def body() -> list[Any]:
        ref = making(make).remote(6, 20 * SIZE)
        made(ref)
        judge.kept["lose"] = "n1"
        time.sleep(0.1 - delay)
        refs = [reading(first).remote(ref), reading(first).remote([ref]), first.remote([ref])]
        ready, _ = minray.wait([ref], timeout=100)
        return [*values_of(*ready), *minray.get(refs)]

    about_objects = ("GetObject", "GetObjectLocations", "UpdateObjectLocations", "PinObjects", "ReadChunk", "PushTask")
    plan = FaultPlan({"delay": 0.5, "long_delay": 0.05}, budget=3, aims=about_objects, aimed=("long_delay",))
    value, runs = lineage(body, faults=plan)
    assert value == [6] * 4 and runs["make 6"] <= 2


def test_g67_what_is_made_again_where_it_is_awaited_stays_there() -> None:
    """A raylet has asked where it is, and has it when it hears the answer: it does not say that it has none."""

    def strike(cluster: Cluster) -> None:
        cluster.when("GetObjectLocations").delay(1.0)
        cluster.when("GetObjectLocations").then.raylet("n1").kill()

    def body() -> list[Any]:
        elsewhere = next(one["NodeID"] for one in minray.nodes() if one["NodeName"] == "n1")
        there_first = NodeAffinitySchedulingStrategy(elsewhere, soft=True)
        ref = make.options(scheduling_strategy=there_first).remote(8)
        made(ref)
        found = values_of(ref)
        time.sleep(3)
        return found + values_of(ref)

    assert lineage(body, strike, nodes=[{"num_cpus": 1}, {"num_cpus": 1}]) == ([8, 8], {"make 8": 2})


@pytest.mark.parametrize("word", ["ReadChunk reply"])
def test_g67_a_task_that_waits_for_a_lost_argument_leaves_its_place_to_the_one_that_makes_it(word: str) -> None:
    """The node dies in the middle of the transfer, or before its reader has asked, and there is only one other node."""

    def body() -> list[Any]:
        ref = making(make).remote(5, 3 * SIZE)
        made(ref)
        block = making(sleep, max_retries=0).remote(1000)
        judge.kept["add"] = True
        return [minray.get(making(first).remote(ref)), outcome_of(block)]

    def strike(cluster: Cluster) -> None:
        if judge.kept.pop("add", None):
            cluster.add_node("n2", num_cpus=1, resources={"making": 1})
            watch_sends(cluster, lambda end, message, said: said != word or kill_first(cluster, end, message))
        else:
            cluster.world.loop.world.call_later(0.1, strike, cluster)

    def kill_first(cluster: Cluster, end: Any, message: Any) -> bool:
        if judge.kept.get("killed"):
            return True
        judge.kept["killed"] = True
        cluster.raylet("n1").kill()
        cluster.world.loop.world.call_later(2, end.pipe.put, message)
        return False

    nodes = [{"num_cpus": 0}, {"num_cpus": 1, "resources": {"making": 1}}]
    assert lineage(body, strike, nodes=nodes) == ([5, "NodeDiedError"], {"make 5": 2})


@minray.remote
def sleep(seconds: float) -> None:
    time.sleep(seconds)


# --- what comes of it may be something else


@minray.remote
def waver(then: str) -> Any:
    """A large value at first, and then another thing."""
    count = judge.kept["count"] = judge.kept.get("count", 0) + 1
    if count == 1:
        return np.full(SIZE, 1, np.uint8)
    time.sleep(2)
    if then == "error":
        raise ValueError("not again")
    return np.full(SIZE if then == "large" else 1, 2, np.uint8)


@pytest.mark.parametrize(("then", "outcome"), [("error", "RayTaskError(ValueError)"), ("small", 2), ("large", 2)])
def test_g67_a_second_attempt_that_ends_otherwise_is_what_counts(then: str, outcome: Any) -> None:
    """The owner and a borrower know the object's first place, and wait there: both see its new value."""

    def body() -> list[Any]:
        ref = making(waver).remote(then)
        made(ref)
        borrower = reading(look_later).remote([ref], lambda ref: values_of(ref)[0])
        lose_what_is_known()
        direct = reading(first).remote(ref)
        return [*values_of(ref), outcome_of(borrower), outcome_of(direct)]

    assert lineage(body)[0] == [outcome] * 3


def test_g43_a_value_that_is_there_is_not_touched_by_a_cancellation_and_can_be_made_again() -> None:
    def body() -> list[Any]:
        ref = making(make).remote(2)
        made(ref)
        minray.cancel(ref)
        lose()
        return values_of(ref)

    assert lineage(body) == ([2], {"make 2": 2})


def test_g40_what_is_being_made_again_can_be_cancelled() -> None:
    def body() -> list[Any]:
        judge.kept["count"] = 0
        ref = making(waver).remote("large")
        made(ref)
        lose(0.5)
        minray.cancel(ref)
        return [outcome_of(ref), outcome_of(first.remote([ref]))]

    assert lineage(body)[0] == [INTERRUPTED] * 2


def test_why_says_that_it_is_being_made_again() -> None:
    def body() -> list[str]:
        ref = making(waver).remote("large")
        made(ref)
        lose(1.5)
        borrower = reading(ask_why).remote([ref])
        return [minray.why(ref), minray.get(borrower), str(values_of(ref))]

    mine, theirs, value = lineage(body)[0]
    assert "was lost and is being made again <- task waver" in mine and "was lost and is being made again" in theirs
    assert value == "[2]"


@minray.remote
def ask_why(refs: list[Any]) -> str:
    return minray.why(refs[0])


def test_what_is_freed_by_hand_is_not_made_again() -> None:
    def body() -> list[Any]:
        ref = making(make).remote(2)
        made(ref)
        minray.internal.free([ref])
        lose()
        return values_of(ref)

    assert lineage(body) == (["ObjectFreedError"], {"make 2": 1})


# --- under attack

WORDS = (
    "GetObjectLocations", "UpdateObjectLocations", "PinObjects", "FreeObjects", "CreateObject", "SealObject", "GetObject",
)  # fmt: skip


def repeating(cluster: Cluster) -> None:
    cluster.when(*WORDS, "PushTask").replay()


def breaking(cluster: Cluster) -> None:
    words = [f"{word}{reply}" for word in (*WORDS, "PushTask") for reply in ("", " reply")]
    cluster.when(*words).break_channels(at_most=6, one_in=3)


def work() -> list[Any]:
    """A small graph, of which half is lost and read everywhere."""
    ones = [making(make).remote(number) for number in range(3)]
    twos = [reading(add).remote(ones[0], ones[1]), making(add).remote(ones[1], [ones[2]])]
    three = making(add).remote(*twos)
    made(three)
    del ones
    lose(0.1)
    four = making(add).remote(three, [twos[1]])
    reads = [first.remote([three]), reading(first).remote(four)]
    return [*values_of(three, *twos, four), *minray.get(reads)]


@pytest.mark.parametrize("interfere", [repeating, breaking])
@pytest.mark.parametrize("seed", seeds(6))
def test_g112_late_and_repeated_messages_change_nothing(seed: int, interfere: Any) -> None:
    plan = FaultPlan({"delay": 0.2, "preempt": 0.1, "long_delay": 0.003}, budget=1)
    value, runs = lineage(work, interfere, seed=seed, faults=plan)
    assert value == [4, 1, 3, 7, 4, 7] and max(runs.values()) <= 2


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("word", ["PushTask", "CreateObject", "SealObject", "GetObjectLocations", "UpdateObjectLocations"])
def test_g67_another_node_dies_while_it_is_made_again(word: str, number: int) -> None:
    """The one that took the lost node's place, at each message of its own."""

    def strike(cluster: Cluster) -> None:
        cluster.when(word).to_node("spare1").number(number).do(judge.kept.update, {"lose": "spare1"})

    value, runs = lineage(work, strike)
    assert value == [4, 1, 3, 7, 4, 7] and max(runs.values()) <= 3
