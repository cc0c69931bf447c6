"""``minray health-check``: what probes ask, and how little they load for it."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minray.cli.health_check import main
from minray.node.discovery import NodeFile, find_nodes
from tests.cluster.command_line import CommandLine
from tests.helpers import wait_for_condition

MOST_MODULES = 310
"""Bound on the modules that a check loads, Python's own included. It loads 284; Ray's loads 1,800."""
SOON = "--timeout=0.5"


def health(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a check in this process; return its exit code and what it says."""
    code = 0
    with warnings.catch_warnings():  # A channel to a silent process waits for its goodbye. The end of a command closes it.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            main(arguments)
        except SystemExit as exit:
            code = int(exit.code or 0)
        gc.collect()
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@contextmanager
def stopped(pid: int) -> Generator[None, None, None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def nodes(minray_command: CommandLine) -> tuple[NodeFile, NodeFile]:
    """A head, and a node that has joined it."""
    head = minray_command.start_head()
    return head, minray_command.join(head)


def test_a_silent_process_is_not_ready_but_only_a_dead_one_is_not_alive(
    nodes: tuple[NodeFile, NodeFile], minray_command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    head, node = nodes
    assert health(capsys) == (0, f"Node {node.node_id[:8]} answers.\n"), "the newest node of this machine"
    assert health(capsys, "--liveness") == (0, f"Node {node.node_id[:8]} runs.\n")
    with stopped(minray_command.pids(head)["gcs"]):
        assert health(capsys, SOON) == (0, f"Node {node.node_id[:8]} answers.\n")
        silent = f"Node {node.node_id[:8]} runs, and its gcs does not answer.\n"
        assert health(capsys, SOON, "--liveness") == (0, silent), "a node waits for its gcs"
        assert health(capsys, SOON, f"--address={head.gcs_address}") == (1, "Error: no answer within 0.5 s\n")
    with stopped(minray_command.pids(node)["raylet"]):
        assert health(capsys, SOON) == (1, "Error: no answer within 0.5 s\n")
        assert health(capsys, SOON, "--liveness")[0] == 0, "a node that is busy is alive"
    os.kill(minray_command.pids(node)["zygote"], signal.SIGKILL)
    wait_for_condition(lambda: [file.node_id for file in find_nodes()] == [head.node_id])
    assert health(capsys, SOON) == (0, f"Node {head.node_id[:8]} answers.\n")
    with stopped(minray_command.pids(head)["gcs"]):
        for arguments in ((SOON,), (SOON, "--liveness")):
            assert health(capsys, *arguments) == (1, "Error: no answer within 0.5 s\n"), "a head is worth its gcs"


def test_a_cluster_is_there_when_its_gcs_answers_and_not_when_its_port_is_open(
    minray_command: CommandLine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        arguments = (f"--address={address}", f"--token-file={token}")
        assert health(capsys, SOON, *arguments) == (1, "Error: no answer within 0.5 s\n")
    code, said = health(capsys, *arguments)
    assert code == 1 and said.startswith(f"Error: tcp:{address}: Connect")
    waiting = minray_command.popen("health-check", "--wait=60", *arguments)
    head = minray_command.start_head(f"--port={address.rpartition(':')[2]}", f"--token-file={token}")
    assert waiting.communicate(timeout=60) == (f"The gcs at {head.gcs_address} answers.\n", "")
    token.write_text(secrets.token_hex(32))
    code, said = health(capsys, *arguments)
    assert code == 1 and "does not know its cluster token" in said


def test_wrong_options_and_machines_without_nodes(
    minray_command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health(capsys) == (1, "Error: no node that `minray start` has started runs on this machine under this user\n")
    unknown = "the token of the cluster at there:6379 is not known here: use --token-file or $MINRAY_TOKEN"
    assert health(capsys, "--address=there:6379", "--wait=60") == (1, f"Error: {unknown}\n"), "waiting does not help"
    for arguments in (("--liveness", "--address=there:1"), ("--timeout=0",), ("--wait=nan",), ("--timeout=x",), ("--what",)):
        code, said = health(capsys, *arguments)
        assert code == 2 and said.splitlines()[-1].startswith("minray health-check: error: "), arguments
    assert "health-check" in minray_command("--help")


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("MINRAY_TRANSPORT") == "grpc", reason="a check of such a node loads gRPC")
def test_a_check_loads_a_quarter_of_what_rays_loads(nodes: tuple[NodeFile, NodeFile]) -> None:
    program = "import sys; sys.argv[1:] = ['health-check']; from minray.__main__ import main; main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[1].split()
    assert {"click", "grpc", "numpy", "psutil", "uvloop", "minray.core_worker.core_worker"}.isdisjoint(loaded)
    assert len(loaded) <= MOST_MODULES, len(loaded)
