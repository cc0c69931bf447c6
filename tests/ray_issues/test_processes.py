"""Issues of Ray about the processes that tasks start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import minray as ray
from minray.exceptions import WorkerCrashedError
from tests.helpers import wait_for_condition
from tests.real.support import PATIENCE_S, Files, Signal, is_alive

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="wrong: zombies remain as long as their worker")
def test_ray_42913_processes_that_nobody_waits_for_are_reaped() -> None:
    """A process that a task starts and does not join stays as a zombie until the task's worker ends."""

    @ray.remote(num_cpus=0)
    def start() -> list[int]:
        child = multiprocessing.get_context("fork").Process(target=str)
        child.start()
        return [os.getpid(), child.pid or 0, subprocess.Popen([sys.executable, "-c", ""]).pid]

    worker, *children = get(start.remote())
    wait_for_condition(lambda: not any(psutil.pid_exists(pid) for pid in children), timeout_s=PATIENCE_S)
    assert is_alive(worker)


@ray.remote(num_cpus=0, max_retries=0)
def leave_child(left: Signal) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(left.path).write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ray_issue(ray="right")
def test_ray_34125_the_children_of_a_killed_worker_end(files: Files) -> None:
    """Processes that a task has started run on when the task's worker is killed."""
    left = files.signal()
    with pytest.raises(WorkerCrashedError):
        get(leave_child.remote(left))
    child = int(Path(left.path).read_text())
    wait_for_condition(lambda: not psutil.pid_exists(child), timeout_s=PATIENCE_S)
