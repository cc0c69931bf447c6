"""The sentences about faults: each kind, and what a process does at that moment."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import numpy as np
import pytest

import minray
from minray.simulation.faults import Key
from minray.testing.program_runs import FaultSettings, ProgramRun, run_program
from minray.testing.strikes import CLAUSES


@minray.remote(max_retries=-1)
def task(first: Any, *rest: Any, **more: Any) -> None:
    time.sleep(1)


@minray.remote(max_restarts=-1, max_task_retries=-1)
class Actor:
    def call(self, value: Any) -> None:
        time.sleep(1)


@minray.remote(max_restarts=-1, max_task_retries=-1)
class AsyncActor:
    async def call(self, value: Any) -> None:
        await asyncio.sleep(1)


class Foreign:
    def __repr__(self) -> str:
        raise AssertionError("a sentence runs no code of the user's")


SETTINGS = FaultSettings(nodes=2)


def one_task(*arguments: Any, **more: Any) -> Any:
    return lambda: minray.get(task.remote(*arguments, **more))


def calls_of(kind: Any, count: int, **options: Any) -> Any:
    def program() -> None:
        actor: Any = kind.options(**options).remote()
        minray.get([actor.call.remote(number) for number in range(count)])
        time.sleep(1)

    return program


def points(program: Any, kind: str) -> list[Key]:
    """The places at which a fault of a kind can strike."""
    found: list[Key] = []
    run_program(program, SETTINGS, 1, {(kind, "", ""): 0}, on_chance=found.append)
    return [key for key in found if key[0] == kind]


def struck(program: Any, key: Key, answer: int = 1) -> ProgramRun:
    run = run_program(program, SETTINGS, 1, {key: answer}, watches=True)
    assert run.faults == ((key, answer),) and run.watch is not None
    return run


def sentence(program: Any, key: Key, answer: int = 1) -> str:
    """The sentence about a fault, in which all workers have the same number."""
    run = struck(program, key, answer)
    assert run.watch is not None
    return re.sub(r"worker \d+", "worker N", run.watch.sentence())


def sentences_at_user_code(program: Any) -> set[str]:
    """The sentences about a crash before each step of user code."""
    keys = [key for key in points(program, "crash") if key[1].startswith("worker/") and key[2] == "user_code"]
    return {sentence(program, key) for key in keys}


@pytest.mark.parametrize(
    ("program", "call"),
    [
        (one_task(3), "task(3)"),
        (one_task(3, "four", key=[5]), "task(3, 'four', key=[5])"),
        (one_task({"a": Foreign()}, Foreign()), "task({'a': <Foreign>}, <Foreign>)"),
        (one_task(np.arange(3)), "task(<ndarray>)"),
        (one_task(list(range(100))), "task([0, 1, 2, ...])"),
        (one_task("x" * 100, "y" * 100), "task('xxxxxxxxxxxx...xxxxxxxxxxxxx', 'yyyy...)"),
        (one_task(minray.get), "task(<function>)"),
    ],
)
def test_a_running_task_is_shown_with_its_arguments(program: Any, call: str) -> None:
    found = sentences_at_user_code(program)
    assert f"worker N dies while `{call}` runs" in found, found


def test_a_worker_is_described_before_during_and_between_its_calls() -> None:
    found = sentences_at_user_code(calls_of(Actor, 2))
    assert {
        "worker N dies before `Actor.__init__` begins",
        "worker N dies before `Actor.call` begins",
        "worker N dies while `Actor.call(0)` runs",
        "worker N dies while `Actor.call(1)` runs",
    } <= found, found


def test_calls_of_coroutines_and_threads_are_counted() -> None:
    assert "worker N dies while `AsyncActor.call(0)` and `AsyncActor.call(1)` run" in sentences_at_user_code(
        calls_of(AsyncActor, 2)
    )
    assert "worker N dies while 5 calls run" in sentences_at_user_code(calls_of(AsyncActor, 5))
    assert "worker N dies while `Actor.call(0)` and `Actor.call(1)` run" in sentences_at_user_code(
        calls_of(Actor, 2, max_concurrency=2)
    )


def test_an_actor_that_waits_for_calls_is_described_so() -> None:
    program = calls_of(Actor, 1)
    keys = points(program, "crash")
    (worker,) = {key[1] for key in keys if key[2] == "user_code" and key[1].startswith("worker/")}
    found = {sentence(program, key) for key in keys if key[1] == worker}
    assert "worker N dies while its actor `Actor` waits for calls" in found, found


def test_a_task_whose_result_waits_to_be_sent_has_run() -> None:
    """The owner of a reference in a result hears of the new borrower first."""

    @minray.remote(max_retries=-1)
    def give() -> list[Any]:
        return [minray.put("value")]

    def program() -> None:
        assert minray.get(minray.get(give.remote())[0]) == "value"

    keys = [key for key in points(program, "crash") if key[2].startswith("answer(")]
    assert {sentence(program, key) for key in keys} == {"worker N dies when `give` has run, before its result is sent"}


@pytest.mark.parametrize(
    ("kind", "place", "answer", "words"),
    [
        ("crash", "raylet/n1", 1, "the raylet of n1 dies"),
        ("crash", "gcs", 1, "the gcs dies"),
        ("crash", "driver/0", 1, "the driver dies"),
        ("long_stall", "raylet/n1", 2, "the raylet of n1 stands still for 15 s"),
        ("node_loss", "raylet/n1", 1, "node n1 is lost"),
        ("long_delay", "driver/0>gcs", 2, "the message `{2}` from the driver to the gcs is 12 s late"),
        ("delay", "driver/0>gcs", 4, "the message `{2}` from the driver to the gcs is 0.1 s late"),
        (
            "reset",
            "driver/0>gcs",
            1,
            "the connection from the driver to the gcs breaks at the message `{2}`, and the message",
        ),
        ("reset", "driver/0>gcs", 2, "the connection from the driver to the gcs breaks at the message `{2}`, and all that"),
        (
            "reset",
            "driver/0>gcs",
            3,
            "the connection from the driver to the gcs breaks at the message `{2}`, and the driver",
        ),
        ("reset", "driver/0>gcs", 4, "the connection from the driver to the gcs breaks at the message `{2}`, and the gcs"),
        ("break", "driver/0>gcs", 1, "the connection from the driver to the gcs breaks at the message `{2}`"),
        ("cut", "raylet/n1>gcs", 3, "n1 and head hear nothing of each other for 8 s, from the message `{2}` on"),
        ("cut", "raylet/n1>gcs", 2, "head hears nothing of n1 for 0.5 s, from the message `{2}` on"),
        ("duplicate", "driver/0>gcs", 3, "the message `{2}` from the driver to the gcs arrives again 0.3 s later"),
        ("preempt", "driver/0", 1, "user code of the driver waits for a moment"),
        ("reap", "worker/", 1, "reap at worker/"),
    ],
)
def test_each_kind_of_fault_has_a_sentence(kind: str, place: str, answer: int, words: str) -> None:
    program = one_task(1)
    key = next(key for key in points(program, kind) if key[1].startswith(place))
    assert sentence(program, key, answer).startswith(words.format(*key))


def test_a_lost_node_is_told_with_its_worker() -> None:
    program = one_task(1)
    keys = [key for key in points(program, "node_loss") if key[1].startswith("worker/") and key[2] == "user_code"]
    assert "node head is lost with worker N, while `task(1)` runs" in {sentence(program, key) for key in keys}


def test_many_faults_are_counted_and_none_is_no_sentence() -> None:
    program = one_task(1)
    keys = points(program, "delay")[:6]
    run = run_program(program, SETTINGS, 1, dict.fromkeys(keys, 1), watches=True)
    assert run.watch is not None and run.watch.sentence().endswith(" late, and then 3 more faults strike")
    assert run.watch.sentence().count("and then") == 3
    run = run_program(program, SETTINGS, 1, {}, watches=True)
    assert run.watch is not None and (run.watch.sentence(), run.watch.legend()) == ("", "")


@pytest.mark.parametrize(
    "program", [one_task(1), calls_of(Actor, 3), calls_of(AsyncActor, 3), calls_of(Actor, 3, max_concurrency=2)]
)
def test_watching_changes_nothing(program: Any) -> None:
    runs = [run_program(program, SETTINGS, 1, {("crash", "", ""): 0}, watches=watches) for watches in (False, True)]
    assert runs[0].trace.digest() == runs[1].trace.digest()
    assert runs[1].watch is not None and runs[1].watch.in_calls


def test_a_value_that_a_task_has_let_go_is_free_after_a_look_at_its_arguments() -> None:
    @minray.remote(max_retries=-1)
    def let_go() -> None:
        ref = minray.put("value")
        time.sleep(1)
        del ref
        time.sleep(100)

    def program() -> None:
        minray.get(let_go.remote())

    keys = [key for key in points(program, "long_stall") if key[1].startswith("worker/") and key[2] == "user_code"]
    for key in keys:
        runs = [run_program(program, SETTINGS, 1, {key: 1}, watches=watches) for watches in (False, True)]
        assert runs[0].trace.digest() == runs[1].trace.digest(), key


def test_the_legend_says_which_processes_the_workers_are() -> None:
    program = one_task(1)
    key = next(key for key in points(program, "crash") if key[2] == "user_code" and key[1].startswith("worker/"))
    run = struck(program, key)
    assert run.watch is not None and run.watch.legend() == f"worker 2 is {key[1]} on {run.trace.nodes()[key[1]]}"
    assert set(CLAUSES) >= {"crash", "node_loss", "long_stall", "long_delay", "reset", "cut"}
