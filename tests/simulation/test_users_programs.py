"""What users' programs may do in ``run``: poll, end as they like, ask for too much; and what ``run`` then says."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

import minray
from minray.exceptions import GetTimeoutError
from minray.simulation import Deadlock, run
from minray.simulation.loop import SimLoop


@minray.remote
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "value"


def test_a_loop_that_polls_ends_when_the_task_has() -> None:
    def program() -> tuple[str, float]:
        started = time.monotonic()
        ref = slow.remote(1)
        while not minray.wait([ref], timeout=0)[0]:
            pass
        return minray.get(ref), time.monotonic() - started

    value, seconds = run(program, nodes=1)
    assert value == "value" and 1 <= seconds < 1.1


def test_a_loop_of_gets_without_patience_ends_when_the_task_has() -> None:
    def program() -> str:
        ref = slow.remote(1)
        while True:
            try:
                return str(minray.get(ref, timeout=0))
            except GetTimeoutError:
                minray.get(minray.put("something that is there"))

    assert run(program, nodes=1) == "value"


def test_a_coroutine_that_gives_way_until_a_task_has_ended_gets_there() -> None:
    async def poll() -> str:
        value = asyncio.ensure_future(slow.remote(1))
        while not value.done():
            await asyncio.sleep(0)
        return await value

    assert run(lambda: asyncio.run(poll()), nodes=1) == "value"


def test_a_few_looks_take_no_time() -> None:
    def program() -> float:
        ref = slow.remote(1)
        started = time.monotonic()
        for _ in range(100):
            assert minray.wait([ref], timeout=0) == ([], [ref])
        return time.monotonic() - started

    assert run(program, nodes=1) == 0


def test_time_that_stands_still_for_ever_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minray.simulation.loop.MAX_STEPS_AT_ONE_INSTANT", 1000)
    loop = SimLoop()

    def again() -> None:
        loop.call_later(0, again)

    loop.call_later(1, again)
    with pytest.raises(Deadlock, match="livelock: 1000 steps without any time passing"):
        loop.run_forever()
    loop.close()


@pytest.mark.parametrize(
    "end", [SystemExit(3), KeyboardInterrupt("enough"), GeneratorExit("odd"), BaseException("rare"), ValueError("usual")]
)
def test_whatever_the_program_raises_is_raised_by_run(end: BaseException) -> None:
    def program() -> None:
        minray.get(slow.remote(1))
        raise end

    with pytest.raises(type(end)) as raised:
        run(program, nodes=1)
    assert raised.value is end


def test_sys_exit_ends_the_program_with_its_code() -> None:
    with pytest.raises(SystemExit) as raised:
        run(lambda: sys.exit(3), nodes=1)
    assert raised.value.code == 3


def test_a_simulation_in_a_simulation_is_refused_at_once() -> None:
    def program() -> None:
        before = time.monotonic()
        with pytest.raises(RuntimeError, match="a simulation inside of driver/0, which is simulated itself"):
            run(lambda: None)
        assert time.monotonic() == before

    run(program, nodes=1)
