"""examples/sparrow_figure.py: its schemes differ as in the paper, a seed gives the same rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import fmean, median
from types import ModuleType

import pytest

from minray.laboratory.workload import TraceTask
from tests.policies import sparrow_model

LOAD, JOBS = 0.7, 24


@pytest.fixture
def sparrow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, with a small cluster."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    module = importlib.import_module("sparrow_figure")
    monkeypatch.setattr(module, "NODES", 6)
    return module


def test_the_schemes_come_in_the_order_of_the_paper(sparrow: ModuleType) -> None:
    random, _, _, late, _ = sparrow.SCHEMES
    drawn, batch = (sparrow.measure(LOAD, 3, scheme, JOBS) for scheme in (random, late))
    ideal = sparrow.measure(LOAD, 3, None, JOBS)
    assert drawn.mean > 1.2 * batch.mean and batch.mean >= ideal.mean > 0.85 * batch.mean
    assert sparrow.measure(LOAD, 3, late, JOBS) == batch, "the seed decides all"


def test_all_seeds_have_the_same_durations_in_another_order(sparrow: ModuleType) -> None:
    one, other = ([task.duration_s for task in sparrow.workload(0.5, 40, seed, True).tasks] for seed in (0, 1))
    assert one != other and sorted(one) == sorted(other)
    assert sum(one) / len(one) == pytest.approx(sparrow.MEAN_S, rel=0.02)


def test_the_omniscient_queue_gives_the_first_task_to_the_first_free_cpu(sparrow: ModuleType) -> None:
    count = sparrow.NODES * sparrow.CPUS + 1
    tasks = [TraceTask(str(number), duration_s=1.0 + number) for number in range(count)]
    ends = sparrow.omniscient(tasks)
    assert ends["0"] == 1.0 and ends[str(count - 1)] == 1.0 + count


def test_the_model_of_queues_agrees_with_the_theory_of_one_queue() -> None:
    # Erlang's formula C for 4 servers and a load of 0.8: a task waits with a chance of 0.596, and then 1.25 on average.
    models = (sparrow_model.Model(1, 4, 1, 20_000, 0.8, seed) for seed in range(3))
    measured = fmean(fmean(model.run(sparrow_model.omniscient)) for model in models)
    assert measured == pytest.approx(1 + 0.596 * 1.25, rel=0.1)


@pytest.mark.parametrize("middle", [fmean, median])
def test_the_model_of_queues_has_the_order_of_the_paper(middle: sparrow_model.Middle) -> None:
    (ratios,) = sparrow_model.ratios(200, 20, 600, 0.8, 2, middle)
    by_omniscient = {one: ratio for (one, other), ratio in ratios.items() if other == "omniscient"}
    order = sorted(by_omniscient, key=lambda name: by_omniscient[name])
    assert order == ["batch, late binding", "batch sampling", "per-task sampling", "random"]
    assert min(by_omniscient.values()) > 1


def test_a_ratio_is_taken_seed_by_seed(sparrow: ModuleType) -> None:
    values = {("a", 0): 2.0, ("a", 1): 8.0, ("b", 0): 1.0, ("b", 1): 2.0}
    rows = [sparrow.ResponseRow(0.5, name, seed, mean, mean, mean) for (name, seed), mean in values.items()]
    ((load, mean, low, high),) = sparrow.line_of("a", rows, by="b").points
    assert (load, mean) == (0.5, 3.0) and low < 2 < 4 < high
