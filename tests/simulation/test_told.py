"""Cancellations that are not repeated, and calls that are taken although their caller has given them up, are seen."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest

import minray
from minray.core_worker.submission.outcomes import TaskOutcomes
from minray.simulation import Deadlock, SimCluster
from tests.simulation.invariants import Watch
from tests.simulation.told import Told


@minray.remote
def rest() -> None:
    time.sleep(3)


def cancel() -> None:
    ref = rest.remote()
    time.sleep(0.5)
    minray.cancel(ref)
    time.sleep(5)


async def ask_nobody(self: Any, task: Any, _force: bool, _recursive: bool) -> None:
    """End as if the cancellation had been answered."""


def test_g41_a_cancellation_that_does_not_arrive_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ([], ["G41"]):
        if said:
            monkeypatch.setattr(TaskOutcomes, "_cancel_pushed", ask_nobody)
        with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
            watch = Watch(cluster)
            driver = cluster.start_driver(cancel)
            with contextlib.suppress(Deadlock):
                cluster.wait_until(driver.done, 10)
            assert [problem.partition(":")[0] for problem in watch.problems] == said


def test_g39b_a_call_of_a_stream_that_was_given_up_is_seen() -> None:
    said: list[str] = []
    told = Told(lambda number, _: said.append(number))
    caller = SimpleNamespace(worker_id=b"caller")
    receiver: Any = SimpleNamespace(
        handle_GiveUpCalls=lambda request: None,
        handle_PushActorTask=lambda request, call: None,
        _headers={b"header": SimpleNamespace(owner=caller)},
        _streams={b"caller": SimpleNamespace(number=1)},
    )
    told._watch_streams(receiver)
    call = SimpleNamespace(header=b"header", stream=1, task_id=b"t" * 24)
    receiver.handle_PushActorTask(call, None)
    assert said == []
    receiver.handle_GiveUpCalls(SimpleNamespace(caller=caller, stream=1))
    receiver.handle_PushActorTask(call, None)
    assert said == ["G39b"]
    receiver._streams[b"caller"].number = 2
    receiver.handle_PushActorTask(call, None)
    assert said == ["G39b"]
