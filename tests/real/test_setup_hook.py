"""The function that a job has each of its workers call first: ``worker_process_setup_hook``."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import minray as ray
from minray.api.runtime_environment import SETUP_HOOK
from minray.runtime_env import RuntimeEnv
from tests.real.support import run_driver

CALLS = "MINRAY_TEST_HOOK_CALLS"


def count_call() -> None:
    """The hook."""
    calls = os.environ.get(CALLS, "").split()
    os.environ[CALLS] = " ".join([*calls, f"{threading.current_thread() is threading.main_thread()}/{os.environ['A']}"])


pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"runtime_env": RuntimeEnv(env_vars={"A": "1"}, worker_process_setup_hook=count_call)}


@ray.remote
def calls() -> tuple[int, str | None]:
    return os.getpid(), os.environ.get(CALLS)


@ray.remote
class Caller:
    def __init__(self) -> None:
        self.calls = os.environ.get(CALLS)

    def seen(self) -> str | None:
        return self.calls


def test_each_worker_calls_it_once_before_its_first_task_in_its_main_thread_and_environment() -> None:
    seen: dict[int, Any] = dict(ray.get([calls.remote() for _ in range(20)]))
    assert set(seen.values()) == {"True/1"}
    assert CALLS not in os.environ


def test_actors_and_workers_of_other_environments_call_it_too() -> None:
    assert ray.get(Caller.remote().seen.remote()) == "True/1"
    task = calls.options(runtime_env={"env_vars": {"A": "2"}})
    assert ray.get(task.remote())[1] == "True/2"


def test_it_is_the_jobs_alone() -> None:
    with pytest.raises(ValueError, match=r"pass it to minray.init\(runtime_env=...\)"):
        calls.options(runtime_env={SETUP_HOOK: count_call})


@pytest.mark.parametrize(
    ("hook", "error", "words"),
    [
        (3, TypeError, "must be a function or the name of one, not int"),
        ("nowhere", ValueError, "is not a name such as module.function"),
        ("", ValueError, "is not a name such as module.function"),
    ],
)
def test_what_cannot_be_called_is_said_where_it_is_written(hook: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RuntimeEnv(worker_process_setup_hook=hook)


def test_what_cannot_be_pickled_is_said_before_a_cluster_begins() -> None:
    done = run_driver(
        """
        import threading
        try:
            ray.init(runtime_env={"worker_process_setup_hook": threading.Lock().acquire})
        except TypeError as error:
            print("cannot be pickled" in str(error), ray.is_initialized())
        """
    )
    assert done.stdout == "True False\n", done.stderr


def test_it_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "hooks_of_mine.py").write_text("import os\n\ndef begin():\n    os.environ['BEGUN'] = 'yes'\n")
    done = run_driver(
        """
        import os
        environment = {"py_modules": [sys.argv[1]], "worker_process_setup_hook": "hooks_of_mine.begin"}
        ray.init(num_cpus=1, logging_level="ERROR", runtime_env=environment)

        @ray.remote
        def look():
            return os.environ.get("BEGUN")

        print(ray.get(look.remote()))
        """,
        str(tmp_path / "hooks_of_mine.py"),
    )
    assert done.stdout == "yes\n", done.stderr


@pytest.mark.parametrize(("hook", "words"), [("fail", "raised ValueError: not today"), ("'gone.begin'", "No module named")])
def test_one_that_fails_fails_the_tasks_and_says_why(hook: str, words: str) -> None:
    done = run_driver(
        f"""
        def fail():
            raise ValueError("not today")

        ray.init(num_cpus=1, logging_level="ERROR", runtime_env={{"worker_process_setup_hook": {hook}}})

        @ray.remote
        def task():
            return 1

        class Actor:
            def call(self):
                return 1

            async def later(self):
                return 1

        actor, lasting = ray.remote(Actor), ray.remote(max_restarts=2, max_task_retries=2)(Actor)
        first, last = actor.remote(), lasting.remote()
        for call in (task.remote, actor.remote().call.remote, first.call.remote, first.call.remote, last.later.remote):
            try:
                ray.get(call())
            except ray.exceptions.RayError as error:
                print(type(error).__name__, {words!r} in str(error))
        """
    )
    assert done.stdout == 5 * "RuntimeEnvSetupError True\n", done.stdout + done.stderr


def test_one_that_ends_the_process_is_not_called_for_ever() -> None:
    done = run_driver(
        """
        import os

        ray.init(num_cpus=1, logging_level="ERROR", runtime_env={"worker_process_setup_hook": lambda: os._exit(3)})

        @ray.remote(max_retries=0)
        def task():
            return 1

        try:
            ray.get(task.remote())
        except ray.exceptions.TaskUnschedulableError as error:
            print(str(error).partition(": ")[2])
        """
    )
    assert done.stdout == "workers die before they begin a task, 5 times in a row: exit code 3\n", done.stdout + done.stderr
