"""Workers that die, exceptions that are retried, and workers that are used up (G16-G19, G22, G23, C5)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayError, RaySystemError, RayTaskError, WorkerCrashedError
from tests.helpers import wait_for_condition, without_checkout
from tests.real.support import Files, Journal, core, echo, is_alive

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"resources": {"one": 1}}


def die(how: str) -> None:
    """End this process as programs do."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(7)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "sys.exit":
        sys.exit("no more")


@ray.remote
def die_until(journal: Journal, enough: int, how: str = "kill") -> int:
    """Die in every attempt before the ``enough``-th; returns the number of attempts."""
    attempt = journal.note(os.getpid())
    if attempt < enough:
        die(how)
    return attempt


@ray.remote
def fail_until(journal: Journal, enough: int, error: type[Exception] = ValueError) -> int:
    attempt = journal.note()
    if attempt < enough:
        raise error(f"attempt {attempt}")
    return attempt


def error_of(reference: Any) -> RayError:
    with pytest.raises(RayError) as caught:
        ray.get(reference)
    return caught.value.with_traceback(None)


# --- deaths


def test_g1_a_task_whose_argument_died_with_its_worker_fails_as_a_task_does(files: Files) -> None:
    dead = die_until.options(max_retries=0).remote(files.journal(), 99, "exit")
    error = error_of(echo.remote(echo.remote(dead)))
    assert isinstance(error, RayTaskError) and isinstance(error, WorkerCrashedError)
    assert isinstance(error.cause, WorkerCrashedError) and not isinstance(error.cause, RayTaskError)


@pytest.mark.parametrize("how", ["kill", "exit", "segfault", "sys.exit"])
def test_g16_a_task_whose_worker_dies_runs_again(files: Files, how: str) -> None:
    journal = files.journal()
    assert ray.get(die_until.remote(journal, 2, how)) == 2
    assert len(set(journal.lines())) == 2


@pytest.mark.parametrize("max_retries", [0, 1, None])
def test_g16_g17_g22_executions_are_one_more_than_max_retries(files: Files, max_retries: int | None) -> None:
    journal = files.journal()
    error = error_of(die_until.options(max_retries=max_retries).remote(journal, 99, "exit"))
    assert isinstance(error, WorkerCrashedError)
    assert len(journal.lines()) == (3 if max_retries is None else max_retries) + 1


def test_g16_minus_one_retries_without_end(files: Files) -> None:
    assert ray.get(die_until.options(max_retries=-1).remote(files.journal(), 8, "exit")) == 8


def test_g16_a_task_that_waits_for_a_retried_one_gets_its_value(files: Files) -> None:
    assert ray.get(echo.remote(die_until.remote(files.journal(), 2))) == 2


@pytest.mark.parametrize(
    ("how", "words"),
    [("kill", "was killed by SIGKILL"), ("exit", "exited with code 7")],
)
def test_g17_the_error_is_a_death_certificate(files: Files, how: str, words: str) -> None:
    journal = files.journal()

    @ray.remote(max_retries=0)
    def perish() -> None:
        print("a first word", file=sys.stderr, flush=True)
        journal.note(os.getpid())
        print("my last words", file=sys.stderr, flush=True)
        die(how)

    text = str(error_of(perish.remote()))
    pid, node_id = journal.lines()[0], ray.get_runtime_context().get_node_id()
    assert words in text and "perish" in text and f"pid={pid}" in text and node_id[:12] in text
    assert text.index("a first word") < text.index("my last words")


def test_g17_a_crash_in_compiled_code_tells_where() -> None:
    @ray.remote(max_retries=0)
    def touch_nothing() -> None:
        die("segfault")

    text = str(error_of(touch_nothing.remote()))
    assert "was killed by SIGSEGV" in text and "in touch_nothing" in text


def test_g17_sys_exit_with_a_message_leaves_it_on_stderr() -> None:
    @ray.remote(max_retries=0)
    def leave() -> None:
        sys.exit("no more of this")

    error = error_of(leave.remote())
    assert isinstance(error, WorkerCrashedError)
    assert "exited with code 1" in str(error) and "no more of this" in str(error)


def test_an_exception_that_does_not_want_to_be_looked_at_is_told_as_the_systems() -> None:
    class Shy(Exception):
        def __getattribute__(self, name: str) -> object:
            raise RuntimeError(f"no {name} for you")

    @ray.remote(max_retries=0)
    def hide() -> None:
        raise Shy

    error = error_of(hide.remote())
    assert isinstance(error, RaySystemError) and "the task's exception could not be serialized: RuntimeError" in str(error)


def test_g22_what_a_dead_attempt_has_done_stays_done(files: Files) -> None:
    journal = files.journal()
    assert ray.get(die_until.remote(journal, 3)) == 3
    assert len(journal.lines()) == 3


def test_tasks_that_had_not_begun_on_a_dead_worker_run_once_and_use_no_retry(files: Files) -> None:
    release, journal = files.signal("release"), files.journal()

    @ray.remote(resources={"one": 1}, max_retries=0)
    def step(number: int) -> int:
        if number == 0:
            release.wait()
            die("kill")
        if number > 0:
            journal.note(number)
        return number

    ray.get([step.remote(-1) for _ in range(50)])  # now it is known to be quick, and many are sent to a worker at once
    refs = [step.remote(number) for number in range(20)]
    wait_for_condition(lambda: max((len(w.in_flight) for w in core().submission.submitter.leased_workers()), default=0) > 5)
    release.set()
    assert isinstance(error_of(refs[0]), WorkerCrashedError)
    assert ray.get(refs[1:]) == list(range(1, 20))
    assert sorted(map(int, journal.lines())) == list(range(1, 20))


def test_a_worker_that_dies_idle_is_replaced(files: Files) -> None:
    pids = {ray.get(pid_of.remote()) for _ in range(3)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert ray.get(pid_of.options(max_retries=3).remote()) not in pids


@ray.remote
def pid_of() -> int:
    return os.getpid()


# --- exceptions


def test_g18_an_exception_is_not_retried_by_default(files: Files) -> None:
    journal = files.journal()
    assert isinstance(error_of(fail_until.remote(journal, 2)), ValueError)
    assert len(journal.lines()) == 1


@pytest.mark.parametrize("which", [True, [ValueError], [KeyError, ValueError], [Exception]])
def test_g18_covered_exceptions_are_retried(files: Files, which: Any) -> None:
    assert ray.get(fail_until.options(retry_exceptions=which).remote(files.journal(), 3)) == 3


def test_g18_other_exceptions_are_not(files: Files) -> None:
    journal = files.journal()
    error = error_of(fail_until.options(retry_exceptions=[KeyError]).remote(journal, 3))
    assert isinstance(error, ValueError) and len(journal.lines()) == 1


def test_g18_the_last_exception_is_the_one_raised(files: Files) -> None:
    journal = files.journal()
    error = error_of(fail_until.options(retry_exceptions=True, max_retries=2).remote(journal, 99))
    assert error.cause.args == ("attempt 3",) and len(journal.lines()) == 3


def test_g18_a_class_of_the_users_own_and_its_subclasses_are_retried(files: Files) -> None:
    class Busy(Exception):
        pass

    class VeryBusy(Busy):
        pass

    assert ray.get(fail_until.options(retry_exceptions=[Busy]).remote(files.journal(), 2, VeryBusy)) == 2


def test_g18_exceptions_and_deaths_draw_on_one_budget(files: Files) -> None:
    journal = files.journal()

    @ray.remote(max_retries=2, retry_exceptions=True)
    def struggle() -> None:
        attempt = journal.note()
        if attempt == 1:
            die("exit")
        raise ValueError(f"attempt {attempt}")

    assert error_of(struggle.remote()).cause.args == ("attempt 3",)
    assert len(journal.lines()) == 3


def test_g18_an_error_of_an_argument_is_not_the_tasks_own(files: Files) -> None:
    failing, after = files.journal("failing"), files.journal("after")
    error = error_of(fail_until.options(retry_exceptions=True).remote(after, fail_until.remote(failing, 99)))
    assert isinstance(error, RayTaskError) and after.lines() == [] and len(failing.lines()) == 1


def test_g19_a_cancelled_task_is_not_retried_when_its_worker_dies(files: Files) -> None:
    journal, started, release = files.journal(), files.signal("started"), files.signal("release")

    @ray.remote(max_retries=-1, retry_exceptions=True)
    def outstay() -> None:
        journal.note()
        try:
            started.set()
            release.wait()
        except KeyboardInterrupt:
            die("kill")

    task = outstay.remote()
    started.wait()
    ray.cancel(task)
    assert isinstance(error_of(task), RayError)
    assert len(journal.lines()) == 1


# --- max_calls


@pytest.mark.parametrize("max_calls", [1, 3])
def test_g23_a_worker_takes_max_calls_and_exits(max_calls: int) -> None:
    @ray.remote(max_calls=max_calls)
    def pid() -> int:
        return os.getpid()

    pids = ray.get([pid.remote() for _ in range(12)])
    assert max(map(pids.count, pids)) <= max_calls
    wait_for_condition(lambda: not any(map(is_alive, set(pids[:-2]))), message="used-up workers are gone")


def test_g23_calls_that_fail_count(files: Files) -> None:
    @ray.remote(max_calls=1)
    def fail() -> None:
        raise ValueError(os.getpid())

    pids = [error_of(fail.remote()).cause.args[0] for _ in range(3)]
    assert len(set(pids)) == 3


def test_g23_tasks_sent_ahead_to_a_used_up_worker_run_elsewhere(files: Files) -> None:
    journal = files.journal()

    @ray.remote(max_calls=10, max_retries=0, resources={"one": 1})
    def note(number: int) -> int:
        journal.note(f"{os.getpid()} {number}")
        return number

    assert ray.get([note.remote(number) for number in range(45)]) == list(range(45))
    pids = [line.split()[0] for line in journal.lines()]
    assert len(pids) == 45 and max(map(pids.count, pids)) <= 10


def test_g23_a_used_up_worker_stays_while_its_objects_are_needed() -> None:
    @ray.remote(max_calls=1)
    def make() -> tuple[int, list[Any]]:
        return os.getpid(), [ray.put("precious")]

    pid, [inner] = ray.get(make.remote())
    ray.get(make.remote())
    assert is_alive(pid) and ray.get(inner) == "precious"
    del inner
    wait_for_condition(lambda: not is_alive(pid), message="the worker is gone with its last object")


def test_c5_max_calls_is_for_the_decorator_and_gpu_tasks_have_one() -> None:
    with pytest.raises(ValueError, match="max_calls"):
        pid_of.options(max_calls=2)

    @ray.remote(num_gpus=1)
    def with_gpu() -> None:
        """Never runs here; only its template is looked at."""

    task = with_gpu.remote()
    wait_for_condition(lambda: core().submission.tasks.tasks)
    (pending,) = core().submission.tasks.tasks.values()
    assert pending.prepared.template.max_calls == 1
    ray.cancel(task)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_in_compiled_code_is_told_with_the_tasks_last_words(number: signal.Signals) -> None:
    @ray.remote(max_retries=0)
    def crash() -> None:
        print("the task's last words", file=sys.stderr)
        signal.raise_signal(number)

    with pytest.raises(WorkerCrashedError) as caught:
        ray.get(crash.remote())
    said = without_checkout(str(caught.value))
    assert "| the task's last words" in said and " in crash" in said
    assert "/minray/" not in said and "channel" not in said
