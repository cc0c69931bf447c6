"""Output of a campaign for a person: on the command line, about a failure, and about a scenario whose two runs differ."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from minray.core_worker.submission.task_manager import TaskManager
from minray.simulation.faults import Key
from tests.seeds import long
from tests.spec import campaign as campaigns
from tests.spec.campaign import REGRESSIONS, campaign, compared, main
from tests.spec.coverage import Coverage, all_transitions, place_of
from tests.spec.hash_seeds import compare
from tests.spec.numbers import Numbers
from tests.spec.programs import Body, Get, Program, Put, Sleep, Submit
from tests.spec.scenario import Scenario, read_witness, save
from tests.spec.shrink import replace
from tests.spec.strategies import scenario_of
from tests.spec.trial import run
from tests.spec.verdict import Verdict

FORGOTTEN = REGRESSIONS / "planted_retry_forgotten.json"
"""A witness with a crash, which fails if retries are forgotten."""


def invoke(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def forgets_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskManager, "begin_retry", lambda *_: False)


@pytest.fixture
def draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each run a seed of its own, so that two runs of one scenario differ."""
    seeds = itertools.count()
    monkeypatch.setattr(campaigns, "run", lambda scenario: run(replace(scenario, seed=next(seeds))))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runs", "-1"],
        ["--runs", "0"],
        ["--runs", "many"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--html", "page"],
        ["--seed", str(1 << 127)],
        ["--seed", str(-1 << 128)],
        ["--replay", str(FORGOTTEN), "--seed", "1"],
        ["--replay", str(FORGOTTEN), "--runs", "1"],
    ],
)
def test_options_that_a_campaign_cannot_follow_are_refused(arguments: list[str]) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2 and "Error: " in done.output


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"seed": 1 << 128}, "a seed has at most 128 bits"),
        ({"seed": "1"}, "Expected `int`, got `str`"),
        ({"world": {"nodes": []}}, "a world has from 1 to 1000 nodes, not 0"),
        ({"world": {"nodes": [{}] * 1001}}, "not 1001"),
        ({"world": {"budget": -1}}, "it cannot be -1"),
        ({"world": {"targets": "gcs"}}, "Expected `array`, got `str`"),
    ],
)
def test_a_witness_of_an_impossible_world_is_refused(tmp_path: Path, wrong: dict[str, Any], reason: str) -> None:
    witness = json.loads(FORGOTTEN.read_text()) | wrong
    (tmp_path / "it.json").write_text(json.dumps(witness))
    done = invoke("--replay", tmp_path / "it.json")
    assert done.exit_code == 2 and "it.json is no witness: " in done.output and reason in done.output


# --- Scenarios whose two runs differ


def test_two_runs_that_differ_are_reported_with_the_first_different_event() -> None:
    one, other = (run(replace(scenario_of(0), seed=seed)) for seed in (0, 1))
    assert compared(one, one).ok
    [problem] = compared(one, other).problems
    assert problem.startswith("determinism: event ") and " / " in problem and "ticks" in problem


@pytest.mark.usefixtures("draws_anew")
def test_a_campaign_goes_on_after_a_scenario_whose_two_runs_differ() -> None:
    statistics, failure = campaign(first_seed=0, runs=2)
    assert failure is None and statistics.scenarios == 2
    assert list(statistics.unrepeatable) == [0]


@pytest.mark.usefixtures("draws_anew")
def test_a_scenario_whose_two_runs_differ_is_saved_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(campaigns, "REGRESSIONS", tmp_path)
    monkeypatch.setattr(campaigns, "smallest", lambda *_: pytest.fail("there is nothing that could be made small"))
    done = invoke("--seed", 0, "--runs", 1, "--processes", 1)
    assert done.exit_code == 1 and "determinism: event " in done.output
    [path] = tmp_path.iterdir()
    assert read_witness(path, Scenario.from_json) == scenario_of(0) and f"--replay {path}" in done.output
    assert invoke("--replay", path).exit_code == 1


@pytest.mark.usefixtures("draws_anew")
def test_a_failure_that_is_not_repeated_is_saved_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter((dataclasses.replace(run(scenario_of(0)), problems=("G1: broken",)), run(scenario_of(0))))
    monkeypatch.setattr(campaigns, "run", lambda _: next(verdicts))
    statistics, failure = campaign(first_seed=0, runs=9)
    assert failure is None and statistics.unrepeatable == {0: "determinism: only one of two runs fails: G1: broken"}


# --- Several processes

APART = """
from minray.core_worker.submission.task_manager import TaskManager
from minray.simulation.garbage import without_garbage_collection
from tests.spec.campaign import campaign

def counts(runs, processes):
    statistics, failure = campaign(first_seed=0, runs=runs, size="small", processes=processes)
    if failure is not None:
        return failure.scenario.seed, failure.verdict.digest
    return [word for word in statistics.line().split(", ") if " a minute" not in word and " a second" not in word]

with without_garbage_collection():
    sound = counts(6, 2), counts(6, 1)
    assert sound[0] == sound[1] and sound[0][0].startswith("6 scenarios"), sound
    TaskManager.begin_retry = lambda *_: False
    broken = counts(300, 2), counts(300, 1)
    assert broken[0] == broken[1] and isinstance(broken[0], tuple), broken
"""


@long
def test_processes_share_a_campaign_and_find_what_one_finds() -> None:
    """The test's own process has threads, which must not be forked."""
    done = subprocess.run([sys.executable, "-c", APART], cwd=REGRESSIONS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_are_handed_out_in_order_until_one_fails_or_an_end_is_reached() -> None:
    numbers = Numbers(runs=3, seconds=None)
    assert [numbers.take() for _ in range(5)] == [0, 1, 2, None, None]
    assert Numbers(runs=None, seconds=0).take() is None
    endless = Numbers(runs=None, seconds=None)
    assert endless.take() == 0 and endless.take() == 1
    endless.fail()
    assert endless.take() is None


# --- A replay


def test_a_replay_says_that_there_is_no_problem_and_names_faults_that_have_not_struck(tmp_path: Path) -> None:
    program = Program((Body((Put("a"),)),))
    save(Scenario(program, overrides=((("crash", "worker/none", "step", 1), 1),)), tmp_path / "it.json")
    done = invoke("--replay", tmp_path / "it.json")
    assert done.exit_code == 0 and done.stdout.startswith("no problem in ") and "Without the last fault" not in done.stdout
    assert done.stderr == "crash at worker/none step 1, with the answer 1, has not struck\n"
    assert invoke("--replay", FORGOTTEN).stderr == ""


@pytest.mark.usefixtures("forgets_retries")
def test_a_failure_is_shown_with_the_run_without_its_last_fault() -> None:
    done = invoke("--replay", FORGOTTEN)
    failing, _, passing = done.output.partition("\nWithout the last fault, crash at worker/")
    assert done.exit_code == 1 and failing.startswith("G17: ") and "!! crash" in failing
    assert "it passes. It differs from the marked row on:" in passing and "!! crash" not in passing
    assert [row[0] for row in passing.splitlines() if row.startswith(">")] == [">"]


@pytest.mark.usefixtures("forgets_retries")
def test_a_failure_can_be_seen_as_a_page(tmp_path: Path) -> None:
    assert invoke("--replay", FORGOTTEN, "--html", tmp_path / "run.html").exit_code == 1
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!doctype html>") and "the program ended with G17: " in page and "crash" in page
    refused = invoke("--replay", FORGOTTEN, "--html", tmp_path / "none" / "run.html")
    assert refused.exit_code == 1 and "No such file or directory" in refused.output


def test_a_fault_that_changes_nothing_else_has_no_marked_row(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = read_witness(FORGOTTEN, Scenario.from_json)
    verdict: Verdict = run(scenario)
    monkeypatch.setattr(campaigns, "run", lambda _: verdict)
    assert "Nothing else differs" in campaigns.without_last_fault(scenario, verdict)


def test_a_campaign_says_which_transitions_it_has_seen_and_where_faults_have_struck() -> None:
    coverage, crash = Coverage(), ("crash", "worker/1f3c", "user_code", 1)
    nothing_struck = run(Scenario(Program((Body((Submit("a", Body()), Get("get", ("a",)))),))))
    coverage.add(nothing_struck)
    begun = "lease", "", "WAITING"
    assert (coverage.transitions[begun], coverage.after_faults[begun]) == (1, 0)
    assert coverage.transitions["task", "SUBMITTED_TO_WORKER", "FINISHED"] == 1 and not coverage.places["crash"]
    coverage.add(struck_by_a_crash())
    assert coverage.transitions[begun] == 2 and coverage.after_faults["worker", "LEASED", "DEAD"] == 1
    assert place_of(crash) == ("worker", "user_code") and coverage.places["crash"] == {("worker", "user_code"): 1}
    assert set(coverage.transitions) <= set(all_transitions())
    assert "places struck: crash 1; transitions: " in coverage.line()
    for row in (r"worker: LEASED -> DEAD +1 +1", r"worker +user_code +1"):
        assert re.search(f"^{row}$", coverage.tables(), re.MULTILINE)


def struck_by_a_crash() -> Verdict:
    """Run a scenario with a crash in the first step of a task."""
    scenario = Scenario(Program((Body((Submit("a", Body((Sleep("sleep", 1.0),))), Get("get", ("a",)))),)))
    asked: list[Key] = []
    run(replace(scenario, overrides=((("crash", "nobody"), 1),)), asked.append)
    point = next(key for key in asked if key[:1] == ("crash",) and key[1].startswith("worker/") and key[2] == "user_code")
    return run(replace(scenario, overrides=((point, 1),)))


def test_a_scenario_that_depends_on_the_hash_seed_is_named_with_the_first_event_that_differs() -> None:
    assert compare(0, 1) == []
    plant = "import os, minray.simulation.costs as it; it.SPAWN_S *= 1 + (os.environ['PYTHONHASHSEED'] == '2')"
    (problem,) = compare(0, 1, plant)
    assert re.match(r"the scenario of seed 0 depends on the hash seed: event \d+ is Event\(.*\) or Event\(", problem)
