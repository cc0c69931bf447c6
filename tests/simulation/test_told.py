"""Cancellations that are not repeated, and calls that are taken although their caller has given them up, are seen."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

import minray
from minray.core_worker.introspection.task_event_buffer import TaskEventBuffer
from minray.core_worker.submission.outcomes import TaskOutcomes
from minray.simulation import Deadlock, SimCluster
from tests.simulation.invariants import Watch
from tests.simulation.told import Told


@dataclass
class Caller:
    """The process that makes calls."""

    worker_id: bytes = b"caller"


@dataclass
class Header:
    """The part of calls that all calls of a method share."""

    owner: Caller = field(default_factory=Caller)


@dataclass
class Stream:
    """The calls of one caller."""

    number: int = 1


@dataclass
class Request:
    """A call, or the news that the calls of a stream are given up."""

    stream: int = 1
    header: bytes = b"header"
    task_id: bytes = b"t" * 24
    caller: Caller = field(default_factory=Caller)


class Receiver:
    """An actor's receiver that takes every call."""

    def __init__(self) -> None:
        self._headers = {b"header": Header()}
        self._streams = {b"caller": Stream()}

    def handle_GiveUpCalls(self, request: Request) -> None:
        """Take no note."""

    def handle_PushActorTask(self, request: Request, call: None) -> None:
        """Take the call."""


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


async def tell_nothing(self: Any) -> None:
    """Leave without a word."""


def test_a_driver_that_leaves_without_telling_of_its_failures_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 1):
        if count:
            monkeypatch.setattr(TaskEventBuffer, "hand_over", tell_nothing)
        with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
            watch = Watch(cluster)
            cluster.run(lambda: rest.remote() and time.sleep(0.5))
            cluster.settle(1)
            assert len([one for one in watch.problems if "has not told of 1 failed tasks" in one]) == count


def test_g39b_a_call_of_a_stream_that_was_given_up_is_seen() -> None:
    said: list[str] = []
    told = Told(lambda number, _: said.append(number))
    receiver: Any = Receiver()
    told._watch_streams(receiver)
    receiver.handle_PushActorTask(Request(), None)
    assert said == []
    receiver.handle_GiveUpCalls(Request())
    receiver.handle_PushActorTask(Request(), None)
    assert said == ["G39b"]
    receiver._streams[b"caller"].number = 2
    receiver.handle_PushActorTask(Request(), None)
    assert said == ["G39b"]
