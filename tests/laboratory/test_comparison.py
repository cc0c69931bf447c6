"""The arithmetic of reports, and comparisons of configurations over seeds."""

from __future__ import annotations

import math
from statistics import fmean

import msgspec
import pytest

from minray.laboratory.comparison import METRICS, ComparedRow, compare, comparison_text, summarise_comparison
from minray.laboratory.draws import Draws
from minray.laboratory.figures import bootstrap_interval, jain, percentile, t_interval, t_quantile
from minray.laboratory.page import comparison_page
from minray.laboratory.report import to_json
from minray.laboratory.setup import Setup
from minray.laboratory.workload import TraceError
from tests.laboratory.worlds import load


def test_percentiles_are_observed_values() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]


def test_jains_index() -> None:
    assert [jain([2.0, 2.0]), jain([1.0, 0.0, 0.0, 0.0]), jain([0.0, 0.0])] == [1.0, 0.25, 1.0]


def test_students_t() -> None:
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert t_interval([1.0]) == (-math.inf, math.inf)
    assert t_quantile(31) == pytest.approx(2.0395, abs=2e-4) and t_quantile(10_000) == pytest.approx(1.9602, abs=2e-4)


@pytest.mark.parametrize("interval", [t_interval, bootstrap_interval])
def test_an_interval_contains_the_true_mean_nearly_always(interval: object) -> None:
    draws, hits = Draws(1, "samples"), 0
    for _ in range(40):
        low, high = interval([draws.uniform() for _ in range(20)])  # type: ignore[operator]
        hits += low <= 0.5 <= high
    assert 34 <= hits < 40


def row(configuration: str, seed: int, makespan_s: float) -> ComparedRow:
    rest = dict.fromkeys(METRICS, 0.0) | {"makespan_s": makespan_s}
    return ComparedRow(configuration=configuration, seed=seed, **rest)


def test_differences_are_taken_pair_by_pair() -> None:
    hard = [10.0, 20.0, 30.0, 40.0]
    rows = [row("plain", seed, value) for seed, value in enumerate(hard)]
    rows += [row("better", seed, value - 1 - 0.1 * (seed % 2)) for seed, value in enumerate(hard)]
    figures = summarise_comparison("x", rows, {"plain": Setup(), "better": Setup()})
    better = figures["metrics"]["makespan_s"]["better"]
    assert better["mean"] == fmean(hard) - 1.05
    assert better["difference"]["mean"] == pytest.approx(-1.05) and better["difference"]["is_clear"]
    low, high = better["t_interval"]
    assert low < fmean(hard) < high, "which the intervals alone do not show"
    assert "-1.050 to plain, clear" in comparison_text(figures)


def test_configurations_are_compared_with_the_same_bytes_each_time() -> None:
    setups = {
        name: Setup(nodes=3, cpus=1.0, system_config={"scheduler_spread_threshold": threshold})
        for name, threshold in (("packed", 1.0), ("<spread>", 0.0))
    }

    def reports() -> tuple[bytes, str]:
        rows = compare(lambda seed: load("single:count=4,durations=exponential", seed), setups, range(2))
        figures = summarise_comparison("single", rows, setups)
        return to_json(figures), comparison_page(figures)

    first = reports()
    assert first == reports()
    compared = msgspec.json.decode(first[0])
    assert compared["seeds"] == [0, 1] and compared["setups"]["packed"]["nodes"] == 3
    assert "&lt;spread&gt; - packed" in first[1] and "<spread>" not in first[1]


def test_one_seed_is_no_comparison() -> None:
    with pytest.raises(TraceError, match="2 seeds at least, not 1 and 1"):
        compare(lambda seed: load("single"), {"plain": Setup()}, [0])
