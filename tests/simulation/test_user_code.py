"""User code in the simulated world: one side at a time, borders, interrupts; what the interpreter's functions mean."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

import minray
from minray.common import sequence_ranges
from minray.common.sequence_ranges import SequenceRanges
from minray.core_worker.execution import task_profile
from minray.core_worker.introspection import metric_registry
from minray.core_worker.submission import actor_clients
from minray.node import worker_output
from minray.simulation.interpreter import EPOCH_S, simulated_meanings
from minray.simulation.loop import Deadlock, NotSimulated, SimLoop, SimProcess
from minray.simulation.switches import may_hold_lock
from minray.simulation.user_code import SimUserCode
from minray.simulation.user_thread import SimParker


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    with simulated_meanings(1):
        yield made
        made.close()


@pytest.fixture
def process(loop: SimLoop) -> SimProcess:
    return loop.add_process("worker/1", "node", 500)


@pytest.fixture
def user_code(process: SimProcess) -> SimUserCode:
    return SimUserCode(process)


def run(loop: SimLoop, user_code: SimUserCode, *works: Callable[[], None]) -> None:
    """Let the works run one after the other, and the loop go on until the last has ended."""
    done = loop.create_future()
    for work in works:
        user_code.run(work)
    user_code.run(lambda: done.set_result(None))
    loop.run_until_complete(done)
    assert loop.failures == []


def test_works_run_in_order_in_one_thread_that_is_not_the_loops(loop: SimLoop, user_code: SimUserCode) -> None:
    seen: list[tuple[int, int, bool]] = []
    works = [lambda i=i: seen.append((i, threading.get_ident(), user_code.is_loop_thread())) for i in range(3)]
    run(loop, user_code, *works)
    assert [i for i, _, _ in seen] == [0, 1, 2]
    assert len({ident for _, ident, _ in seen} | {threading.get_ident()}) == 2
    assert not any(is_loop for _, _, is_loop in seen)


def test_a_parked_thread_lets_the_loop_run_until_it_is_released(loop: SimLoop, user_code: SimUserCode) -> None:
    story: list[str] = []

    def work() -> None:
        parker = user_code.parker()

        def on_loop() -> None:
            assert user_code.is_loop_thread()
            story.append("loop")
            asyncio.get_running_loop().call_later(2, parker.release)

        user_code.post(on_loop)
        story.append("posted")
        assert parker.wait(None)
        assert parker.wait(5), "once released it stays released"
        story.append(f"{user_code.time() - 500:.1f}")

    run(loop, user_code, work)
    assert story == ["posted", "loop", "2.0"]


def test_waiting_ends_when_the_virtual_time_has_passed(loop: SimLoop, user_code: SimUserCode) -> None:
    def work() -> None:
        parker = user_code.parker()
        before = user_code.time()
        assert not parker.wait(0)
        assert user_code.time() == before
        assert not parker.wait(60)
        assert user_code.time() == before + 60

    run(loop, user_code, work)


def test_sleep_and_clocks_are_virtual(loop: SimLoop, user_code: SimUserCode) -> None:
    def work() -> None:
        start = time.monotonic()
        time.sleep(3600)
        assert time.monotonic() - start == 3600
        assert time.time() == EPOCH_S + 3600
        with pytest.raises(ValueError):
            time.sleep(-1)

    before = time.perf_counter()
    run(loop, user_code, work)
    assert time.perf_counter() - before < 60, "outside the clock is real"
    assert abs(time.time() - EPOCH_S) > 3600 * 24


def test_two_processes_take_turns(loop: SimLoop) -> None:
    story: list[str] = []

    def work(name: str) -> None:
        for i in range(3):
            story.append(f"{name}{i}")
            time.sleep(1)

    user_codes = [SimUserCode(loop.add_process(name, "node", i)) for i, name in enumerate("ab")]
    for user_code, name in zip(user_codes, "ab", strict=True):
        user_code.run(lambda name=name: work(name))
    loop.run_until_complete(asyncio.sleep(10))
    assert story == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_an_interrupt_reaches_only_what_it_is_meant_for(loop: SimLoop, user_code: SimUserCode) -> None:
    story: list[str] = []
    current = ""

    def work(name: str) -> None:
        nonlocal current
        current = name
        try:
            time.sleep(10)
            story.append(f"{name} sleeps well")
        except KeyboardInterrupt:
            story.append(f"{name} interrupted at {user_code.time() - 500:.0f}")

    loop.world.call_later(3, user_code.interrupt, lambda: current == "second")
    loop.world.call_later(12, user_code.interrupt, lambda: current == "second")
    loop.world.call_later(13, user_code.interrupt, lambda: current == "second")
    run(loop, user_code, *[lambda name=name: work(name) for name in ("first", "second", "third")])
    assert story == ["first sleeps well", "second interrupted at 12", "third sleeps well"]


def test_an_interrupt_that_comes_while_a_fault_has_switched_away_ends_the_next_sleep(
    loop: SimLoop, user_code: SimUserCode
) -> None:
    ends: list[float] = []

    def work() -> None:
        user_code.thread.stay_away(2)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(100)
        ends.append(user_code.time() - 500)

    loop.world.call_later(1, user_code.interrupt, lambda: True)
    run(loop, user_code, work)
    assert ends == [2]


def test_an_interrupt_before_anything_was_run_is_nothing(loop: SimLoop, user_code: SimUserCode) -> None:
    user_code.interrupt(lambda: True)
    loop.run_until_complete(asyncio.sleep(1))
    story: list[str] = []
    run(loop, user_code, lambda: (time.sleep(1), story.append("slept")))
    assert story == ["slept"]


def test_exit_and_kill_end_the_process_without_unwinding(loop: SimLoop, process: SimProcess) -> None:
    ends: list[tuple[int | None, int | None]] = []
    story: list[str] = []

    def work(end: Callable[[], object]) -> None:
        try:
            end()
        finally:
            story.append("unwound")

    for end in (lambda: os._exit(3), lambda: os.kill(os.getpid(), 9)):
        victim = loop.add_process("victim", "node", 0)
        victim.on_exit = lambda code, signal: ends.append((code, signal))
        SimUserCode(victim).run(lambda end=end: work(end))
    loop.run_until_complete(asyncio.sleep(1))
    assert ends == [(3, None), (None, 9)] and story == []
    loop.close()
    assert story == ["unwound", "unwound"]


def test_threads_of_dead_processes_are_unwound_cut_off_from_the_world(
    loop: SimLoop, process: SimProcess, user_code: SimUserCode
) -> None:
    story: list[str] = []

    def work() -> None:
        try:
            time.sleep(100)
        finally:
            user_code.post(story.append, "posted by the dead")
            story.append("unwinding")
            time.sleep(100)
            story.append("slept on")

    user_code.run(work)
    loop.run_until_complete(asyncio.sleep(1))
    loop.kill(process)
    loop.run_until_complete(asyncio.sleep(200))
    assert story == []
    loop.close()
    assert story == ["unwinding"]


def test_asyncio_run_waits_at_the_border(loop: SimLoop, user_code: SimUserCode) -> None:
    found: list[object] = []

    async def main() -> str:
        inner = asyncio.get_running_loop()
        future = inner.create_future()
        user_code.post(lambda: loop.call_later(5, inner.call_soon_threadsafe, future.set_result, "from outside"))
        await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))
        return f"{await future} at {inner.time() - 500:.0f}"

    run(loop, user_code, lambda: found.append(asyncio.run(main())))
    assert found == ["from outside at 5"]


def test_waiting_for_a_future_of_another_thread_waits_at_the_border(loop: SimLoop, user_code: SimUserCode) -> None:
    def work() -> None:
        future: concurrent.futures.Future[str] = concurrent.futures.Future()
        user_code.post(lambda: loop.call_later(5, future.set_result, "value"))
        with pytest.raises(TimeoutError):
            future.result(timeout=2)
        assert future.exception() is None and future.result() == "value"
        assert user_code.time() == 505

    run(loop, user_code, work)


def test_environment_and_directory_are_the_processes_own(loop: SimLoop, user_code: SimUserCode, tmp_path: object) -> None:
    def work() -> None:
        assert os.environ["MINRAY_SIMULATED"] == "yes"
        assert os.getcwd() == str(tmp_path)
        os.environ["MINRAY_OWN"] = "1"
        time.sleep(1)
        assert os.environ["MINRAY_OWN"] == "1"

    user_code.enter_environment([], [], str(tmp_path), {"MINRAY_SIMULATED": "yes"})
    with pytest.raises(OSError):
        user_code.enter_environment([], [], f"{tmp_path}/nothing", {})
    run(loop, user_code, work)
    assert "MINRAY_SIMULATED" not in os.environ and "MINRAY_OWN" not in os.environ
    inherited = subprocess.run(["env"], capture_output=True, check=True).stdout
    assert b"MINRAY_SIMULATED" not in inherited and b"MINRAY_OWN" not in inherited
    assert os.getcwd() != str(tmp_path)


def test_chance_is_seeded(loop: SimLoop, process: SimProcess, user_code: SimUserCode) -> None:
    found: list[object] = []
    process.random_bytes = lambda count: bytes(range(count))
    run(loop, user_code, lambda: found.extend([os.urandom(3), uuid.uuid4().hex, random.Random(1).random(), random.random()]))
    assert found[0] == b"\0\1\2" and str(found[1]).startswith("000102")
    assert found[3] == random.Random(1).random()


def test_what_has_no_simulated_meaning_is_a_named_error(loop: SimLoop, user_code: SimUserCode) -> None:
    def work() -> None:
        with pytest.raises(NotSimulated, match="threading.Thread.start.*worker/1"):
            threading.Thread(target=print).start()
        with pytest.raises(NotSimulated, match="subprocess.Popen"):
            subprocess.run(["true"], check=True)

    run(loop, user_code, work)

    async def block() -> None:
        time.sleep(1)

    with pytest.raises(NotSimulated, match="on the loop"):
        loop.run_until_complete(block())


def test_what_a_process_prints_is_its_own(
    capsys: pytest.CaptureFixture[str], loop: SimLoop, process: SimProcess, user_code: SimUserCode
) -> None:
    printed: list[tuple[str, str]] = []
    process.on_text = lambda stream, text: printed.append((stream, text))
    with simulated_meanings(1):  # again: pytest has put its own stream in place since the fixture
        run(loop, user_code, lambda: print("inside"))
        print("outside")
    assert "".join(text for _, text in printed) == "inside\n"
    assert capsys.readouterr().out == "outside\n"


def test_a_thread_that_gives_way_lets_the_loop_go_first(loop: SimLoop, process: SimProcess) -> None:
    story: list[str] = []
    user_code = SimUserCode(process, preempt=lambda ordinal: ordinal == 2)

    def work() -> None:
        for i in (1, 2):
            user_code.post(story.append, f"posted {i}")
            story.append(f"after {i}")

    run(loop, user_code, work)
    assert story == ["after 1", "posted 1", "posted 2", "after 2"]


@pytest.mark.parametrize("away_s", [0.0, 2.0])
def test_a_thread_may_be_switched_at_any_line_of_minray(loop: SimLoop, process: SimProcess, away_s: float) -> None:
    lines: list[tuple[str, int]] = []
    story: list[str] = []

    def switch(function: str, ordinal: int) -> float | None:
        lines.append((function, ordinal))
        return away_s if ordinal == 2 else None

    user_code = SimUserCode(process, switch=switch)

    def work() -> None:
        ranges, began = SequenceRanges(), process.time()
        user_code.post(story.append, "posted")
        ranges.add(1, 1)
        story.append(f"after {process.time() - began:.0f} s")

    run(loop, user_code, work)
    assert story == ["posted", f"after {away_s:.0f} s"]
    assert {function for function, _ in lines} == {"SequenceRanges.__init__", "SequenceRanges.add"}
    added = [ordinal for function, ordinal in lines if function == "SequenceRanges.add"]
    assert len(added) > 5 and added == list(range(1, len(added) + 1))


def test_who_may_hold_a_lock_is_not_switched(loop: SimLoop, process: SimProcess, caplog: pytest.LogCaptureFixture) -> None:
    user_code = SimUserCode(process, switch=lambda function, ordinal: 1.0)
    ranges = SequenceRanges()

    class Shown:
        def __str__(self) -> str:
            began = process.time()
            ranges.add(1, 1)
            return f"{process.time() - began:.0f} s later"

    run(loop, user_code, lambda: logging.getLogger(__name__).warning("%s", Shown()))  # with the lock of a handler
    assert caplog.messages == ["0 s later"]


def frame_in(namespace: dict[str, object], path: str) -> FrameType:
    """A frame of a file of that path, with these global names."""
    names = {**namespace, "frame_here": sys._getframe}
    exec(compile("frame = frame_here()", path, "exec"), names)
    assert isinstance(names["frame"], FrameType)
    return names["frame"]


def test_only_minrays_own_files_have_its_locks() -> None:
    for module in (actor_clients, metric_registry, task_profile, worker_output):
        assert may_hold_lock(frame_in(vars(module), str(module.__file__)))
    assert not may_hold_lock(frame_in({}, "/home/user/minray/node/worker_output.py"))
    assert not may_hold_lock(frame_in(vars(sequence_ranges), str(sequence_ranges.__file__)))


def test_a_deadlock_names_the_line_of_a_program_beside_the_package(loop: SimLoop, user_code: SimUserCode) -> None:
    """The path of such a program may begin with that of the package: minray_programs."""
    code = compile("parker.wait(None)", f"{os.path.dirname(minray.__file__)}_programs/program.py", "exec")
    with pytest.raises(Deadlock, match=r"worker/1 +user thread +program.py:1"):
        run(loop, user_code, lambda: exec(code, {"parker": SimParker(user_code.thread)}))


def test_user_code_that_waits_for_nothing_is_a_deadlock(loop: SimLoop, user_code: SimUserCode) -> None:
    with pytest.raises(Deadlock, match=r"worker/1 +user thread +test_user_code.py:\d+"):
        run(loop, user_code, lambda: SimParker(user_code.thread).wait(None) and None)


def test_user_code_that_raises_at_its_frame_is_a_failure(loop: SimLoop, user_code: SimUserCode) -> None:
    user_code.run(lambda: print(1 / 0))
    loop.run_until_complete(asyncio.sleep(1))
    (failure,) = loop.failures
    assert failure.process == "worker/1" and isinstance(failure.exception, ZeroDivisionError)


@pytest.mark.parametrize("freed", ["in a call", "in a callback of an event loop"])
def test_a_process_that_ends_while_it_frees_something_is_unwound_in_silence(
    freed: str, loop: SimLoop, process: SimProcess, caplog: pytest.LogCaptureFixture
) -> None:
    story: list[str] = []
    user_code = SimUserCode(process, preempt=lambda ordinal: True)

    class Freed:
        def __del__(self) -> None:
            user_code.drop(b"name")

    def free() -> None:
        story.append("freed")
        if freed == "in a call":
            Freed()
        else:
            user_code.post(lambda: None)
        story.append("goes on")

    def work() -> None:
        if freed == "in a call":
            free()
        else:
            with contextlib.closing(asyncio.new_event_loop()) as inner:
                inner.call_soon(free)
                inner.run_forever()
        user_code.parker().wait(None)
        story.append("never")

    user_code.run(work)
    loop.world.call_later(0.001, lambda: None)
    loop.strike = lambda struck, name, ordinal: loop.kill(process) if story else None
    with pytest.raises(Deadlock):
        loop.run_forever()
    loop.close()
    assert story[0] == "freed" and "never" not in story
    assert not caplog.records


def test_an_interruption_ends_the_run_between_two_turns_or_while_user_code_runs_on(
    loop: SimLoop, user_code: SimUserCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RingError(Exception):
        pass

    def ring() -> None:
        rung.set()
        raise RingError

    rung = threading.Event()
    loop.interruption = ring
    with pytest.raises(RingError):
        loop.run_forever()
    monkeypatch.setattr("minray.simulation.user_thread.LOOK_S", 0.01)
    rung.clear()

    def compute() -> None:
        loop.interruption = ring
        while not rung.is_set():
            pass

    user_code.run(compute)
    with pytest.raises(RingError):
        loop.run_forever()
