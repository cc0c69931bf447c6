"""G69: results of actors' calls are made again if the call may be, and only then; simulated, with large values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import minray
from tests.seeds import seeds
from tests.simulation.judge import outcome_of
from tests.simulation.roles import Cluster
from tests.simulation.test_guarantees_lineage import LOST, MAKER, SIZE, lineage, lose, made

SEEDS = seeds(3)


@minray.remote(resources={"making": 1}, max_restarts=-1)
class Maker:
    def make(self, number: int) -> Any:
        print(f"make {number}")
        return np.full(SIZE, number, np.uint8)


def first_byte(ref: Any) -> Any:
    outcome = outcome_of(ref)
    return outcome if isinstance(outcome, str) else int(outcome[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_g69_a_lost_result_of_a_call_with_retries_is_made_again(seed: int) -> None:
    def body() -> Any:
        maker = Maker.options(max_task_retries=1).remote()
        ref = maker.make.remote(7)
        made(ref)
        lose()
        return first_byte(ref), first_byte(maker.make.remote(8))

    result, runs = lineage(body, seed=seed)
    assert result == (7, 8)
    assert runs["make 7"] == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_g69_without_retries_it_is_lost(seed: int) -> None:
    def body() -> Any:
        maker = Maker.remote()
        ref = maker.make.remote(7)
        made(ref)
        lose()
        return outcome_of(ref)

    result, runs = lineage(body, seed=seed)
    assert result == LOST
    assert runs["make 7"] == 1


def test_g69_a_dead_actor_makes_nothing_again() -> None:
    def body() -> Any:
        maker = Maker.options(max_task_retries=2).remote()
        ref = maker.make.remote(7)
        made(ref)
        minray.kill(maker)
        lose()
        return outcome_of(ref)

    result, runs = lineage(body)
    assert result == "ActorDiedError"
    assert runs["make 7"] == 1


@minray.remote(num_cpus=0, resources={"reading": 0.5})
class Reader:
    """Notes in which order it is called."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def read(self, value: Any) -> None:
        self.seen.append(int(value[0]))

    def all(self) -> list[int]:
        return self.seen


@minray.remote(resources={"making": 1}, max_retries=-1)
def make_slowly(number: int) -> Any:
    print(f"make {number}")
    time.sleep(0.5)
    return np.full(SIZE, number, np.uint8)


@pytest.mark.parametrize("seed", SEEDS)
def test_g49_a_call_whose_argument_is_lost_keeps_its_place(seed: int) -> None:
    """The argument exists when the call is pushed, and is lost before it has been fetched."""

    def body() -> Any:
        reader = Reader.remote()
        refs = [make_slowly.remote(number) for number in (1, 2)]
        made(*refs)
        minray.get(reader.all.remote())
        for value in ([0], refs[0], [3], refs[1], [4]):
            reader.read.remote(value)
        return minray.get(reader.all.remote())

    def strike(cluster: Cluster) -> None:
        third_call = cluster.when("PushActorTask").number(3)
        third_call.node("spare").join(**MAKER)
        third_call.raylet("n1").kill()

    result, runs = lineage(body, strike, seed=seed)
    assert result == [0, 1, 3, 2, 4] and set(runs.values()) == {2}
