"""coverage.py in workers: the bodies of tasks count, with coverage's own configuration for subprocesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """\
import asyncio, os, sys
import minray

@minray.remote
def task(number):
    if number:
        return "not zero"
    return "zero"

@minray.remote
class Actor:
    def method(self):
        return 1

    def unused(self):
        return 2

@minray.remote(max_concurrency=2)
class Threaded:
    def method(self):
        return 3

@minray.remote
class Async:
    async def method(self):
        await asyncio.sleep(0)
        return 4

@minray.remote(max_restarts=0)
class Killed:
    def method(self):
        return 5

@minray.remote(max_retries=0)
def end():
    code = 3
    sys.exit(code)

@minray.remote(max_retries=0)
def end_by_signal():
    pid = os.getpid()
    os.kill(pid, 15)

minray.init(num_cpus=4, log_to_driver=False)
assert minray.get([task.remote(0), task.remote(1)]) == ["zero", "not zero"]
actors = [actor.remote() for actor in (Actor, Threaded, Async, Killed)]
assert minray.get([actor.method.remote() for actor in actors]) == [1, 3, 4, 5]
minray.kill(actors[-1])
for ref in (end.remote(), end_by_signal.remote()):
    try:
        minray.get(ref)
    except minray.exceptions.WorkerCrashedError:
        print("crashed")
"""
UNUSED = PROGRAM.splitlines().index("        return 2") + 1
CONFIGURATION = """\
[run]
source = .
parallel = true
patch = subprocess
"""


def missing_lines(folder: Path, *arguments: str) -> dict[str, list[int]]:
    """Run Python with coverage in a folder, and return the lines of each file that have not run."""
    (folder / ".coveragerc").write_text(CONFIGURATION)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}

    def python(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr

    python(*arguments)
    python("-m", "coverage", "combine")
    python("-m", "coverage", "json", "-o", "report.json")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return {name: found["missing_lines"] for name, found in report["files"].items()}


def test_all_that_tasks_and_actors_have_run_is_counted_however_their_workers_end(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert missing_lines(tmp_path, "-m", "coverage", "run", "program.py") == {"program.py": [UNUSED]}


def test_the_tasks_of_a_test_suite_are_counted(tmp_path: Path) -> None:
    suite = "def test_program():\n    import program\n"
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "test_program.py").write_text(suite)
    found = missing_lines(tmp_path, "-m", "coverage", "run", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert found == {"program.py": [UNUSED], "test_program.py": []}
