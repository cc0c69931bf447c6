"""The simulated loop: virtual time, a queue and a clock per process, deadlocks with names, deaths without unwinding."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from minray.simulation.loop import Deadlock, NotSimulated, SimLoop, SimProcess, current_process


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.close()


@pytest.fixture
def processes(loop: SimLoop) -> tuple[SimProcess, SimProcess]:
    return loop.add_process("a", "node", 1000), loop.add_process("b", "node", 2000)


def run(loop: SimLoop, process: SimProcess, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(process.create_task(coroutine, name="main"))


def test_time_is_virtual_and_each_process_has_its_own_clock(
    loop: SimLoop, processes: tuple[SimProcess, SimProcess]
) -> None:
    async def nap() -> tuple[float, float]:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return before, asyncio.get_running_loop().time()

    assert run(loop, processes[0], nap()) == (1000, 4600)
    assert run(loop, processes[1], nap()) == (5600, 9200)


@pytest.mark.parametrize("delay_s", [1e-9, 0.1, 1 / 3, 0.7, 12345.678])
def test_a_timer_never_fires_early(loop: SimLoop, processes: tuple[SimProcess, SimProcess], delay_s: float) -> None:
    async def wait() -> None:
        running = asyncio.get_running_loop()
        for _ in range(5):
            deadline = running.time() + delay_s
            waiter = running.create_future()
            running.call_at(deadline, waiter.set_result, None)
            await waiter
            assert deadline <= running.time() <= deadline + 1e-5

    run(loop, processes[0], wait())


def test_callbacks_of_a_process_run_first_in_first_out(loop: SimLoop, processes: tuple[SimProcess, SimProcess]) -> None:
    order: list[str] = []

    async def main() -> None:
        for i in range(3):
            for process in processes:
                process.call_soon(order.append, f"{process.name}{i}")
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_tasks_inherit_their_process(loop: SimLoop, processes: tuple[SimProcess, SimProcess]) -> None:
    async def inner() -> SimProcess | None:
        await asyncio.sleep(0.1)
        return current_process.get()

    async def outer() -> SimProcess | None:
        return await asyncio.create_task(inner(), name="inner")

    assert run(loop, processes[1], outer()) is processes[1]
    assert loop.run_until_complete(outer()) is loop.world


def test_a_lost_wake_up_is_a_deadlock_that_names_who_waits(
    loop: SimLoop, processes: tuple[SimProcess, SimProcess]
) -> None:
    async def wait_for_godot() -> None:
        await asyncio.get_running_loop().create_future()

    processes[0].create_task(wait_for_godot(), name="wait_for_godot(1)")
    with pytest.raises(Deadlock, match=r"a +wait_for_godot\(1\) +test_loop.py:\d+\n +b +main"):
        run(loop, processes[1], wait_for_godot())


def test_a_loop_that_waits_for_ever_with_timers_ends_at_the_limit(loop: SimLoop) -> None:
    async def poll() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Deadlock, match="not done after 86400 virtual seconds"):
        loop.run_until_complete(poll())


def test_awaiting_a_condition_costs_no_step(loop: SimLoop, processes: tuple[SimProcess, SimProcess]) -> None:
    came: list[int] = []
    for second in range(1, 6):
        processes[0].call_later(second, came.append, second)
    loop.run_until(lambda: len(came) == 3, limit_s=60)
    assert (came, loop.steps) == ([1, 2, 3], 3)
    loop.run_until(lambda: len(came) == 3, limit_s=60)  # true already: no time passes
    assert loop.steps == 3


def test_a_condition_that_never_comes_true_is_a_deadlock(
    loop: SimLoop, processes: tuple[SimProcess, SimProcess]
) -> None:
    processes[0].call_later(10, int)
    processes[0].call_later(90, int)
    with pytest.raises(Deadlock, match="not done after 60 virtual seconds"):
        loop.run_until(lambda: False, limit_s=60)
    with pytest.raises(Deadlock, match="nothing can ever happen again"):
        loop.run_until(lambda: False, limit_s=600)


def test_a_process_that_is_killed_never_runs_again_and_nothing_unwinds(
    loop: SimLoop, processes: tuple[SimProcess, SimProcess]
) -> None:
    told: list[str] = []

    async def victim() -> None:
        try:
            told.append("starts")
            await asyncio.sleep(1)
            told.append("goes on")
        finally:
            told.append("unwinds")

    async def main() -> None:
        processes[0].create_task(victim(), name="victim")
        processes[0].call_later(1, told.append, "timer")
        await asyncio.sleep(0.5)
        loop.kill(processes[0])
        processes[0].call_soon(told.append, "late")
        await asyncio.sleep(5)

    loop.run_until_complete(main())
    assert told == ["starts"]


def test_a_killed_process_ends_with_the_step_it_is_in(loop: SimLoop, processes: tuple[SimProcess, SimProcess]) -> None:
    told: list[str] = []

    async def haunt() -> None:
        told.append("ghost")

    async def suicide() -> None:
        loop.kill(processes[0])
        told.append("last words")
        processes[0].create_task(haunt(), name="haunt")
        gc.collect()
        await asyncio.sleep(0)
        told.append("ghost")

    async def main() -> None:
        processes[0].create_task(suicide(), name="suicide")
        processes[0].call_soon(told.append, "ghost")
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert told == ["last words"]


def test_a_stalled_process_finds_everything_that_it_missed(
    loop: SimLoop, processes: tuple[SimProcess, SimProcess]
) -> None:
    told: list[tuple[str, float]] = []

    async def main() -> None:
        for delay_s in (1, 2, 30):
            processes[0].call_later(delay_s, lambda: told.append(("a", loop.time())))
        processes[1].call_later(1, lambda: told.append(("b", loop.time())))
        loop.stall(processes[0], 10)
        await asyncio.sleep(60)

    loop.run_until_complete(main())
    assert told == [("b", 2001), ("a", 1010), ("a", 1010), ("a", 1030)]


def test_tasks_and_futures_hash_by_their_age(loop: SimLoop) -> None:
    async def main() -> list[int]:
        tasks = {asyncio.create_task(asyncio.sleep(0), name=f"t{i}") for i in range(5)}
        return [hash(task) for task in tasks] + [hash(asyncio.get_running_loop().create_future())]

    hashes = loop.run_until_complete(main())
    assert hashes == sorted(hashes) and len(set(hashes)) == 6


def test_asyncio_works_on_it(loop: SimLoop) -> None:
    async def main() -> list[int]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(3 - i, i), name=f"nap{i}") for i in range(3)]
        done, pending = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(1, 7))], timeout=2)
        assert not pending
        return [task.result() for task in tasks] + [task.result() for task in done]

    assert loop.run_until_complete(main()) == [0, 1, 2, 7]
    assert loop.time() == pytest.approx(9, abs=1e-5)


def test_threads_are_a_named_error(loop: SimLoop) -> None:
    caught: list[BaseException] = []

    async def main() -> None:
        with pytest.raises(NotSimulated):
            await asyncio.to_thread(print)

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NotSimulated as error:
                caught.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    loop.run_until_complete(main())
    assert len(caught) == 1


def test_exceptions_that_nobody_catches_are_kept(loop: SimLoop, processes: tuple[SimProcess, SimProcess]) -> None:
    async def main() -> None:
        processes[0].call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    (failure,) = loop.failures
    assert failure.process == "a" and isinstance(failure.exception, ZeroDivisionError)


def test_unnamed_tasks_are_noted(loop: SimLoop) -> None:
    async def some_work() -> None:
        pass

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(some_work()), asyncio.create_task(some_work(), name="work"))

    loop.run_until_complete(main())
    assert [name.rpartition(".")[2] for name in loop.unnamed_tasks] == ["main", "some_work"]


def test_cancelled_timers_do_not_pile_up(loop: SimLoop) -> None:
    async def main() -> int:
        running = asyncio.get_running_loop()
        for _ in range(10_000):
            running.call_later(1000, print).cancel()
        return len(loop._timers)

    assert loop.run_until_complete(main()) < 1500
