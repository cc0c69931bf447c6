"""User code in real processes: what crosses between threads and the loop."""

from __future__ import annotations

import asyncio
import builtins
import gc
import inspect
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from minray.common.config import SystemConfig
from minray.platform.real import io_thread
from minray.platform.threads.user_code import DROPS_AT_ONCE, DriverUserCode, IoThread, LockParker
from tests.helpers import turn, wait_for_condition


@pytest.fixture
def io() -> Generator[IoThread, None, None]:
    thread = IoThread()
    yield thread
    thread.stop()


def drained(io: IoThread, user_code: DriverUserCode) -> None:
    """Return when everything that was posted before has been called."""
    done = threading.Event()
    user_code.post(done.set)
    assert done.wait(10)


def test_a_driver_s_garbage_is_collected_beside_its_threads(io: IoThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once at a time, however often that is asked for, and not if its user wants none of it."""
    user_code = DriverUserCode(io.loop)
    begun: list[str] = []
    go = threading.Event()

    def collect() -> None:
        begun.append(threading.current_thread().name)
        go.wait(10)

    monkeypatch.setattr(gc, "collect", collect)
    for _ in range(3):
        user_code.post(user_code.collect_later)
    drained(io, user_code)
    go.set()
    wait_for_condition(lambda: "minray-garbage" not in [thread.name for thread in threading.enumerate()])
    assert begun == ["minray-garbage"]
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    user_code.collect_later()
    assert begun == ["minray-garbage"]


# --- Posting ---


def test_posts_arrive_in_order_on_the_loop(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    seen: list[tuple[int, bool]] = []
    for number in range(1000):
        user_code.post(lambda number=number: seen.append((number, user_code.is_loop_thread())))
    drained(io, user_code)
    assert seen == [(number, True) for number in range(1000)]
    assert not user_code.is_loop_thread()


def test_a_thread_that_posts_a_lot_lets_the_loop_begin(io: IoThread) -> None:
    """Also if it would never be made to: the interpreter is taken from nobody here."""
    user_code = DriverUserCode(io.loop)
    called: list[int] = []
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for number in range(1_000_000):
            user_code.post(called.append, number)
            if called:
                break
    finally:
        sys.setswitchinterval(interval_s)
    assert called
    drained(io, user_code)
    assert called == list(range(number + 1))


def test_every_thread_is_known_by_name_and_who_asks_has_no_frame(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    arrived, go = threading.Event(), threading.Event()

    def wait() -> None:
        arrived.set()
        go.wait()

    thread = threading.Thread(target=wait, name="waiting")
    thread.start()
    assert arrived.wait(10)

    async def ask() -> Any:
        return user_code.threads()

    found = dict(io.run(ask()))
    go.set()
    thread.join()
    assert found["minray-io"] is None and found["MainThread"] is not None
    frame, names = found["waiting"], []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    assert "wait" in names and names[-1] == "_bootstrap"


def test_many_posts_cost_one_wake_up(io: IoThread, monkeypatch: pytest.MonkeyPatch) -> None:
    user_code = DriverUserCode(io.loop)
    busy, go = threading.Event(), threading.Event()
    io.loop.call_soon_threadsafe(lambda: (busy.set(), go.wait(10)))
    assert busy.wait(10)
    wake_ups: list[Any] = []
    wake = io.loop.call_soon_threadsafe

    class Counting:
        def call_soon_threadsafe(self, callback: Any) -> None:
            wake_ups.append(callback)
            wake(callback)

    user_code._loop = Counting()  # type: ignore[assignment]
    seen: list[int] = []
    for number in range(1000):
        user_code.post(seen.append, number)
    user_code._loop = io.loop
    go.set()
    drained(io, user_code)
    assert seen == list(range(1000)) and len(wake_ups) == 1


def test_no_post_is_lost_between_many_threads(io: IoThread) -> None:
    """Each thread posts and waits for its own callback, so one lost wake-up would end in a time-out."""
    user_code = DriverUserCode(io.loop)
    counted: list[int] = []

    def work(number: int) -> None:
        for _ in range(2000):
            parker = user_code.parker()
            user_code.post(counted.append, number)
            user_code.post(parker.release)
            assert parker.wait(10)
        counted.append(-1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [counted.count(number) for number in (-1, 0, 1, 2, 3)] == [4, 2000, 2000, 2000, 2000]


def test_callbacks_that_post_leave_the_loop_its_turns(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    running = True

    def again() -> None:
        if running:
            user_code.post(again)

    user_code.post(again)
    io.run(turn(), 10)
    running = False


def test_a_failing_callback_does_not_take_others_along(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    reported: list[dict[str, Any]] = []
    io.loop.set_exception_handler(lambda loop, context: reported.append(context))
    seen: list[int] = []
    user_code.post(seen.append)  # Misses its argument.
    user_code.post(seen.append, 1)
    drained(io, user_code)
    assert seen == [1] and isinstance(reported[0]["exception"], TypeError)


def test_what_is_posted_for_later_overtakes_nothing(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    seen: list[int] = []
    for number in range(1000):
        (user_code.post_later if number % 3 == 0 else user_code.post)(seen.append, number)
    done = threading.Event()
    user_code.post_later(done.set)
    assert done.wait(10)
    assert sorted(seen) == list(range(1000))
    assert [number for number in seen if number % 3] == [number for number in range(1000) if number % 3]
    assert [number for number in seen if not number % 3] == list(range(0, 1000, 3))
    place = {number: index for index, number in enumerate(seen)}
    assert all(place[number] > place[number - 1] for number in range(3, 1000, 3))


def test_what_is_dropped_is_told_of_in_order_and_overtakes_nothing(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    seen: list[int] = []
    told: list[int] = []

    def on_dropped(names: Sequence[bytes]) -> None:
        told.append(len(names))
        for name in names:
            seen.append(int(name))
            assert int(name) - 1 in seen, "dropped before it was posted"
        if names[-1] == b"1999":
            done.set()

    done = threading.Event()
    user_code.on_dropped = on_dropped
    for number in range(0, 2000, 2):
        (user_code.post_later if number % 3 == 0 else user_code.post)(seen.append, number)
        user_code.drop(b"%d" % (number + 1))
    assert done.wait(10)
    assert sorted(seen) == list(range(2000)) and len(told) < 1000
    assert [number for number in seen if number % 2] == list(range(1, 2000, 2))


def test_who_posts_for_later_does_not_wait_for_all_that_was_dropped(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    told, marks = [0], []
    done = threading.Event()

    def on_dropped(names: Sequence[bytes]) -> None:
        if not told[0]:
            user_code.post_later(lambda: marks.append(told[0]))
        told[0] += len(names)
        if told[0] == 10 * DROPS_AT_ONCE:
            done.set()

    user_code.on_dropped = on_dropped
    for _ in range(10 * DROPS_AT_ONCE):
        user_code.drop(b"name")
    assert done.wait(10)
    drained(io, user_code)
    assert len(marks) == 1 and marks[0] <= DROPS_AT_ONCE


def test_those_that_were_dropped_with_one_that_fails_do_not_stay(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    reported: list[dict[str, Any]] = []
    io.loop.set_exception_handler(lambda loop, context: reported.append(context))
    done = threading.Event()

    def on_dropped(names: Sequence[bytes]) -> None:
        if b"last" in names:
            done.set()
        raise ValueError(names)

    user_code.on_dropped = on_dropped
    user_code.drop(b"first")
    drained(io, user_code)
    user_code.drop(b"last")
    assert done.wait(10)
    drained(io, user_code)
    assert not user_code._has_posted() and {type(each["exception"]) for each in reported} == {ValueError}


def test_what_is_posted_for_later_is_called_although_more_and_more_is_posted(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    over = threading.Event()

    def again() -> None:
        if not over.is_set():
            for _ in range(1 + (len(user_code._posted) < 1000)):
                user_code.post(again)

    user_code.post(again)
    user_code.post_later(over.set)
    assert over.wait(10)
    drained(io, user_code)


def test_posting_to_a_closed_loop_does_nothing() -> None:
    thread = IoThread()
    user_code = DriverUserCode(thread.loop)
    thread.stop()
    user_code.post(print, "never")
    user_code.post(print, "never")
    assert not user_code._posted


# --- Parking ---


def test_a_parker_waits_until_released(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    parker = user_code.parker()
    assert not parker.wait(0) and not parker.wait(0.01) and not parker.wait(-1)
    user_code.post(parker.release)
    assert parker.wait(None)


def test_a_visit_interrupts_the_wait_of_the_main_thread_and_no_other(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    user_code.receives_visits = True
    parker, visits = user_code.parker(), []

    def visit() -> None:
        visits.append(threading.current_thread())
        if len(visits) == 3:
            user_code.post(parker.release)

    def in_another_thread() -> None:
        other = user_code.parker()
        user_code.post(other.release)
        assert other.wait(None)
        for _ in range(2):
            user_code.post(user_code.visit, visit)

    user_code.visit(visit)
    assert not visits
    thread = threading.Thread(target=in_another_thread)
    thread.start()
    assert parker.wait(None) and visits == [threading.main_thread()] * 3
    thread.join()
    assert user_code.visited is None


def test_a_visit_ends_neither_the_time_of_a_wait_nor_the_next_wait(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    user_code.receives_visits = True
    parker = user_code.parker()
    user_code.visit(lambda: None)
    assert not parker.wait(0)
    user_code.visit(lambda: threading.Event().wait(0.02))
    assert not parker.wait(0.01) and not parker.wait(-1) and not user_code.visits
    parker.release()
    user_code.visit(parker.release)
    assert parker.wait(None) and len(user_code.visits) == 1, "what was waited for comes first"


def test_a_visit_that_is_interrupted_interrupts_the_wait(io: IoThread) -> None:
    def visit() -> None:
        raise KeyboardInterrupt

    user_code = DriverUserCode(io.loop)
    user_code.receives_visits = True
    parker = user_code.parker()
    user_code.visit(visit)
    with pytest.raises(KeyboardInterrupt):
        parker.wait(None)
    parker.release()
    assert parker.wait(None) and user_code.visited is None


def test_a_parker_may_be_released_before_and_more_than_once() -> None:
    parker = LockParker()
    parker.release()
    parker.release()
    assert parker.wait(None) and parker.wait(1e12)


def test_who_waits_in_vain_is_told_why() -> None:
    parker = LockParker()
    parker.fail(lambda: ValueError("why"))
    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            parker.wait(None)


def test_when_the_loop_has_ended_a_callback_that_exits_leaves_no_future_behind() -> None:
    io = IoThread()
    user_code = DriverUserCode(io.loop)
    futures = [user_code.future() for _ in range(3)]

    def leave(_done: object) -> None:
        raise SystemExit(3)

    for future in futures:
        future.add_done_callback(leave)
    io.stop()
    with pytest.raises(SystemExit):
        user_code.close(lambda: RuntimeError("it has ended"))
    assert all(future.done() for future in futures) and not user_code.futures


def test_when_the_loop_has_ended_threads_that_wait_are_told_so() -> None:
    """Also those that begin to wait later: what they have posted is never called."""
    io = IoThread()
    user_code = DriverUserCode(io.loop)
    raised: list[str] = []

    def wait() -> None:
        parker = user_code.parker()
        if io.loop.is_closed():
            user_code.post(parker.release)
        try:
            parker.wait(None)
        except RuntimeError as error:
            raised.append(str(error))

    early = threading.Thread(target=wait)
    early.start()
    wait_for_condition(lambda: user_code.parked)
    io.stop()
    user_code.close(lambda: RuntimeError("over"))
    early.join(10)
    wait()
    assert raised == ["over", "over"] and not user_code.parked


def test_when_the_loop_has_ended_futures_that_are_not_done_fail() -> None:
    """Also those that are made later."""
    io = IoThread()
    user_code = DriverUserCode(io.loop)
    done, cancelled, early = (user_code.future() for _ in range(3))
    done.set_result("in time")
    cancelled.cancel()
    assert user_code.futures == {early}
    io.stop()
    user_code.close(lambda: RuntimeError("over"))
    assert [str(future.exception(10)) for future in (early, user_code.future())] == ["over", "over"]
    assert done.result() == "in time" and cancelled.cancelled() and not user_code.futures


def test_time_is_the_loops_clock(io: IoThread) -> None:
    async def loop_time() -> float:
        return asyncio.get_running_loop().time()

    user_code = DriverUserCode(io.loop)
    before = user_code.time()
    assert before - 0.002 <= io.run(loop_time()) <= user_code.time() + 0.002  # uvloop counts whole milliseconds.


# --- Drivers ---


def test_a_driver_keeps_its_signal_handlers_and_its_environment(io: IoThread) -> None:
    before = signal.getsignal(signal.SIGINT)
    user_code = DriverUserCode(io.loop)
    assert signal.getsignal(signal.SIGINT) is before
    for forbidden in (lambda: user_code.run(print), lambda: user_code.interrupt(bool),
                      lambda: user_code.enter_environment([], [], None, {})):  # fmt: skip
        with pytest.raises(RuntimeError, match="a driver"):
            forbidden()


# --- The IO thread ---


def test_no_interrupt_of_the_waiting_thread_is_lost_or_stops_the_loop(io: IoThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at any step of ``run``: a follower of logs, say, has just asked for more."""
    lost: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: lost.append(repr(raised.object)))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    dice, interrupts = random.Random(37), 0

    async def answer() -> int:
        return interrupts

    def ask_until_interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 4e-4))
        while True:
            io.run(answer())

    try:
        while interrupts < 500:
            with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
                warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine that was interrupted before it began
                ask_until_interrupted()
            interrupts += 1
            assert io.run(answer(), 10) == interrupts
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not lost


def test_running_a_coroutine_from_another_thread(io: IoThread) -> None:
    async def which_thread() -> str:
        return threading.current_thread().name

    async def fails() -> None:
        raise LookupError("no")

    assert io.run(which_thread()) == "minray-io"
    with pytest.raises(LookupError, match="no"):
        io.run(fails())


def test_a_coroutine_that_takes_too_long_is_cancelled(io: IoThread) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    coroutine = hangs()
    with pytest.raises(TimeoutError):
        io.run(coroutine, 0.01)
    # On a busy machine it may be cancelled before its first step, in which no line of it runs.
    wait_for_condition(lambda: inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED)


def test_stopping_cancels_tasks_and_ends_the_thread() -> None:
    thread = IoThread("test-io")
    cleaned: list[str] = []

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turn()
            cleaned.append("yes")

    task = asyncio.run_coroutine_threadsafe(cleans_up(), thread.loop)

    thread.run(turn())
    thread.stop()
    thread.stop()
    assert cleaned == ["yes"] and task.cancelled() and thread.loop.is_closed()
    assert "test-io" not in [other.name for other in threading.enumerate()]


def test_the_users_of_a_lasting_thread_do_not_stop_it_for_each_other() -> None:
    thread = IoThread("lasting", is_lasting=True)
    task = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), thread.loop)
    thread.stop()
    thread.run(turn())
    assert not task.done()
    task.cancel()
    thread.run(turn())
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    thread._thread.join()
    thread.loop.close()


def test_grpc_has_one_loop_for_all_its_users_and_the_streams_have_their_own() -> None:
    first, second = (io_thread(SystemConfig.from_overrides({"transport": "stream"})) for _ in range(2))
    assert first.loop is not second.loop
    for thread in (first, second):
        thread.stop()
    grpc = SystemConfig.from_overrides({"transport": "grpc"})
    assert io_thread(grpc) is io_thread(grpc)


def test_without_uvloop_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_uvloop(name: str, *args: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return real_import(name, *args)

    monkeypatch.setattr(builtins, "__import__", no_uvloop)
    with pytest.warns(RuntimeWarning, match="uvloop is not installed"):
        thread = IoThread()
    thread.stop()


def test_a_round_trip_through_the_loop_is_quick(io: IoThread) -> None:
    """Generous, but a poll or a sleep in between would exceed it."""
    user_code = DriverUserCode(io.loop)
    started = time.monotonic()
    for _ in range(200):
        parker = user_code.parker()
        user_code.post(parker.release)
        assert parker.wait(10)
    assert time.monotonic() - started < 2
