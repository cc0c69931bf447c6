"""Breakpoints of a cluster with several nodes, some of which may be on other machines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

import minray
from minray.cli import debug
from minray.cli.main import main
from minray.cluster_utils import Cluster
from minray.node.discovery import NodeFile, find_nodes
from tests.debugging.terminals import attached, wait_for_breakpoints, wait_for_no_sockets

pytestmark = pytest.mark.slow


@minray.remote
def wait(number: int) -> int:
    breakpoint()
    return number


def without(name: str) -> Callable[[], list[NodeFile]]:
    """``find_nodes`` as it is on a machine that does not have this node."""
    return lambda: [file for file in find_nodes() if file.node_name != name]


def test_all_nodes_are_listed_and_those_of_other_machines_need_a_shell_there(
    head: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.add_node(num_cpus=1, node_name="second", resources={"second": 1})
    refs = [wait.remote(1), wait.options(resources={"second": 1}).remote(2)]
    here, there = sorted(wait_for_breakpoints(2), key=lambda one: one.node.name == "second")
    monkeypatch.setattr(debug, "find_nodes", without("second"))
    listed = CliRunner().invoke(main, ["debug", "--list"])
    assert listed.exit_code == 0 and "2 breakpoints\n" in listed.output  # beside what the workers say
    assert f"second ({there.node.ip})" in listed.output and f"{here.node.name} ({here.node.ip})" not in listed.output
    refused = CliRunner().invoke(main, ["debug", there.at.id])
    assert refused.exit_code == 1 and f"log in there and run: minray debug {there.at.id}" in refused.output
    monkeypatch.undo()
    for one in (here, there):
        with attached(one) as terminal:
            terminal.type("c")
    assert minray.get(refs) == [1, 2]
    wait_for_no_sockets()
