"""Putting large values: what it waits for, and that a reader of a value that is being sealed gets all of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.interference import watch_sends
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

CONFIG = {"max_direct_call_object_size": 100, "object_manager_default_chunk_size": 1000}
WORDS = ("CreateObject", "SealObject")


@minray.remote
def read(array: Any) -> int:
    return int(array[0]) if array.min() == array.max() else -1


def test_a_put_waits_for_room_and_for_nothing_else() -> None:
    """The program goes on before its process has even told the store that the value is complete."""
    sent: Counter[str] = Counter()

    def strike(cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            sent[word] += end.pipe.source.name.startswith("driver") or word.endswith("reply")
            return True

        watch_sends(cluster, on_send)

    def body() -> list[int]:
        before = Counter(sent)
        ref = minray.put(np.full(1000, 7, np.uint8))
        during = sent - before
        value = minray.get(ref)
        return [*(during[word] for word in WORDS), during["CreateObject reply"], during["SealObject reply"], int(value[0])]

    assert judged(body, strike, system_config=CONFIG)[0] == [1, 0, 1, 0, 7]
    assert sent["SealObject reply"] == 1


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("trouble", ["break", "repeat"])
def test_g112_values_that_are_sealed_late_or_twice_are_read_whole(trouble: str, seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        if trouble == "break":
            cluster.when(*WORDS, *(f"{word} reply" for word in WORDS)).break_channels(at_most=12, one_in=3)
        else:
            cluster.when(*WORDS).replay(one_in=1)

    def body() -> list[int]:
        refs = [minray.put(np.full(5000, number, np.uint8)) for number in range(8)]
        there = minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)
        elsewhere = [read.options(scheduling_strategy=there).remote(ref) for ref in refs]
        return [int(array[0]) for array in minray.get(refs)] + minray.get(elsewhere)

    plan = FaultPlan({"delay": 0.3, "preempt": 0.1, "long_delay": 0.002}, budget=1)
    assert judged(body, strike, system_config=CONFIG, seed=seed, faults=plan)[0] == [*range(8)] * 2


@pytest.mark.parametrize("number", range(1, 4))
def test_g62_who_dies_when_it_seals_takes_its_value_along(number: int) -> None:
    @minray.remote(max_retries=0)
    def own() -> list[Any]:
        return [minray.put(np.zeros(1000, np.uint8)) for _ in range(2)]

    def body() -> list[Any]:
        made = [outcome_of(own.remote()) for _ in range(2)]
        return [refs if isinstance(refs, str) else [outcome_of(read.remote(ref)) for ref in refs] for refs in made]

    (result, _) = judged(body, lambda cluster: cluster.when("SealObject").of("worker").kill(number), system_config=CONFIG)
    assert "WorkerCrashedError" in result


def test_values_of_others_are_sealed_before_they_are_told_of() -> None:
    """A result belongs to the submitter of its task, and stays when its maker dies at once."""

    @minray.remote
    def make() -> Any:
        return np.full(1000, 7, np.uint8)

    sent: list[str] = []

    def strike(cluster: Cluster) -> None:
        cluster.when("SealObject reply", "PushTask reply").note(sent)

    assert judged(lambda: int(minray.get(make.remote())[0]), strike, system_config=CONFIG)[0] == 7
    assert sent == ["SealObject reply", "PushTask reply"]
