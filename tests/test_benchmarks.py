"""Results of the benchmarks from samples: ratios, verdicts, a page. The smallest parts are really measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.__main__ import main, steps
from benchmarks.document import DASK, DASK_ON_MINRAY, MINRAY, RAY, Document, Part, Sample, Size, Table, Target
from benchmarks.documents import DOCUMENTS, PARTS
from benchmarks.drawing import Scale
from benchmarks.granularity import crossing, metg_s
from benchmarks.page import merged, page
from benchmarks.runner import run
from benchmarks.systems import missing
from benchmarks.task_bench import PATTERNS, Grid

ROOT = Path(__file__).parent.parent
SPEEDS = Table(
    "speeds",
    "Speeds <of things>",
    "things/s",
    more_is_better=True,
    original="Three.",
    original_rows={"fast": {None: 3.0}},
    targets={"fast": Target(ratio=2), "": Target(limit=15)},
)
TIMES = Table("times", "Times", "s", axis="workers", original_rows={"before": {1: 4.0}}, targets={"": Target(DASK, 2)})


def nothing(system: str, size: Size) -> Any:
    yield from ()


PART = Part("things", (MINRAY, RAY), nothing, dict.fromkeys(Size, 1.0), rounds=2, is_quick=False)
DOCUMENT = Document("Things & more", "Somebody, once", (PART,), (SPEEDS, TIMES))


def gathered(*processes: tuple[str, list[Sample]]) -> list[dict[str, Any]]:
    found = results.empty([DOCUMENT])
    for system, samples in processes:
        results.add(found[0], system, samples)
    results.conclude([DOCUMENT], found)
    return found


@pytest.fixture
def found() -> list[dict[str, Any]]:
    return gathered(
        (MINRAY, [Sample("speeds", "fast", 10.0), Sample("speeds", "slow", 10.0), Sample("times", "sort", 1.0, 1)]),
        (RAY, [Sample("speeds", "fast", 4.0), Sample("speeds", "slow", 20.0)]),
        (DASK, [Sample("times", "sort", 3.0, 1), Sample("times", "sort", 9.0, 2)]),
        (MINRAY, [Sample("speeds", "fast", 12.0)]),
        (RAY, [Sample("speeds", "fast", 3.0)]),
    )


def run_of(documents: list[dict[str, Any]], begun: str = "2000-01-01") -> dict[str, Any]:
    where = {"cores": 2, "processor": "some", "memory_gib": 1, "system": "Linux", "python": "3.11", "versions": {"ray": "2"}}
    machine = {**where, "commit": "abc", "begun": begun, "load_before": [0.5]}
    return {"machine": machine, "size": "quick", "note": "Shared.", "documents": documents}


def rows(documents: list[dict[str, Any]], table: str) -> dict[str, Any]:
    return {row["row"]: row for row in documents[0]["tables"][table]["rows"]}


def test_the_first_sample_is_compared_with_the_first(found) -> None:
    assert rows(found, "speeds")["fast"]["ratios"] == {RAY: {"median": 3.25, "least": 2.5, "greatest": 4.0, "count": 2}}


def test_a_ratio_above_one_says_that_we_are_faster(found) -> None:
    assert results.ratios_of({MINRAY: [1.0], DASK: [3.0]}, more_is_better=False)[DASK]["median"] == 3
    assert results.ratios_of({MINRAY: [1.0], DASK: [3.0]}, more_is_better=True)[DASK]["median"] == pytest.approx(1 / 3)
    assert results.ratios_of({DASK_ON_MINRAY: [1.0], DASK: [2.0]}, more_is_better=False)[DASK]["median"] == 2
    assert results.ratios_of({RAY: [1.0], DASK: [3.0]}, more_is_better=True) == {}


def test_many_ratios_are_shown_by_their_quartiles() -> None:
    samples = {MINRAY: [1.0] * 9, DASK: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 99.0]}
    assert results.spread(results.ratios_of(samples, more_is_better=False)[DASK]) == "quartiles of 9: 3-7"
    few = {MINRAY: [1.0] * 3, DASK: [1.0, 2.0, 99.0]}
    assert results.spread(results.ratios_of(few, more_is_better=False)[DASK]) == "1-99"


def test_a_target_is_a_ratio_to_a_peer_or_an_amount(found) -> None:
    speeds = rows(found, "speeds")
    assert speeds["fast"]["target"] == {"text": ">= 2x Ray", "met": True}
    assert speeds["slow"]["target"] == {"text": ">= 15 things/s", "met": False}
    first, second = found[0]["tables"]["times"]["rows"]
    assert first["target"] == {"text": ">= 2x Dask", "met": True}
    assert second["target"] is None


def test_the_mean_over_rows_is_the_geometric_one(found) -> None:
    assert results.geometric_mean(found, RAY) == (pytest.approx((3.25 * 0.5) ** 0.5), 2)
    assert results.geometric_mean(found, "nobody") == (0.0, 0)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0012, "0.0012"), (0.5, "0.500"), (12.345, "12.3"), (1.5, "1.50"), (5319.2, "5,319")]
)
def test_amounts_have_the_digits_that_matter(value, text) -> None:
    assert results.amount(value) == text


def test_the_terminal_says_what_failed_and_what_was_missed(found) -> None:
    found[0]["failures"] = {"things": {RAY: "was not ready after 5 s"}}
    text = results.as_text(found)
    assert "fast: minray 11.0, Ray 3.50 (3.2x, 2.5-4); >= 2x Ray met" in text
    assert "slow: minray 10.0, Ray 20.0 (0.5x, 0.5-0.5); >= 15 things/s MISSED" in text
    assert "sort, 2 workers: Dask 9.00" in text
    assert "things, Ray: was not ready after 5 s" in text


def test_the_page_is_whole_and_fetches_nothing(found) -> None:
    text = page(run_of(found))
    assert not re.search(r"<script|src=|href=|https?://", text)
    assert "Speeds &lt;of things&gt;" in text and "Things &amp; more" in text and "<of things>" not in text
    assert text.count("<svg") == text.count("</svg>") == 2
    assert "the geometric mean is 1.3 times as fast" in text
    assert 'class="missed">&gt;= 15 things/s, missed' in text


def test_later_runs_take_the_place_of_earlier_tables(found) -> None:
    again = gathered((MINRAY, [Sample("speeds", "fast", 1.0)]))
    whole = merged([run_of(found), run_of(again, "2001-01-01")])
    tables = whole["documents"][0]["tables"]
    assert [row["medians"] for row in tables["speeds"]["rows"]] == [{MINRAY: 1.0}]
    assert len(tables["times"]["rows"]) == 2
    assert "2001-01-01" in tables["speeds"]["of"] and "2000-01-01" in tables["times"]["of"]


def test_a_scale_is_logarithmic_when_its_numbers_are_far_apart() -> None:
    near, far = Scale([2.0, 50.0], 0, 100), Scale([2.0, 500.0], 0, 100)
    assert near.place(25) == 50 and near.ticks() == [0, 10, 20, 30, 40, 50]
    assert far.place(1) == 0 and far.place(1000) == pytest.approx(100) and far.ticks() == [1, 10, 100, 1000]


def test_systems_take_turns_within_a_part() -> None:
    present = [system for system in PART.systems if not missing(system)]
    assert [system for _, _, system in steps([DOCUMENT], Size.FULL, [])] == present * 2
    assert [system for _, _, system in steps([DOCUMENT], Size.QUICK, ["thing"])] == present
    assert steps([DOCUMENT], Size.QUICK, []) == steps([DOCUMENT], Size.FULL, ["other"]) == []


def test_every_part_has_a_name_of_its_own_and_every_table_too() -> None:
    assert len(PARTS) == sum(len(document.parts) for document in DOCUMENTS)
    tables = [table.name for document in DOCUMENTS for table in document.tables]
    assert len(set(tables)) == len(tables)


def test_a_process_that_fails_says_why() -> None:
    outcome = run(PARTS["latency"], "nobody", Size.TINY)
    assert outcome.samples == [] and outcome.failure == "KeyError: 'nobody'"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--only", "nothing of the kind"], "no part's name contains any of ['nothing of the kind']; parts are"),
        (["--only", ""], "no part's name contains any of ['']; parts are"),
        (["--only", "latency", "--rounds", "0"], "argument --rounds: must be at least 1, but is 0"),
        (["--only", "latency", "--rounds", "-1"], "argument --rounds: must be at least 1, but is -1"),
        (["--only", "latency", "--rounds", "two"], "argument --rounds: invalid positive value: 'two'"),
        (["--only", "latency", "--output", "/dev/null/runs"], "argument --output: /dev/null/runs cannot be made"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr("benchmarks.__main__.measure", measured)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_a_part_is_measured_written_and_drawn(tmp_path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--only", "small buffers", "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment, timeout=100)
    assert "small buffers: minray" in done.stderr
    (written,) = tmp_path.glob("*.json")
    run_again = json.loads(written.read_text())
    (document,) = [
        document for document in run_again["documents"] if document["tables"].get("small buffers", {}).get("rows")
    ]
    (row,) = document["tables"]["small buffers"]["rows"]
    assert len(row["samples"]["minray"]) == 1 and row["ratios"].keys() == row["samples"].keys() - {"minray"}
    assert "<svg" in written.with_suffix(".html").read_text()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_name_columns_of_the_grid_once(pattern: str) -> None:
    for step in range(1, 9):
        for column in range(16):
            needed = PATTERNS[pattern](step, column, 16)
            assert needed == sorted(set(needed)) == PATTERNS[pattern](step, column, 16)
            assert all(0 <= source < 16 for source in needed)


def test_the_smallest_granularity_lies_where_half_of_the_best_rate_is_reached() -> None:
    assert crossing([(8.0, 100.0), (4.0, 90.0), (2.0, 100.0 / 3)]) == pytest.approx(2.655, rel=1e-3)
    assert crossing([(8.0, 100.0), (4.0, 50.0), (2.0, 10.0)]) == pytest.approx(4)
    assert crossing([(8.0, 100.0), (4.0, 90.0)]) == 4, "the search ended before"
    assert crossing([(8.0, 100.0)]) == 8


def test_a_system_whose_tasks_cost_a_millisecond_has_that_granularity() -> None:
    """A fake of time: each task takes its work and one millisecond more, and two workers share the tasks."""
    now = [0.0]

    def seconds(call: Any) -> float:
        begun = now[0]
        call()
        return now[0] - begun

    def run(_pattern: Any, _size: int, grid: Grid, work: Any) -> None:
        now[0] += grid.width * grid.steps * (work[1] / 1e6 + 1e-3) / 2

    found = metg_s(run, PATTERNS["trivial"], 1e6, "compute", workers=2, point_s=1.0, seconds=seconds)
    assert found == pytest.approx(2e-3, rel=0.1)


@pytest.mark.slow
def test_the_price_of_a_cluster_for_each_test_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.test_clusters", "--tests", "2", "--clusters", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert not ended.returncode, ended.stderr
    assert "local: a call that waits: median " in ended.stdout and "local: 2 passed in " in ended.stdout
