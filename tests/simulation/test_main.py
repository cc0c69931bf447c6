"""The command ``python -m minray.simulation``: what it prints and writes, and that a saved run is the same run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minray.simulation.__main__ import main


def command(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert isinstance(result.exception, SystemExit) and result.exit_code
    return result.output


def digest(lines: list[str]) -> str:
    (line,) = (line for line in lines if " digest " in line)
    return line


def test_a_saved_run_is_replayed(tmp_path: Path) -> None:
    saved, page = tmp_path / "run.json", tmp_path / "run.html"
    first = command("--seed", "13", "--nodes", "2", "--faults", "swarm", "--save", str(saved))
    again = command("--replay", str(saved), "--html", str(page))
    assert digest(first) == digest(again)
    chances = [line for line in first if line.startswith("chance")]
    assert chances and chances == [line for line in again if line.startswith("chance")]
    assert "<h1>Seed 13 on 2 nodes: the program ended with" in page.read_text()


def test_a_replay_does_what_the_file_says_and_nothing_else(tmp_path: Path) -> None:
    single = ["--program", "single", "--nodes", "2", "--seed", "3"]
    undisturbed = command(*single)
    scenario = {"seed": 3, "nodes": 2, "program": "single", "overrides": []}
    (tmp_path / "none.json").write_text(json.dumps(scenario))
    assert digest(command("--replay", str(tmp_path / "none.json"))) == digest(undisturbed)
    scenario["overrides"] = [[["long_delay", "driver/0>raylet/head", "RequestWorkerLease", 1], 1]]
    (tmp_path / "late.json").write_text(json.dumps(scenario))
    late = command("--replay", str(tmp_path / "late.json"))
    assert "chance  ('long_delay', 'driver/0>raylet/head', 'RequestWorkerLease', 1): 1" in late
    assert "result  42" in late
    assert digest(late) != digest(undisturbed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "truncated"),
        ("[1]", "Expected `object`"),
        ('{"seed": 1, "nodes": 0, "overrides": []}', "$.nodes"),
        ('{"seed": 1, "nodes": 100000, "overrides": []}', "Expected `int` <= 100"),
        ('{"seed": 1, "nodes": true, "overrides": []}', "$.nodes"),
        ('{"seed": "1", "nodes": 1, "overrides": []}', "$.seed"),
        ('{"seed": 1, "nodes": 1, "overrides": [[["crash", 1.5], 1]]}', "$.overrides[0][0][1]"),
        ("[" * 100_000, "is no run that --save has written"),
        ('{"seed": 1, "nodes": 1, "overrides": [], "program": "x"}', "there is no program 'x', only tree, single"),
        ('{"seed": 1, "nodes": 1, "overrides": [[[], 1]]}', "the key of an override begins with a kind of fault"),
        ('{"seed": 1, "nodes": 1, "overrides": [[["delay"], -1]]}', "a number from 0 on, not -1"),
        ('{"seed": 1%s, "nodes": 1, "overrides": []}' % ("0" * 40), "a seed has at most 128 bits"),
        ('{"seed": 1, "program": {"drivers": []}, "world": {}}', "make spec SPEC_ARGS="),
    ],
)
def test_what_is_no_saved_run_is_not_replayed(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "run.json").write_text(text)
    said = refused("--replay", str(tmp_path / "run.json"))
    assert "is no run that --save has written" in said and reason in said


@pytest.mark.parametrize(
    ("key", "answer", "shown"),
    [
        (["crash"], 1, "('crash',), with the answer 1, has not struck"),
        (["crash", "worker/none", "step", 1], 1, "('crash', 'worker/none', 'step', 1), with the answer 1, has not struck"),
        (["delay", "driver/0>raylet/head", "RequestWorkerLease", 1], 99, "with the answer 99, has not struck"),
    ],
)
def test_a_replay_names_what_has_not_struck(tmp_path: Path, key: list[str | int], answer: int, shown: str) -> None:
    late = ["long_delay", "driver/0>raylet/head", "RequestWorkerLease", 1]
    saved = {"seed": 3, "nodes": 2, "program": "single", "overrides": [[late, 1], [key, answer]]}
    (tmp_path / "run.json").write_text(json.dumps(saved))
    done = CliRunner().invoke(main, ["--replay", str(tmp_path / "run.json")])
    assert done.exit_code == 0 and done.stderr.endswith(f"{shown}\n") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "other"),
    [
        *(("--replay", other) for other in ("--seed 1", "--nodes 3", "--faults swarm", "--program single")),
        *(("--digest", other) for other in ("--html page", "--save it", "--seed 0", "--nodes 3", "--rows 4")),
    ],
)
def test_options_of_which_one_would_do_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text('{"seed": 3, "nodes": 1, "program": "single", "overrides": []}')
    value = ["run.json"] if option == "--replay" else []
    assert f"{option} and {other.split()[0]} cannot be given together" in refused(option, *value, *other.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("option", ["--save", "--html"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, option: str) -> None:
    path = str(tmp_path / "nowhere" / "run")
    said = refused("--program", "single", option, path)
    assert path in said and "No such file or directory" in said


def test_a_cluster_without_nodes_is_refused() -> None:
    assert "0 is not in the range" in refused("--nodes", "0")


def test_a_cluster_of_senselessly_many_nodes_is_refused() -> None:
    assert "100000 is not in the range 1<=x<=100" in refused("--nodes", "100000")


def test_a_seed_that_is_too_large_is_refused() -> None:
    assert "is not in the range" in refused("--seed", str(1 << 127))
