"""What a campaign says to a person: on its command line, of a failure, and of a scenario that does not do the same twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minray.core_worker.task_manager import TaskManager
from tests.spec import campaign as campaigns
from tests.spec.campaign import REGRESSIONS, campaign, compared, main
from tests.spec.programs import Body, Program, Put
from tests.spec.scenario import Scenario, Verdict, read_witness, run, save
from tests.spec.shrink import replace
from tests.spec.strategies import scenario_of

FORGOTTEN = REGRESSIONS / "planted_retry_forgotten.json"
"""Fails if retries are forgotten: there is a crash."""


def invoke(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def forgets_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskManager, "may_retry", lambda *_: False)


@pytest.fixture
def draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has a seed of its own, so that none is like the one before."""
    seeds = itertools.count()
    monkeypatch.setattr(campaigns, "run", lambda scenario: run(replace(scenario, seed=next(seeds))))


@pytest.mark.parametrize(
    "arguments",
    [["--runs", "-1"], ["--runs", "0"], ["--runs", "many"], ["--seconds", "-1"], ["--seconds", "nan"], ["--html", "page"]],
)
def test_what_a_campaign_cannot_do_is_refused(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


# --- What is not the same twice


def test_two_runs_that_differ_are_told_by_their_first_event_that_does() -> None:
    one, other = (run(replace(scenario_of(0), seed=seed)) for seed in (0, 1))
    assert compared(one, one).ok
    [problem] = compared(one, other).problems
    assert problem.startswith("determinism: event ") and " / " in problem and "ticks" in problem


@pytest.mark.usefixtures("draws_anew")
def test_a_campaign_goes_on_after_a_scenario_that_is_not_the_same_twice() -> None:
    statistics, failure = campaign(first_seed=0, runs=2, seconds=60)
    assert failure is None and statistics.scenarios == 2
    assert [parted.scenario for parted in statistics.unrepeatable] == [scenario_of(0)]


@pytest.mark.usefixtures("draws_anew")
def test_what_is_not_the_same_twice_is_saved_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(campaigns, "REGRESSIONS", tmp_path)
    monkeypatch.setattr(campaigns, "smallest", lambda *_: pytest.fail("there is nothing that could be made small"))
    done = invoke("--seed", 0, "--runs", 1)
    assert done.exit_code == 1 and "determinism: event " in done.output
    [path] = tmp_path.iterdir()
    assert read_witness(path, Scenario.from_json) == scenario_of(0) and f"--replay {path}" in done.output
    assert invoke("--replay", path).exit_code == 1


# --- A replay


def test_a_replay_without_a_problem_says_so_and_what_has_not_struck(tmp_path: Path) -> None:
    program = Program((Body((Put("a"),)),))
    save(Scenario(program, overrides=((("crash", "worker/none", "step", 1), 1),)), tmp_path / "it.json")
    done = invoke("--replay", tmp_path / "it.json")
    assert done.exit_code == 0 and done.stdout.startswith("no problem in ") and "Without the last fault" not in done.stdout
    assert done.stderr == "crash at worker/none step 1, with the answer 1, has not struck\n"
    assert invoke("--replay", FORGOTTEN).stderr == ""


@pytest.mark.usefixtures("forgets_retries")
def test_beside_a_failure_is_the_same_run_without_its_last_fault() -> None:
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
