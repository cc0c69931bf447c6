"""``Cluster``: several raylets on this machine as separate nodes, begun and ended one by one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import GetTimeoutError
from minray.protocol.gcs import EXPECTED_TERMINATION
from tests.cluster.programs import states, where
from tests.helpers import wait_for_condition


def test_nodes_are_counted_without_a_driver(ray_start_cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="no head yet"):
        ray_start_cluster.wait_for_nodes()
    head = ray_start_cluster.add_node(num_cpus=1)
    other = ray_start_cluster.add_node(num_cpus=2, resources={"a": 1}, labels={"zone": "b"}, node_name="other")
    ray_start_cluster.wait_for_nodes(timeout=5)
    ray_start_cluster.wait_for_node(other, timeout=5)
    assert not minray.is_initialized()
    assert ray_start_cluster.list_all_nodes() == [head, other]
    assert head.is_head() and not other.is_head()
    assert len({head.node_id, other.node_id, head.session_dir, other.session_dir}) == 4

    minray.init(address=ray_start_cluster.address)
    found = {node["NodeID"]: node for node in minray.nodes()}
    assert found[other.node_id]["NodeName"] == "other"
    assert found[other.node_id]["Labels"] == {"zone": "b", "ray.io/node-id": other.node_id}
    assert found[other.node_id]["Resources"]["a"] == 1
    assert [found[node.node_id]["IsHead"] for node in (head, other)] == [True, False]
    assert minray.cluster_resources()["CPU"] == 3


def test_labels_that_ray_defines_lead_tasks_to_their_nodes(ray_start_cluster: Cluster) -> None:
    ray_start_cluster.add_node(num_cpus=1)
    of_pod = {"RAY_NODE_MARKET_TYPE": "spot"}
    spot = ray_start_cluster.add_node(num_cpus=1, env_vars=of_pod, labels={"ray.io/accelerator-type": "A100"})
    minray.init(address=ray_start_cluster.address)
    for selector in (
        {"ray.io/accelerator-type": "A100"},
        {"ray.io/market-type": "!on-demand", "ray.io/accelerator-type": "in(A100,H100)"},
        {"ray.io/node-id": spot.node_id},
    ):
        assert minray.get(where.options(label_selector=selector).remote()) == spot.node_id
    labels = {node["NodeID"]: node["Labels"] for node in minray.nodes()}[spot.node_id]
    assert labels.pop("ray.io/node-id") == spot.node_id
    assert labels == {"ray.io/accelerator-type": "A100", "ray.io/market-type": "spot"}


def test_a_program_finds_the_cluster_that_it_has_made(ray_start_cluster: Cluster) -> None:
    assert (ray_start_cluster.address, ray_start_cluster.gcs_address) == (None, None)
    with pytest.raises(RuntimeError, match="no head yet"):
        ray_start_cluster.connect()
    ray_start_cluster.add_node(num_cpus=3)
    for address in ("auto", None):
        with minray.init(address) as context:
            assert context["gcs_address"] == ray_start_cluster.address and minray.cluster_resources()["CPU"] == 3
    ray_start_cluster.shutdown()
    with pytest.raises(ConnectionError, match="no running cluster"):
        minray.init("auto")


def test_waiting_for_nodes_ends_in_time(ray_start_cluster: Cluster) -> None:
    ray_start_cluster.add_node()
    node = ray_start_cluster.add_node()
    ray_start_cluster.remove_node(node)
    with pytest.raises(TimeoutError, match="counts 1 living nodes, .* not among them"):
        ray_start_cluster.wait_for_node(node, timeout=0.1)
    with pytest.raises(ValueError, match="is not a node of this cluster"):
        ray_start_cluster.remove_node(node)


def test_no_node_is_no_node_of_a_cluster_without_any(ray_start_cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="None is not a node of this cluster"):
        ray_start_cluster.remove_node(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ({"labels": {"a": 3}}, TypeError, "label"),
        ({"node_name": 3}, TypeError, "node_name must be a str, not 3"),
        ({"node_name": "\ud800"}, ValueError, "node_name cannot be encoded as UTF-8"),
        ({"node_ip_address": None}, TypeError, "ip address must be a str"),
        ({"storage": 3}, TypeError, "storage must be a str"),
        ({"tcp_host": 3}, TypeError, "tcp_host must be a str"),
        ({"env_vars": {"A": 1}}, TypeError, "env_vars must be a dict from str to str, not {'A': 1}"),
        ({"env_vars": {"A=B": "1"}}, RuntimeError, "could not be started: illegal environment variable name"),
        ({"dashboards": 1}, TypeError, "unexpected argument 'dashboards'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_process_begins(
    ray_start_cluster: Cluster, argument: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ray_start_cluster.add_node(**argument)


def test_a_node_has_variables_of_its_own(head: Cluster) -> None:
    node = head.add_node(resources={"there": 1}, env_vars={"MINRAY_TEST_NODE": "2"}, metrics_export_port=0)
    look = minray.remote(lambda: os.environ.get("MINRAY_TEST_NODE"))
    assert minray.get([look.remote(), look.options(resources={"there": 1}).remote()]) == [None, "2"]
    os.kill(node.pids()["raylet"], signal.SIGKILL)
    wait_for_condition(lambda: not head.remaining_processes_alive())


def test_the_processes_of_a_node_are_listed_by_kind(head: Cluster) -> None:
    node, first = head.add_node(), head.head_node
    assert first is not None and head.remaining_processes_alive() and first.any_processes_alive()
    assert first.all_processes.keys() == {"raylet", "gcs_server"} and node.all_processes.keys() == {"raylet"}
    raylet = node.all_processes["raylet"][0].process
    assert raylet.pid == node.pids()["raylet"] and raylet.poll() is None and raylet.returncode is None
    assert [kind for kind, _ in first.live_processes()] == ["raylet", "gcs_server"] and first.dead_processes() == []
    with pytest.raises(subprocess.TimeoutExpired):
        raylet.wait(timeout=0.01)
    raylet.kill()
    assert raylet.wait(timeout=30) == -signal.SIGKILL
    assert not node.any_processes_alive() and not node.remaining_processes_alive()
    assert [(kind, process.pid) for kind, process in node.dead_processes()] == [("raylet", raylet.pid)]
    with pytest.raises(RuntimeError, match="already dead"):
        node.kill_raylet()
    node.kill_raylet(check_alive=False)
    assert node.all_processes == {} and node.remaining_processes_alive()
    with pytest.raises(RuntimeError, match="no process of type 'raylet'"):
        node.kill_raylet(check_alive=False)


def test_a_raylet_that_was_killed_on_purpose_is_not_missed(head: Cluster) -> None:
    node = head.add_node()
    node.kill_raylet()
    assert not node.any_processes_alive() and node.remaining_processes_alive() and head.remaining_processes_alive()
    assert node.dead_processes() == [] and node.all_processes == {}


def test_a_gcs_is_down_until_it_is_started_again(ray_start_cluster: Cluster, tmp_path: Path) -> None:
    head = ray_start_cluster.add_node(num_cpus=1, storage=str(tmp_path / "gcs.sqlite"))
    node = ray_start_cluster.add_node(num_cpus=1)
    ray_start_cluster.connect()
    minray.get(where.remote())  # its function is exported then
    pid = head.all_processes["gcs_server"][0].process.pid
    head.kill_gcs_server()
    assert head.all_processes.keys() == {"raylet"} and head.remaining_processes_alive() and "gcs" not in head.pids()
    with pytest.raises(RuntimeError, match="no process of type 'gcs_server'"):
        head.kill_gcs_server()
    assert minray.get(where.remote(), timeout=30) in (head.node_id, node.node_id), "what runs goes on without a gcs"
    head.start_gcs_server()
    again = head.all_processes["gcs_server"][0].process
    assert again.pid != pid and again.poll() is None and head.pids()["gcs"] == again.pid
    with pytest.raises(RuntimeError, match="the gcs of this node lives"):
        head.start_gcs_server()
    with pytest.raises(RuntimeError, match="only the head node has a gcs"):
        node.start_gcs_server()
    ray_start_cluster.wait_for_nodes(timeout=30)
    os.kill(again.pid, signal.SIGKILL)
    wait_for_condition(lambda: head.pids().get("gcs", again.pid) != again.pid, message="one that dies is started again")
    assert minray.get([where.remote() for _ in range(4)], timeout=30)


def test_a_driver_needs_a_head_to_connect_to() -> None:
    with pytest.raises(RuntimeError, match="Cannot connect to uninitialized cluster"):
        Cluster(connect=True)


def test_a_cluster_whose_head_has_ended_takes_no_node(ray_start_cluster: Cluster) -> None:
    head = ray_start_cluster.add_node()
    head.kill_gcs_server()
    wait_for_condition(lambda: not head.pids())
    with pytest.raises(RuntimeError, match="without storage a head ends with its gcs"):
        head.start_gcs_server()
    with pytest.raises(RuntimeError, match="the head of this cluster has ended"):
        ray_start_cluster.add_node()


def test_a_cluster_that_ends_leaves_the_driver_in_the_one_that_it_has_joined_since(ray_start_cluster: Cluster) -> None:
    left = Cluster(initialize_head=True, connect=True)
    minray.shutdown()
    ray_start_cluster.add_node()
    ray_start_cluster.connect()
    left.shutdown()
    assert minray.get(where.remote()) == minray.get_runtime_context().get_node_id()


def test_what_belongs_to_the_head_is_refused_for_others(ray_start_cluster: Cluster) -> None:
    ray_start_cluster.add_node()
    with pytest.raises(ValueError, match="belong to the head"):
        ray_start_cluster.add_node(_system_config={"get_warning_s": 1.0})
    with pytest.raises(ValueError, match="has an argument of its own"):
        ray_start_cluster.add_node(resources={"CPU": 1})
    assert len(ray_start_cluster.list_all_nodes()) == 1


def test_a_removed_node_is_dead_at_once_and_says_why(head: Cluster) -> None:
    node = head.add_node(num_cpus=1)
    assert states() == {head.head_node.node_id: True, node.node_id: True}
    head.remove_node(node)
    dead = next(info for info in minray.nodes() if info["NodeID"] == node.node_id)
    assert not dead["Alive"]
    assert dead["DeathReason"] == EXPECTED_TERMINATION
    assert dead["DeathReasonMessage"] == "asked to shut down: the node was removed"
    assert node.pids() == {}
    head.wait_for_nodes(timeout=5)


def test_clusters_follow_each_other_in_one_process() -> None:
    for _ in range(2):
        cluster = Cluster(initialize_head=True, connect=True)
        assert minray.get(where.remote()) == cluster.head_node.node_id
        cluster.shutdown()
        assert not minray.is_initialized()


def test_g100_a_task_that_no_node_can_hold_waits_for_one(cluster: Cluster) -> None:
    waiting = [where.options(resources={"rare": 1}).remote() for _ in range(3)]
    with pytest.raises(GetTimeoutError):
        minray.get(waiting[0], timeout=0.1)
    wait_for_condition(lambda: "no node has rare" in minray.why(waiting[0]))
    node = cluster.add_node(num_cpus=1, resources={"rare": 1})
    assert minray.get(waiting, timeout=10) == [node.node_id] * 3


def test_g100_a_task_too_large_for_every_node_waits_for_one(head: Cluster) -> None:
    waiting = where.options(num_cpus=4).remote()
    wait_for_condition(lambda: "the most that a node has is {CPU: 1}" in minray.why(waiting))
    node = head.add_node(num_cpus=4)
    assert minray.get(waiting, timeout=10) == node.node_id
