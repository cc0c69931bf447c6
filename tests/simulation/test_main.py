"""The command ``python -m minray.simulation``: what it prints and writes, and that a saved run is the same run again."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from minray.simulation.__main__ import main


def command(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


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
