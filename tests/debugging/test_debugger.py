"""``breakpoint()`` in tasks and actors of worker processes, and the terminals that attach to it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Generator
from typing import Any

import pytest

import minray as ray
from minray.util.state import list_workers
from tests.debugging.terminals import (
    attached,
    command,
    debugger_sockets,
    wait_for_breakpoints,
    wait_for_no_sockets,
    waiting,
)
from tests.helpers import wait_for_condition
from tests.real.support import run_driver

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.slow]
IDLE_MS = 50
INIT = {
    "num_cpus": 3,
    "log_to_driver": False,
    "_system_config": {"idle_worker_killing_time_threshold_ms": IDLE_MS, "kill_idle_workers_interval_ms": 20},
}


@pytest.fixture(autouse=True)
def no_socket_is_left(cluster: Any) -> Generator[None, None, None]:
    yield
    for one in waiting():  # a test that has failed leaves them
        with attached(one) as terminal:
            terminal.type("q")
    wait_for_no_sockets()


@ray.remote
def add_one(number: int) -> int:
    total = number
    breakpoint()
    total += 1
    return total


@ray.remote
def halved(numbers: list[int]) -> list[float]:
    found = []
    for number in numbers:
        breakpoint()
        found.append(number / 2)
    return found


@ray.remote(max_concurrency=2)
class Threaded:
    def wait(self) -> int:
        here = threading.get_ident()
        breakpoint()
        return here

    def wait_in_thread(self) -> str:
        def body() -> None:
            inner = "in the thread"
            breakpoint()
            seen.append(inner)

        seen: list[str] = []
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return seen[0]

    def pid(self) -> int:
        return os.getpid()


@ray.remote
class Async:
    async def double(self, number: int) -> int:
        breakpoint()
        await asyncio.get_running_loop().run_in_executor(None, int)
        twice = number * 2
        return twice


def test_a_task_waits_while_its_driver_waits_for_it_and_goes_on() -> None:
    ref = add_one.remote(41)
    (one,) = wait_for_breakpoints(1)
    at = one.at
    assert (at.task_name, at.task_id, at.error, at.is_attached) == ("add_one", ref.task_id().binary(), "", False)
    assert (at.function, os.path.basename(at.filename)) == ("add_one", "test_debugger.py") and one.is_here
    with attached(one) as terminal:
        assert re.match(rf"> {at.filename}\(\d+\)add_one\(\)\n-> total \+= 1\n", terminal.first)
        assert waiting()[0].at.is_attached
        assert terminal.ask("p total") == "41"
        assert terminal.ask("up") == "*** Oldest frame"
        assert terminal.ask("total = 10") == ""
        assert terminal.ask("n").endswith("-> return total")
        terminal.type("c")
        assert ray.get(ref) == 11
        terminal.read_until("")
    assert not waiting()


def test_quit_fails_the_task_with_bdbquit() -> None:
    ref = add_one.remote(1)
    with attached(*wait_for_breakpoints(1)) as terminal:
        terminal.type("q")
        with pytest.raises(ray.exceptions.RayTaskError, match="BdbQuit"):
            ray.get(ref)


def test_two_tasks_wait_at_once_and_each_has_its_own_terminal() -> None:
    refs = [add_one.remote(1), add_one.remote(2)]
    first, second = wait_for_breakpoints(2)
    assert first.pid != second.pid and first.at.id != second.at.id
    with attached(first) as left, attached(second) as right:
        seen = {left.ask("p number"), right.ask("p number")}
        left.type("c")
        right.type("c")
    assert seen == {"1", "2"} and ray.get(refs) == [2, 3]


def test_a_terminal_that_leaves_leaves_the_task_waiting_for_another() -> None:
    ref = add_one.remote(5)
    (one,) = wait_for_breakpoints(1)
    with attached(one) as terminal:
        terminal.ask("total = 6")
    wait_for_condition(lambda: not waiting()[0].at.is_attached)
    with attached(one) as terminal:
        assert terminal.ask("p total") == "6"
        terminal.type("c")
    assert ray.get(ref) == 7


def test_one_terminal_stays_attached_from_one_breakpoint_of_a_task_to_the_next() -> None:
    ref = halved.remote([2, 4])
    (one,) = wait_for_breakpoints(1)
    with attached(one) as terminal:
        assert terminal.ask("p number") == "2"
        terminal.type("c")
        assert "-> found.append(number / 2)" in terminal.behind_breakpoint(terminal.read_until())
        assert terminal.ask("p number") == "4"
        assert [each.at.id for each in waiting()] == [one.at.id]
        terminal.type("c")
        terminal.read_until("")
    assert ray.get(ref) == [1.0, 2.0]


def test_steps_end_with_the_task_and_show_nothing_of_minray() -> None:
    ref = add_one.remote(1)
    with attached(*wait_for_breakpoints(1)) as terminal:
        assert "minray" not in terminal.ask("w").replace(__file__, "")
        shown = [terminal.ask("s") for _ in range(2)]
        assert shown[1].startswith("--Return--")
        terminal.type("s")
        assert terminal.read_until("") == "" and ray.get(ref) == 2
    assert ray.get([halved.remote([]) for _ in range(6)]) == [[]] * 6


def test_a_breakpoint_of_pdb_is_reached_after_continue() -> None:
    ref = add_one.remote(1)
    (one,) = wait_for_breakpoints(1)
    with attached(one) as terminal:
        assert terminal.ask(f"b {waiting()[0].at.line + 1}").startswith("Breakpoint 1")
        assert terminal.ask("c").endswith("-> return total")
        assert terminal.ask("import os, json") == "" and terminal.ask("json.loads('[1]')") == "[1]"
        terminal.type("c")
    assert ray.get(ref) == 2


def test_the_calls_of_a_threaded_actor_wait_beside_each_other() -> None:
    actor = Threaded.remote()
    refs = [actor.wait.remote(), actor.wait.remote()]
    found = wait_for_breakpoints(2)
    assert {(one.at.task_name, one.at.actor_id.hex()) for one in found} == {("Threaded.wait", actor._actor_id.hex())}
    for one in found:
        with attached(one) as terminal:
            terminal.type("c")
            terminal.read_until("")
    assert len(set(ray.get(refs))) == 2


def test_a_thread_of_a_task_waits_too() -> None:
    actor = Threaded.remote()
    ref = actor.wait_in_thread.remote()
    (one,) = wait_for_breakpoints(1)
    assert one.at.task_name == ""
    with attached(one) as terminal:
        assert terminal.ask("p inner") == "'in the thread'"
        terminal.type("c")
        terminal.read_until("")
    assert ray.get(ref) == "in the thread"


def test_a_step_over_an_await_stops_behind_it() -> None:
    actor = Async.remote()
    ref = actor.double.remote(4)
    with attached(*wait_for_breakpoints(1)) as terminal:
        assert terminal.first.endswith("-> await asyncio.get_running_loop().run_in_executor(None, int)\n(Pdb) ")
        assert terminal.ask("n").endswith("-> twice = number * 2")
        assert terminal.ask("n").endswith("-> return twice")
        terminal.type("n")
        assert ray.get(ref) == 8
        terminal.read_until("")


def test_a_cancelled_task_leaves_the_debugger() -> None:
    ref = add_one.remote(1)
    wait_for_breakpoints(1)
    ray.cancel(ref)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(ref)
    assert not waiting() and not debugger_sockets()


def test_a_task_that_is_cancelled_while_a_terminal_is_attached_leaves_it() -> None:
    ref = add_one.remote(1)
    with attached(*wait_for_breakpoints(1)) as terminal:
        ray.cancel(ref)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(ref)
        terminal.read_until("")


def test_a_cancelled_call_of_an_async_actor_leaves_the_debugger_and_its_actor_alive() -> None:
    actor = Async.remote()
    ref = actor.double.remote(1)
    wait_for_breakpoints(1)
    ray.cancel(ref)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(ref)
    again = actor.double.remote(2)
    with attached(*wait_for_breakpoints(1)) as terminal:
        terminal.type("c")
    assert ray.get(again) == 4


@pytest.mark.parametrize("end", ["force", "kill"])
def test_a_killed_worker_leaves_no_socket(end: str) -> None:
    ref = add_one.options(max_retries=0).remote(1)
    (one,) = wait_for_breakpoints(1)
    if end == "force":
        ray.cancel(ref, force=True)
    else:
        os.kill(one.pid, signal.SIGKILL)
    with pytest.raises((ray.exceptions.WorkerCrashedError, ray.exceptions.TaskCancelledError)):
        ray.get(ref)
    wait_for_no_sockets()
    assert not waiting()


def test_a_thread_that_waits_keeps_its_worker_though_its_task_has_ended() -> None:
    @ray.remote
    def leave_a_thread() -> int:
        def body() -> None:
            breakpoint()
            done.append(1)

        done: list[int] = []
        threading.Thread(target=body).start()
        return os.getpid()

    pid = ray.get(leave_a_thread.remote())
    (one,) = wait_for_breakpoints(1)
    assert one.pid == pid
    others = [add_one.options(num_cpus=0).remote(1) for _ in range(5)]
    for each in wait_for_breakpoints(6)[1:]:
        with attached(each) as terminal:
            terminal.type("c")
    ray.get(others)
    # More workers are idle than CPUs are there. The raylet ends those that have been idle longest, but not this one.
    wait_for_condition(lambda: len(_workers()) <= 3, 30, "the surplus of idle workers has been ended")
    assert pid in _workers()
    with attached(one) as terminal:
        terminal.type("c")
        terminal.read_until("")


def _workers() -> set[int]:
    return {row.pid for row in list_workers() if row.is_alive and row.worker_type == "WORKER"}


def test_the_errors_of_generators_and_actors_are_examined_too() -> None:
    environment = {"env_vars": {"MINRAY_DEBUG_POST_MORTEM": "1"}}

    @ray.remote(runtime_env=environment)
    def generate() -> Any:
        yield 1
        raise ValueError("after one")

    @ray.remote(runtime_env=environment)
    class Fails:
        async def method(self) -> None:
            inner = 7
            raise KeyError(inner)

    actor = Fails.remote()
    refs = generate.remote(), actor.method.remote()
    first, second = sorted(wait_for_breakpoints(2), key=lambda one: one.at.error)
    assert (first.at.error, second.at.error) == ("KeyError: 7", "ValueError: after one")
    for one in (first, second):
        with attached(one) as terminal:
            terminal.type("c")
            terminal.read_until("")
    with pytest.raises(KeyError):
        ray.get(refs[1])
    assert ray.get(next(refs[0])) == 1
    with pytest.raises(ValueError, match="after one"):
        ray.get(next(refs[0]))


def test_an_exception_is_examined_where_it_was_raised_if_one_wants_that() -> None:
    @ray.remote(runtime_env={"env_vars": {"RAY_DEBUG_POST_MORTEM": "1"}})
    def divide(divisor: int) -> float:
        dividend = 7
        return dividend / divisor

    ref = divide.remote(0)
    (one,) = wait_for_breakpoints(1)
    assert (one.at.task_name, one.at.error) == ("divide", "ZeroDivisionError: division by zero")
    with attached(one) as terminal:
        assert "The task raised ZeroDivisionError: division by zero" in terminal.first
        assert terminal.ask("p dividend, divisor") == "(7, 0)"
        assert terminal.ask("up") == "*** Oldest frame"
        terminal.type("q")
        with pytest.raises(ZeroDivisionError):
            ray.get(ref)
        terminal.read_until("")
    again = divide.remote(0)
    wait_for_breakpoints(1)
    ray.cancel(again)
    with pytest.raises((ZeroDivisionError, ray.exceptions.TaskCancelledError)):
        ray.get(again)
    assert ray.get(divide.remote(2)) == 3.5


def test_the_command_lists_breakpoints_and_attaches_the_terminal_to_the_one_that_is_chosen() -> None:
    refs = [add_one.remote(1), add_one.remote(2)]
    first, second = wait_for_breakpoints(2)
    with command() as (terminal, process):
        listed = terminal.read_until("Attach to number [1]: ")
        rows = [line.split() for line in listed.splitlines() if re.match(r"\d +[0-9a-f]{8}-", line)]
        assert [row[:3] for row in rows] == [["1", first.at.id, "add_one"], ["2", second.at.id, "add_one"]]
        assert all(str(one.pid) in listed and f"{one.at.filename}:{one.at.line}" in listed for one in (first, second))
        terminal.type("2")
        assert f"Attached to add_one, process {second.pid}" in terminal.read_until()
        assert terminal.ask("p 6 * 7") == "42"
        terminal.type("c")
        assert "The debugger of add_one has ended." in terminal.read_until("") and process.wait() == 0
    with command(first.at.id[:6]) as (terminal, process):
        terminal.read_until()
        os.kill(process.pid, signal.SIGINT)
        assert f"To attach again: minray debug {first.at.id}" in terminal.read_until("") and process.wait() == 0
    with command(first.at.id) as (terminal, process):
        terminal.read_until()
        terminal.type("\x04")
        assert "waits on" in terminal.read_until("")
    with attached(first) as one:
        one.type("c")
    assert sorted(ray.get(refs)) == [2, 3]


def test_the_command_says_why_it_does_not_attach() -> None:
    with command("abc") as (terminal, process):
        assert "no task waits at a breakpoint whose id begins with abc" in terminal.read_until("") and process.wait() == 1
    with command() as (terminal, process):
        assert "No task waits in a debugger." in terminal.read_until("") and process.wait() == 0
    ref = add_one.remote(1)
    (one,) = wait_for_breakpoints(1)
    with attached(one) as own:
        with command(one.at.id) as (terminal, process):
            assert f"another terminal is attached to {one.at.id}" in terminal.read_until("") and process.wait() == 1
        own.type("c")
    ray.get(ref)


def test_a_worker_says_where_it_waits_and_a_forked_process_cannot() -> None:
    done = run_driver(
        """
        import os
        from tests.debugging.terminals import attached, wait_for_breakpoints
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def f():
            child = os.fork()
            if child == 0:
                try:
                    breakpoint()
                except RuntimeError as error:
                    os.write(2, f"{error}\\n".encode())
                os._exit(0)
            os.waitpid(child, 0)
            breakpoint()
            return "went on"
        ref = f.remote()
        (one,) = wait_for_breakpoints(1)
        with attached(one) as terminal:
            terminal.type("c")
        print(ray.get(ref), one.at.id)
        for env_vars in ({"PYTHONBREAKPOINT": "0"}, {"PYTHONBREAKPOINT": "os.getcwd"}):
            print(ray.get(f.options(runtime_env={"env_vars": env_vars}).remote()))
        """
    )
    assert done.returncode == 0, done.stderr
    id = done.stdout.splitlines()[0].split()[-1]
    assert f"waits in the debugger. To attach a terminal: minray debug {id}" in done.stderr
    assert "which a task has forked" in done.stderr and done.stdout.count("went on") == 3
