"""``minray lab``: the files that its commands write, and one line for each error."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from minray.cli.main import main
from minray.laboratory.charts import COLOURS, Line, bars, intervals, label, lanes, lines, ticks
from minray.laboratory.page import POLICY, STYLE
from minray.laboratory.workload import decode

SAMPLES = Path(__file__).with_name("samples")


def command(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["lab", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["lab", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit) and result.exit_code
    return result.output


def test_a_run_writes_figures_a_table_and_a_page(tmp_path: Path) -> None:
    files = [tmp_path / f"run.{kind}" for kind in ("json", "csv", "html")]
    again = [tmp_path / f"again.{kind}" for kind in ("json", "csv", "html")]
    for each in (files, again):
        options = [word for path in each for word in (f"--{path.suffix[1:]}", path)]
        told = command("run", SAMPLES / "wfcommons.json", "--nodes", 2, "--cpus", 2, "--seed", 3, *options)
    assert re.search(r"^tasks +4 of 4 ended, 0 runs again$", told, re.MULTILINE)
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]
    figures = json.loads(files[0].read_text())
    assert figures["lower_bound_s"] == 7.0 <= figures["makespan_s"] < 9.0
    assert figures["workload"]["notes"] and figures["setup"]["nodes"] == 2 and figures["seed"] == 3
    rows = list(csv.DictReader(files[1].read_text().splitlines()))
    assert [row["task"] for row in rows] == ["split_1", "count_1", "count_2", "report_1"]
    assert float(rows[3]["start_s"]) >= max(float(row["end_s"]) for row in rows[:3])


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    command("run", "single:count=3", "--html", page)
    text = page.read_text()
    assert POLICY in text and text.count("<svg") == 8
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script", text)


def test_a_generated_file_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    assert command("generate", "chain:depth=3,duration=2", "-o", path) == (
        f"3 tasks of 6.0 CPU seconds, critical path 6.0 s, are in {path}\n"
    )
    assert len(decode(path.read_bytes(), "load").tasks) == 3
    told = command("generate", SAMPLES / "timeline.json", "-o", path)
    assert "2 tasks of 1.2 CPU seconds" in told and "left out: a timeline has neither dependencies" in told


def test_a_comparison_writes_means_and_rows(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"compared.{kind}" for kind in ("json", "csv", "html")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    variants = ["--variant", "packed:scheduler_spread_threshold=1.0", "--variant", "plain:"]
    told = command("compare", "single:count=2", "--seeds", 2, "--nodes", 2, *variants, *options)
    assert "packed, seed 1:" in told and "makespan_s\n  packed " in told
    setups = json.loads(files["json"].read_text())["setups"]
    assert setups["packed"]["system_config"] == {"scheduler_spread_threshold": 1.0} and not setups["plain"]["system_config"]
    assert len(files["csv"].read_text().splitlines()) == 5
    assert "single:count=2: packed and plain" in files["html"].read_text()


def test_costs_failures_and_settings_reach_the_run(tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text("worker_start_s = 2.5\nrack_nodes = 1\n")
    (tmp_path / "failures.json").write_text('[{"node": 1, "down_s": 0.5, "up_s": 1.5}]')
    given = ["--costs", tmp_path / "costs.toml", "--failures", tmp_path / "failures.json", "--resources", '{"disk": 1}']
    command("run", "single:count=2", *given, "--set", "get_warning_s=7,arena=memfd", "--json", tmp_path / "run.json")
    figures = json.loads((tmp_path / "run.json").read_text())
    assert figures["setup"]["costs"]["worker_start_s"] == 2.5 and figures["setup"]["costs"]["rack_nodes"] == 1
    assert figures["setup"]["system_config"] == {"get_warning_s": 7, "arena": "memfd"}
    assert figures["workload"]["failures"] == [{"node": 1, "down_s": 0.5, "up_s": 1.5}]
    assert figures["makespan_s"] > 3.4, "workers take two and a half seconds to start"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "nowhere.json"], "Error: nowhere.json is neither a file nor a load"),
        (["run", "single", "--set", "colour=red"], "Error: _system_config has no entry 'colour'"),
        (["run", "single", "--set", "colour"], "'colour' is not name=value"),
        (["run", "single", "--resources", "[1]"], "Error: --resources must be a JSON object of numbers, got [1]"),
        (["run", "single:cpus=9"], "needs 9 CPU, and a node has 4"),
        (["run", "single", "--json", "/nowhere/run.json"], "Error: cannot write /nowhere/run.json: No such file"),
        (["compare", "single", "--variant", "plain"], "'plain' is not NAME:name=value"),
        (["compare", "single", "--variant", "a:", "--variant", "a:"], "Error: two variants have the same name"),
        (["generate", "single:count=0", "-o", "x"], "Error: single:count=0: count is 0"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], reason: str) -> None:
    told = refused(*arguments)
    assert reason in told and "Traceback" not in told


def test_a_policy_that_fails_is_an_error_with_its_line() -> None:
    broken = "tests.policies.questions:Broken"
    told = refused("run", "single:count=2", "--set", f"scheduling_policy={broken}")
    said = f"Error: scheduling_policy '{broken}' has failed, so the default policy decides: ZeroDivisionError: "
    assert told.startswith(said) and re.search(r"questions\.py:\d+\)", told) and told.count("\n") == 1
    assert "Traceback" not in told and "no figures" in told


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("costs.json", "{", "is no cost model: Input data was truncated"),
        ("costs.json", '{"speed": 1}', "unknown field `speed`"),
        ("costs.json", '{"node_bytes_per_s": 0}', "node_bytes_per_s is 0"),
        ("costs.toml", "rack_nodes = 1.5", "Expected `int`, got `float`"),
    ],
)
def test_a_wrong_cost_model_is_refused(tmp_path: Path, name: str, content: str, reason: str) -> None:
    (tmp_path / name).write_text(content)
    told = refused("run", "single", "--costs", tmp_path / name)
    assert str(tmp_path / name) in told and reason in told


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "is no list of machines: Input data was truncated. Write one such as"),
        ("[]", "has no machines"),
        ('[{"cores": 3}]', "Object contains unknown field `cores`"),
        ('[{}, {"cpus": -1}]', "[1].cpus is -1"),
        ('[{"resources": {"GPU": -2}}]', "[0].resources.GPU is -2"),
        ('[{"speed": 0}]', "[0] has count=1, store_bytes=1073741824, speed=0"),
        ('[{"count": 0}]', "[0] has count=0"),
    ],
)
def test_wrong_machines_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "machines.json"
    path.write_text(content)
    told = refused("run", "single", "--machines", path)
    assert str(path) in told and reason in told and "Traceback" not in told


def test_machines_describe_all_nodes(tmp_path: Path) -> None:
    path, page = tmp_path / "machines.json", tmp_path / "run.html"
    path.write_text('[{"cpus": 1, "speed": 2}, {"count": 2, "cpus": 3}]')
    told = command("run", "single:count=7", "--machines", path, "--html", page)
    assert "of 7 CPUs on 3 nodes" in told and "single on 3 simulated nodes" in page.read_text()
    assert "--machines describes all nodes; leave out --cpus" in refused("run", "single", "--machines", path, "--cpus", 4)
    told = refused("validate", "single", "--machines", path)
    assert "nodes of a real run are as fast as they are; leave out the speeds in --machines" in told


def test_axes_have_round_numbers() -> None:
    assert ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10] and ticks(3.0, 3.0) == [3.0]
    assert [label(number) for number in (0.25, 1500.0, 2e6, 4e9, 30_000.0)] == ["0.25", "1500", "2M", "4G", "30k"]


def test_plots_name_what_they_leave_out_and_escape_names() -> None:
    many = [(f"<{number}>", float(number), "x") for number in range(70)]
    assert "and 6 more" in bars(many, "it") and "<3>" not in bars(many, "it")
    assert "and 6 more" in lanes([(name, [0.5]) for name, _, _ in many], "it")
    assert intervals([("one", 5.0, 5.0, 5.0)], "it").count("<circle") == 1


def test_lines_have_colours_intervals_and_names_and_are_cut_at_the_top() -> None:
    shown = [Line(f"<{number}>", [(0.5, 1.0, 0.5, 1.5), (1.0, 9.0, 8.0, 10.0)]) for number in range(COLOURS + 1)]
    plot = lines(shown, "x", "y", y_max=2.0)
    assert plot.count('class="of0"') == 4 and plot.count('class="of1"') == 2, "a drawing and a name for each, in turn"
    assert plot.count("<circle") == 2 * len(shown) and "&lt;3&gt;" in plot and "<3>" not in plot
    assert plot.count("<svg") == plot.count("</svg>") == 2, "the inner one cuts off what is too high"
    assert all(f".of{number} " in STYLE for number in range(COLOURS)), "the page has all colours"
