"""Cancelling tasks in every state, with and without force (G40-G43, G46-G48, G19, C4, C6)."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayError, RayTaskError, TaskCancelledError, WorkerCrashedError
from minray.util.placement_group import placement_group
from tests.helpers import wait_for_condition
from tests.real.support import Files, Journal, Signal, core, echo, hold, is_alive

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"resources": {"one": 1}, "_system_config": {"cancellation_retry_ms": 200}}
CANCELLED = (TaskCancelledError, WorkerCrashedError)


@ray.remote
def note(journal: Journal, *_: object) -> str:
    journal.note("ran")
    return "value"


def outcome(reference: Any) -> Any:
    """The value, or the exception (without its frames)."""
    try:
        return ray.get(reference, timeout=30)
    except RayError as error:
        return error.with_traceback(None)


def quick(function: Any, *arguments: object) -> None:
    """Let a function become known as a quick one, so that many calls of it are sent to a worker at once."""
    ray.get([function.remote(*arguments) for _ in range(50)])


def wait_until_sent_ahead() -> None:
    wait_for_condition(lambda: max((len(w.in_flight) for w in core().submission.submitter.leased_workers()), default=0) > 5)


# --- not started


def test_g40_a_task_that_waits_for_an_argument_never_starts(files: Files) -> None:
    journal, started, release = files.journal(), files.signal("started"), files.signal("release")
    argument = hold.remote(started, release)
    task = note.remote(journal, argument)
    dependent = note.remote(journal, task)
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError) and isinstance(outcome(dependent), TaskCancelledError)
    release.set()
    ray.get([argument, echo.remote(1)])
    assert journal.lines() == []


def test_g40_a_task_that_waits_for_a_resource_never_starts(files: Files) -> None:
    journal, started, release = files.journal(), files.signal("started"), files.signal("release")
    holder = hold.options(resources={"one": 1}).remote(started, release)
    started.wait()
    task = note.options(resources={"one": 1}).remote(journal)
    other = note.options(resources={"one": 1}).remote(files.journal("other"))
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError)
    release.set()
    assert ray.get([holder, other]) == [None, "value"]
    assert journal.lines() == []


def test_g40_a_task_that_no_node_can_run_is_cancelled() -> None:
    task = echo.options(resources={"unobtainium": 1}).remote(1)
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError)


@ray.remote(resources={"one": 1}, max_retries=0)
def step(number: int, journal: Any, release: Any) -> int:
    if number == 0:
        release.wait()
    elif number > 0:
        journal.note(number)
    return number


def test_g40_c6_tasks_sent_ahead_to_a_worker_never_start(files: Files) -> None:
    journal, release = files.journal(), files.signal("release")
    quick(step, -1, journal, release)
    refs = [step.remote(number, journal, release) for number in range(20)]
    wait_until_sent_ahead()
    for reference in refs[1::2]:
        ray.cancel(reference)
    assert all(isinstance(outcome(reference), TaskCancelledError) for reference in refs[1::2])
    release.set()
    assert ray.get(refs[0::2]) == list(range(0, 20, 2))
    assert sorted(map(int, journal.lines())) == list(range(2, 20, 2))


def test_g40_a_task_cancelled_at_once_never_runs_to_a_wrong_end(files: Files) -> None:
    journals = [files.journal(str(number)) for number in range(50)]
    refs = [note.remote(journal) for journal in journals]
    for reference in refs:
        ray.cancel(reference)
    for reference, journal in zip(refs, journals, strict=True):
        result = outcome(reference)
        assert result == "value" or isinstance(result, TaskCancelledError)
        assert journal.lines() == ["ran"] or result != "value"


# --- running


class Destroyed:
    """An object whose destructor takes a while, and swallows exceptions, as destructors do."""

    def __del__(self) -> None:
        for _ in range(20):
            pass


@ray.remote
def note_an_interrupt(started: Any, seen: Any, release: Any) -> None:
    try:
        started.set()
        release.wait()
    except KeyboardInterrupt:
        seen.set()
        raise


def test_g41_a_cancelled_task_sees_keyboard_interrupt_and_get_raises(files: Files) -> None:
    started, seen, release = files.signal("started"), files.signal("seen"), files.signal("release")
    task = note_an_interrupt.remote(started, seen, release)
    started.wait()
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError) and seen.is_set()


@pytest.mark.parametrize("doing", ["python", "destructors", "puts", "waiting", "get", "nested get"])
def test_g41_a_running_task_sees_keyboard_interrupt(files: Files, doing: str) -> None:
    started, seen = files.signal("started"), files.signal("seen")
    inner_started, release = files.signal("inner"), files.signal("release")

    def do(inner: Any) -> None:
        while doing == "python":
            sum(range(1000))
        while doing == "destructors":
            Destroyed()
        while doing == "puts":
            ray.put(1)
        ray.get(inner) if inner is not None else release.wait()

    @ray.remote
    def work() -> None:
        inner = hold.remote(inner_started, release) if "get" in doing else None
        if doing == "nested get":
            inner_started.wait()
        try:
            started.set()
            do(inner)
        except KeyboardInterrupt:
            seen.set()
            raise

    task = work.remote()
    started.wait()
    ray.cancel(task, recursive=False)  # else it may hear of its child first
    assert isinstance(outcome(task), TaskCancelledError)
    assert seen.is_set()
    release.set()


@pytest.mark.parametrize("for_what", ["an actor without a place", "an actor that lacks an argument", "a group", "items"])
def test_g41_a_task_may_wait_for_anything_when_it_is_cancelled(files: Files, for_what: str) -> None:
    started, release = files.signal("started"), files.signal("release")

    @ray.remote(num_cpus=0)
    class Maker:
        def __init__(self, _argument: object = None) -> None:
            pass

        def make(self) -> None:
            pass

        def items(self) -> Iterator[object]:
            yield 1
            release.wait()

    @ray.remote
    def wait() -> None:
        if for_what == "an actor without a place":
            call = Maker.options(num_gpus=1).remote().make.remote()
        elif for_what == "an actor that lacks an argument":
            call = Maker.remote(hold.remote(files.signal("inner"), release)).make.remote()
        elif for_what == "a group":
            call = placement_group([{"GPU": 1}]).ready()
        else:
            maker = Maker.remote()
            items = maker.items.remote()
            ray.get(next(items))
        started.set()
        ray.get(call if for_what != "items" else next(items))

    task = wait.remote()
    started.wait()
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError)
    release.set()


def test_g41_a_cancelled_task_may_still_return_a_value(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")

    @ray.remote
    def insist() -> str:
        try:
            started.set()
            release.wait()
        except KeyboardInterrupt:
            return "all the same"
        return "undisturbed"

    task = insist.remote()
    started.wait()
    ray.cancel(task)
    assert outcome(task) == "all the same"


def test_g41_every_return_of_a_cancelled_task_is_cancelled(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    refs = hold.options(num_returns=3).remote(started, release, (1, 2, 3))
    started.wait()
    ray.cancel(refs[1])
    assert all(isinstance(outcome(reference), TaskCancelledError) for reference in refs)


def test_g41_the_worker_of_a_cancelled_task_goes_on(files: Files) -> None:
    @ray.remote(resources={"one": 1})
    def pid(started: Signal, release: Signal) -> int:
        started.set()
        release.wait()
        return os.getpid()

    free = files.signal("free")
    free.set()
    before = ray.get(pid.remote(free, free))
    started = files.signal("started")
    task = pid.remote(started, files.signal("release"))
    started.wait()
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError)
    assert ray.get(pid.remote(free, free)) == before


def test_g41_an_interrupt_hits_only_the_task_that_it_is_meant_for() -> None:
    @ray.remote(max_retries=0)
    def count(number: int) -> int:
        total = 0
        for _ in range(3000):
            total += 1
        return number

    quick(count, 0)
    dice = random.Random(1)
    for _ in range(3):
        refs = [count.remote(number) for number in range(200)]
        meant = set(dice.sample(range(10, 200), 60))
        for number in sorted(meant):
            ray.wait([refs[number - dice.randrange(1, 5)]])  # so it is about to run, runs, or has just ended
            ray.cancel(refs[number])
        for number, reference in enumerate(refs):
            result = outcome(reference)
            assert result == number or (number in meant and isinstance(result, TaskCancelledError)), (number, result)


def test_g41_g48_interrupts_in_the_middle_of_the_runtimes_work_break_nothing() -> None:
    """Arguments are being unpickled, results pickled, references made and dropped."""

    @ray.remote
    def pass_on(refs: list[Any]) -> list[Any]:
        return [ray.put(index) for index in range(20)] + refs[:1]

    dice = random.Random(3)
    refs = [ray.put(number) for number in range(50)]
    ray.get(pass_on.remote(refs))
    for _ in range(60):
        task = pass_on.remote(refs)
        deadline = time.perf_counter() + dice.random() * 0.003
        while time.perf_counter() < deadline:
            pass
        ray.cancel(task)
        result = outcome(task)
        assert isinstance(result, TaskCancelledError) or ray.get(result[:20]) == list(range(20))
    assert ray.get([echo.remote(number) for number in range(10)]) == list(range(10))


# --- force


@ray.remote(max_retries=-1)
def be_deaf(started: Any, journal: Any, holding_the_gil: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    journal.note(os.getpid())
    started.set()
    while True:
        (ctypes.PyDLL if holding_the_gil else ctypes.CDLL)(None).pause()


@pytest.mark.parametrize("holding_the_gil", [False, True])
def test_g42_c4_force_ends_the_worker(files: Files, holding_the_gil: bool) -> None:
    started, journal = files.signal("started"), files.journal()
    task = be_deaf.remote(started, journal, holding_the_gil)
    started.wait()
    ray.cancel(task, force=True)
    assert isinstance(outcome(task), CANCELLED)
    (pid,) = map(int, journal.lines())
    wait_for_condition(lambda: not is_alive(pid), message="the worker is gone")


def test_g42_force_follows_a_cancel_that_was_ignored(files: Files) -> None:
    started, journal, release = files.signal("started"), files.journal(), files.signal("release")

    @ray.remote
    def be_stubborn() -> None:
        while True:
            try:
                started.set()
                release.wait()
                return
            except KeyboardInterrupt:
                journal.note("ignored")

    task = be_stubborn.remote()
    started.wait()
    ray.cancel(task)
    wait_for_condition(lambda: journal.lines() == ["ignored"])
    ray.cancel(task, force=True)
    assert isinstance(outcome(task), CANCELLED)


def test_g42_neighbours_of_a_task_cancelled_by_force_run_once_and_use_no_retry(files: Files) -> None:
    journal, release, started = files.journal(), files.signal("release"), files.signal("started")

    @ray.remote(resources={"one": 1}, max_retries=0)
    def step(number: int) -> int:
        if number == 0:
            started.set()
            release.wait()
        elif number > 0:
            journal.note(number)
        return number

    quick(step, -1)
    refs = [step.remote(number) for number in range(20)]
    wait_until_sent_ahead()
    started.wait()
    ray.cancel(refs[0], force=True)
    assert isinstance(outcome(refs[0]), CANCELLED)
    assert ray.get(refs[1:]) == list(range(1, 20))
    assert sorted(map(int, journal.lines())) == list(range(1, 20))


def test_g42_g40_a_task_that_has_not_started_is_cancelled_by_force_without_harm(files: Files) -> None:
    journal, started, release = files.journal(), files.signal("started"), files.signal("release")
    holder = hold.options(resources={"one": 1}, max_retries=0).remote(started, release, "held")
    started.wait()
    task = note.options(resources={"one": 1}).remote(journal)
    ray.cancel(task, force=True)
    assert isinstance(outcome(task), TaskCancelledError)
    release.set()
    assert ray.get(holder) == "held" and journal.lines() == []


# --- finished, repeated, by others


def test_g43_cancelling_what_has_finished_changes_nothing() -> None:
    value, failed, put = echo.remote(1), echo.options(num_returns=2).remote(7), ray.put("put")
    ray.wait([value, failed[0]], num_returns=2)
    for force in (False, True):
        for reference in (value, failed[0], put):
            ray.cancel(reference, force=force)
    assert ray.get([value, put, echo.remote(value)]) == [1, "put", 1]
    assert isinstance(outcome(failed[0]), RayTaskError)


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("force", [False, True])
def test_g46_a_recursive_cancel_reaches_the_children(files: Files, recursive: bool, force: bool) -> None:
    child_started, release, child_ended = files.signal("started"), files.signal("release"), files.signal("ended")
    grandchild_ran = files.journal()

    @ray.remote(num_cpus=0.1)
    def child() -> None:
        try:
            child_started.set()
            release.wait()
        finally:
            child_ended.set()

    @ray.remote(num_cpus=0.1)
    def parent() -> None:
        running = child.remote()
        waiting = note.remote(grandchild_ran, running)
        ray.get([running, waiting])

    task = parent.remote()
    child_started.wait()
    ray.cancel(task, force=force, recursive=recursive)
    assert isinstance(outcome(task), CANCELLED)
    if recursive and not force:
        child_ended.wait()
        assert grandchild_ran.lines() == []
    elif not recursive and not force:
        assert not child_ended.is_set()
        release.set()
        wait_for_condition(lambda: grandchild_ran.lines() == ["ran"])


def test_g46_force_with_recursive_ends_the_childrens_workers(files: Files) -> None:
    journal, started = files.journal(), files.signal("started")

    @ray.remote(num_cpus=0.1)
    def child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        journal.note(os.getpid())
        started.set()
        while True:
            ctypes.CDLL(None).pause()

    @ray.remote(num_cpus=0.1)
    def parent() -> None:
        ray.get(child.remote())

    task = parent.remote()
    started.wait()
    ray.cancel(task, force=True)
    assert isinstance(outcome(task), CANCELLED)
    (pid,) = map(int, journal.lines())
    wait_for_condition(lambda: not is_alive(pid), message="the child's worker is gone")


def test_g47_cancelling_may_be_repeated(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    task = hold.remote(started, release)
    started.wait()
    for _ in range(5):
        ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError)
    ray.cancel(task)
    assert isinstance(outcome(task), TaskCancelledError)


def test_g47_a_borrower_may_cancel(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    task = hold.remote(started, release)
    started.wait()

    @ray.remote
    def cancel(refs: list[Any]) -> str:
        ray.cancel(refs[0])
        try:
            ray.get(refs[0])
        except TaskCancelledError:
            return "cancelled"
        return "not cancelled"

    assert ray.get(cancel.remote([task])) == "cancelled"
    assert isinstance(outcome(task), TaskCancelledError)


def test_g48_every_cancelled_reference_comes_to_an_end(files: Files) -> None:
    dice = random.Random(2)
    release = files.signal("release")

    @ray.remote(num_cpus=0.5)
    def work(kind: int, *_: object) -> int:
        if kind == 1:
            release.wait()
        elif kind == 2:
            return sum(ray.get([echo.remote(number) for number in range(3)]))
        elif kind == 3:
            raise ValueError(kind)
        return kind

    for _ in range(3):
        refs: list[Any] = []
        for _ in range(40):
            arguments = dice.sample(refs, 1) if refs and dice.random() < 0.3 else []
            refs.append(work.remote(dice.randrange(4), *arguments))
        for reference in dice.sample(refs, len(refs)):
            ray.cancel(reference, force=dice.random() < 0.2, recursive=dice.random() < 0.5)
        for reference in refs:
            result = outcome(reference)
            assert isinstance(result, (int, RayTaskError, *CANCELLED)), result


@ray.remote(max_retries=-1, retry_exceptions=True)
def raise_when_interrupted(journal: Any, started: Any, release: Any) -> None:
    journal.note("ran")
    try:
        started.set()
        release.wait()
    except KeyboardInterrupt:
        raise ValueError("as one may") from None


def test_g19_a_cancelled_task_runs_no_second_time(files: Files) -> None:
    journal, started, release = files.journal(), files.signal("started"), files.signal("release")
    task = raise_when_interrupted.remote(journal, started, release)
    started.wait()
    ray.cancel(task)
    assert isinstance(outcome(task), (TaskCancelledError, RayTaskError))
    assert journal.lines() == ["ran"]


def test_cancel_takes_a_reference() -> None:
    for wrong in (None, "reference", [ray.put(1)]):
        with pytest.raises(TypeError):
            ray.cancel(wrong)  # type: ignore[arg-type]
