"""Threads beside the main one: nothing waits for what takes long, and short work shares a thread."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator

import pytest

from minray.platform.threads.threads_beside import ThreadsBeside, Work
from tests.helpers import wait_for_condition


@pytest.fixture
def over() -> queue.SimpleQueue[Work]:
    """Work that was posted."""
    return queue.SimpleQueue()


@pytest.fixture
def beside(over: queue.SimpleQueue[Work]) -> ThreadsBeside:
    return ThreadsBeside(over.put, 100, lambda: None)


@pytest.fixture
def no_switching() -> Generator[None, None, None]:
    """A thread that does not block is not interrupted by others."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval)


def done() -> None:
    """Work that follows other work."""


def blocking(gate: threading.Event, begun: queue.SimpleQueue[int], number: int) -> Callable[[], None]:
    def work() -> None:
        begun.put(number)
        gate.wait(60)

    return work


def test_work_that_blocks_holds_up_nobody(beside: ThreadsBeside, over: queue.SimpleQueue[Work]) -> None:
    gate, begun = threading.Event(), queue.SimpleQueue[int]()
    for number in range(20):
        beside.run(blocking(gate, begun, number), done)
    assert sorted(begun.get(timeout=60) for _ in range(20)) == list(range(20))
    assert over.empty() and beside.count == 20
    gate.set()
    assert [over.get(timeout=60) for _ in range(20)] == [done] * 20


def test_short_work_is_done_by_few_threads(
    beside: ThreadsBeside, over: queue.SimpleQueue[Work], no_switching: None
) -> None:
    numbers: list[int] = []
    for number in range(1000):
        beside.run(lambda number=number: numbers.append(number), done)  # type: ignore[misc]
    for _ in range(1000):
        over.get(timeout=60)
    assert sorted(numbers) == list(range(1000)) and beside.count < 100


def test_what_comes_while_all_are_busy_begins_too(beside: ThreadsBeside, over: queue.SimpleQueue[Work]) -> None:
    """Also if it is added by work itself, at every moment of the others."""
    gate, begun = threading.Event(), queue.SimpleQueue[int]()

    def spread(depth: int) -> None:
        begun.put(depth)
        if depth < 6:
            for _ in range(2):
                beside.run(lambda: spread(depth + 1), done)
        gate.wait(60)

    beside.run(lambda: spread(1), done)
    depths = Counter(begun.get(timeout=60) for _ in range(63))
    assert depths == {depth: 2 ** (depth - 1) for depth in range(1, 7)}
    gate.set()
    for _ in range(63):
        over.get(timeout=60)


def test_there_are_no_more_threads_than_allowed(over: queue.SimpleQueue[Work]) -> None:
    """And whatever comes while all are busy, or become idle at that very moment, is done in the end."""
    beside, threads = ThreadsBeside(over.put, 3, lambda: None), set[int]()

    def add_and_work(depth: int) -> None:
        threads.add(threading.get_ident())
        if depth:
            for _ in range(2):
                beside.run(lambda: add_and_work(depth - 1), done)

    for _ in range(20):
        beside.run(lambda: add_and_work(6), done)
        for _ in range(2**7 - 1):
            over.get(timeout=60)
    assert len(threads) <= beside.count <= 3


def test_threads_are_used_again(beside: ThreadsBeside, over: queue.SimpleQueue[Work]) -> None:
    for _ in range(50):
        beside.run(done, done)
        assert over.get(timeout=60) is done
    assert beside.count < 10


def test_who_finds_that_no_thread_may_begin_wakes_one_that_has_come_to_rest_meanwhile(
    over: queue.SimpleQueue[Work],
) -> None:
    """Work that came while a thread was about to be started was left to that thread."""
    beside = ThreadsBeside(over.put, 1, lambda: None)
    beside.run(done, done)
    over.get(timeout=60)
    wait_for_condition(lambda: bool(beside._idle))
    beside._sought = True
    beside.run(done, done)
    beside._begin_thread()
    assert over.get(timeout=60) is done


def test_when_there_are_no_more_threads_those_that_are_there_do_the_work(
    beside: ThreadsBeside,
    over: queue.SimpleQueue[Work],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, begun = threading.Event(), queue.SimpleQueue[int]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        beside.run(done, done)
    monkeypatch.setattr(threading.Thread, "start", start)
    beside.run(blocking(gate, begun, 1), done)
    assert over.get(timeout=60) is done and begun.get(timeout=60) == 1
    wait_for_condition(lambda: not beside._sought)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with caplog.at_level(logging.WARNING):
        while beside._idle:
            beside.run(blocking(gate, begun, 2), done)
            begun.get(timeout=60)
        beside.run(done, done)
    assert "no more than 2 threads" in caplog.text
    gate.set()
    wait_for_condition(lambda: not beside._works)
