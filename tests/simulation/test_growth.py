"""A task costs the same number of messages, however large the cluster is, and what a node hears of others is bounded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import minray
from minray.common.config import SystemConfig
from minray.protocol.gcs import NODES, RESOURCES
from minray.rpc import pubsub
from minray.simulation import SimCluster
from tests.simulation.interference import watch_sends
from tests.simulation.scale import CountedCluster, measure

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


def test_idle_nodes_are_told_nothing_of_each_other() -> None:
    """Each report of a node would otherwise reach every other node: the square of their number, although nothing happens."""
    nodes = 12
    with CountedCluster(nodes) as cluster:
        counts = cluster.counts

        def program() -> int:
            minray.get(nap.remote())
            time.sleep(10)
            before = counts.values.copy()
            time.sleep(30)
            return (counts.values - before).total()

        assert cluster.run(program) == 0
    assert counts.values[NODES] >= nodes * nodes, "at the start each node hears of all"


@pytest.mark.parametrize("nodes", [8, 24])
def test_what_a_node_hears_of_others_does_not_grow_with_their_number(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes have news in each period; a node hears of four others in a period, on average."""
    most, periods = 4, 40
    monkeypatch.setattr(pubsub, "NEWS_IN_A_PERIOD", most)
    with CountedCluster(nodes) as cluster:

        def program() -> int:
            time.sleep(5)
            before = cluster.counts.values[RESOURCES]
            for _ in range(periods):
                for raylet in cluster.raylets.values():
                    raylet._local_gc.shortages += 1
                    raylet._reporter.changed()
                time.sleep(PERIOD_S)
            return cluster.counts.values[RESOURCES] - before

        told = cluster.run(program)
        assert nodes * most * periods / 2 <= told <= nodes * (most * periods + 2 * nodes) < nodes * nodes * periods


def test_the_messages_and_steps_of_a_task_do_not_grow_with_the_cluster() -> None:
    few, many = (measure(nodes, 10 * nodes) for nodes in (10, 40))
    assert many.counts.words["PushTask"] == many.tasks
    assert many.counts.words.total() / many.tasks < 1.1 * few.counts.words.total() / few.tasks
    assert many.steps / many.nodes < 1.1 * few.steps / few.nodes
