"""Waiting awake: when it begins, what ends it, and that nobody does it where cores are short."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minray.common.clock import Clock
from minray.platform.process import host
from minray.platform.threads import spinning
from minray.platform.threads.spinning import LOOK_S, MORE_THREADS, PATIENCE, PAUSE_S, Spinner
from minray.platform.threads.user_code import DriverUserCode, IoThread
from tests.helpers import wait_for_condition

LIMIT_S = 0.0005
SHORT_S, LONG_S = 0.0001, 0.1
CORES = 2
ENOUGH, TOO_MANY = CORES + MORE_THREADS, CORES + MORE_THREADS + 1


class Loop(asyncio.AbstractEventLoop):
    """One that turns when it is told to, on a machine whose clock and threads are ours."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.threads = 1
        self.looks = 0
        self.due: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None], *args: object, **_: object) -> asyncio.Handle:  # type: ignore[override]
        self.due.append(callback)
        return asyncio.Handle(callback, args, self)

    def get_debug(self) -> bool:
        return False

    def turn(self, seconds: float = 0.0) -> bool:
        """Let seconds pass and do one piece of work. Return whether the loop is still awake."""
        self.now_s += seconds
        if self.due:
            self.due.popleft()()
        return bool(self.due)

    def count_threads(self) -> int:
        self.looks += 1
        return self.threads

    def wait(self, spinner: Spinner, seconds: float) -> bool:
        """Whether this wait began awake."""
        spinner.begin()
        is_awake = self.turn()
        self.now_s += seconds
        spinner.end()
        while self.turn():
            pass
        return is_awake


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: made.now_s))
    monkeypatch.setattr(spinning, "runnable_threads", made.count_threads)
    return made


@pytest.fixture
def spinner(loop: Loop) -> Spinner:
    made = Spinner(loop)
    made.allow(LIMIT_S, CORES)
    return made


@pytest.fixture
def io() -> Iterator[IoThread]:
    thread = IoThread()
    yield thread
    thread.stop()


def test_a_wait_is_awake_if_the_one_before_was_short(loop: Loop, spinner: Spinner) -> None:
    waits = [SHORT_S, SHORT_S, LONG_S, SHORT_S, SHORT_S]
    assert [loop.wait(spinner, seconds) for seconds in waits] == [False, True, True, False, True]


def test_who_waits_for_long_goes_to_sleep(loop: Loop, spinner: Spinner) -> None:
    loop.wait(spinner, SHORT_S)
    spinner.begin()
    assert loop.turn(LIMIT_S * 0.9) and not loop.turn(LIMIT_S * 0.2)
    assert not loop.due, "nothing is left on the loop"


def test_what_is_over_ends_it_at_the_next_turn(loop: Loop, spinner: Spinner) -> None:
    loop.wait(spinner, SHORT_S)
    spinner.begin()
    assert loop.turn()
    spinner.end()
    assert not loop.turn()


def test_waits_that_follow_each_other_closely_share_their_turns(loop: Loop, spinner: Spinner) -> None:
    """The last turn of one is still on its way when the next one begins."""
    loop.wait(spinner, SHORT_S)
    for _ in range(5):
        spinner.begin()
        assert len(loop.due) == 1
        spinner.end()
    assert not loop.turn() and not loop.due


def test_waits_that_overlap_count_as_one(loop: Loop, spinner: Spinner) -> None:
    loop.wait(spinner, SHORT_S)
    spinner.begin()
    assert loop.turn(LIMIT_S * 0.9)
    spinner.begin()
    assert not loop.turn(LIMIT_S * 0.2), "one that begins later does not prolong it"
    spinner.end()
    spinner.end()
    assert not loop.wait(spinner, SHORT_S), "it was long, and ended once"


def test_where_more_threads_are_to_run_than_there_are_cores_everybody_sleeps(loop: Loop, spinner: Spinner) -> None:
    loop.threads = TOO_MANY
    loop.wait(spinner, SHORT_S)
    loop.looks = awake = 0
    while loop.wait(spinner, SHORT_S):
        awake += 1
        assert awake < 2 * PATIENCE * LOOK_S / SHORT_S, "for good"
    assert loop.looks == PATIENCE
    assert not loop.wait(spinner, SHORT_S) and loop.looks == PATIENCE, "in a pause nobody looks"
    loop.now_s += PAUSE_S
    assert not loop.wait(spinner, SHORT_S) and loop.looks == PATIENCE + 1, "after one, once is enough"


def test_when_cores_are_free_again_so_is_waiting_awake(loop: Loop, spinner: Spinner) -> None:
    loop.threads = TOO_MANY
    loop.wait(spinner, SHORT_S)
    while loop.wait(spinner, SHORT_S):
        pass
    loop.threads = ENOUGH
    loop.now_s += PAUSE_S
    assert all(loop.wait(spinner, SHORT_S) for _ in range(100))


def test_a_moment_with_many_threads_changes_nothing(loop: Loop, spinner: Spinner) -> None:
    loop.wait(spinner, SHORT_S)
    for number in range(10 * PATIENCE):
        loop.threads = TOO_MANY if number % 2 else ENOUGH
        loop.now_s += LOOK_S
        assert loop.wait(spinner, SHORT_S)


@pytest.mark.parametrize(("limit_s", "cores", "threads"), [(0.0, 2, 1), (LIMIT_S, 1, 1), (LIMIT_S, 2, 0)])
def test_it_takes_two_cores_and_a_kernel_that_counts(loop: Loop, limit_s: float, cores: int, threads: int) -> None:
    loop.threads = threads
    spinner = Spinner(loop)
    spinner.allow(limit_s, cores)
    assert not any(loop.wait(spinner, 0.0) for _ in range(3))


def test_a_wait_in_vain_says_nothing_of_the_next_one(loop: Loop, spinner: Spinner) -> None:
    loop.wait(spinner, SHORT_S)
    spinner.begin()
    assert loop.turn()
    spinner.give_up()
    assert not loop.turn() and not loop.wait(spinner, SHORT_S)


def test_a_look_that_fails_ends_one_wait(loop: Loop, spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.wait(spinner, SHORT_S)
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(spinning, "runnable_threads", lambda: 1 / 0)
        loop.wait(spinner, SHORT_S)
    spinner.end()
    loop.wait(spinner, SHORT_S)
    assert loop.wait(spinner, SHORT_S)


def test_threads_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.runnable_threads() >= 1, "this one runs"
    monkeypatch.setattr("os.open", None)
    assert host.runnable_threads() >= 1, "whatever a test does to the module"
    assert host.runnable_threads(str(tmp_path / "missing")) == 0
    told = tmp_path / "told"
    for text, count in [("0.1 0.2 0.3 7/200 99", 7), ("nothing", 0), ("a b c d e", 0)]:
        told.write_text(text)
        assert host.runnable_threads(str(told)) == count


def test_threads_that_wait_in_vain_or_no_more_keep_nobody_awake(io: IoThread) -> None:
    user_code = DriverUserCode(io.loop)
    user_code.spinner.allow(60.0, 1_000_000)
    parker = user_code.parker()
    assert not parker.wait(0.001) and not user_code.parked and not user_code.spinner._is_promising
    released = user_code.parker()
    user_code.parked.add(released)
    released.release()
    assert not user_code.parked and released.wait(0)


def test_a_thread_that_waits_for_the_loop_keeps_it_awake(io: IoThread) -> None:
    """A loop that did not sleep finds the answer. It sleeps when the thread goes on."""
    user_code = DriverUserCode(io.loop)
    user_code.spinner.allow(60.0, 1_000_000)
    arrived = threading.Event()
    turns: list[int] = []

    def answer(parker_release: Callable[[], None], count: int = 0) -> None:
        if user_code.spinner._is_turning and count < 50:  # Each turn of a loop that is awake calls this once more.
            io.loop.call_soon(answer, parker_release, count + 1)
        else:
            turns.append(count)
            parker_release()

    def wait() -> None:
        while len(turns) < 100 and 50 not in turns:  # The loop may have been there before this thread parks.
            parker = user_code.parker()
            user_code.post(io.loop.call_later, 0.001, answer, parker.release)
            parker.wait(None)
        arrived.set()

    threading.Thread(target=wait).start()
    assert arrived.wait(10)
    assert turns[0] == 0 and turns[-1] == 50
    wait_for_condition(lambda: not user_code.spinner._is_turning)
