"""Objects without memory: data larger than the store, disks that fail, and what is left of it all (G75-G85)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import minray
from minray.exceptions import ObjectStoreFullError, OutOfDiskError
from minray.simulation import FaultPlan
from minray.simulation.faults import DISK
from minray.simulation.trace import STATE
from tests.seeds import seeds
from tests.simulation.judge import judged, printed
from tests.simulation.roles import Cluster

STORE_BYTES = 100_000
WORDS = 1000
"""Numbers of 8 bytes in an object."""
LOST = "ObjectReconstructionFailedError"
"""Outcome of a value that is lost and was put."""
SPILLING = {"max_direct_call_object_size": 100, "min_spilling_size": 16_000}


@minray.remote
def make(number: int) -> Any:
    return np.full(WORDS, number)


@minray.remote
def total(*arrays: Any) -> int:
    return sum(int(array.sum()) for array in arrays)


def put_many(count: int) -> list[Any]:
    return [minray.put(np.full(WORDS, number)) for number in range(count)]


def value_of(ref: Any) -> Any:
    """The number that an array is made of, or the name of the error."""
    try:
        array = minray.get(ref)
    except minray.exceptions.RayError as error:
        return type(error).__name__
    assert (array == array[0]).all()
    return int(array[0])


def spilled(
    body: Callable[[], Any],
    strike: Callable[[Cluster], None] | None = None,
    nodes: int = 1,
    system: Mapping[str, Any] = SPILLING,
    **options: Any,
) -> tuple[Any, Cluster]:
    """A judged run on nodes with small stores; afterwards there is neither a copy nor a file."""
    described = [{"num_cpus": 2, "object_store_memory": STORE_BYTES}] * nodes
    result, cluster = judged(body, strike, nodes=described, system_config=dict(system), **options)
    for name, raylet in cluster.raylets.items():
        if f"raylet/{name}" in cluster.alive():
            assert (len(raylet.store.table), raylet.store.table.allocator.used) == (0, 0)
            assert raylet.io_workers._manager._files == {} and not raylet.io_workers._tasks
        assert cluster.world.nodes[name].files == {}
    return result, cluster


def workers_of(cluster: Cluster, node: str = "head") -> Any:
    return cluster.raylets[node].io_workers


def struck(**switches: Any) -> Callable[[Cluster], None]:
    """The head's disk has these faults from the beginning."""

    return lambda cluster: cluster.node("head").set(**switches)


# --- More data than memory ---


@pytest.mark.parametrize("factor", [2, 10])
def test_g78_data_many_times_larger_than_the_store_stays_readable(factor: int) -> None:
    count = factor * STORE_BYTES // (8 * WORDS)

    def body() -> list[int]:
        refs = put_many(count)
        return [value_of(ref) for ref in refs] + [value_of(ref) for ref in reversed(refs)]

    values, cluster = spilled(body)
    assert values == [*range(count), *reversed(range(count))]
    workers = workers_of(cluster)
    assert workers.spilled_bytes >= (count - STORE_BYTES // (8 * WORDS)) * 8 * WORDS
    assert workers.spilled_objects <= count, "what was restored is not written again"


def test_g78_results_and_arguments_of_tasks_are_spilled_and_restored_too() -> None:
    def body() -> int:
        refs = [make.remote(number) for number in range(40)]
        minray.wait(refs, num_returns=40)
        sums = [total.remote(*refs[start : start + 4]) for start in range(0, 40, 4)]
        return sum(minray.get(sums))

    result, cluster = spilled(body)
    assert result == WORDS * sum(range(40))
    assert workers_of(cluster).spilled_objects > 20 and workers_of(cluster).restored_objects > 10


def test_g86_arguments_of_long_tasks_do_not_chase_each_other_away() -> None:
    """Those that have come early stay until their tasks have their turn, when it is known how long that takes."""

    @minray.remote
    def slow_total(*arrays: Any) -> int:
        time.sleep(3)
        return sum(int(array.sum()) for array in arrays)

    def body() -> list[int]:
        refs = put_many(40)
        return minray.get([slow_total.remote(*refs[first : first + 2]) for first in range(0, 40, 2)])

    result, cluster = spilled(body)
    assert result == [WORDS * (2 * first + 1) for first in range(0, 40, 2)]
    restored = [event for event in cluster.trace.events if event.kind == STATE and event.details[3] == "RESTORING"]
    assert 20 <= len(restored) <= 60


def test_g75_a_spilled_object_is_restored_and_not_made_again() -> None:
    @minray.remote
    def noted(number: int) -> Any:
        print("made", number)
        return np.full(WORDS, number)

    def body() -> list[int]:
        refs = [noted.remote(number) for number in range(30)]
        minray.wait(refs, num_returns=len(refs))
        return [value_of(ref) for ref in refs]

    values, cluster = spilled(body)
    assert values == list(range(30))
    assert len(printed(cluster)) == 30


def test_g84_concurrent_readers_restore_an_object_once() -> None:
    def body() -> list[int]:
        first, *_ = refs = put_many(20)
        sums = minray.get([total.remote(first) for _ in range(8)])
        del refs
        return sums

    sums, cluster = spilled(body)
    assert sums == [0] * 8
    assert workers_of(cluster).restored_objects == 1


def test_another_node_reads_from_the_file() -> None:
    def body() -> list[int]:
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        refs = put_many(30)
        return minray.get([total.options(scheduling_strategy=there).remote(ref) for ref in refs])

    sums, cluster = spilled(body, nodes=2)
    assert sums == [WORDS * number for number in range(30)]
    workers = workers_of(cluster)
    assert workers.restored_objects == 0 and workers.streamed_bytes > 18 * 8 * WORDS


def test_objects_of_many_pieces_arrive_in_chunks_of_any_size() -> None:
    words = 400_000
    system = {**SPILLING, "object_manager_default_chunk_size": 700_001}

    def body() -> list[int]:
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        refs = [minray.put(np.arange(number, number + words)) for number in range(4)]
        return minray.get([total.options(scheduling_strategy=there).remote(ref) for ref in refs])

    nodes = [{"num_cpus": 2, "object_store_memory": 7_000_000}] * 2
    sums, cluster = judged(body, nodes=nodes, system_config=system)
    assert sums == [sum(range(number, number + words)) for number in range(4)]
    assert workers_of(cluster).streamed_bytes > 8 * words


# --- Memory that is not there ---


def test_g80_what_is_being_read_stays_and_who_needs_its_memory_hears_why() -> None:
    def body() -> tuple[str, int]:
        arrays = [minray.get(ref) for ref in put_many(12)]
        with pytest.raises(ObjectStoreFullError, match="12 objects, of which 12 are being read or written") as caught:
            put_many(1)
        assert all((array == number).all() for number, array in enumerate(arrays))
        del arrays
        return str(caught.value), value_of(put_many(3)[2])

    (text, value), _ = spilled(body, system={**SPILLING, "automatic_object_spilling_enabled": False})
    assert "The disk does not help" not in text and value == 2


def test_a_spilled_object_for_which_there_is_no_room_is_not_lost() -> None:
    def body() -> tuple[str, int]:
        refs = put_many(30)
        held = [minray.get(ref) for ref in refs[:12]]
        time.sleep(5)
        refused = value_of(refs[20])
        del held
        return refused, value_of(refs[20])

    def fill_the_disk(cluster: Cluster) -> None:
        cluster.wait_until(lambda: len(cluster.raylets["head"].store.table._by_pin) == 12)
        cluster.node("head").set(disk_full=True)

    assert spilled(body, fill_the_disk)[0] == ("ObjectStoreFullError", 20)


# --- Memory on disk ---


def test_g79_when_all_memory_is_in_use_new_objects_get_memory_on_disk() -> None:
    def body() -> tuple[list[float], str]:
        arrays = [minray.get(ref) for ref in put_many(12)]
        waited, more = [], []
        for number in range(12, 16):
            began = time.monotonic()
            more.append(minray.put(np.full(WORDS, number)))
            waited.append(time.monotonic() - began)
        arrays += [minray.get(ref) for ref in more]
        assert all((array == number).all() for number, array in enumerate(arrays))
        summary = minray.internal.memory_summary(stats_only=True)
        del arrays
        assert [value_of(ref) for ref in [*more, *put_many(3)]] == [12, 13, 14, 15, 0, 1, 2]
        return waited, summary

    (waited, summary), _ = spilled(body)
    assert 2 <= waited[0] < 3 and max(waited[1:]) < 0.1, "the others need not wait for what does not come"
    assert "32768 B of memory on disk (4 objects)" in summary


def test_g79_results_and_arguments_of_tasks_may_be_in_memory_on_disk() -> None:
    def body() -> list[int]:
        arrays = [minray.get(ref) for ref in put_many(12)]
        sums = minray.get([total.remote(make.remote(number)) for number in range(4)])
        del arrays
        return list(sums)

    assert spilled(body)[0] == [WORDS * number for number in range(4)]


def test_g79_a_spilled_object_is_restored_into_memory_on_disk() -> None:
    def body() -> list[int]:
        refs = put_many(30)
        held = [minray.get(ref) for ref in refs[:12]]
        values = [value_of(ref) for ref in refs[12:]]
        del held
        return values

    assert spilled(body)[0] == list(range(12, 30))


def test_g79_an_object_larger_than_the_store_gets_memory_on_disk_at_once_and_travels() -> None:
    def body() -> tuple[float, list[int]]:
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        began = time.monotonic()
        ref = minray.put(np.full(2 * STORE_BYTES, 1, np.uint8))
        waited = time.monotonic() - began
        return waited, minray.get([total.remote(ref), total.options(scheduling_strategy=there).remote(ref)])

    (waited, sums), _ = spilled(body, nodes=2)
    assert waited < 0.1 and sums == [2 * STORE_BYTES] * 2


@pytest.mark.parametrize("trouble", ["disk_full", "disk_broken"])
def test_g79_without_room_on_disk_the_error_names_the_largest_objects(trouble: str) -> None:
    def body() -> str:
        refs = put_many(12)
        arrays = minray.get(refs)
        with pytest.raises((OutOfDiskError, ObjectStoreFullError)) as caught:
            put_many(1)
        assert all(ref.hex() in str(caught.value) for ref in refs[:5])
        del arrays
        return f"{type(caught.value).__name__} {caught.value}"

    text, _ = spilled(body, struck(**{trouble: True}))
    kind, words = {
        "disk_full": ("OutOfDiskError", "no space left on device"),
        "disk_broken": ("ObjectStoreFullError", "input/output error"),
    }[trouble]
    assert kind in text and f"8192 bytes could not be reserved in spill/0: {words}" in text


def test_g79_memory_on_disk_goes_with_its_reader_and_with_its_node() -> None:
    def body() -> str:
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        ref = make.options(scheduling_strategy=there, max_retries=0).remote(0)
        big = big_there.options(scheduling_strategy=there, max_retries=0).remote()
        minray.wait([ref, big], num_returns=2, fetch_local=False)
        time.sleep(30)
        return str(value_of(big))

    def strike(cluster: Cluster) -> None:
        cluster.wait_until(lambda: bool(cluster.world.nodes["n1"].reserved.get("raylet/n1")))
        cluster.raylet("n1").kill()
        assert not cluster.world.nodes["n1"].reserved["raylet/n1"]

    assert spilled(body, strike, nodes=2)[0] in {LOST, "NodeDiedError", "WorkerCrashedError", "TaskUnschedulableError"}


@minray.remote
def big_there() -> Any:
    return np.zeros(2 * STORE_BYTES, np.uint8)


def test_g79_creating_waits_for_a_slow_disk_longer_than_the_grace_period() -> None:
    def body() -> float:
        began = time.monotonic()
        refs = put_many(40)
        assert [value_of(ref) for ref in refs] == list(range(40))
        return time.monotonic() - began

    waited_s, _ = spilled(body, faults=FaultPlan({"slow_disk": 1.0}), settle_s=60)
    assert waited_s > 12


# --- Disks that fail ---


def test_a_full_disk_is_named_with_what_helps() -> None:
    def body() -> str:
        refs = []
        with pytest.raises(OutOfDiskError) as caught:
            for number in range(30):
                refs.append(minray.put(np.full(WORDS, number)))
        assert [value_of(ref) for ref in refs] == list(range(len(refs)))
        return str(caught.value)

    text, _ = spilled(body, struck(disk_full=True))
    assert "no space left on device" in text and "object_spilling_directory" in text and "bytes are in use" not in text


def test_g83_what_fits_on_a_full_disk_is_there_and_the_rest_in_memory() -> None:
    def body() -> int:
        refs = []
        with pytest.raises(OutOfDiskError):
            for number in range(60):
                refs.append(minray.put(np.full(WORDS, number)))
        assert value_of(refs[0]) == "ObjectStoreFullError", "neither memory nor disk has room for any change"
        del refs[-1]
        assert [value_of(ref) for ref in refs] == list(range(len(refs)))
        return len(refs)

    count, cluster = spilled(body, struck(disk_bytes=60_000))
    assert count == 12 + 7 - 1 and workers_of(cluster).spilled_objects == 7


def test_a_full_disk_that_has_room_again_is_used_again() -> None:
    def body() -> list[int]:
        refs = put_many(12)
        with pytest.raises(OutOfDiskError):
            put_many(1)
        time.sleep(20)
        refs += put_many(20)
        return [value_of(ref) for ref in refs]

    def strike(cluster: Cluster) -> None:
        cluster.node("head").set(disk_full=True)
        cluster.until(lambda: workers_of(cluster).trouble is not None).wait(10)
        cluster.node("head").set(disk_full=False)

    assert spilled(body, strike)[0] == [*range(12), *range(20)]


def test_a_disk_that_cannot_be_written_keeps_objects_in_memory() -> None:
    def body() -> list[int]:
        refs = put_many(12)
        with pytest.raises(ObjectStoreFullError, match="input/output error.*object_spilling_directory"):
            put_many(1)
        return [value_of(ref) for ref in refs]

    assert spilled(body, struck(disk_broken=True))[0] == list(range(12))


def break_after_spilling(cluster: Cluster, fault: Callable[[Any], None]) -> None:
    cluster.wait_until(lambda: workers_of(cluster).spilled_objects > 10)
    fault(cluster.world.nodes["head"])


@pytest.mark.parametrize("fault", ["torn", "unreadable", "removed", "damaged"])
def test_a_file_that_is_not_what_was_written_means_lost_objects(fault: str) -> None:
    def damage(node: Any) -> None:
        if fault == "unreadable":
            node.disk_broken = True
        for name, content in list(node.files.items()):
            if fault == "removed":
                del node.files[name]
            elif fault == "damaged":
                node.files[name] = content[:-1] + bytes([content[-1] ^ 1])

    def strike(cluster: Cluster) -> None:
        cluster.node("head").set(disk_tears=fault == "torn")
        break_after_spilling(cluster, damage)

    def body() -> list[Any]:
        refs = put_many(25)
        time.sleep(5)
        return [value_of(ref) for ref in refs]

    values, cluster = spilled(body, strike)
    assert {LOST} < {*values[:20]} | {LOST} and LOST in values
    assert all(value in (number, LOST) for number, value in enumerate(values))
    told = [event for event in cluster.trace.events if "is lost" in str(event.details)]
    assert len(told) == values.count(LOST), "each is told once"


def test_a_lost_file_is_no_loss_if_another_node_has_a_copy() -> None:
    def body() -> list[Any]:
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        refs = put_many(4)
        keeper = total.options(scheduling_strategy=there)
        assert minray.get([keeper.remote(ref) for ref in refs])
        others = put_many(20)
        time.sleep(5)
        values = [value_of(ref) for ref in refs]
        del others
        return values

    def strike(cluster: Cluster) -> None:
        break_after_spilling(cluster, lambda node: node.files.clear())

    assert spilled(body, strike, nodes=2)[0] == [0, 1, 2, 3]


# --- Freeing at every moment ---


@pytest.mark.parametrize("seed", seeds(5))
def test_g82_objects_may_be_freed_before_while_and_after_they_are_written_and_read(seed: int) -> None:
    def body() -> int:
        kept = []
        for round_ in range(12):
            refs = put_many(7)
            kept.append(refs[round_ % 7])
            time.sleep(0.000_05 * (seed + round_))
            sums = [total.remote(ref) for ref in refs[::3]]
            del refs
            minray.wait(sums, num_returns=1)
        return sum(value_of(ref) for ref in kept)

    result, _ = spilled(body, seed=seed, faults=FaultPlan.quiet())
    assert result == sum(round_ % 7 for round_ in range(12))


def test_g82_a_file_whose_objects_are_all_freed_while_it_is_written_is_removed() -> None:
    def body() -> int:
        return len(put_many(12))

    _, cluster = spilled(body, faults=FaultPlan({"slow_disk": 1.0}))
    assert workers_of(cluster).spilled_objects > 0


kept: list[Any] = []
"""Values that a driver still has when it ends."""


def test_nothing_is_left_of_a_driver_that_leaves_with_its_references() -> None:
    described = [{"num_cpus": 2, "object_store_memory": STORE_BYTES}]
    with Cluster(described, system_config=SPILLING) as cluster:
        cluster.run(lambda: kept.extend(put_many(30)))
        cluster.settle()
        kept.clear()
        assert len(cluster.raylets["head"].store.table) == 0 and cluster.world.nodes["head"].files == {}
        assert workers_of(cluster).spilled_objects > 10


@pytest.mark.parametrize("seed", seeds(12))
def test_under_all_faults_of_disks_values_are_right_or_errors_typed(seed: int) -> None:
    kind = DISK[seed % len(DISK)]

    def body() -> list[Any]:
        refs: list[Any] = []
        for number in range(30):
            try:
                refs.append(minray.put(np.full(WORDS, number)))
            except (OutOfDiskError, ObjectStoreFullError):
                refs.append(None)
        return [value_of(ref) if ref is not None else "not there" for ref in refs]

    plan = FaultPlan({**FaultPlan.quiet().rates, kind: 0.3})
    values, _ = spilled(body, seed=seed, faults=plan, settle_s=60)
    no_room = {"not there", "ObjectStoreFullError"}
    allowed = {"slow_disk": set(), "disk_full": no_room, "torn_write": {LOST}}.get(
        kind, {LOST, *no_room}
    )
    assert all(value == number or value in allowed for number, value in enumerate(values)), values


def test_a_node_that_dies_while_it_spills_leaves_no_file() -> None:
    def body() -> set[str]:
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        refs = [make.options(scheduling_strategy=there, max_retries=0).remote(number) for number in range(30)]
        minray.wait(refs, num_returns=30)
        time.sleep(30)
        return {value_of(ref) for ref in refs}

    def strike(cluster: Cluster) -> None:
        cluster.wait_until(lambda: bool(cluster.world.nodes["n1"].files))
        cluster.raylet("n1").kill()

    values, _ = spilled(body, strike, nodes=2)
    assert values & {LOST, "NodeDiedError", "WorkerCrashedError", "TaskUnschedulableError"}
