"""``minray logs``: what there is on all nodes, and what an actor, a task, a worker or a job has printed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main
from tests.cluster.command_line import CommandLine, lines_with


def told(*arguments: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(main, ["logs", *arguments])
    assert done.exit_code == exit_code, done.output + done.stderr
    return done.stdout if exit_code == 0 else done.stderr


@minray.remote(resources={"here": 1})
class Clerk:
    def serve(self, number: int) -> int:
        print("serve", number)
        return os.getpid()


@minray.remote(resources={"there": 1})
def answer(number: int) -> str:
    print("answer", number)
    print("trouble", number, file=sys.stderr)
    os.system(f"echo child {number}")
    task_id: str = minray.get_runtime_context().get_task_id()
    return task_id


@pytest.fixture
def busy(minray_command: CommandLine) -> Generator[Any, None, None]:
    """A cluster of two nodes on TCP, with an actor on the first and tasks on the second; this process is its driver."""
    head = minray_command.start_head("--node-name=first", '--resources={"here": 1}')
    minray_command.join(head, "--node-name=second", '--resources={"there": 1}')
    minray.init(log_to_driver=False)
    clerk = Clerk.remote()
    minray.get(clerk.serve.remote(1))
    yield clerk, minray.get([answer.remote(number) for number in range(3)])
    minray.shutdown()
    minray_command("stop")


def test_what_there_is_and_what_it_says(busy: Any, minray_command: CommandLine) -> None:
    clerk, task_ids = busy
    listed = told()
    assert lines_with(listed, "node first", "127.0.0.1") and lines_with(listed, "node second") and "gcs_server" in listed
    assert max(map(len, listed.splitlines())) <= 100
    facts = json.loads(told("--format=json", "worker-*"))
    assert {fact["node_name"]: sorted(fact["logs"]) for fact in facts} == {
        "first": ["worker_out"],
        "second": ["worker_err", "worker_out"],
    }
    assert "    - raylet.log" in told("--format=yaml", "raylet*")
    for number, task_id in enumerate(task_ids):
        assert told("task", task_id) == f"answer {number}\nchild {number}\n"
        assert told("task", "--id", task_id, "--err") == f"trouble {number}\n"
    assert told("task", task_ids[2], "--tail", "1") == "child 2\n"
    pid = minray.get(clerk.serve.remote(2))
    for named in (["actor", clerk._actor_id.hex()[:16]], ["worker", "--pid", str(pid)], ["actor", "--pid", str(pid)]):
        assert told(*named) == "serve 1\nserve 2\n"
    job_id = minray.get_runtime_context().get_job_id()
    assert set(told("job", job_id).splitlines()) >= {"serve 1", "answer 0", "child 2"}
    second = next(fact["node_id"] for fact in facts if fact["node_name"] == "second")
    assert "node second" in told("node", second[:8]) and "node first" not in told("--node-id", second)
    assert told("node", second, "worker-*.err", "--tail=-1") == "".join(f"trouble {number}\n" for number in range(3))


def test_what_is_not_there_is_said(busy: Any, tmp_path: Path) -> None:
    for named, words in [
        (["nothing.log"], "no log file of the living nodes is called 'nothing.log'"),
        (["../token"], "no log file of the living nodes is called '../token'"),
        (["task", "ff"], "none of the tasks has an id that begins with ff"),
        (["actor", "00" * 16], "no worker is known"),
        (["worker", "--pid", "1"], "no worker that is called process 1"),
        (["job", "00"], "is not the id of a job"),
        (["node", "ffff"], "no node has an id that begins with ffff"),
    ]:
        assert words in told(*named, exit_code=1), named
    for named, words in [(["task"], "give one id"), (["raylet.log", "--encoding=klingon"], "is not an encoding")]:
        assert words in told(*named, exit_code=2)


def test_a_follower_sees_what_is_printed_later_and_ends_quietly(busy: Any, minray_command: CommandLine) -> None:
    clerk, _ = busy
    with minray_command.popen("logs", "actor", clerk._actor_id.hex(), "--follow", "--interval=0.05") as follower:
        assert follower.stdout is not None and follower.stderr is not None
        assert follower.stdout.readline() == "serve 1\n"
        minray.get(clerk.serve.remote(2))
        assert follower.stdout.readline() == "serve 2\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130 and follower.stderr.read() == ""
