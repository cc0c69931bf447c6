"""Real processes beside the simulation, and measurements of the machine. No test compares times: the machine may be busy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minray.cli.main import main
from minray.laboratory import calibration
from minray.laboratory.cost_model import CostModel, read_costs
from minray.laboratory.validation import Measured, compared, validation_lines
from tests.laboratory.worlds import load, run


@pytest.mark.slow
def test_a_real_run_moves_the_bytes_of_the_simulated_one(tmp_path: Path) -> None:
    # Each node has room for one task, so that the second one fetches the value from the other node.
    words = ["lab", "validate", "fan-out:width=2,duration=0.1,output=2e6", "--nodes", "2", "--cpus", "1"]
    result = CliRunner().invoke(main, [*words, "--json", str(tmp_path / "both.json")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = {row["figure"]: row for row in json.loads((tmp_path / "both.json").read_text())["rows"]}
    assert rows["makespan_s"]["real"] >= 0.2 and rows["makespan_s"]["simulated"] >= 0.2
    assert 2_000_000 <= rows["moved_bytes"]["real"] < 2_010_000
    assert rows["moved_bytes"]["is_close"] and rows["spilled_bytes"]["is_close"]


def test_a_cluster_that_is_not_there_is_an_error_of_one_line() -> None:
    result = CliRunner().invoke(main, ["lab", "validate", "single", "--address", "127.0.0.1:1"])
    assert result.exit_code == 1 and result.output.startswith("Error: no node of a cluster at '127.0.0.1:1' runs")


def test_figures_that_differ_by_more_than_a_tenth_are_named() -> None:
    record = run(load("single"))
    rows = compared(Measured(record.makespan_s * 2, moved_bytes=10**9, spilled_bytes=5), record)
    assert [(row.figure, row.is_close) for row in rows] == [
        ("makespan_s", False),
        ("moved_bytes", False),
        ("spilled_bytes", True),
    ]
    assert "-50.0%   not within 10%" in validation_lines(rows)[1]


@pytest.mark.parametrize("option", [["--shrink", "2"], ["--failures", "FILE"]])
def test_a_real_run_cannot_be_shrunk_or_lose_nodes(tmp_path: Path, option: list[str]) -> None:
    path = tmp_path / "failures.json"
    path.write_text('[{"node": 1, "down_s": 1}]')
    given = [str(path) if word == "FILE" else word for word in option]
    result = CliRunner().invoke(main, ["lab", "validate", "single", *given])
    assert result.exit_code == 1 and "a real run has whole values and no failures of nodes" in result.output


@pytest.mark.slow
def test_a_calibration_can_be_used_as_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {"ROUNDS": 1, "COPY_BYTES": 1 << 20, "DISK_BYTES": 1 << 20, "PINGS": 20}.items():
        monkeypatch.setattr(calibration, name, small)
    path = tmp_path / "costs.json"
    words = ["lab", "calibrate", "-o", str(path), "--folder", str(tmp_path), "--values", "objects"]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0 and result.output.count("(kept: one machine cannot show it)") == 5
    costs, plain = read_costs(path), CostModel()
    for name in CostModel.__struct_fields__:
        is_kept = name in calibration.NOT_MEASURED
        assert (getattr(costs, name) == getattr(plain, name)) == is_kept, name
    assert costs.serialise_s_per_mb > 1e-4, "a list of dictionaries is pickled one by one"
    assert [file.name for file in tmp_path.iterdir()] == ["costs.json"]
