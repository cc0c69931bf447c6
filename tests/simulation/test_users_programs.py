"""Users' programs in ``run`` may poll, end as they like, ask for too much; ``run`` says what happened."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import minray
from minray.exceptions import GetTimeoutError
from minray.simulation import Deadlock, FaultPlan, run
from minray.simulation.arguments import MAX_NODES
from minray.simulation.cluster import DriverDied
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


@pytest.mark.parametrize(
    ("end", "how"),
    [(lambda: os._exit(3), "has exited with code 3"), (lambda: os.kill(os.getpid(), 9), "was killed by SIGKILL")],
)
def test_a_driver_that_ends_itself_has_died_and_run_says_how(end: Callable[[], None], how: str) -> None:
    with pytest.raises(DriverDied, match=f"^driver/0 {how}\n"):
        run(lambda: end(), nodes=1)


def test_a_program_that_raises_stop_iteration_says_so() -> None:
    with pytest.raises(RuntimeError, match="the program raised StopIteration") as raised:
        run(lambda: next(iter([])), nodes=1)
    assert isinstance(raised.value.__cause__, StopIteration)


def test_a_simulation_in_a_simulation_is_refused_at_once() -> None:
    def program() -> None:
        before = time.monotonic()
        with pytest.raises(RuntimeError, match="a simulation inside of driver/0, which is simulated itself"):
            run(lambda: None)
        assert time.monotonic() == before

    run(program, nodes=1)


def test_a_program_has_as_much_virtual_time_as_run_is_told() -> None:
    assert run(lambda: minray.get(slow.remote(900)), nodes=1, timeout=1000) == "value"
    with pytest.raises(Deadlock, match=r"not done after \d+ virtual seconds"):
        run(lambda: minray.get(slow.remote(900)), nodes=1)


@pytest.mark.parametrize("word", ["none", "quiet", "swarm"])
def test_faults_are_asked_for_by_the_words_of_the_command_line(word: str) -> None:
    def program() -> tuple[str, str]:
        return minray.get(slow.options(max_retries=-1).remote(1)), os.urandom(4).hex()

    assert run(program, seed=3, faults=word) == run(program, seed=3, faults=FaultPlan.named(word, 3))


async def coroutine() -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"program": None}, TypeError, "a program is a function without arguments, not None"),
        ({"program": coroutine}, TypeError, r"coroutine is async; give lambda: asyncio.run\(coroutine\(\)\)"),
        ({"program": functools.partial(coroutine)}, TypeError, "partial.* is async"),
        ({"program": lambda: coroutine()}, TypeError, "the program returned a coroutine.* let it call asyncio.run"),
        ({"program": generator}, TypeError, r"but generator is a generator; give lambda: list\(generator\(\)\)"),
        ({"program": lambda: generator()}, TypeError, "the program returned a generator.* let it return a list"),
        ({"program": async_generator}, TypeError, "but async_generator is an async generator"),
        ({"program": lambda: async_generator()}, TypeError, "the program returned an async generator"),
        ({"nodes": 0}, ValueError, "at least one node, its head; nodes=0 has none"),
        ({"nodes": -1}, ValueError, "at least one node"),
        ({"nodes": []}, ValueError, "at least one node"),
        ({"nodes": True}, TypeError, "nodes are a number, or a list of descriptions .*, not True"),
        ({"nodes": 2.5}, TypeError, "not 2.5"),
        ({"nodes": "3"}, TypeError, "not '3'"),
        ({"nodes": [2]}, TypeError, r"not \[2\]"),
        ({"nodes": 1001}, ValueError, "a simulated cluster begins with at most 1000 nodes, not 1001"),
        ({"nodes": [{}] * 1001}, ValueError, "at most 1000 nodes, not 1001"),
        ({"nodes": [{"labels": 5}]}, TypeError, "the labels of a node are a mapping such as .*, not 5"),
        ({"nodes": [{"labels": {"a": 1}}]}, TypeError, "labels must be a dict from str to str, but is {'a': 1}"),
        ({"nodes": [{"labels": {"ray.io/node-id": "b"}}]}, ValueError, "label 'ray.io/node-id' cannot be given"),
        ({"nodes": [{}, {"resources": 5}]}, TypeError, "the resources of a node are a mapping such as .*, not 5"),
        ({"nodes": [{"num_cpu": 2, "cpus": 1}]}, ValueError, "a node has no cpus and no num_cpu; it is described by"),
        ({"seed": None}, TypeError, "a seed is a whole number, not None"),
        ({"seed": "x"}, TypeError, "not 'x'"),
        ({"seed": 1 << 127}, ValueError, "a seed has at most 128 bits"),
        ({"faults": "swam"}, ValueError, "no plan of faults called 'swam', only none, quiet, swarm"),
        ({"faults": {"delay": 0.1}}, TypeError, "faults are a FaultPlan, or one of the words"),
        ({"faults": 5, "overrides": {}}, TypeError, "not 5"),
        ({"faults": FaultPlan({"crash": 0.1, "delay": 0.1})}, ValueError, "crash would never strike: .* budget=2"),
        ({"timeout": 0}, ValueError, "timeout is how many virtual seconds"),
        ({"timeout": float("inf")}, ValueError, "not inf"),
        ({"timeout": "long"}, ValueError, "not 'long'"),
        ({"overrides": {(): 1}}, ValueError, r"begins with a kind of fault .*: \(\) does not"),
        ({"overrides": {("krash", "worker/1"): 1}}, ValueError, r"\('krash', 'worker/1'\) does not"),
        ({"overrides": {("crash", "worker/1"): -1}}, ValueError, "a number from 0 on, not -1"),
        ({"overrides": [("crash", 1)]}, TypeError, "overrides are a mapping"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(**{"program": lambda: None, "nodes": 1, **arguments})


@pytest.mark.slow
def test_a_hundred_nodes_are_no_burden() -> None:
    """``make scale`` runs the largest cluster."""

    def program() -> int:
        return len(minray.nodes())

    assert run(program, nodes=100) == 100 < MAX_NODES
