"""The in-process world where it cannot be as real processes are: a test for each line of docs/testing.md.

Ray: has no counterpart since it gave local_mode up
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import minray
from minray.api import calls
from minray.testing import LocalCluster
from tests.helpers import wait_for_condition

LOCK = threading.Lock()
HEARD: list[Any] = []
SHARED = "before"


@minray.remote
def shared() -> str:
    return SHARED


@pytest.fixture(autouse=True)
def cluster() -> Iterator[Any]:
    HEARD.clear()
    with LocalCluster(num_cpus=2) as running:
        yield running


def test_an_imported_module_is_shared() -> None:
    @minray.remote
    def change(module: str) -> None:
        sys.modules[module].SHARED = "after"  # type: ignore[attr-defined]

    minray.get(change.remote(__name__))
    assert SHARED == "after"


def test_a_function_of_a_module_sees_its_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SHARED", "patched")
    assert minray.get(shared.remote()) == "patched"


def test_a_function_of_a_function_has_copies_of_all_that_it_names() -> None:
    things: list[int] = []

    @minray.remote
    def append() -> int:
        things.append(1)
        return len(things)

    assert minray.get(append.remote()) == 1
    assert things == []


def test_process_wide_state_is_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(os.getcwd())
    monkeypatch.setattr(sys, "path", [*sys.path])

    @minray.remote
    def change(directory: str) -> None:
        os.chdir(directory)
        sys.path.append(directory)
        random.seed(7)

    minray.get(change.remote(str(tmp_path)))
    assert os.getcwd() == str(tmp_path) and sys.path[-1] == str(tmp_path)
    assert random.random() == random.Random(7).random()


def test_another_working_directory_is_refused(tmp_path: Path) -> None:
    @minray.remote(runtime_env={"working_dir": f"local://{tmp_path}"}, max_retries=0)
    def where() -> str:
        return os.getcwd()

    (tmp_path / "file").touch()
    with pytest.raises(minray.exceptions.RuntimeEnvSetupError, match="local_mode"):
        minray.get(where.remote())


def test_environment_variables_of_a_node_are_refused(cluster: Any) -> None:
    cluster.stop()
    with pytest.raises(ValueError, match="env_vars needs a node with processes of its own"):
        LocalCluster(nodes=[{"env_vars": {"A": "1"}}]).start()


def test_environment_variables_of_a_task_reach_its_worker_alone() -> None:
    @minray.remote(runtime_env={"env_vars": {"ONLY_HERE": "1"}})
    def read() -> str | None:
        return os.environ.get("ONLY_HERE")

    assert minray.get(read.remote()) == "1"
    assert "ONLY_HERE" not in os.environ


def test_pids_are_not_the_systems() -> None:
    @minray.remote
    def pid() -> int:
        return os.getpid()

    number = minray.get(pid.remote())
    assert number >= 1 << 23
    assert not psutil.pid_exists(number)
    os.kill(number, 0)


def test_output_has_no_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    @minray.remote
    def say() -> None:
        print("words")

    minray.get(say.remote())
    assert capsys.readouterr().out == "words\n"


def test_a_tasks_signal_handler_hears_this_process_only() -> None:
    @minray.remote
    class Listener:
        def __init__(self, module: str) -> None:
            signal.signal(signal.SIGUSR1, lambda number, _: sys.modules[module].HEARD.append(number))

        def pid(self) -> int:
            return os.getpid()

    listener = Listener.remote(__name__)  # type: ignore[attr-defined]
    number = minray.get(listener.pid.remote())
    before = signal.signal(signal.SIGUSR1, lambda *_: HEARD.append("program"))
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_for_condition(lambda: HEARD == ["program"])
        os.kill(number, signal.SIGUSR1)
        wait_for_condition(lambda: HEARD == ["program", signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_plain_lock_cannot_be_interrupted_and_a_sleep_can() -> None:
    @minray.remote(max_retries=0)
    def wait_for_lock(module: str) -> None:
        sys.modules[module].HEARD.append("waits")
        with sys.modules[module].LOCK:
            pass

    @minray.remote(max_retries=0)
    def wait_for_event(module: str) -> None:
        sys.modules[module].HEARD.append("waits")
        threading.Event().wait(100)

    event = wait_for_event.remote(__name__)
    wait_for_condition(lambda: HEARD == ["waits"])
    minray.cancel(event)
    with pytest.raises(minray.exceptions.TaskCancelledError):
        minray.get(event, timeout=30)
    with LOCK:
        lock = wait_for_lock.remote(__name__)
        wait_for_condition(lambda: HEARD == ["waits", "waits"])
        minray.cancel(lock)
        assert minray.wait([lock], timeout=0.2) == ([], [lock])
    with pytest.raises(minray.exceptions.TaskCancelledError):
        minray.get(lock, timeout=30)


def test_an_exception_in_a_thread_is_seen_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: HEARD.append(arguments.exc_type))

    @minray.remote
    def start() -> None:
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()

    minray.get(start.remote())
    assert HEARD == [ZeroDivisionError]


def test_another_program_cannot_join(cluster: Any) -> None:
    program = f"import minray; minray.init(address={cluster.context['address']!r})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ConnectionError" in ended.stderr


def test_a_task_may_not_fork_but_may_start_programs() -> None:
    @minray.remote
    def fork() -> int:
        return os.fork()

    @minray.remote
    def start() -> str:
        return subprocess.run([sys.executable, "-c", "print('started')"], capture_output=True, text=True, check=True).stdout

    with pytest.raises(RuntimeError, match="would copy the whole program"):
        minray.get(fork.remote())
    assert minray.get(start.remote()) == "started\n"


def test_a_killed_worker_runs_its_finally_blocks(tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"

    @minray.remote
    class Waiting:
        def wait(self) -> None:
            try:
                began.touch()
                threading.Event().wait()
            finally:
                ended.touch()

    actor = Waiting.remote()
    call = actor.wait.remote()
    wait_for_condition(began.exists)
    minray.kill(actor)
    with pytest.raises(minray.exceptions.ActorDiedError):
        minray.get(call)
    wait_for_condition(ended.exists)


def test_no_worker_is_killed_for_memory() -> None:
    assert calls.current_api().config.system_config.memory_monitor_refresh_ms == 0  # never
