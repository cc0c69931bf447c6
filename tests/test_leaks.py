"""The leak check sees what it is there to see."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minray.platform.storage.shared_memory import name_of_segment
from tests import leaks
from tests.helpers import wait_for_condition

WAIT_FOR_INPUT = "import sys; sys.stdin.read()"


def test_a_file_and_a_socket_are_seen_and_logs_are_not(tmp_path: Path) -> None:
    session = tmp_path / "session_1"
    (session / "logs" / "old").mkdir(parents=True)
    (session / "logs" / "old" / "raylet.log").touch()
    assert leaks.describe(tmp_path, leaks.shared_memory()) == []
    (session / "token").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(session / "gcs"))
    assert [path.name for path in leaks.files(tmp_path)] == ["gcs", "token"]


@pytest.mark.parametrize("where", ["arguments", "environment", "child"])
def test_a_process_is_seen(tmp_path: Path, where: str) -> None:
    arguments = [f"{tmp_path}/session_1"] if where == "arguments" else []
    environment = {"MINRAY_TMPDIR": str(tmp_path)} if where == "environment" else {}
    with subprocess.Popen(
        [sys.executable, "-c", WAIT_FOR_INPUT, *arguments], stdin=subprocess.PIPE, env=environment
    ) as process:
        wait_for_condition(lambda: process.pid in [found.pid for found in leaks.processes(tmp_path)])
        process.communicate()
    assert process.pid not in [found.pid for found in leaks.processes(tmp_path)]


@pytest.mark.skipif(not leaks.SHARED_MEMORY.is_dir(), reason="this system does not show its shared memory as files")
def test_shared_memory_is_seen() -> None:
    before = leaks.shared_memory()
    entry = leaks.SHARED_MEMORY / f"minray-test-{os.getpid()}"
    entry.touch()
    try:
        assert entry.name in leaks.shared_memory() - before
    finally:
        entry.unlink()
    assert entry.name not in leaks.shared_memory()


@pytest.mark.skipif(not leaks.SHARED_MEMORY.is_dir(), reason="this system does not show its shared memory as files")
def test_segments_of_other_runs_are_not_seen() -> None:
    root = Path(f"/tmp/minray-test-beside-{os.getpid()}")
    named = root / "session_1" / "sockets" / "raylet"
    named.parent.mkdir(parents=True)
    segment = leaks.SHARED_MEMORY / name_of_segment(str(named))
    try:
        segment.touch()
        assert segment.name in leaks.shared_memory()
        named.touch()
        assert segment.name not in leaks.shared_memory()
    finally:
        shutil.rmtree(root)
        segment.unlink()


@pytest.mark.skipif(not leaks.SHARED_MEMORY.is_dir(), reason="this system does not show its shared memory as files")
def test_what_other_processes_have_mapped_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"psm_{os.getpid()}"
    made = f"from multiprocessing.shared_memory import SharedMemory; made = SharedMemory({name!r}, True, 8)"
    program = f"{made}; print(); input(); made.unlink()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        assert name in leaks.shared_memory()  # as it is a child of this process
        monkeypatch.setattr(leaks, "processes", lambda directory: [])
        assert name not in leaks.shared_memory()
        other.communicate(b"\n")


def test_a_condition_that_does_not_come_shows_where_everybody_is() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not within 0.05 s: the moon.*test_a_condition_that_does_not_come"):
        wait_for_condition(lambda: False, timeout_s=0.05, message="the moon")
