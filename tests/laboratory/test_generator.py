"""Generated loads: shapes, arrivals, distributions, and settings that are refused."""

from __future__ import annotations

from statistics import fmean

import pytest

from minray.laboratory.draws import Draws
from minray.laboratory.generator import Load, generate
from minray.laboratory.workload import TraceError, critical_path_s
from tests.laboratory.worlds import load


@pytest.mark.parametrize(
    ("text", "tasks", "inputs", "longest_s"),
    [
        ("single", 1, 0, 1.0),
        ("chain:depth=4", 4, 3, 4.0),
        ("fan-out:width=5", 6, 5, 2.0),
        ("map-reduce:width=3,depth=2", 5, 6, 2.0),
        ("fft:width=8", 32, 48, 4.0),
        ("tree:width=3,depth=3", 13, 12, 3.0),
        ("fft:width=4,count=3", 36, 48, 3.0),
    ],
)
def test_a_shape_has_its_tasks_and_inputs(text: str, tasks: int, inputs: int, longest_s: float) -> None:
    made = load(text).tasks
    assert len(made) == tasks
    assert sum(len(task.inputs) for task in made) == inputs
    assert critical_path_s(made) == longest_s


def test_an_fft_uses_points_at_doubling_distances() -> None:
    inputs = {task.id: {source for source, _ in task.inputs} for task in load("fft:width=4").tasks}
    assert inputs["0.4"] == {"0.0", "0.1"} and inputs["0.6"] == {"0.2", "0.3"}
    assert inputs["0.8"] == {"0.4", "0.6"} and inputs["0.11"] == {"0.7", "0.5"}


def test_arrivals() -> None:
    def times(arrivals: str) -> list[float]:
        return [task.arrival_s for task in load(f"single:count=2000,rate=4,burst=20,arrivals={arrivals}", seed=3).tasks]

    assert set(times("at-once")) == {0.0}
    assert times("regular")[:3] == [0.0, 0.25, 0.5]
    poisson = times("poisson")
    assert 450 < poisson[-1] < 550 and len(set(poisson)) == 2000
    bursts = times("bursts")
    assert len(set(bursts)) == 100 and bursts[0] == bursts[19] < bursts[20]


@pytest.mark.parametrize("durations", ["constant", "uniform", "exponential", "lognormal"])
def test_durations_have_their_mean(durations: str) -> None:
    drawn = [task.duration_s for task in load(f"single:count=4000,duration=5,durations={durations}", seed=1).tasks]
    assert fmean(drawn) == pytest.approx(5, rel=0.1)
    assert min(drawn) >= 0 and (len(set(drawn)) == 1) == (durations == "constant")


def test_pareto_has_a_heavy_tail() -> None:
    draws = Draws(1, "tail")
    drawn = sorted(draws.pareto(5.0, 1.5) for _ in range(4000))
    assert drawn[0] >= 5 / 3 and drawn[2000] == pytest.approx(5 / 3 * 2 ** (1 / 1.5), rel=0.05) and drawn[-1] > 100


def test_the_seed_decides_and_streams_do_not_disturb_each_other() -> None:
    text = "single:count=50,arrivals=poisson,durations=exponential,outputs=exponential,output=1000"
    assert load(text, seed=1) == load(text, seed=1)
    assert load(text, seed=1) != load(text, seed=2)
    other = load(text.replace("durations=exponential", "durations=lognormal"), seed=1).tasks
    assert [task.arrival_s for task in other] == [task.arrival_s for task in load(text, seed=1).tasks]


def test_instances_belong_to_users_in_turn() -> None:
    assert [task.group for task in load("single:count=3,groups=2").tasks] == ["user 0", "user 1", "user 0"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ring", "shape is 'ring'; choose one of single, chain"),
        ("single:speed=1", "'speed=1' is no setting"),
        ("single:count=2,count=3", "'count=3' is no setting"),
        ("single:count=many", "Expected `int`"),
        ("single:count=0", "count is 0"),
        ("single:rate=0", "rate is 0"),
        ("single:duration=inf", "duration is inf"),
        ("single:arrivals=often", "arrivals is 'often'; choose one of at-once"),
        ("fft:width=6", "a power of two, not 6"),
        ("tree:width=10,depth=40", "at most 1000000"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(text: str, reason: str) -> None:
    with pytest.raises(TraceError) as error:
        Load.parse(text)
    assert reason in str(error.value)


def test_too_many_tasks_are_refused() -> None:
    with pytest.raises(TraceError, match="more than 1000000 tasks"):
        generate(Load.parse("fan-out:width=1000,count=1000"), 0)
