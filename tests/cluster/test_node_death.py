"""The death of nodes: what is lost, what is tried again, and what goes on (design: who survives whom)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import NodeDiedError, OwnerDiedError, TaskUnschedulableError
from minray.util import PlacementGroupSchedulingStrategy, placement_group, placement_group_table, remove_placement_group
from tests.cluster.programs import is_running, on, read_pid, states, stay, stay_at_first, where
from tests.helpers import wait_for_condition


@pytest.mark.parametrize("graceful", [True, False])
def test_g102_affinity_to_a_dead_node_fails_if_hard_and_goes_elsewhere_if_soft(head: Cluster, graceful: bool) -> None:
    node = head.add_node(num_cpus=1)
    head.remove_node(node, allow_graceful=graceful)
    wait_for_condition(lambda: not states()[node.node_id])
    assert minray.get(where.options(scheduling_strategy=on(node.node_id, soft=True)).remote()) == head.head_node.node_id
    with pytest.raises(TaskUnschedulableError, match=r"(?s)node affinity: node .* is dead"):
        minray.get(where.options(scheduling_strategy=on(node.node_id)).remote())


def test_g17_a_task_without_retries_dies_with_its_node(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    ref = stay.options(scheduling_strategy=on(node.node_id)).remote(str(tmp_path / "pid"))
    read_pid(tmp_path / "pid")
    node.kill_raylet()
    with pytest.raises(NodeDiedError, match=node.node_id):
        minray.get(ref, timeout=10)


def test_g16_a_task_is_tried_again_when_its_node_dies(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    path = tmp_path / "first"
    ref = stay_at_first.options(scheduling_strategy=on(node.node_id, soft=True)).remote(str(path))
    wait_for_condition(path.exists)
    assert path.read_text() == node.node_id
    cluster.remove_node(node, allow_graceful=False)
    assert minray.get(ref, timeout=10) == cluster.head_node.node_id


def test_g109_work_goes_on_when_nodes_die(cluster: Cluster) -> None:
    doomed = [cluster.add_node(num_cpus=1) for _ in range(2)]

    @minray.remote(max_retries=-1)
    def square(number: int) -> int:
        return number * number + 0 * sum(range(50_000))

    refs = [square.remote(number) for number in range(600)]
    for index, node in enumerate(doomed):
        minray.get(refs[100 * index + 20])
        cluster.remove_node(node, allow_graceful=False)
    assert minray.get(refs, timeout=30) == [number * number for number in range(600)]


def test_g76_small_results_survive_the_death_of_their_node(head: Cluster) -> None:
    node = head.add_node(num_cpus=1, resources={"a": 1})

    @minray.remote(resources={"a": 1})
    def make() -> bytes:
        return bytes(100_000)

    ref = make.remote()
    minray.wait([ref])
    head.remove_node(node, allow_graceful=False)
    assert minray.get(ref, timeout=10) == bytes(100_000)


def test_g108_a_killed_node_is_dead_and_its_id_never_returns(head: Cluster) -> None:
    node = head.add_node(num_cpus=1, resources={"a": 1})
    worker_pid = minray.get(minray.remote(os.getpid).options(resources={"a": 1}).remote())
    head.remove_node(node, allow_graceful=False)
    wait_for_condition(lambda: not states()[node.node_id])
    assert not is_running(worker_pid)
    again = head.add_node(num_cpus=1, resources={"a": 1})
    assert again.node_id != node.node_id
    assert minray.get(where.options(resources={"a": 1}).remote()) == again.node_id
    assert states() == {head.head_node.node_id: True, node.node_id: False, again.node_id: True}


def test_g62_an_object_dies_with_the_node_of_its_owner(head: Cluster) -> None:
    node = head.add_node(num_cpus=1, resources={"a": 1})

    @minray.remote(resources={"a": 1})
    def lend() -> list[minray.ObjectRef[int]]:
        return [minray.put(number) for number in range(2)]

    @minray.remote
    def take(number: int) -> int:
        return number

    first, second = minray.get(lend.remote(), timeout=10)
    assert minray.get(first, timeout=10) == 0
    head.remove_node(node, allow_graceful=False)
    with pytest.raises(OwnerDiedError):
        minray.get(second, timeout=10)
    with pytest.raises(OwnerDiedError):
        minray.get(take.remote(second), timeout=10)


def test_g107_the_bundles_of_a_dead_node_move_to_another_one(head: Cluster, tmp_path: Path) -> None:
    nodes = [head.add_node(num_cpus=1) for _ in range(2)]
    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    assert group.wait(30)
    places = placement_group_table(group)["bundles_to_node_id"]
    lost = next(index for index, node_id in places.items() if node_id == nodes[0].node_id)
    kept = next(index for index, node_id in places.items() if node_id == nodes[1].node_id)
    path = tmp_path / "first"
    surviving = stay_at_first.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, lost)).remote(str(path))
    wait_for_condition(path.exists)
    head.remove_node(nodes[0], allow_graceful=False)
    wait_for_condition(lambda: placement_group_table(group)["state"] == "RESCHEDULING")
    there = PlacementGroupSchedulingStrategy(group, kept)
    assert minray.get(where.options(scheduling_strategy=there).remote()) == places[kept]
    new = head.add_node(num_cpus=1)
    assert minray.get(surviving, timeout=30) == new.node_id
    assert group.wait(30) and placement_group_table(group)["bundles_to_node_id"] == {**places, lost: new.node_id}
    remove_placement_group(group)
    wait_for_condition(lambda: minray.available_resources() == minray.cluster_resources())
