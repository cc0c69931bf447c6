"""The table of the API's words and the events of their things: where its rows come from, and what fills its cells."""

from __future__ import annotations

from typing import Any

import pytest

from minray.api import task_options
from tests.seeds import long
from tests.spec import api_coverage
from tests.spec.actors import Create, Find, Kill
from tests.spec.api_coverage import (
    AGAIN,
    CANCELLED,
    DROPPED,
    EXCLUDED,
    LIVES,
    MADE,
    ORPHANED,
    RETRIED,
    USED,
    ApiCoverage,
    Listener,
    all_cells,
    excluded,
    mistakes,
    words_of_the_package,
)
from tests.spec.generators import Stream
from tests.spec.programs import Body, Call, Cancel, Drop, Exit, Get, Program, Submit, Wait
from tests.spec.scenario import Scenario, World
from tests.spec.strategies import scenario_of
from tests.spec.trial import run
from tests.spec.verdict import Verdict
from tests.spec.vocabulary import with_riches

MOST_EXCLUDED = 0.1
"""Share of the cells that may be excluded."""


def heard(scenario: Scenario) -> tuple[ApiCoverage, Verdict]:
    listener, coverage = Listener(), ApiCoverage()
    with listener.listening():
        verdict = run(scenario)
    coverage.add(scenario, verdict, listener.said)
    return coverage, verdict


def events(coverage: ApiCoverage, kind: str, word: str) -> set[str]:
    return {event for event in LIVES[kind] if coverage.reached[kind, word, event]}


def test_a_new_option_is_a_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("task", "colour") not in words_of_the_package()
    monkeypatch.setitem(task_options.CHECKS, "colour", task_options.check_bool)
    assert ("task", "colour") in words_of_the_package()
    assert len(set(all_cells())) == len(all_cells())


def test_few_cells_are_excluded_and_each_for_a_reason() -> None:
    assert mistakes({}) == [] and all(len(reason) > 20 for reason in EXCLUDED.values())
    assert len(excluded()) <= MOST_EXCLUDED * len(all_cells())


def test_an_exclusion_of_no_cell_or_of_one_that_is_reached_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mistakes({("minray", "init", USED): 1}) == ["('minray', 'init', 'used') is excluded, and programs reach it"]
    assert mistakes({("minray", "fly", USED): 1}) == ["('minray', 'fly', 'used') is no cell"]
    monkeypatch.setattr(api_coverage, "EXCLUDED", EXCLUDED | {("task", "colour", ""): "there is no such option"})
    assert mistakes({}) == ["('task', 'colour', '') excludes no cell"]


def test_the_text_of_a_program_and_its_trace_tell_what_befell_its_things() -> None:
    operations: list[Any] = [
        Submit("a", Body(), num_cpus=1),
        Submit("b", Body(), nested=("a",), num_cpus=0),
        Submit("crash", Body(end=Exit()), max_retries=1, num_cpus=1, is_last=True),
        Cancel("cancel", "b"),
        Drop("drop", "a"),
        Get("get", ("crash",), timeout=9.0),
        Wait("wait", ("b",)),
        Create("actor", called="n", max_restarts=1),
        Find("find", "n"),
        Call("call", "actor", Body()),
        Kill("kill", "actor"),
        Stream("stream"),
    ]
    coverage, verdict = heard(Scenario(Program((Body(tuple(operations), Exit(0)),)), World(with_riches(World().nodes))))
    assert not verdict.problems and mistakes(coverage.reached) == []
    assert events(coverage, "task", "num_cpus") == {MADE, USED, DROPPED, AGAIN, CANCELLED, RETRIED, ORPHANED}
    assert events(coverage, "task", "max_calls") == {MADE, USED, RETRIED, ORPHANED}
    assert events(coverage, "actor", "name") == {MADE, USED, AGAIN, CANCELLED, ORPHANED}
    assert events(coverage, "actor", "max_restarts") == {MADE, USED, AGAIN, CANCELLED, ORPHANED}
    assert events(coverage, "actor", "max_task_retries") == events(coverage, "actor", "lifetime") == set()
    assert events(coverage, "minray", "get timeout") == {USED, ORPHANED}
    assert events(coverage, "generator", "completed") == {USED, ORPHANED}
    assert events(coverage, "minray", "wait timeout") == events(coverage, "minray", "wait fetch_local") == set()
    assert not coverage.struck


@long
def test_programs_of_a_campaign_reach_cells_of_every_kind_and_only_such_that_there_are() -> None:
    coverage = ApiCoverage()
    for seed in range(12):
        scenario, listener = scenario_of(seed), Listener()
        with listener.listening():
            verdict = run(scenario)
        coverage.add(scenario, verdict, listener.said)
    assert mistakes(coverage.reached) == [] and coverage.struck
    assert {kind for kind, _, _ in coverage.reached} >= {"task", "actor", "method", "minray", "util"}
    assert coverage.table().splitlines()[0].split()[:3] == ["word", "made", "used"]
