"""``minray memory``: what fills the object stores of a cluster, seen from outside of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main
from minray.node import cluster_client
from tests.cluster.command_line import CommandLine, lines_with
from tests.helpers import wait_for_condition

MEGABYTE = 1 << 20


def memory(*arguments: str) -> str:
    """Run ``minray memory`` in this process and return its output."""
    done = CliRunner().invoke(main, ["memory", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@minray.remote(resources={"there": 1})
def hold(refs: list[Any], gate: str) -> int:
    array = minray.get(refs[0])
    wait_for_condition(Path(gate).exists, timeout_s=60)
    return int(array.sum())


@pytest.fixture
def connected(minray_command: CommandLine) -> Generator[CommandLine, None, None]:
    """A cluster of two nodes, and this process its driver."""
    store = f"--object-store-memory={64 * MEGABYTE}"
    head = minray_command.start_head("--node-name=first", store, '--system-config={"record_ref_creation_sites": true}')
    minray_command.join(head, "--node-name=second", "--node-ip-address=127.0.0.2", store, '--resources={"there": 1}')
    minray.init()
    yield minray_command
    minray.shutdown()
    minray_command("stop")


@contextmanager
def held(refs: list[Any], gate: Path) -> Generator[Any, None, None]:
    """A worker of the second node reads the first of these meanwhile."""
    holding = hold.remote(refs, str(gate))
    wait_for_condition(lambda: lines_with(memory(), "Worker", "PINNED_IN_MEMORY"))
    yield holding
    gate.touch()
    assert minray.get(holding) == 0


def test_stores_and_references_of_all_nodes_are_shown(connected: CommandLine, tmp_path: Path) -> None:
    refs = [minray.put(np.zeros(MEGABYTE, np.uint8))]
    refs += [minray.put(np.zeros(2 * MEGABYTE, np.uint8)), minray.put(1)]
    with held(refs, tmp_path / "gate"):
        narrow = memory("--units=MB")
        tables = [line for line in narrow.splitlines() if not line.startswith("References of")]
        assert max(map(len, tables)) <= 100 and lines_with(narrow, "Worker", "PINNED_IN_MEMORY")
        seen = memory("--units=MB", "--detail")
        assert lines_with(seen, "first", "127.0.0.1", "67.108864 MB") and lines_with(seen, "second", "127.0.0.2", "1.048")
        assert lines_with(seen, "References of processes at 127.0.0.1 (node first): 4 objects")
        ours = lines_with(seen, str(os.getpid()), "Driver", "itself")
        assert [ref.hex() in line for ref, line in zip([refs[1], refs[0], refs[2]], ours, strict=False)] == [True] * 3
        assert lines_with(seen, "Worker", "PINNED_IN_MEMORY", f"driver {os.getpid()}", refs[0].hex())
        assert lines_with(seen, "Driver", "SUBMITTED_TO_WORKER", "?")

        by_line = memory("--group-by=STACK_TRACE", "-n", "1")
        groups = lines_with(by_line, "References made at (put object)", Path(__file__).name)
        assert len(groups) == 2 and lines_with(groups[1], "2 objects") and len(lines_with(by_line, "itself")) == 3
        stores = connected("memory", "--stats-only", "--detail")
        assert len(stores.splitlines()) == 3 and lines_with(stores, "second", "127.0.0.2")
    del refs
    wait_for_condition(lambda: lines_with(memory(), "first", "0 B", "0.0%") and "References" not in memory())


def test_who_does_not_answer_is_named(connected: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "TIMEOUT_S", 0.5)
    with held([minray.put(np.zeros(MEGABYTE, np.uint8))], tmp_path / "gate"):
        (line,) = lines_with(memory(), "Worker", "PINNED_IN_MEMORY")
        pid = int(line.split()[1])
        os.kill(pid, signal.SIGSTOP)
        try:  # it may answer until it has noticed
            wait_for_condition(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            seen = memory()
        finally:
            os.kill(pid, signal.SIGCONT)
    assert lines_with(seen, f"process {pid} of node", "does not answer.")
    assert not lines_with(seen, "Worker", str(pid)) and lines_with(seen, "Driver")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no running cluster was found on this machine"),
        (["--address=127.0.0.1:1"], "is not known here"),
        (["--sort-by=COLOUR"], "'COLOUR' is not one of"),
        (["-n", "0"], "0 is not in the range"),
    ],
)
def test_arguments_that_make_no_sense(minray_command: CommandLine, arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main, ["memory", *arguments])
    assert done.exit_code in (1, 2) and complaint in done.output
