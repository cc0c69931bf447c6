"""Wrong figures and workers that are ended too early are seen."""

from __future__ import annotations

import time
from typing import Any

import numpy
import pytest

import minray
from minray.core_worker.submission.task_manager import TaskManager
from minray.object_manager.pull import Pull
from minray.raylet.io_workers import IoWorkers
from minray.raylet.worker_pool import WorkerPool
from tests.simulation.judge import judged

NODES = [{"num_cpus": 2, "object_store_memory": 8 << 20}, {"num_cpus": 2, "resources": {"other": 2}}]


@minray.remote(resources={"other": 1})
def make() -> Any:
    time.sleep(0.1)
    return numpy.zeros(1 << 20, numpy.uint8)


def fetch_and_fill() -> None:
    minray.get([make.remote() for _ in range(3)])
    refs = [minray.put(numpy.zeros(2 << 20, numpy.uint8)) for _ in range(6)]
    minray.get(refs[0])


def reap_all(self: Any, now: float, _free_cpus: int, threshold_s: float) -> Any:
    return REAP(self, now, -100, threshold_s)


REAP = WorkerPool.reap


def count_twice(self: Any, task: Any, new: str) -> None:
    MOVE(self, task, new)
    if new == "FINISHED":
        self.ended.finished[task.prepared.template.name] += 1


MOVE = TaskManager.move


def complete_silently(self: Any) -> None:
    before = self._manager.received_bytes
    COMPLETE(self)
    self._manager.received_bytes = before


COMPLETE = Pull._complete


def forget_what_was_spilled(self: Any) -> Any:
    self.spilled_bytes = 0
    return STATS(self)


STATS = IoWorkers.stats
BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "ended tasks": (TaskManager, "move", count_twice, "state: worker .* shows other ended tasks"),
    "received bytes": (Pull, "_complete", complete_silently, "state: .* received bytes"),
    "spilled bytes": (IoWorkers, "stats", forget_what_was_spilled, "state: .* spilled bytes"),
    "workers ended": (WorkerPool, "reap", reap_all, "L5: .* idle workers that it should keep"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_wrong_figure_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method, bug, said = BUGS[name]
    judged(fetch_and_fill, nodes=NODES)
    monkeypatch.setattr(owner, method, bug)
    with pytest.raises(AssertionError, match=said):
        judged(fetch_and_fill, nodes=NODES)
