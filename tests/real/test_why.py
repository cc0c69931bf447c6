"""``why``: the chain from a reference that is not ready to what it waits for."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import minray as ray
from tests.helpers import wait_for_condition
from tests.real.support import Files, core, echo, hold, run_driver

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"resources": {"token": 1}, "_system_config": {"get_warning_s": 0.2}}


def explains(reference: Any, *words: str) -> None:
    """The explanation has all the words, in this order."""

    def found() -> bool:
        text, start = ray.why(reference), 0
        for word in words:
            start = text.find(word, start)
            if start < 0:
                return False
        return True

    wait_for_condition(found, timeout_s=5, message=f"{words} in {ray.why(reference)!r}")


def test_a_resource_that_nobody_has() -> None:
    task = echo.options(resources={"unobtainium": 2}).remote(1)
    explains(task, "echo", "unobtainium: 2")
    assert "no node" in ray.why(task)
    ray.cancel(task)


def test_more_than_any_node_has() -> None:
    task = echo.options(num_cpus=64).remote(1)
    explains(task, "echo", "CPU: 64", "the most that a node has", "CPU: 2")
    ray.cancel(task)


def test_a_resource_that_others_hold(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    holder = hold.options(resources={"token": 1}, name="the holder").remote(started, release)
    started.wait()
    task = echo.options(resources={"token": 1}).remote(1)
    explains(task, "echo", "waits for token", "1 of 1 in use", "pid")
    release.set()
    assert ray.get([holder, task]) == [None, 1]


def test_a_running_task_says_where_and_since_when(files: Files) -> None:
    started, release, journal = files.signal("started"), files.signal("release"), files.journal()

    @ray.remote
    def work() -> None:
        journal.note(os.getpid())
        started.set()
        release.wait()

    task = work.remote()
    started.wait()
    node_id = ray.get_runtime_context().get_node_id()
    explains(task, "work", "runs", f"pid={journal.lines()[0]}", node_id[:8], "for 0.")
    release.set()
    ray.get(task)


def test_a_chain_of_arguments_down_to_the_running_one(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    first = hold.remote(started, release, 1)
    last: Any = first
    for name in "abc":
        last = echo.options(name=name).remote(last)
    started.wait()
    explains(last, "task c", "waits for 1 argument", "task b", "task a", "hold", "runs")
    release.set()
    assert ray.get(last) == 1


def test_a_task_that_waits_for_its_child() -> None:
    @ray.remote
    def parent() -> None:
        ray.get(echo.options(resources={"rare": 1}).remote(1))

    ref = parent.remote()
    wait_for_condition(lambda: "it waits for 1 object" in ray.why(ref))
    assert ray.why(ref).endswith("no node has rare")
    ray.cancel(ref, force=True)


def test_a_task_queued_behind_another_on_its_worker(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")

    @ray.remote(resources={"token": 1})
    def step(number: int) -> int:
        if number == 1:
            started.set()
            release.wait()
        return number

    ray.get([step.remote(0) for _ in range(50)])
    refs = [step.remote(number) for number in range(1, 6)]
    started.wait()
    wait_for_condition(lambda: max((len(w.in_flight) for w in core().submission.submitter.leased_workers()), default=0) > 2)
    explains(refs[2], "step", "queued behind")
    release.set()
    assert ray.get(refs) == [1, 2, 3, 4, 5]


def test_an_object_of_another_process(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")

    @ray.remote
    def begin() -> Any:
        return os.getpid(), [hold.options(name="inner").remote(started, release, "value")]

    _, (inner,) = ray.get(begin.remote())
    started.wait()
    explains(inner, "inner", "runs")
    dependent = echo.remote(inner)
    explains(dependent, "echo", "argument", "inner", "runs")
    release.set()
    assert ray.get(dependent) == "value"


def test_a_dead_owner() -> None:
    @ray.remote
    def begin() -> Any:
        return os.getpid(), [echo.options(resources={"none": 1}).remote(1)]

    pid, (inner,) = ray.get(begin.remote())
    explains(inner, "echo", "none: 1")
    os.kill(pid, signal.SIGKILL)
    explains(inner, "owner")
    assert "dead" in ray.why(inner) or "cannot be reached" in ray.why(inner) or "died" in ray.why(inner)


def test_what_is_ready_says_so() -> None:
    assert "is ready" in ray.why(ray.put(1))
    failed = echo.options(num_returns=2).remote(1)
    ray.wait([failed[0]])
    assert "error" in ray.why(failed[0])
    with pytest.raises(TypeError):
        ray.why("reference")  # type: ignore[arg-type]


def test_why_in_a_task(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    slow = hold.options(num_cpus=0.5, name="slow one").remote(started, release)
    started.wait()

    @ray.remote(num_cpus=0.5)
    def ask(refs: list[Any]) -> str:
        return ray.why(refs[0])

    assert "slow one" in ray.get(ask.remote([slow]))


def test_a_long_get_prints_why_once(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    started, release = files.signal("started"), files.signal("release")
    slow = hold.options(name="the slow one").remote(started, release)
    started.wait()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(slow, timeout=0.8)
    said = [line for line in capfd.readouterr().err.splitlines() if "still waiting" in line]
    assert len(said) == 1 and "the slow one" in said[0] and "runs" in said[0]


def test_a_long_wait_prints_why_once(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    task = echo.options(resources={"unobtainium": 1}).remote(1)
    assert ray.wait([task], timeout=0.8) == ([], [task])
    said = [line for line in capfd.readouterr().err.splitlines() if "still waiting" in line]
    assert len(said) == 1 and "unobtainium" in said[0]
    ray.cancel(task)


def test_a_long_get_in_a_task_is_heard_of_in_the_driver() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR", _system_config={"get_warning_s": 0.2})
        @ray.remote
        def stuck():
            try:
                ray.get(stuck.options(resources={"unobtainium": 1}).remote(), timeout=0.5)
            except ray.exceptions.GetTimeoutError:
                return "given up"
        assert ray.get(stuck.remote(), timeout=30) == "given up"
        """
    )
    assert done.returncode == 0, done.stderr
    assert "(stuck pid=" in done.stderr and "unobtainium" in done.stderr


@ray.remote
class Clerk:
    def serve(self, started: Any, release: Any) -> None:
        started.set()
        release.wait()


def test_actors_and_their_calls(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    clerk = Clerk.remote()
    first, second = clerk.serve.remote(started, release), clerk.serve.remote(started, release)
    started.wait()
    explains(first, "call Clerk.serve", "was sent to actor", "lives in pid=", "it runs")
    explains(second, "it waits for its turn: Clerk.serve runs")
    explains(clerk, "(Clerk)", "Clerk.serve runs, 1 call waits")
    explains(Clerk.options(resources={"unobtainium": 1}).remote(), "being created", "no node has unobtainium")
    release.set()
    ray.get([first, second])
    ray.kill(clerk)
    explains(clerk, "is dead: it was killed")


def test_a_get_whose_time_is_up_names_references_and_their_cause() -> None:
    waiting = [echo.options(resources={"unobtainium": 2}).remote(number) for number in range(5)]
    begun_at = time.monotonic()
    with pytest.raises(ray.exceptions.GetTimeoutError) as caught:
        ray.get([ray.put(1), *waiting], timeout=1)
    said = str(caught.value)
    assert time.monotonic() - begun_at < 3 and "(timeout 1 s)" in said
    assert [ref.hex() in said for ref in waiting] == [True, True, True, False, False] and "and 2 more" in said
    assert "echo" in said and "no node has unobtainium" in said
    for timeout in (0, 0.001):
        with pytest.raises(ray.exceptions.GetTimeoutError, match=f"not ready: {waiting[0].hex()}"):
            ray.get(waiting[0], timeout=timeout)
    for ref in waiting:
        ray.cancel(ref)


def test_what_no_node_can_ever_run_is_said_at_once() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=2, logging_level="ERROR")
        @ray.remote(num_cpus=1000)
        class Huge:
            pass
        tasks = [ray.remote(num_cpus=100 + number // 2)(lambda: 1).remote() for number in range(4)]
        actor = Huge.remote()
        ray.wait(tasks, timeout=2)
        """
    )
    assert sorted(done.stderr.splitlines()) == [
        "(gcs) an actor of class Huge waits for a node to join: it needs {CPU: 1000}; the most that a node has is {CPU: 2}",
        "(raylet) a task waits for a node to join: it needs {CPU: 100}; the most that a node has is {CPU: 2}",
        "(raylet) a task waits for a node to join: it needs {CPU: 101}; the most that a node has is {CPU: 2}",
    ]
