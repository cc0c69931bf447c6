"""G69: results of actors' calls are made again if the call may be, and only then; simulated, with large values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minray
from tests.simulation.judge import outcome_of
from tests.simulation.seeds import seeds
from tests.simulation.test_guarantees_lineage import LOST, SIZE, lineage, lose, made

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
        maker = Maker.options(max_task_retries=2).remote()
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
