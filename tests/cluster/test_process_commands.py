"""``minray timeline``, ``stack``, ``metrics``: what processes do, have done and have measured, seen from outside of them."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main
from minray.util.metrics import Gauge, metrics_text
from tests.cluster.command_line import CommandLine, lines_with
from tests.helpers import wait_for_condition
from tests.util.exposition import parse


def told(*arguments: str) -> str:
    """Run a command in this process and return its output."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (1, 2)
    return done.output


@minray.remote
def work() -> int:
    return sum(range(10_000))


@pytest.fixture
def connected(minray_command: CommandLine) -> Generator[CommandLine, None, None]:
    """A cluster, and this process its driver."""
    minray_command.start_head("--node-name=first")
    minray.init()
    yield minray_command
    minray.shutdown()
    minray_command("stop")


def test_a_timeline_is_written_where_one_says_or_where_temporary_files_are(
    connected: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minray.get([work.remote() for _ in range(5)])
    path = tmp_path / "trace.json"
    said = told("timeline", "-o", str(path))
    assert said.startswith(f"5 tasks and calls of 1 workers are written to {path}\n") and "ui.perfetto.dev" in said
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["work"] * 5 and all(event["dur"] > 0 for event in events)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert "minray-timeline-" in told("timeline")
    (written,) = tmp_path.glob("minray-timeline-*-*-*_*-*-*.json")
    assert len(json.loads(written.read_text())) == len(json.loads(path.read_text()))
    assert "No such file or directory" in complaint("timeline", "-o", str(tmp_path / "nowhere" / "trace.json"))


@minray.remote
def wait_for(gate: str, started: str) -> int:
    Path(started).touch()
    wait_for_condition(Path(gate).exists, timeout_s=60)
    return os.getpid()


@contextmanager
def stopped(pid: int) -> Generator[None, None, None]:
    """A process that does not answer."""
    os.kill(pid, signal.SIGSTOP)
    try:  # it may answer until it has noticed
        wait_for_condition(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_everybody_does_is_shown_and_who_does_not_answer_is_named(connected: CommandLine, tmp_path: Path) -> None:
    waiting = wait_for.remote(str(tmp_path / "gate"), str(tmp_path / "started"))
    wait_for_condition((tmp_path / "started").exists)
    seen = told("stack")
    (head,) = [line for line in lines_with(seen, ": wait_for") if line.startswith("Worker ")]
    pid = int(head.split("pid ")[1].partition(",")[0])
    assert lines_with(seen, "Driver", f"pid {os.getpid()}", "node first") and "Thread MainThread" in seen
    assert lines_with(seen, f'File "{__file__}"', "in wait_for")
    with stopped(pid):
        seen = told("stack", "--timeout=0.5")
        late = told("timeline", "--timeout=0.5", "-o", str(tmp_path / "trace.json"))
    assert lines_with(seen, f"process {pid} of node", "does not answer.") and head not in seen
    assert lines_with(late, f"process {pid} of node", "does not answer.") and (tmp_path / "trace.json").exists()
    (tmp_path / "gate").touch()
    assert minray.get(waiting) == pid


@minray.remote
def measure(value: float) -> int:
    Gauge("height", "How high it is.").set(value)
    return os.getpid()


def test_metrics_are_printed_as_prometheus_reads_them(connected: CommandLine) -> None:
    pid = minray.get(measure.remote(2.5))
    family = parse(printed := told("metrics"))["ray_height"]
    assert (family.kind, family.help, list(family.samples.values())) == ("gauge", "How high it is.", [2.5])
    assert printed == metrics_text() == connected("metrics")
    with stopped(pid):
        assert lines_with(told("metrics", "--timeout=0.5"), f"process {pid} of node", "does not answer.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stack"], "no running cluster was found on this machine"),
        (["metrics"], "no running cluster was found on this machine"),
        (["stack", "--timeout=0"], "0.0 is not in the range"),
        (["stack", "--address=nonsense"], "nonsense"),
        (["timeline", "--token-file=nowhere", "--address=127.0.0.1:9"], "nowhere"),
    ],
)
def test_arguments_that_make_no_sense(minray_command: CommandLine, arguments: list[str], words: str) -> None:
    assert words in complaint(*arguments)


def test_without_a_cluster_nothing_is_written(minray_command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert "no running cluster was found on this machine" in complaint("timeline", "-o", str(path))
    assert not path.exists()
