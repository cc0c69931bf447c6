"""``minray drain-node``: a node that is told to leave the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main
from minray.cluster_utils import Cluster
from minray.protocol.gcs import DRAINED_PREEMPTED
from tests.cluster.command_line import CommandLine
from tests.cluster.programs import on, states
from tests.helpers import wait_for_condition

PREEMPTION = "DRAIN_NODE_REASON_PREEMPTION"


def drain(cluster: Cluster, node_id: str, *options: str, reason: str = PREEMPTION) -> str:
    """Run ``minray drain-node`` in this process and return its output."""
    where = [f"--address={cluster.address}", f"--node-id={node_id}", f"--reason={reason}", "--reason-message=spot price"]
    return CliRunner().invoke(main, ["drain-node", *where, *options]).output


@minray.remote(max_retries=0)
def meet(directory: str) -> str:
    """Ends when it is told to."""
    here = minray.get_runtime_context().get_node_id()
    Path(directory, "begun").write_text(here)
    wait_for_condition(Path(directory, "end").exists, timeout_s=60)
    return here


@minray.remote(max_retries=0)
def make() -> numpy.ndarray:
    return numpy.arange(100_000)


def test_g21_a_node_leaves_when_what_runs_there_has_ended(head: Cluster, tmp_path: Path) -> None:
    node = head.add_node(num_cpus=1)
    there = on(node.node_id, soft=True)
    value = make.options(scheduling_strategy=there).remote()
    minray.wait([value], fetch_local=False)
    running = meet.options(scheduling_strategy=there).remote(str(tmp_path))
    wait_for_condition(Path(tmp_path, "begun").exists)
    assert "it is not idle" in drain(head, node.node_id, reason="DRAIN_NODE_REASON_IDLE_TERMINATION")
    assert "is draining" in drain(head, node.node_id)
    elsewhere = make.options(scheduling_strategy=there).remote()
    assert minray.get(elsewhere)[-1] == 99_999 and states()[node.node_id]
    Path(tmp_path, "end").touch()
    assert minray.get(running) == node.node_id
    wait_for_condition(lambda: not states()[node.node_id])
    gone = next(one for one in minray.nodes() if one["NodeID"] == node.node_id)
    assert (gone["DeathReason"], gone["DeathReasonMessage"]) == (DRAINED_PREEMPTED, "spot price")
    assert minray.get(value)[-1] == 99_999, "handed over, since nobody may make it again"
    assert "or has left the cluster" in drain(head, node.node_id)


@pytest.mark.parametrize(
    ("node_id", "options", "complaint"),
    [
        ("nonsense", [], "'nonsense' is not the id of a node, 32 hex digits"),
        ("00" * 16, ["--deadline-remaining-seconds=-1"], "-1 is not in the range"),
        ("", [], "it is the head"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(head: Cluster, node_id: str, options: list[str], complaint: str) -> None:
    assert head.head_node is not None
    assert complaint in drain(head, node_id or head.head_node.node_id, *options)


def test_sigterm_drains_a_node_that_blocks_and_the_command_waits_for_one(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    joined = [f"--address={head.gcs_address}", "--num-cpus=1", "--block", "--drain-on-sigterm=60"]
    with minray_command.popen("start", *joined, "--node-name=blocks") as blocks:
        assert blocks.stdout is not None and blocks.stderr is not None
        assert blocks.stdout.readline().startswith("Joined the cluster")
        blocks.terminate()
        assert blocks.wait(60) == 0
        assert blocks.stderr.read() == "Draining the node, for at most 60 s.\n"
    node = minray_command.join(head)
    terms = [f"--reason={PREEMPTION}", "--reason-message=enough", "--deadline-remaining-seconds=60"]
    told = minray_command("drain-node", *terms, "--wait")
    assert told == f"Node {node.node_id} has left the cluster.\n", "the node of this machine that is no head"
    nodes = json.loads(minray_command("status", "--format=json"))["nodes"]
    causes = {entry["node_name"]: entry["death_cause"] for entry in nodes if entry["state"] == "DEAD"}
    assert causes == {"blocks": "its machine is taken away (SIGTERM)", node.node_name: "enough"}
    refused = minray_command.run("drain-node", *terms)
    assert "0 nodes of this machine can be drained; name one with --node-id" in refused.stderr


def test_a_drain_at_sigterm_needs_a_process_that_stays(minray_command: CommandLine) -> None:
    assert "give both" in minray_command.run("start", "--head", "--drain-on-sigterm=5").stderr
