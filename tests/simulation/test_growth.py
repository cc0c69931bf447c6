"""A task costs the same number of messages, however large the cluster is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import minray
from minray.common.config import SystemConfig
from minray.protocol.gcs import PollReply
from minray.rpc.pubsub import Publisher
from minray.simulation import SimCluster
from tests.simulation.interference import watch_sends

SLOT: Mapping[str, Any] = {"num_cpus": 2}
NO_SLOT: Mapping[str, Any] = {"num_cpus": 0}
TASKS = 400
PERIOD_S = SystemConfig().raylet_report_resources_period_milliseconds / 1000
PER_NODE = ("Poll", "ReportResources", "CheckAlive")
"""Messages between nodes and the gcs, whether or not there are tasks."""


@minray.remote
def nap() -> None:
    time.sleep(0.05)


def messages_of_tasks(nodes: Sequence[Mapping[str, Any]]) -> tuple[Counter[str], float]:
    """Run short tasks on started workers; return the requests by method, and the seconds."""
    count: Counter[str] = Counter()

    def program() -> tuple[Counter[str], float]:
        minray.get([nap.remote() for _ in range(20 * len(nodes))])
        time.sleep(5)
        count.clear()
        begun_at = time.time()
        minray.get([nap.remote() for _ in range(TASKS)])
        return Counter(count), time.time() - begun_at

    def counted(_end: Any, _message: Any, word: str) -> bool:
        count[word] += not word.endswith(" reply")
        return True

    with SimCluster(nodes, 1) as cluster:
        watch_sends(cluster, counted)
        return cluster.run(program)


def test_what_tasks_cost_does_not_depend_on_how_many_other_nodes_there_are() -> None:
    few, few_s = messages_of_tasks([SLOT] * 4)
    many, many_s = messages_of_tasks([SLOT] * 4 + [NO_SLOT] * 96)
    assert few["PushTask"] == TASKS
    for word in PER_NODE:
        del few[word], many[word]
    assert many == few
    assert many_s == few_s


def test_each_node_hears_of_the_others_so_many_times_a_second_however_many_there_are() -> None:
    nodes = 100
    count, seconds = messages_of_tasks([SLOT] * nodes)
    assert count["PushTask"] == TASKS
    assert count["Poll"] <= nodes * (1 + seconds / PERIOD_S)
    assert count["ReportResources"] <= nodes * (2 + seconds / PERIOD_S)


def test_nodes_on_which_nothing_changes_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report of a node would otherwise reach every other node: the square of their number, although nothing happens."""
    told: list[bytes] = []
    poll = Publisher.poll

    async def counted(self: Publisher, request: Any) -> PollReply:
        reply = await poll(self, request)
        told.extend(key for key, _ in reply.entries)
        return reply

    monkeypatch.setattr(Publisher, "poll", counted)

    def program() -> int:
        minray.get(nap.remote())
        time.sleep(10)
        before = len(told)
        time.sleep(60)
        return len(told) - before

    with SimCluster([SLOT] * 20, 1) as cluster:
        assert cluster.run(program) == 0
    assert len(told) > 20 * 20, "at the start each node hears of all"
