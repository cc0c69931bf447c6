"""Where tasks go when there are several nodes, and what travels between them; over unix sockets and over TCP.

One cluster serves all tests of this file: a head with one CPU, and two nodes with a resource of their own.
"""

from __future__ import annotations

import io
import itertools
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import TaskCancelledError, TaskUnschedulableError, WorkerCrashedError
from tests.cluster.programs import hold, on, read_pid, stay, where, where_all_meet
from tests.helpers import wait_for_condition


class Three:
    """The ids of the nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.head = cluster.head_node.node_id
        self.a = cluster.add_node(num_cpus=1, resources={"a": 1}, node_name="a").node_id
        self.b = cluster.add_node(num_cpus=2, resources={"b": 2}, node_name="b").node_id


@pytest.fixture(scope="module", params=["", "127.0.0.1"], ids=["unix", "tcp"])
def nodes(request: pytest.FixtureRequest) -> Generator[Three, None, None]:
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "tcp_host": request.param})
    try:
        yield Three(cluster)
    finally:
        cluster.shutdown()



def test_tasks_spill_to_other_nodes(nodes: Three, tmp_path: Path) -> None:
    places = minray.get([where_all_meet.remote(str(tmp_path), 4) for _ in range(4)])
    assert Counter(places) == {nodes.head: 1, nodes.a: 1, nodes.b: 2}


def test_g99_no_node_runs_more_than_it_has(nodes: Three, tmp_path: Path) -> None:
    @minray.remote
    def run(path: str) -> tuple[str, int]:
        """How many of these tasks have run on this node at the same time."""
        here = minray.get_runtime_context().get_node_id()
        mine = Path(path, here)
        mine.mkdir(exist_ok=True)
        (mine / str(os.getpid())).touch()
        running = max(len(list(mine.iterdir())) for _ in range(20))
        (mine / str(os.getpid())).unlink()
        return here, running

    most: dict[str, int] = {}
    for node_id, running in minray.get([run.remote(str(tmp_path)) for _ in range(300)]):
        most[node_id] = max(most.get(node_id, 0), running)
    assert most.keys() <= {nodes.head, nodes.a, nodes.b}
    assert most[nodes.head] == 1 and most.get(nodes.a, 0) <= 1 and most.get(nodes.b, 0) <= 2


def test_spread_deals_tasks_out_evenly_once_all_nodes_are_known_to_be_idle(nodes: Three, tmp_path: Path) -> None:
    spread = where_all_meet.options(scheduling_strategy="SPREAD", num_cpus=0.5)
    rounds = itertools.count()

    def is_even() -> bool:
        meeting = tmp_path / str(next(rounds))
        meeting.mkdir()
        places = minray.get([spread.remote(str(meeting), 6) for _ in range(6)])
        return sorted(Counter(places).values()) == [2, 2, 2]

    wait_for_condition(is_even)


def test_a_resource_leads_to_its_node(nodes: Three) -> None:
    for name, node_id in (("a", nodes.a), ("b", nodes.b)):
        assert set(minray.get([where.options(resources={name: 1}).remote() for _ in range(20)])) == {node_id}


def test_what_is_in_use_is_known_everywhere(nodes: Three, tmp_path: Path) -> None:
    holding = hold.options(resources={"b": 2}).remote(str(tmp_path / "gate"))
    wait_for_condition(lambda: minray.available_resources().get("b", 0) == 0)
    assert minray.cluster_resources()["b"] == 2
    wait_for_condition(lambda: minray.available_resources().get("CPU") == 3)
    (tmp_path / "gate").touch()
    minray.get(holding)
    wait_for_condition(lambda: minray.available_resources().get("b", 0) == 2)


def test_g102_affinity_waits_for_a_busy_node(nodes: Three, tmp_path: Path) -> None:
    holding = hold.options(scheduling_strategy=on(nodes.a)).remote(str(tmp_path / "gate"))
    waiting = [where.options(scheduling_strategy=on(nodes.a, soft)).remote() for soft in (False, True)]
    assert minray.wait(waiting, num_returns=2, timeout=0.2)[0] == []
    (tmp_path / "gate").touch()
    assert minray.get(waiting) == [nodes.a] * 2
    minray.get(holding)


def test_g102_affinity_to_a_node_that_never_can_fails_if_hard_and_goes_elsewhere_if_soft(nodes: Three) -> None:
    two = where.options(num_cpus=2, scheduling_strategy=on(nodes.a, soft=True))
    assert minray.get(two.remote()) == nodes.b
    with pytest.raises(TaskUnschedulableError, match=r"(?s)can never hold \{CPU: 2\}"):
        minray.get(two.options(scheduling_strategy=on(nodes.a)).remote())
    with pytest.raises(TaskUnschedulableError, match="there is no node"):
        minray.get(two.options(scheduling_strategy=on("ab" * 16)).remote())


def test_large_values_cross_nodes_as_arguments_results_and_references(nodes: Three) -> None:
    size = 20_000_000

    @minray.remote(resources={"a": 1})
    def make(size: int) -> bytes:
        return bytes(size)

    @minray.remote(resources={"b": 1})
    def measure(value: bytes, nested: list[Any]) -> tuple[int, int]:
        return len(value), len(minray.get(nested[0]))

    assert minray.get(measure.remote(make.remote(size), [make.remote(size + 1)]), timeout=30) == (size, size + 1)
    assert minray.get(measure.remote(bytes(size), [minray.put(bytes(3))]), timeout=30) == (size, 3)


def test_g101_nested_tasks_cross_nodes(nodes: Three) -> None:
    @minray.remote
    def total(depth: int) -> tuple[int, set[str]]:
        below = minray.get([total.remote(depth - 1) for _ in range(2)]) if depth else []
        places = {minray.get_runtime_context().get_node_id()}.union(*(places for _, places in below))
        return 1 + sum(count for count, _ in below), places

    count, places = minray.get(total.remote(5), timeout=60)
    assert count == 63
    assert len(places) > 1


def test_a_task_on_another_node_is_cancelled(nodes: Three, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    for force, error in ((False, TaskCancelledError), (True, (TaskCancelledError, WorkerCrashedError))):
        path.unlink(missing_ok=True)
        ref = stay.options(resources={"a": 1}).remote(str(path))
        read_pid(path)
        minray.cancel(ref, force=force)
        with pytest.raises(error):
            minray.get(ref, timeout=10)
    assert minray.get(where.options(resources={"a": 1}).remote(), timeout=10) == nodes.a


def test_what_workers_of_other_nodes_print_reaches_the_driver(nodes: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    @minray.remote
    def speak(text: str) -> None:
        print(text)

    heard = io.StringIO()
    monkeypatch.setattr("sys.stdout", heard)
    minray.get([speak.options(resources={name: 1}).remote(f"here is {name}") for name in "ab"])
    wait_for_condition(lambda: "here is a\n" in heard.getvalue() and "here is b\n" in heard.getvalue())
