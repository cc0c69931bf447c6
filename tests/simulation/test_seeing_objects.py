"""Objects as people see them, and freeing by hand, in clusters where values above a hundred bytes are large."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minray
from minray.core_worker.introspection import stats
from minray.exceptions import GetTimeoutError
from minray.experimental import get_object_locations
from minray.internal import free
from minray.simulation import FaultPlan
from minray.util.state import get_objects, list_objects, summarize_objects
from minray.util.state.exception import RayStateApiException
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

LARGE = {"max_direct_call_object_size": 100}
SIZE = 2000
HERE, THERE, ELSEWHERE = ({"num_cpus": 2, "resources": {name: 4}} for name in ("here", "there", "elsewhere"))
FREED, FREED_ARGUMENT = "ObjectFreedError", "RayTaskError(ObjectFreedError)"


@minray.remote(max_retries=0)
def make(size: int = SIZE, seconds: float = 0) -> Any:
    time.sleep(seconds)
    return np.zeros(size, np.uint8)


@minray.remote(max_retries=0)
def add_up(array: Any) -> int:
    return int(array.sum())


@minray.remote(max_retries=0)
def read(refs: list[Any], seconds: float = 0) -> int:
    array = minray.get(refs[0])
    time.sleep(seconds)
    return int(array.sum())


@minray.remote(max_retries=0)
def hold(refs: list[Any], seconds: float) -> int:
    time.sleep(seconds)
    return len(refs)


@minray.remote(max_retries=0)
def free_elsewhere(refs: list[Any]) -> list[Any]:
    free(refs)
    return [outcome_of(ref) for ref in refs]


@minray.remote(max_retries=0)
def locate_elsewhere(refs: list[Any]) -> list[tuple[int, int | None]]:
    found = get_object_locations(refs)
    return [(len(found[ref]["node_ids"]), found[ref]["object_size"]) for ref in refs]


@minray.remote(max_retries=0)
def own_one() -> list[Any]:
    return [put()]


def at(function: Any, place: str) -> Any:
    return function.options(resources={place: 1})


def put(value: int = 0) -> Any:
    return minray.put(np.full(SIZE, value, np.uint8))


def seen(body: Callable[[], Any], strike: Any = None, **options: Any) -> Any:
    """Return the result of a body on three nodes with one resource each."""
    result, _ = judged(body, strike, nodes=[HERE, THERE, ELSEWHERE], **{"system_config": LARGE, **options})
    return result


# --- locations


def test_each_node_that_has_a_copy_is_a_location_the_first_one_first() -> None:
    def body() -> list[Any]:
        ref = at(make, "there").remote()
        minray.wait([ref], fetch_local=False)
        nodes = {node["NodeID"]: name for node in minray.nodes() for name in node["Resources"] if name.endswith("here")}
        before = get_object_locations([ref])[ref]
        minray.get([at(add_up, "elsewhere").remote(ref), at(add_up, "here").remote(ref)])
        time.sleep(1)
        after = get_object_locations([ref])[ref]
        return [[nodes[node_id] for node_id in found["node_ids"]] for found in (before, after)]

    before, after = seen(body)
    assert before == ["there"] and after[0] == "there" and set(after) == {"here", "there", "elsewhere"}


def test_what_is_small_or_not_made_or_failed_is_nowhere() -> None:
    def body() -> list[Any]:
        small, late, failed = minray.put(1), make.remote(seconds=5), read.remote([])
        minray.wait([failed])
        found = get_object_locations([small, late, failed])
        sizes = [found[ref]["object_size"] for ref in (small, late, failed)]
        return [sizes, {(tuple(one["node_ids"]), one["did_spill"]) for one in found.values()}]

    sizes, others = seen(body)
    assert sizes[0] > 0 and sizes[1:] == [None, None] and others == {((), False)}


def test_a_borrower_asks_the_owner() -> None:
    def body() -> list[Any]:
        return minray.get(at(locate_elsewhere, "there").remote([put(), minray.put(1)]))  # type: ignore[no-any-return]

    (nodes, size), (nowhere, small) = seen(body)
    assert nodes == 1 and size >= SIZE and nowhere == 0 and 0 < small < 100


def test_an_owner_that_does_not_answer_is_not_waited_for_longer_than_allowed() -> None:
    def body() -> float:
        (ref,) = minray.get(at(own_one, "there").remote())
        began = time.monotonic()
        with pytest.raises(GetTimeoutError):
            get_object_locations([ref], timeout_ms=1500)
        return round(time.monotonic() - began, 1)

    assert seen(body, lambda cluster: cluster.when("GetObjectLocations").lose_all()) == 1.5


def test_an_object_of_a_dead_owner_is_left_out() -> None:
    def body() -> list[Any]:
        (ref,) = minray.get(at(own_one, "there").remote())
        before = len(get_object_locations([ref])[ref]["node_ids"])
        judge.kept["owner"] = ref.owner_address().worker_id
        while "killed" not in judge.kept:
            time.sleep(0.1)
        return [before, get_object_locations([ref])]

    def strike(cluster: Cluster) -> None:
        names = [name for name, core in cluster.cores.items() if core.process.address.worker_id == judge.kept.get("owner")]
        if names:
            cluster.process(names[0]).kill()
            judge.kept["killed"] = True
        else:
            cluster.world.loop.world.call_later(0.1, strike, cluster)

    try:
        assert seen(body, strike) == [1, {}]
    finally:
        judge.kept.clear()


# --- the state


def test_all_processes_tell_what_they_refer_to_and_why() -> None:
    def body() -> dict[str, set[tuple[str, str, str]]]:
        shared, inner, passed = put(1), minray.put("inner"), put(2)
        outer = minray.put([inner])
        pending = [at(hold, "there").remote([shared], 10), at(read, "elsewhere").remote([passed], 10)]
        inner_id, value = inner.hex(), minray.get(shared)
        del inner
        time.sleep(3)
        names = {shared.hex(): "shared", inner_id: "inner", passed.hex(): "passed", outer.hex(): "outer"}
        names |= {ref.hex(): "pending" for ref in pending}
        found: dict[str, set[tuple[str, str, str]]] = {}
        for state in list_objects():
            found.setdefault(names[state.object_id], set()).add((state.type, state.reference_type, state.task_status))
        assert value[0] == 1
        return found

    assert seen(body) == {
        "shared": {("DRIVER", "PINNED_IN_MEMORY", "NIL"), ("WORKER", "USED_BY_PENDING_TASK", "NIL")},
        "inner": {("DRIVER", "CAPTURED_IN_OBJECT", "NIL")},
        "outer": {("DRIVER", "LOCAL_REFERENCE", "NIL")},
        "passed": {("DRIVER", "USED_BY_PENDING_TASK", "NIL"), ("WORKER", "PINNED_IN_MEMORY", "NIL")},
        "pending": {("DRIVER", "LOCAL_REFERENCE", "SUBMITTED_TO_WORKER")},
    }


def test_states_are_filtered_cut_and_summed_up() -> None:
    def body() -> list[Any]:
        refs = [put(), minray.put(1), make.remote(), make.remote(seconds=20)]
        minray.wait(refs[2:3])
        made = [state.attempt_number for state in list_objects(filters=[("task_status", "=", "finished")])]
        not_local = list_objects(filters=[("reference_type", "!=", "local_reference")])
        largest = [state.object_id for state in list_objects(limit=2)]
        one = [(state.object_size, state.reference_type) for state in get_objects(refs[3].hex())]
        summary = summarize_objects()["cluster"]
        return [made, not_local, set(largest) == {refs[0].hex(), refs[2].hex()}, one, summary["total_objects"]]

    assert seen(body) == [[1], [], True, [(-1, "LOCAL_REFERENCE")], 4]


def test_an_answer_has_the_largest_ones_and_that_something_is_missing_is_an_error() -> None:
    def body() -> list[Any]:
        refs = [put() for _ in range(3)] + [minray.put(number) for number in range(7)]
        try:
            list_objects()
        except RayStateApiException as error:
            complaint = str(error)
        largest = {state.object_id for state in list_objects(raise_on_missing_output=False)}
        return [complaint, largest == {ref.hex() for ref in refs[:3]}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "MOST_ENTRIES", 3)
        complaint, are_largest = seen(body)
    assert complaint.startswith("7 references or copies are left out") and are_largest


def test_call_sites_are_told_when_they_are_recorded_and_forgotten_with_the_reference() -> None:
    clusters: list[Cluster] = []

    def body() -> list[Any]:
        refs = [put(), make.remote(), minray.put([minray.put(1)])]
        inside = minray.get(refs[2])
        sites = {state.object_id: state.call_site for state in list_objects()}
        found = [sites[ref.hex()].split(" | ")[:2] for ref in [*refs, *inside]]
        refs.clear()
        inside.clear()
        time.sleep(1)
        left = [len(core.call_sites) for core in clusters[0].cores.values() if core.call_sites is not None]
        return [[(what, line.split(":")[1]) for what, line in found], sum(left), len(left) > 1]

    recording = {**LARGE, "record_ref_creation_sites": True}
    assert seen(body, clusters.append, system_config=recording) == [
        [("(put object)", "put"), ("(task call)", "body"), ("(put object)", "body"), ("(put object)", "body")],
        0,
        True,
    ]


# --- freeing by hand


@pytest.mark.parametrize("who", ["owner", "borrower"])
def test_what_was_freed_is_an_error_for_everybody(who: str) -> None:
    def body() -> list[Any]:
        refs = [put(3), minray.put(3), at(make, "elsewhere").remote()]
        minray.get([at(add_up, "elsewhere").remote(refs[0]), at(add_up, "there").remote(refs[2])])
        if who == "owner":
            free(refs)
            at_borrower = [FREED] * 3
        else:
            at_borrower = minray.get(at(free_elsewhere, "there").remote(refs))
        argument = [outcome_of(at(add_up, place).remote(ref)) for ref in refs for place in ("here", "there")]
        inside = [outcome_of(at(read, place).remote([ref])) for ref in refs for place in ("here", "elsewhere")]
        assert get_object_locations(refs) == {}
        return [at_borrower, [outcome_of(ref) for ref in refs], set(argument), set(inside)]

    assert seen(body) == [[FREED] * 3, [FREED] * 3, {FREED_ARGUMENT}, {FREED_ARGUMENT}]


def test_the_memory_of_what_was_freed_goes_at_once_although_there_are_references() -> None:
    clusters: list[Cluster] = []

    def copies() -> int:
        time.sleep(1)
        return sum(len(raylet.store.table) for raylet in clusters[0].raylets.values())

    def body() -> list[Any]:
        refs = [put(1), put(2)]
        minray.get([at(add_up, place).remote(refs[0]) for place in ("there", "elsewhere")])
        before, array = copies(), minray.get(refs[1])
        free(refs[0])
        after = copies()
        free(refs[1])
        read_still = copies(), int(array[0])
        del array
        return [before, after, read_still, copies(), len(refs)]

    assert seen(body, clusters.append) == [4, 1, (1, 2), 0, 2]


def test_what_was_inside_a_freed_value_lives_as_long_as_the_reference_to_that() -> None:
    def body() -> list[Any]:
        outer = minray.put([put(4), "x" * SIZE])
        inner = minray.get(outer)[0]
        free(outer)
        return [outcome_of(outer), int(minray.get(inner)[0])]

    assert seen(body) == [FREED, 4]


def test_an_object_that_is_not_made_yet_is_freed_for_good() -> None:
    def body() -> list[Any]:
        refs = [make.remote(size, 5) for size in (SIZE, 1)]
        waiting = [add_up.remote(refs[0]), at(read, "there").remote(refs)]
        time.sleep(1)
        free(refs)
        at_once = [outcome_of(ref, timeout=1) for ref in refs]
        time.sleep(10)
        return [at_once, [outcome_of(ref) for ref in refs], [outcome_of(ref) for ref in waiting]]

    assert seen(body) == [[FREED] * 2, [FREED] * 2, [FREED_ARGUMENT] * 2]


def test_freeing_twice_or_what_nobody_knows_changes_nothing() -> None:
    def body() -> list[Any]:
        other, ref = put(1), put(2)
        free([ref, ref])
        free(ref)
        free([])
        with pytest.raises(TypeError, match="free takes ObjectRefs"):
            free([ref, 1])  # type: ignore[list-item]
        return [outcome_of(ref), int(minray.get(other)[0])]

    assert seen(body) == [FREED, 1]


def test_locally_only_copies_that_are_not_needed_go() -> None:
    clusters: list[Cluster] = []

    def copies() -> int:
        return len(clusters[0].raylets["head"].store.table)

    def body() -> list[Any]:
        own, fetched, used = put(1), at(make, "there").remote(), at(make, "there").remote()
        array = minray.get([fetched, used])[1]
        time.sleep(1)
        before = copies()
        free([own, fetched, used], local_only=True)
        time.sleep(1)
        after = copies(), [len(one["node_ids"]) for one in get_object_locations([own, fetched, used]).values()]
        again = [int(value.sum()) for value in minray.get([own, fetched])], copies()
        return [before, after, again, array.sum()]

    assert seen(body, clusters.append) == [3, (2, [1, 1, 2]), ([SIZE, 0], 3), 0]


WORDS = ["DeleteObjects", "EvictObjects", "FreeObjects", "PinObjects", "GetObjectLocations", "ReadChunk"]


def breaking(cluster: Cluster) -> None:
    cluster.when(*WORDS, "DeleteObjects reply").break_channels(at_most=8)


def repeating(cluster: Cluster) -> None:
    cluster.when(*WORDS).replay(one_in=1)


@pytest.mark.parametrize("interfere", [None, breaking, repeating])
@pytest.mark.parametrize("seed", seeds(4))
def test_freeing_races_with_readers_pulls_and_results(seed: int, interfere: Any) -> None:
    """A reader gets the value or the error meanwhile, and the error later; nothing is left (S5, S6, L2)."""

    def body() -> list[Any]:
        refs = [put(1), at(make, "there").remote(SIZE * 3), at(make, "elsewhere").remote(SIZE, 0.01)]
        early = [at(read, place).remote([ref]) for ref in refs for place in ("there", "elsewhere", "here")]
        time.sleep(0.004 * seed)
        freeing = at(free_elsewhere, "there").remote(refs)
        first = {outcome_of(ref) for ref in early}
        at_borrower = minray.get(freeing)
        return [first, at_borrower, {outcome_of(at(read, "elsewhere").remote([ref])) for ref in refs}]

    plan = FaultPlan({"delay": 0.3, "preempt": 0.1}, budget=0)
    first, at_borrower, later = seen(body, interfere, seed=seed, faults=plan)
    assert first <= {SIZE, 0, FREED_ARGUMENT}
    assert (at_borrower, later) == ([FREED] * 3, {FREED_ARGUMENT})
