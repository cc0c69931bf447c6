"""``minray timeline``: what the processes of a cluster do and have done, seen from outside of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from click.testing import CliRunner

import minray
from minray.cli import main
from tests.cluster.command_line import CommandLine


def told(*arguments: str) -> str:
    """What a command says, run in this process."""
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


def test_without_a_cluster_nothing_is_written(minray_command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert "no running cluster was found on this machine" in complaint("timeline", "-o", str(path))
    assert not path.exists()
