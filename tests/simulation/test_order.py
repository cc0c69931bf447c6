"""The watch sees what is served before its turn: planted bugs in the queues of raylets, owners and the gcs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.gcs.placement_group_manager import PlacementGroupManager
from minray.raylet.worker_pool import WorkerPool
from minray.scheduling.local_lease_manager import LocalLeaseManager
from minray.simulation import Deadlock, SimCluster
from minray.util.placement_group import placement_group, remove_placement_group
from tests.simulation.invariants import Watch


@minray.remote(max_calls=1)
def rest(seconds: float) -> None:
    time.sleep(seconds)


def work() -> None:
    minray.get([rest.remote(0.2) for _ in range(8)])


def queue_for_groups() -> None:
    first, *others = [placement_group([{"CPU": 2}]) for _ in range(3)]
    first.wait(5)
    remove_placement_group(first)
    time.sleep(1)
    for group in others:
        remove_placement_group(group)


def last_first(self: Any, request: Any) -> tuple[int, int, int]:
    return 0, 0, -self._queued[request.lease_id][0]


def put_first(self: Any, lease_id: bytes, binding: Any) -> None:
    self._waiting = {lease_id: binding, **self._waiting}
    self._failures_before[lease_id] = self.starts.in_all


def line_up_first(self: Any, task: Any, _now: float) -> None:
    key = self._enqueue(task)
    key.queue.appendleft(task)
    self._assign_soon(key)


def newest_first(self: Any) -> Any:
    return [self._groups[group_id] for waiting in self._waiting.values() for group_id in reversed(waiting)]


BUGS: dict[str, tuple[Any, str, Any, Callable[[], None], str]] = {
    "turns": (LocalLeaseManager, "_rank", last_first, work, "S8: head serves lease"),
    "workers": (WorkerPool, "request", put_first, work, "S8: head grants lease"),
    "tasks": (NormalTaskSubmitter, "on_task_ready", line_up_first, work, "S8: task"),
    "groups": (PlacementGroupManager, "waiting", newest_first, queue_for_groups, "S8: placement group"),
}


@pytest.mark.parametrize("name", BUGS)
def test_s8_what_overtakes_its_like_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method, bug, body, said = BUGS[name]
    assert problems_of(body) == ""
    monkeypatch.setattr(owner, method, bug)
    assert said in problems_of(body)


def problems_of(body: Callable[[], None]) -> str:
    with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
        watch = Watch(cluster)
        driver = cluster.start_driver(body)
        with contextlib.suppress(Deadlock):
            cluster.wait_until(lambda: driver.done() or bool(watch.problems), 40)
        return "\n".join(watch.problems)
