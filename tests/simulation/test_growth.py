"""A task costs the same number of messages, however large the cluster is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import minray
from minray.common.config import SystemConfig
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
