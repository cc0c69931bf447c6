"""``minray list``, ``get`` and ``summary``, from outside of the cluster that they look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import minray
from minray.cli.main import main
from tests.cluster.command_line import CommandLine, lines_with
from tests.helpers import wait_for_condition


def told(*arguments: str) -> str:
    """Run a command in this process and return its output."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@minray.remote
class Clerk:
    def serve(self) -> int:
        return os.getpid()


@minray.remote
def answer() -> int:
    return 42


@pytest.fixture
def busy(minray_command: CommandLine) -> Generator[Any, None, None]:
    """A cluster with an actor that lives and one that cannot, and this process its driver."""
    minray_command.start_head("--node-name=first")
    minray.init()
    clerk, waiting = Clerk.remote(), Clerk.options(num_gpus=1, name="waiting").remote()
    minray.get([clerk.serve.remote(), *[answer.remote() for _ in range(5)]])
    yield clerk, waiting
    minray.shutdown()
    minray_command("stop")


def test_what_there_is_is_listed_shown_and_counted(busy: Any) -> None:
    clerk, _ = busy
    pid = minray.get(clerk.serve.remote())
    actors = told("list", "actors")
    assert actors.startswith("2 actors\n") and lines_with(actors, "Clerk", "ALIVE", str(pid))
    assert lines_with(actors, "Clerk", "PENDING_CREATION", "waiting") and "NUM_RESTARTS" not in actors
    assert "NUM_RESTARTS" in told("list", "actors", "--detail")
    (alive,) = json.loads(told("list", "actors", "--format=json", "-f", "state=ALIVE"))
    assert yaml.safe_load(told("list", "actors", "--format=yaml", "-f", "state=ALIVE")) == [alive]
    assert json.loads(told("get", "actors", alive["actor_id"], "--format=json")) == alive
    assert yaml.safe_load(told("get", "actors", alive["actor_id"], "--format=yaml")) == alive
    for command in (["list", name] for name in ("actors", "tasks", "objects", "nodes", "jobs", "workers")):
        assert max(map(len, told(*command).splitlines())) <= 100, command
    (line,) = lines_with(actors, "ALIVE", str(pid))
    assert json.loads(told("get", "actors", line.split()[0], "--format=json")) == alive, "a short id is enough"
    assert alive["actor_id"] == clerk._actor_id.hex() and alive["pid"] == pid
    shown = told("get", "actors", clerk._actor_id.hex())
    assert lines_with(shown, f"pid: {pid}") and lines_with(shown, "is_detached: False")
    assert told("get", "actors", clerk._actor_id.hex()[:9].upper()) == shown, "the beginning of an id is enough"
    done = CliRunner().invoke(main, ["get", "jobs", "f"])
    assert done.exit_code == 1 and "none of the jobs has an id that begins with f" in done.output

    tasks = told("list", "tasks", "--limit=3", "-f", "name=answer")
    assert tasks.startswith("5 tasks, 3 shown\n") and len(lines_with(tasks, "FINISHED")) == 3
    assert lines_with(told("summary", "tasks"), "answer", "NORMAL_TASK", "FINISHED: 5")
    assert lines_with(told("summary", "actors"), "Clerk", "ALIVE: 1, PENDING_CREATION: 1")
    assert json.loads(told("summary", "tasks", "--format=json"))["summary"]["answer"]["state_counts"] == {"FINISHED": 5}
    assert "references to" in told("summary", "objects") and lines_with(told("list", "objects"), str(os.getpid()), "DRIVER")

    assert lines_with(told("list", "nodes"), "first", "ALIVE")
    assert lines_with(told("list", "jobs"), "RUNNING", str(os.getpid()))
    workers = told("list", "workers", "-f", "is_alive=true")
    assert lines_with(workers, "DRIVER", str(os.getpid())) and lines_with(workers, "WORKER", str(pid))


def test_a_driver_that_has_left_did_so_on_purpose(minray_command: CommandLine) -> None:
    minray_command.start_head()
    minray.init()
    minray.shutdown()
    wait_for_condition(lambda: lines_with(told("list", "workers"), "DRIVER", "INTENDED_USER_EXIT", str(os.getpid())))


PROGRAM = """
import minray

@minray.remote(max_retries=0)
def answer():
    return 42

@minray.remote(max_retries=0)
def fail():
    raise KeyError("no such thing")

@minray.remote
class Clerk:
    def serve(self):
        return 1

minray.init(address="auto")
clerk = Clerk.remote()
minray.get([answer.remote(), clerk.serve.remote()])
minray.wait([fail.remote()])
"""
"""A program that leaves at once, so that its workers are killed."""


def test_tasks_are_seen_after_their_driver_has_left(minray_command: CommandLine, tmp_path: Path) -> None:
    minray_command.start_head("--num-cpus=2")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    wait_for_condition(lambda: told("list", "tasks").startswith("4 tasks\n"))
    for name, kind in (("answer", "NORMAL_TASK"), ("Clerk.__init__", "ACTOR_CREATION_TASK"), ("Clerk.serve", "ACTOR_TASK")):
        assert lines_with(told("list", "tasks"), name, kind, "FINISHED")
    (failed,) = json.loads(told("list", "tasks", "--format=json", "-f", "state=FAILED"))
    assert (failed["name"], failed["error_type"]) == ("fail", "TASK_EXECUTION_EXCEPTION")
    (short,) = [line.split()[0] for line in lines_with(told("list", "tasks"), "fail", "FAILED")]
    assert failed["task_id"].startswith(short) and json.loads(told("get", "tasks", short, "--format=json")) == failed
    (line,) = lines_with(told("list", "tasks", "--detail"), failed["task_id"])
    assert line.endswith("KeyError: 'no such thing'"), "the last line of the error alone"
    shown = told("get", "tasks", failed["task_id"])
    assert lines_with(shown, "error_type: TASK_EXECUTION_EXCEPTION") and "KeyError: 'no such thing'" in shown
    assert lines_with(told("summary", "tasks"), "fail", "FAILED: 1")
    trace = tmp_path / "trace.json"
    assert "4 tasks and calls of" in told("timeline", "-o", str(trace))
    names = {event["name"] for event in json.loads(trace.read_text()) if event["ph"] == "X"}
    assert names == {"answer", "fail", "Clerk.__init__", "Clerk.serve"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "actors"], "no running cluster was found on this machine"),
        (["list", "actors", "-f", "state"], "'state' is not a filter such as state=ALIVE"),
        (["list", "tasks", "-f", "colour=red"], "tasks have no 'colour' to filter by"),
        (["list", "horses"], "No such command 'horses'"),
        (["list", "nodes", "--limit=0"], "0 is not in the range"),
        (["get", "actors", "not hexadecimal"], "'not hexadecimal' is no id"),
        (["summary", "nodes"], "No such command 'nodes'"),
    ],
)
def test_arguments_that_make_no_sense(minray_command: CommandLine, arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (1, 2) and complaint in done.output
