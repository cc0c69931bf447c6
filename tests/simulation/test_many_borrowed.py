"""Thousands of small values that somebody else owns: how many messages it takes to have them, and what faults do to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

COUNT = 1500
WORDS = ("GetObject", "GetObjects")


@minray.remote(max_retries=0)
def own(count: int) -> list[Any]:
    """Small values; in each third one is a reference to the one before."""
    refs: list[Any] = []
    for number in range(count):
        refs.append(minray.put([refs[-1]] if number % 3 == 2 else number))
    return refs


@minray.remote(max_retries=0, num_cpus=0)
def own_slowly(count: int) -> list[Any]:
    @minray.remote
    def after(number: int) -> int:
        time.sleep(number % 3)
        return number

    return [after.remote(number) for number in range(count)]


def number_of(value: Any) -> Any:
    return minray.get(value[0]) + 1 if isinstance(value, list) else value


def counted(body: Callable[[], Any], words: Counter[str]) -> Any:
    def strike(cluster: Cluster) -> None:
        cluster.when().of("driver").note(sent)

    sent: list[str] = []
    result, _ = judged(body, strike)
    words.update(word for word in sent if " " not in word)
    return result


def test_get_of_many_borrowed_values_takes_few_messages() -> None:
    def body() -> int:
        refs = minray.get(own.remote(COUNT))
        return len(minray.get(refs))

    words: Counter[str] = Counter()
    assert counted(body, words) == COUNT
    assert (words["GetObject"], words["GetObjects"]) == (1, 2)


def test_values_that_do_not_exist_yet_have_a_question_of_their_own() -> None:
    def body() -> list[int]:
        return minray.get(minray.get(own_slowly.remote(9)))

    words: Counter[str] = Counter()
    assert counted(body, words) == list(range(9))
    assert words["GetObjects"] == 1 and words["GetObject"] <= 9


def test_tasks_with_many_borrowed_arguments_ask_for_them_together() -> None:
    @minray.remote
    def add(*numbers: Any) -> int:
        return len(numbers)

    def body() -> int:
        return minray.get(add.remote(*minray.get(own.remote(200))))

    words: Counter[str] = Counter()
    assert counted(body, words) == 200
    assert (words["GetObject"], words["GetObjects"]) == (1, 1)


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("trouble", ["break", "repeat"])
def test_g112_many_questions_that_come_late_or_twice(trouble: str, seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        if trouble == "break":
            cluster.when(*WORDS, *(f"{word} reply" for word in WORDS)).break_channels(at_most=6)
        else:
            cluster.when(*WORDS).replay(one_in=1)

    def body() -> list[int]:
        refs = minray.get(own.remote(20))
        return [number_of(value) for value in minray.get(refs)]

    plan = FaultPlan({"delay": 0.3, "preempt": 0.1})
    assert judged(body, strike, seed=seed, faults=plan)[0] == list(range(20))


@pytest.mark.parametrize("word", ["GetObjects", "GetObjects reply"])
def test_g62_owners_and_borrowers_die_at_many_questions(word: str) -> None:
    """An owner that dies with the answer leaves errors; a borrower that dies with the question leaves nothing."""

    @minray.remote(max_retries=0)
    def read(refs: list[Any]) -> int:
        return len(minray.get(refs))

    def body() -> Any:
        refs = outcome_of(own.options(resources={"a": 1}).remote(20))
        return refs if isinstance(refs, str) else outcome_of(read.options(resources={"b": 1}).remote(refs))

    nodes: list[dict[str, Any]] = [{"num_cpus": 2}, *({"num_cpus": 2, "resources": {name: 1}} for name in "ab")]
    result, _ = judged(body, lambda cluster: cluster.when(word).of("worker").kill(), nodes=nodes)
    assert result == {"GetObjects": "WorkerCrashedError", "GetObjects reply": "RayTaskError(OwnerDiedError)"}[word]
