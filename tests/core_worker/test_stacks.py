"""Stacks of a process: its threads and coroutines, from the user's first frame on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

import minray
from minray.core_worker.execution import task_executor
from minray.core_worker.introspection import stacks
from minray.core_worker.introspection.stacks import (
    awaited_frames,
    coroutine_stacks,
    describe,
    thread_frames,
    thread_stacks,
    users_part,
)
from minray.errors.tracebacks import FRAMES
from minray.protocol.state import ProcessStacks, Stack
from tests.core_worker.cores import Core, Cores, let_pass
from tests.helpers import wait_for_condition
from tests.rpc.fake_network import turns


@contextmanager
def blocked() -> Generator[FrameType, None, None]:
    """Frame of a thread that waits."""
    arrived, go = threading.Event(), threading.Event()

    def block() -> None:
        arrived.set()
        go.wait()

    thread = threading.Thread(target=block)
    thread.start()
    arrived.wait()
    try:
        yield sys._current_frames()[thread.ident or 0]
    finally:
        go.set()
        thread.join()


def compiled(filename: str, source: str) -> Callable[..., Any]:
    """The function ``f`` of a program that claims to be this file."""
    names: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), names)
    found: Callable[..., Any] = names["f"]
    return found


def caller(filename: str) -> Callable[..., Any]:
    """Calls its first argument with the others."""
    return compiled(filename, "def f(function, *rest):\n    return function(*rest)")


def innermost() -> FrameType:
    return sys._getframe()


def functions(stack: Stack) -> list[str]:
    return [frame.function for frame in stack.frames]


def test_a_thread_is_shown_with_its_newest_call_last_and_what_is_written_there() -> None:
    with blocked() as frame_there:
        (stack,) = thread_stacks([("blocked", frame_there)])
    assert (stack.name, stack.is_coroutine, stack.count, stack.left_out) == ("blocked", False, 1, 0)
    frame = next(frame for frame in stack.frames if frame.function == "block")
    assert frame.filename == __file__ and frame.source in ("arrived.set()", "go.wait()") and frame.line > 0
    assert functions(stack).index("run") < functions(stack).index("block")


def test_a_file_that_cannot_be_read_has_no_source() -> None:
    frames = thread_frames(caller("/nowhere/program.py")(innermost))
    found = {frame.filename: frame for frame in describe("it", frames, is_coroutine=False).frames}
    assert found["/nowhere/program.py"].source == "" and found["/nowhere/program.py"].line == 2
    assert found[__file__].source


def test_how_minray_came_to_call_the_users_code_is_left_out_and_what_it_does_for_that_is_not() -> None:
    execute, runtime = caller(task_executor.__file__), caller(stacks.__file__)
    frames = thread_frames(execute(runtime, caller("user.py"), runtime, innermost))
    assert [frame.f_code.co_filename for frame in users_part(frames)] == ["user.py", stacks.__file__, __file__]
    only_ours = thread_frames(execute(runtime, runtime, sys._getframe))
    assert users_part(only_ours) == only_ours
    not_called_by_us = thread_frames(innermost())
    assert users_part(not_called_by_us) == not_called_by_us


@pytest.mark.parametrize(
    ("name", "files", "is_shown"),
    [
        ("minray-relief", (stacks.__file__, threading.__file__), False),
        ("minray-call", (stacks.__file__, "user.py"), True),
        ("minray-event-loop", (asyncio.__file__, stacks.__file__), True),
        ("users", (threading.__file__, stacks.__file__), True),
    ],
)
def test_minrays_own_threads_are_shown_while_they_run_something_of_the_users(
    monkeypatch: pytest.MonkeyPatch, name: str, files: tuple[str, ...], is_shown: bool
) -> None:
    call: Callable[[], Any] = sys._getframe
    for path in reversed(files):
        call = partial(caller(path), call)
    frames = thread_frames(call())
    monkeypatch.setattr(stacks, "thread_frames", lambda innermost: frames[-len(files) :])
    assert bool(thread_stacks([(name, frames[-1])])) == is_shown


def test_a_thread_of_a_pool_is_shown_while_it_has_something_to_run() -> None:
    arrived, go = threading.Event(), threading.Event()

    def block() -> None:
        arrived.set()
        go.wait()

    with ThreadPoolExecutor(1) as pool:
        idents = pool.submit(threading.get_ident)
        pool.submit(block)
        arrived.wait()
        (stack,) = thread_stacks([("pool_0", sys._current_frames()[idents.result()])])
        go.set()
        assert "block" in functions(stack)
        wait_for_condition(lambda: not thread_stacks([("pool_0", sys._current_frames()[idents.result()])]))


def test_the_main_thread_is_the_first_and_who_asks_has_no_frames() -> None:
    frame = innermost()
    found = thread_stacks([("b", frame), ("MainThread", None), ("a", frame), ("minray-io", None)])
    assert [(stack.name, bool(stack.frames)) for stack in found] == [("MainThread", False), ("a", True), ("b", True)]


def test_a_deep_recursion_loses_its_middle() -> None:
    def dive(depth: int) -> FrameType:
        return sys._getframe() if depth == 0 else dive(depth - 1)

    frames = thread_frames(dive(2 * FRAMES))[-2 * FRAMES :]
    stack = describe("it", frames, is_coroutine=False)
    assert len(stack.frames) == FRAMES and stack.left_out == FRAMES and functions(stack) == ["dive"] * FRAMES


# --- coroutines


async def waiting(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event) -> None:
    await waiting(event)


async def items(event: asyncio.Event) -> AsyncIterator[int]:
    await event.wait()
    yield 1


async def reading(event: asyncio.Event) -> None:
    async for _ in items(event):
        pass


async def described(*coroutines: Coroutine[Any, Any, Any], name: str | None = None) -> tuple[list[Stack], int]:
    """The stacks of these, when each of them waits."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    for task in tasks:
        if name is not None:
            task.set_name(name)
    await turns()
    try:
        return coroutine_stacks(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_coroutine_is_shown_with_all_that_it_awaits() -> None:
    async def story() -> None:
        (stack,), left_out = await described(outer(asyncio.Event()), name="A.method")
        assert (stack.name, stack.is_coroutine, left_out) == ("A.method", True, 0)
        assert functions(stack) == ["outer", "waiting", "wait"] and stack.frames[1].source == "await event.wait()"

    asyncio.run(story())


def test_coroutines_that_do_the_same_are_counted() -> None:
    async def story() -> None:
        event = asyncio.Event()
        found, left_out = await described(*(outer(event) for _ in range(50)), waiting(event))
        assert [(stack.name, stack.count) for stack in found] == [("outer", 50), ("waiting", 1)] and left_out == 0

    asyncio.run(story())


def test_of_very_many_different_ones_some_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_COROUTINES", 1)

    async def story() -> None:
        event = asyncio.Event()
        (stack,), left_out = await described(outer(event), waiting(event), waiting(event), outer(event))
        assert (stack.name, stack.count, left_out) == ("outer", 2, 2)

    asyncio.run(story())


def test_generators_are_followed_as_far_as_they_can_be() -> None:
    async def story() -> None:
        (stack,), _ = await described(reading(asyncio.Event()))
        assert functions(stack) == ["reading"]

    asyncio.run(story())


def test_a_coroutine_that_runs_is_seen_in_its_thread() -> None:
    async def story() -> None:
        task = asyncio.current_task()
        assert task is not None and awaited_frames(task) == []

    asyncio.run(story())


# --- a process


@minray.remote
def rest() -> None:
    let_pass(100)


@minray.remote
class Patient:
    async def wait(self) -> None:
        await asyncio.Event().wait()


def told_of(cluster: Cores, driver: Core, call: Any) -> ProcessStacks:
    """Stacks of the process that runs this call."""

    async def begin() -> Any:
        return call()

    ref = driver.do(begin())
    cluster.settle(2)
    busy = [core for core in cluster.cores.values() if not core.execution.is_idle()]
    (worker,) = [cluster.worker_of(core.platform.processes.pid) for core in busy]
    told = worker.act(worker.worker.statistician.stacks)
    assert (told.worker_id, told.pid) == (worker.worker.address.worker_id, worker.process.pid) and not told.is_driver
    assert ref is not None and told.left_out == 0
    return told


def test_a_process_tells_of_its_task(cluster: Cores, driver: Core) -> None:
    told = told_of(cluster, driver, rest.remote)
    (stack,) = told.stacks
    assert told.running == ["rest"] and stack.name == "MainThread" and functions(stack)[:2] == ["rest", "let_pass"]


def test_a_process_tells_of_the_coroutines_of_its_actor(cluster: Cores, driver: Core) -> None:
    told = told_of(cluster, driver, lambda: Patient.remote().wait.remote())
    (stack,) = [stack for stack in told.stacks if stack.is_coroutine]
    assert told.running == ["Patient.wait"] == [stack.name] and functions(stack) == ["wait", "wait"]
