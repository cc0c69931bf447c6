"""The arithmetic of reports, and comparisons of configurations over seeds."""

from __future__ import annotations

import math
import re
from statistics import fmean

import msgspec
import pytest

from minray.laboratory.comparison import METRICS, ComparedRow, compare, comparison_text, row_of, summarise_comparison
from minray.laboratory.draws import Draws
from minray.laboratory.figures import bootstrap_interval, jain, percentile, t_interval, t_quantile
from minray.laboratory.page import comparison_page
from minray.laboratory.report import summarise, task_rows, to_json
from minray.laboratory.setup import Setup
from minray.laboratory.workload import TraceError
from tests.laboratory.worlds import load, run


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


def row(configuration: str, seed: int, makespan_s: float, busiest_link: str | None = None, use: float = 0.0) -> ComparedRow:
    rest = dict.fromkeys(METRICS, 0.0) | {"makespan_s": makespan_s, "busiest_link_use": use}
    names = {"busiest_node": None, "busiest_link": busiest_link, "busiest_disk": None}
    return ComparedRow(configuration=configuration, seed=seed, **rest, **names)


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


def test_a_row_has_the_tail_of_the_delays_and_the_hot_spots() -> None:
    whole = load("map-reduce:width=8,depth=2,output=8e6,duration=2")
    record = run(whole, store_bytes=40_000_000, shrink=20)
    figures = summarise(record)
    compared = row_of("plain", figures)
    delay, spots = figures["queueing_delay_s"], figures["hot_spots"]
    tail = (compared.queueing_p50_s, compared.queueing_p95_s, compared.queueing_p99_s, compared.queueing_p99_9_s)
    assert tail == (delay["p50"], delay["p95"], delay["p99"], delay["p99.9"])
    longest_s = max(each.queueing_delay_s or 0.0 for each in task_rows(record))
    assert 0 < compared.queueing_p50_s < compared.queueing_max_s == longest_s
    assert compared.busiest_node == spots["nodes"][0]["node"] and compared.busiest_link == spots["links"][0]["link"]
    of_nodes = [node["utilisation"] for node in spots["nodes"]]
    assert compared.busiest_node_by_mean == pytest.approx(max(of_nodes) / fmean(of_nodes), abs=1e-4)
    assert compared.busiest_disk is not None and 1 <= compared.busiest_disk_by_mean <= 2


def test_what_was_not_used_has_no_name_and_no_use() -> None:
    compared = row_of("plain", summarise(run(load("single:count=2"))))
    assert (compared.busiest_link, compared.busiest_link_use, compared.busiest_link_by_mean) == (None, 0, 0)
    assert (compared.busiest_disk, compared.busiest_disk_use, compared.busiest_disk_by_mean) == (None, 0, 0)


def test_the_busiest_are_named_with_their_number_of_runs() -> None:
    links = ["node 1 up", "node 2 up", "node 2 up", None]
    rows = [row("plain", seed, 1.0, link, use=0.5 if link else 0.0) for seed, link in enumerate(links)]
    figures = summarise_comparison("x", rows, {"plain": Setup()})
    assert figures["busiest"]["busiest_link"] == {"plain": {"node 2 up": 2, "node 1 up": 1}}
    words = "node 2 up 2 of 4, node 1 up 1 of 4"
    assert words in comparison_text(figures) and words in comparison_page(figures)
    assert "busiest_node" not in comparison_text(figures) and "busiest disk" not in comparison_page(figures)


def test_the_page_shows_percentiles_beside_each_other() -> None:
    delays = {"queueing_p50_s": 1.0, "queueing_max_s": 3.0}
    rows = [msgspec.structs.replace(row(name, seed, 5.0), **delays) for seed in range(2) for name in ("one", "other")]
    text = comparison_page(summarise_comparison("x", rows, {"one": Setup(), "other": Setup()}))
    (plot,) = re.findall(r"percentiles, in seconds</h2><figure>(.*?)</figure>", text)
    assert [name for name in re.findall(r">([^<]+)</text>", plot) if "," in name] == [
        "p50, one", "p50, other", "max, one", "max, other",
    ]  # fmt: skip
    assert "other - one: no difference" in text


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
