"""The watch sees wrong victims of a lack of memory, lies about retries, impossible numbers, and changed repetitions."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import minray
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.platform.transport.queued_channel import CALL
from minray.raylet import memory_monitor
from minray.simulation import Deadlock, SimCluster
from tests.simulation.invariants import Watch
from tests.simulation.repeats import Repeats
from tests.simulation.victims import Victims


@dataclass
class Named:
    """A process, as far as rules ask for it."""

    name: str


@dataclass
class Way:
    """The pipe of a channel's end."""

    source: Named
    target: Named = field(default_factory=lambda: Named("driver"))


@dataclass(eq=False)
class ChannelEnd:
    """The sender's end of a channel."""

    pipe: Way


@dataclass
class Sent:
    """A message."""

    payload: bytes
    buffers: list[memoryview] = field(default_factory=list)
    kind: str = CALL
    method: str = "KvPut"


@dataclass
class Clock:
    """A loop that stands still."""

    ticks: int = 0


class Mute:
    """Actions of a submitter that requests nothing."""

    def request_lease(self, request: Any) -> None:
        """Request nothing."""


@minray.remote(num_cpus=0.5)
def rest(seconds: float) -> None:
    time.sleep(seconds)


def problems_without_memory() -> list[str]:
    """Problems of a node with three tasks, of which one cannot be retried, that has no memory for a while."""

    def program() -> None:
        refs = [rest.options(max_retries=-1).remote(9), rest.options(max_retries=3).remote(9.1)]
        time.sleep(0.5)
        minray.get([*refs, rest.options(max_retries=0, num_cpus=0.25).remote(9)])

    with SimCluster([{"num_cpus": 2}], 1, system_config={"memory_monitor_refresh_ms": 50}, show_output=False) as cluster:
        watch, node = Watch(cluster), cluster.world.nodes["head"]
        driver = cluster.start_driver(program)
        with contextlib.suppress(Deadlock):
            cluster.wait_until(driver.done, 2)
        node.memory_used = node.memory_bytes * 97 // 100
        with contextlib.suppress(Deadlock):
            cluster.wait_until(lambda: bool(watch.problems), 0.5)
        return watch.problems


def test_g89_the_wrong_victim_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems_without_memory() == []
    monkeypatch.setattr(memory_monitor, "choose_victim", lambda all_of_them: all_of_them[-1] if all_of_them else None)
    assert any("kills worker" in problem for problem in problems_without_memory())


def test_g89_a_lie_about_retries_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    request = NormalTaskSubmitter._request

    def lie(self: Any, key: Any, *args: Any) -> None:
        left, key.queue[0].retries_left = key.queue[0].retries_left, max(0, key.queue[0].retries_left)
        act, self._actions = self._actions, Mute()
        request(self, key, *args)
        key.queue[0].retries_left, self._actions = left, act
        act.request_lease(next(reversed(key.requests.values())))

    monkeypatch.setattr(NormalTaskSubmitter, "_request", lie)
    assert any("is for what can be retried, and denies that" in problem for problem in problems_without_memory())


def test_a_lie_about_the_tasks_that_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    request = NormalTaskSubmitter._request

    def lie(self: Any, key: Any, *args: Any) -> None:
        act, self._actions = self._actions, Mute()
        request(self, key, *args)
        self._actions, said = act, next(reversed(key.requests.values()))
        said.backlog += 1
        act.request_lease(said)

    monkeypatch.setattr(NormalTaskSubmitter, "_request", lie)
    assert any("says that 1 more tasks wait, not 0" in problem for problem in problems_without_memory())


def test_a_wrong_reason_for_a_kill_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_monitor, "describe_choice", lambda victim, _: f"{victim.pid} is killed: it was idle")
    assert any("and says: the node has" in problem for problem in problems_without_memory())


def message(payload: bytes, *buffers: bytes) -> Sent:
    return Sent(payload, [memoryview(one) for one in buffers])


def test_g112_a_request_that_loses_its_buffers_when_it_is_repeated_is_seen() -> None:
    said: list[str] = []
    repeats = Repeats(lambda _, text: said.append(text), {})
    for number, one in enumerate((message(b"a", b"large"), message(b"b"), message(b"a", b"large"), message(b"a"))):
        repeats.on_send(ChannelEnd(Way(Named("worker"))), one, number << 20)
        assert bool(said) == (number == 3)


@pytest.mark.parametrize(("numbers", "is_seen"), [([{"CPU": 0.5}], False), ([{"CPU": -0.5}], True), ([3, [-1]], True)])
def test_an_amount_below_zero_is_seen(numbers: Any, is_seen: bool) -> None:
    said: list[str] = []
    loop: Any = Clock()
    end, sent = ChannelEnd(Way(Named("raylet/head"))), Sent(msgspec.msgpack.encode(numbers))
    Victims(lambda _, text: said.append(text), loop).on_send(end, sent, "GetNodeStats reply", dict)
    assert bool(said) == is_seen
