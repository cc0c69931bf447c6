"""How the calls of an actor run: which kind it is, whose turn it is, what its event loop is asked.

``Host`` stands for the worker around it: what is to run in the main thread waits in ``due`` until the test lets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from minray.common.task_spec import ActorOptions
from minray.core_worker.execution.actor_process import WORKS_PER_TURN, ActorProcess
from minray.core_worker.records.received_task import ReceivedTask
from tests.core_worker.parts import received, template
from tests.core_worker.user_thread import WorkQueue
from tests.platform_record import platform_record
from tests.rpc.fake_network import run, turns


class Host(WorkQueue):
    """See the head of this file."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.done: list[str] = []
        """Calls that have run, and those that were reported as over."""
        self.marked: list[str] = []
        """Calls that were reported as begun, perhaps before their first step."""
        self.beside: dict[str, Callable[[], None]] = {}
        """Name of a thread of its own -> how to end it."""
        self.open: list[Callable[[asyncio.AbstractEventLoop], None]] = []
        """Callbacks that wait for an event loop: those of groups first, then that of the main thread."""
        self.limits: list[int] = []
        """Number of threads that each group has asked for."""
        self.coroutines: dict[str, asyncio.Future[None]] = {}
        """Running calls of an async actor."""
        self.cancelled: list[str] = []
        executor: Any = self
        constructor = self.task("A", actor=ActorOptions(**options))
        self.actor = ActorProcess(platform_record(user_code=self), executor, constructor, self.on_over)

    def on_cancelled(self, task: Any) -> None:
        """No call here is a generator."""

    def mark(self, task: Any) -> None:
        self.marked.append(task.header.template.name)

    def task(self, name: str, group: str = "", **options: Any) -> ReceivedTask:
        return received(template(name, concurrency_group=group, **options))

    def call(self, name: str, group: str = "", is_claimed: bool = False) -> ReceivedTask:
        """A call arrives, which may have been claimed meanwhile."""
        task = self.task(name, group)
        assert not is_claimed or task.claim()
        self.actor.run(task)
        return task

    def on_over(self, task: Any) -> None:
        self.done.append(f"{task.header.template.name} is over")

    # --- as user code

    def threads_beside(self, limit: int) -> Threads:
        self.limits.append(limit)
        return Threads(self)

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self.open.append(on_open)

    run_event_loop_beside = run_event_loop

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        then(*args)

    post = follow

    def work(self) -> None:
        """The main thread does what is due."""
        while self.due:
            work, then = self.due.popleft()
            work()
            then()

    def open_loops(self) -> None:
        """All of them are the one on which the test runs."""
        while self.open:
            self.open.pop(0)(asyncio.get_running_loop())

    # --- as the executor

    def execute(self, task: Any) -> None:
        self.done.append(task.header.template.name)

    execute_beside = execute

    async def execute_async(self, task: Any) -> None:
        name = task.header.template.name
        self.done.append(name)
        self.coroutines[name] = asyncio.get_running_loop().create_future()
        try:
            await self.coroutines[name]
        except asyncio.CancelledError:
            self.cancelled.append(name)

    def end_unstarted(self, task: Any) -> None:
        self.cancelled.append(f"{task.header.template.name}, unstarted")

    def shut_down_actor(self) -> None:
        self.done.append("shut down")


class Threads:
    """Plays ``base.Threads`` that are all idle: a call begins at once, and ends when the test says so."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        work(*args)
        self._host.beside[self._host.done[-1]] = partial(then, *args)


def test_calls_of_a_plain_actor_run_one_after_the_other_in_the_main_thread() -> None:
    host = Host()
    assert host.actor.is_plain
    host.actor.construct(lambda _task: host.done.append("constructed"))
    host.call("first")
    host.call("second")
    host.actor.shut_down(lambda: host.done.append("clean"))
    assert host.done == []
    host.work()
    assert host.done == ["A", "constructed", "first", "first is over", "second", "second is over", "shut down", "clean"]


@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"max_concurrency": 2, "groups": (("io", 1),)}])
def test_calls_of_a_threaded_actor_begin_in_order_when_there_is_room(options: dict[str, Any]) -> None:
    host = Host(**options)
    assert not host.actor.is_plain
    host.actor.construct(lambda _task: host.done.append("constructed"))
    host.work()
    for name in ("a", "b", "c", "d"):
        host.call(name)
    assert host.done == ["A", "constructed", "a", "b"]
    host.beside["b"]()
    assert host.done[4:] == ["b is over", "c"]
    host.beside["a"]()
    host.beside["c"]()
    assert host.done[6:] == ["a is over", "d", "c is over"]
    host.call("e")
    assert host.done[9:] == ["e"]
    host.actor.shut_down(lambda: host.done.append("clean"))
    host.work()
    assert host.done[10:] == ["shut down", "clean"]


def test_groups_do_not_wait_for_each_other() -> None:
    """A group that the actor does not have is the one of calls without a group."""
    host = Host(groups=(("io", 2),))
    assert host.limits == [1, 2]
    for name, group in (("a", ""), ("b", ""), ("x", "io"), ("y", "io"), ("z", "io"), ("c", "unknown")):
        host.call(name, group)
    assert host.done == ["a", "x", "y"]
    host.beside["a"]()
    assert host.done[3:] == ["a is over", "b"]
    host.beside["b"]()
    assert host.done[5:] == ["b is over", "c"]


def test_a_call_that_goes_on_with_the_next_one_when_it_is_over_finds_its_room_free() -> None:
    class Eager(Host):
        def on_over(self, task: Any) -> None:
            self.call("b", "io")

    host = Eager(groups=(("io", 1),))
    host.call("a", "io")
    host.beside["a"]()
    assert host.done == ["a", "b"]


def on_loop(story: Any, **options: Any) -> None:
    async def whole() -> None:
        await story(Host(is_async=True, max_concurrency=100, **options))

    run(whole)


def test_the_constructor_of_an_async_actor_is_the_first_that_its_loop_does() -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: host.done.append("constructed"))
        host.call("early")
        await turns()
        assert (host.done, host.marked) == ([], ["A"]), "what kills the process from now on is the actor"
        host.open_loops()
        await turns()
        assert host.done == ["A", "early"]
        host.coroutines["A"].set_result(None)
        await turns()
        assert host.done == ["A", "early", "constructed"]

    on_loop(story)


def test_calls_of_an_async_actor_run_at_once_as_far_as_there_is_room() -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        for name in "abc":
            host.call(name, "io")
        await turns()
        assert host.done == ["A", "a", "b"]
        host.coroutines["a"].set_result(None)
        await turns()
        assert host.done[3:] == ["a is over", "c"]

    on_loop(story, groups=(("io", 2),))


def test_many_calls_wake_the_loop_once_and_begin_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        await turns()
        loop, woken = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: (woken.append(1), wake(*call)))
        for number in range(2 * WORKS_PER_TURN + 1):
            host.call(str(number))
        assert len(woken) == 1 and len(host.done) == 1
        begun = []
        while len(host.coroutines) < 2 * WORKS_PER_TURN + 2:
            await turns(1)
            begun.append(len(host.coroutines) - 1)
        assert WORKS_PER_TURN in begun
        host.call("late")
        await turns()
        assert len(woken) == 2 and host.done[-1] == "late"
        monkeypatch.undo()

    on_loop(story)


def test_a_loop_that_is_faster_than_we_are_is_woken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may be in another thread, and finish its work before the waker has noted that it was woken."""

    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        await turns()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda work: work())
        host.call("one")
        host.call("other")
        await turns()
        assert host.done == ["A", "one", "other"]
        monkeypatch.undo()

    on_loop(story)


def test_a_call_that_was_cancelled_before_its_turn_does_not_begin_and_leaves_its_room() -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        host.call("cancelled", "io", is_claimed=True)
        host.call("next", "io")
        await turns()
        assert host.done == ["A", "cancelled is over", "next"]

    on_loop(story, groups=(("io", 1),))


def test_g45_a_running_coroutine_is_cancelled_and_what_does_not_run_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        one, other = host.call("one"), host.call("other")
        await turns()
        host.actor.cancel_call(one)
        host.actor.cancel_call(host.task("unknown"))
        await turns()
        assert host.cancelled == ["one"] and host.done[-1] == "one is over"
        host.actor.cancel_call(one)
        host.coroutines["other"].set_result(None)
        await turns()
        host.actor.cancel_call(other)
        await turns()
        assert host.cancelled == ["one"] and host.done[-1] == "other is over"
        assert host.actor._user_loop is not None and len(host.actor._user_loop._tasks) == 1, "the constructor"

    on_loop(story)
    assert not caplog.records


class Watched(ReceivedTask):
    """A call, and what happens in the moment in which it is claimed."""

    on_claim: Callable[[], object] | None = None

    def claim(self) -> bool:
        assert self.on_claim is not None
        self.on_claim()
        return True


def cancel_all() -> None:
    for running in asyncio.all_tasks():
        if running.get_name() == "call":
            running.cancel()


@pytest.mark.parametrize("by_owner", [True, False])
def test_g45_a_coroutine_that_is_cancelled_before_its_first_step_has_an_end_too(by_owner: bool) -> None:
    """A cancellation by the owner, or by a method for its whole loop, comes between the claim and the first step."""

    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        task = Watched(**msgspec.structs.asdict(host.task("call", "io")))
        loop = asyncio.get_running_loop()
        task.on_claim = (lambda: host.actor.cancel_call(task)) if by_owner else (lambda: loop.call_soon(cancel_all))
        host.actor.run(task)
        await turns()
        assert host.cancelled == ["call, unstarted"] and host.done == ["A", "call is over"]

    on_loop(story, groups=(("io", 1),))


def test_a_mistake_of_ours_is_logged_and_the_call_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        host.call("call")
        await turns()
        host.coroutines["call"].set_exception(RuntimeError("oops"))
        await turns()
        assert host.done[-1] == "call is over"

    with caplog.at_level(logging.ERROR):
        on_loop(story)
    assert [record.message for record in caplog.records] == ["running a call failed"]


def test_g53_each_group_of_an_async_actor_has_a_loop_of_its_own() -> None:
    """Also of calls that come before it is there."""

    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        io, main = host.open
        host.call("a")
        host.call("b", "io")
        host.call("c", "unknown")
        main(asyncio.get_running_loop())
        await turns()
        assert host.done == ["A", "a", "c"]
        io(asyncio.get_running_loop())
        await turns()
        assert host.done[3:] == ["b"]

    on_loop(story, groups=(("io", 1),))


def test_an_async_actor_cleans_up_on_its_own_loop() -> None:
    async def story(host: Host) -> None:
        host.actor.construct(lambda _task: None)
        host.open_loops()
        await turns()
        host.actor.shut_down(lambda: host.done.append("clean"))
        assert host.done == ["A"]
        await turns()
        assert host.done == ["A", "shut down", "clean"]

    on_loop(story)


def test_a_coroutine_of_no_other_kind_of_actor_can_be_cancelled() -> None:
    host = Host(max_concurrency=2)
    host.actor.cancel_call(host.call("call"))
    assert host.done == ["call"] and host.due == deque()
