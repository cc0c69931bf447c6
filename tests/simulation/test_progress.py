"""Progress: planted bugs that let something wait that could go on, or count what is not there, in an otherwise right run."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import minray
from labs.lab import Hole, load, names
from minray.common.resources import add
from minray.core_worker.execution.actor_process import ConcurrencyGroup
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.submission.actor_task_submitter import ActorTaskSubmitter
from minray.core_worker.submission.generators import Generators
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.gcs.actor_scheduler import ActorScheduler
from minray.gcs.placement_group_scheduler import PlacementGroupScheduler
from minray.object_manager.pull_manager import PullManager
from minray.object_store.store import ObjectStore
from minray.raylet.local_object_manager import LocalObjectManager
from minray.raylet.worker_pool import WorkerPool
from minray.rpc.batch import Batch
from minray.scheduling import local_lease_manager
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler
from minray.scheduling.local_lease_manager import LocalLeaseManager
from minray.scheduling.local_resource_manager import LocalResourceManager
from minray.simulation import Deadlock, SimCluster
from minray.util.placement_group import placement_group, remove_placement_group
from tests.simulation import insides, progress_of_gcs, progress_of_nodes, sums
from tests.simulation.invariants import Watch

MEGABYTE = 1 << 20
NODES = [{"num_cpus": 2, "num_gpus": 2, "object_store_memory": 8 * MEGABYTE}, {"num_cpus": 2, "resources": {"other": 2}}]


@minray.remote
def rest(seconds: float) -> None:
    time.sleep(seconds)


@minray.remote
def take(values: Any) -> int:
    time.sleep(0.1)
    return len(values)


@minray.remote(num_cpus=0)
class Desk:
    """An actor that runs two calls at once."""

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)


@minray.remote
def count() -> Iterator[int]:
    yield from range(6)


@minray.remote(num_returns="streaming", resources={"other": 1})
def count_largely() -> Iterator[Any]:
    for _ in range(3):
        yield numpy.zeros(MEGABYTE, numpy.uint8)
        time.sleep(0.2)


def work() -> None:
    for _ in range(2):
        minray.get([rest.remote(0.2) for _ in range(6)])
        time.sleep(0.5)


def use_gpus() -> None:
    minray.get([rest.options(num_gpus=0.5).remote(0.2) for _ in range(3)])
    time.sleep(1)


def read_from_afar() -> None:
    ref = make_large.options(resources={"other": 1}).remote()
    minray.get(take.options(num_cpus=1).remote(ref))
    minray.get(ref)


@minray.remote
def make_large() -> Any:
    return numpy.zeros(MEGABYTE, numpy.uint8)


def fill_the_store() -> None:
    refs = [minray.put(numpy.zeros(2 * MEGABYTE, numpy.uint8)) for _ in range(6)]
    minray.get(refs[0])
    del refs
    time.sleep(3)


def call() -> None:
    desk = Desk.options(max_concurrency=2).remote()
    minray.get([desk.rest.remote(0.1) for _ in range(6)])


def read_slowly() -> None:
    for item in count.options(_generator_backpressure_num_objects=1).remote():
        minray.get(item)
        time.sleep(0.1)


def read_large_items() -> None:
    items = list(count_largely.remote())
    time.sleep(1)
    del items


def group_twice() -> None:
    for _ in range(2):
        group = placement_group([{"CPU": 1}] * 2, "SPREAD")
        group.wait(5)
        remove_placement_group(group)


def want_a_new_node() -> None:
    desk = Desk.options(resources={"new": 1}).remote()
    minray.get(desk.rest.remote(0))


def drop_many() -> None:
    for _ in range(5):
        refs = [make_large.options(resources={"other": 1}).remote() for _ in range(2)]
        minray.wait(refs, num_returns=2, fetch_local=False)
        del refs
        time.sleep(0.1)


def problems_of(body: Callable[[], None]) -> str:
    """Problems that are seen while a program runs, for at most 40 s; a node joins after 5 s."""
    with SimCluster(NODES, 1, show_output=False) as cluster:
        watch = Watch(cluster)
        driver = cluster.start_driver(body)
        cluster.world.loop.world.call_later(5, lambda: cluster.add_node("n2", num_cpus=1, resources={"new": 1}))
        with contextlib.suppress(Deadlock):
            cluster.wait_until(lambda: driver.done() or bool(watch.problems), 40)
        return "\n".join(watch.problems)


def nothing(*_: Any) -> None:
    """Do nothing."""


def one_at_a_time(self: Any, shape: Any, now: float, assignment: Any) -> Any:
    return BEST(self, shape, now, assignment) if not self.leases else None


BEST = LocalLeaseManager._best_of


def end_only(self: Any, task: Any) -> None:
    self.running -= 1
    self._on_over(task)


def free_sums_only(self: Any, demand: Any, _gpus: Any) -> None:
    add(self.available, demand)


def put_silently(self: Any, object_id: bytes, stored: Any) -> None:
    self.objects.setdefault(object_id, stored)


def forget_size(self: Any, task: Any, request: Any, stored: Any) -> None:
    ON_ITEM(self, task, request, stored)
    task.stream.has_large = False


ON_ITEM = Generators._on_item


def keep(self: Any, items: Any) -> None:
    self._waiting.extend(items)


BUGS: dict[str, tuple[Any, str, Any, Callable[[], None], str]] = {
    "one lease at a time": (LocalLeaseManager, "_best_of", one_at_a_time, work, "head lets the lease .* wait, which fits"),
    "no other node": (
        ClusterResourceScheduler, "others_with_room", lambda *_: [], work, "lets the lease .* wait, and n1 has room",
    ),
    "no idle worker": (WorkerPool, "_newest_idle", nothing, work, "wait for a worker, and one is idle"),
    "no new worker": (WorkerPool, "_start_missing", nothing, work, "starts 0 workers, and . leases wait"),
    "no spilling": (LocalObjectManager, "_is_short", lambda *_: False, fill_the_store, "is short of memory"),
    "a copy that came": (ObjectStore, "_serve", nothing, read_from_afar, "lets requests wait for .*, which is here"),
    "no pull begins": (PullManager, "_advance", nothing, read_from_afar, "brings nothing here"),
    "no group": (PlacementGroupScheduler, "_assign", nothing, group_twice, "lets the placement group .* wait, which fits"),
    "nobody woken": (PlacementGroupScheduler, "_wake", nothing, group_twice, "lets requests wait for placement group"),
    "no news of nodes": (ActorScheduler, "on_nodes_changed", nothing, want_a_new_node, "holds the actor .* for impossible"),
    "idle workers": (NormalTaskSubmitter, "_may_take", lambda *_: False, work, "a worker that it has leased .* is idle"),
    "workers kept": (NormalTaskSubmitter, "_return_idle", nothing, work, "keeps . idle workers, and no task waits"),
    "no push": (ActorTaskSubmitter, "_flush", nothing, call, "lets calls of actor .* wait, which can be reached"),
    "held up": (Generators, "_let_go", nothing, read_slowly, "has forgotten a WaitForReader"),
    "full group": (ConcurrencyGroup, "_end", end_only, call, "lets . calls of group '' wait, and runs"),
    "silent value": (MemoryStore, "put", put_silently, call, "lets 1 wait for .*, which is here"),
    "words kept": (Batch, "add", keep, drop_many, "lets . words for .* wait"),
    "large items": (Generators, "_on_item", forget_size, read_large_items, "does not know that the generator .* has large"),
    "leases by owner": (local_lease_manager, "_decrease", nothing, work, "wrong count of requests by use"),
    "shares of GPUs": (LocalResourceManager, "free", free_sums_only, use_gpus, "wrong count of shares of GPU"),
    "objects in files": (LocalObjectManager, "release", lambda *_: False, fill_the_store, "wrong count of objects in files"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_what_waits_without_need_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method, bug, body, said = BUGS[name]
    assert problems_of(body) == ""
    monkeypatch.setattr(owner, method, bug)
    seen = problems_of(body)
    assert re.search(said, seen), seen


class Waiting:
    """A placement group that waits for room."""

    state = "PENDING"

    def nodes(self) -> list[bytes]:
        return []


def test_a_promise_without_an_attempt_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with SimCluster(1, 1, show_output=False) as cluster:
        gcs: Any = cluster.gcs
        monkeypatch.setattr(gcs._groups, "get", lambda _: Waiting())
        assert list(progress_of_gcs.promises_of_attempts(gcs, 0.0)) == []
        gcs._group_scheduler._promised[gcs._nodes.living()[0].node_id] = {b"g" * 18: {"CPU": 1}}
        (problem,) = progress_of_gcs.promises_of_attempts(gcs, 0.0)
        assert problem.startswith("counts resources as promised")


def test_a_rule_does_not_look_into_a_closed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab's file may be of any design; ``insides`` says which rules are left out then."""
    assert insides.allowed(progress_of_nodes.RULES) == progress_of_nodes.RULES
    monkeypatch.setattr(insides, "closed", {insides.PULLS})
    left_out = {rule.__name__ for rule in (*progress_of_nodes.RULES, *sums.OF_NODES)} - {
        rule.__name__ for rules in (progress_of_nodes.RULES, sums.OF_NODES) for rule in insides.allowed(rules)
    }
    assert left_out == {"transfers"}


def test_files_that_rules_look_into_are_those_of_labs() -> None:
    files = {lab.file for lab in map(load, names()) if isinstance(lab, Hole)}
    assert {insides.LEASES, insides.PULLS, insides.SPILLING, insides.SUBMITTER, insides.CALLS, insides.ACTORS} <= files
