"""The lead of the in-process loop: workers' threads without work run the loop, and no callback or timer is left waiting."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import minray
from minray.in_process.lead import MORE
from minray.in_process.process import LocalLoop
from minray.in_process.worker_thread import WorkerThread
from minray.platform.threads.user_code import BorderParker, IoThread
from tests.helpers import wait_for_condition

HOME, WORKER = "minray-local", "worker MainThread"
CALLS = 100


class Worker:
    """A loop with its home, the thread of one worker, and the names of threads in the order in which they were noted."""

    def __init__(self) -> None:
        self.home = IoThread(HOME, make_loop=LocalLoop)
        assert isinstance(self.home.loop, LocalLoop)
        self.loop = self.home.loop
        self.noted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.gate = threading.Event()
        self.thread = WorkerThread(self.loop.lead, lambda work, args: work(*args), self.post, WORKER)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon_threadsafe(callback, *args)

    def note(self) -> None:
        self.noted.put(threading.current_thread().name)

    def noted_next(self) -> str:
        return self.noted.get(timeout=60)

    def run(self, work: Callable[[], object], then: Callable[[], object] | None = None) -> None:
        """Hand work to the thread, from the loop."""
        self.post(self.thread.run, work, then)

    def block(self) -> None:
        """Work that ends when the gate is open."""
        self.note()
        assert self.gate.wait(60)

    def wait_until_idle(self) -> None:
        wait_for_condition(lambda: bool(self.loop.lead._waiting) and not self.loop.lead._held.locked())

    def close(self) -> None:
        self.gate.set()
        self.thread.end()
        self.home.stop()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()
    wait_for_condition(lambda: not {HOME, WORKER} & {thread.name for thread in threading.enumerate()})


@pytest.fixture
def idle_worker(worker: Worker) -> Worker:
    """A worker whose thread has run something and waits."""
    worker.run(worker.note)
    assert worker.noted_next() == WORKER
    worker.wait_until_idle()
    return worker


def test_the_thread_that_ran_work_also_answers_it(idle_worker: Worker) -> None:
    idle_worker.run(worker_work := mock.Mock(), idle_worker.note)
    assert idle_worker.noted_next() == WORKER and worker_work.call_count == 1


def test_an_idle_worker_takes_what_another_thread_posts(idle_worker: Worker) -> None:
    for _ in range(CALLS):
        idle_worker.post(idle_worker.note)
        assert idle_worker.noted_next() == WORKER
        idle_worker.wait_until_idle()


def test_the_home_leads_while_work_runs(idle_worker: Worker) -> None:
    idle_worker.run(idle_worker.block)
    assert idle_worker.noted_next() == WORKER
    idle_worker.post(idle_worker.note)
    assert idle_worker.noted_next() == HOME


@pytest.mark.parametrize("is_answered", [False, True])
def test_callbacks_that_a_wanted_thread_leaves_are_called_by_the_home(idle_worker: Worker, is_answered: bool) -> None:
    def leave_many() -> None:
        idle_worker.thread.run(idle_worker.block, None)
        for _ in range(MORE + 10):
            idle_worker.loop.call_soon(idle_worker.note)

    if is_answered:  # The thread has the lead because it has just run something.
        idle_worker.run(lambda: None, leave_many)
    else:
        idle_worker.post(leave_many)
    names = [idle_worker.noted_next() for _ in range(MORE + 11)]
    assert HOME in names and not idle_worker.gate.is_set()


def test_the_home_calls_back_for_a_timer_that_is_set_elsewhere(idle_worker: Worker) -> None:
    def set_timer() -> None:
        idle_worker.note()
        idle_worker.loop.call_later(0.001, idle_worker.note)

    idle_worker.post(set_timer)
    assert [idle_worker.noted_next() for _ in range(2)] == [WORKER, HOME]


def test_a_timer_gets_its_turn_although_callbacks_never_end(idle_worker: Worker) -> None:
    is_over = threading.Event()

    def go_on() -> None:
        if not is_over.is_set():
            idle_worker.loop.call_soon(go_on)

    def begin() -> None:
        idle_worker.note()
        idle_worker.loop.call_later(0.001, is_over.set)
        go_on()

    idle_worker.post(begin)
    assert idle_worker.noted_next() == WORKER and is_over.wait(60)


def test_code_on_the_loop_sees_the_loop_in_every_thread(idle_worker: Worker) -> None:
    seen: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()

    def look() -> None:
        seen.put((threading.current_thread().name, asyncio.get_running_loop(), idle_worker.loop.is_loop_thread()))

    idle_worker.post(look)
    assert seen.get(timeout=60) == (WORKER, idle_worker.loop, True)
    idle_worker.run(lambda: seen.put((asyncio._get_running_loop(), idle_worker.loop.is_loop_thread())))
    assert seen.get(timeout=60) == (None, False)


def test_a_thread_that_leads_ends_when_it_is_told_to(idle_worker: Worker) -> None:
    idle_worker.post(idle_worker.thread.end)
    wait_for_condition(lambda: all(thread.name != WORKER for thread in threading.enumerate()))
    idle_worker.post(idle_worker.note)
    assert idle_worker.noted_next() == HOME


def test_the_loop_stops_where_a_worker_leads(idle_worker: Worker) -> None:
    idle_worker.home.stop()
    assert idle_worker.loop.is_closed()


def test_a_waiting_driver_is_woken_by_the_thread_that_ran_its_task() -> None:
    names, release = [], BorderParker.release

    def noting(parker: BorderParker) -> None:
        names.append(threading.current_thread().name)
        release(parker)

    @minray.remote
    def answer() -> int:
        return 7

    minray.init(local_mode=True, num_cpus=1)
    try:
        with mock.patch.object(BorderParker, "release", noting):
            assert [minray.get(answer.remote()) for _ in range(CALLS)] == [7] * CALLS
    finally:
        minray.shutdown()
    assert sum(name.startswith("worker/") for name in names) > CALLS // 2
