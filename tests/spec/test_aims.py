"""Scenarios draw these on purpose: conversations, last messages of dead processes, small bounds, pairs of rare features."""

from __future__ import annotations

import importlib
import pkgutil
from random import Random

import pytest

import minray.protocol
from minray.protocol.base import Request
from tests.seeds import sample
from tests.spec.aims import HEAVY, LATE_FREES, LATE_REQUESTS, TALK, with_posthumous_messages, with_silence
from tests.spec.bundles import Bundles
from tests.spec.conjunctions import CONDITIONS, ORDER, TOGETHER, pair_of, with_feature
from tests.spec.conversations import CONVERSATIONS, MIXED
from tests.spec.features import OF_PROGRAMS, PAIRS, features_of, pairs_of
from tests.spec.fragments import FRAGMENTS
from tests.spec.knobs import FEW_REFERENCES, SMALL, with_few_references
from tests.spec.losses import crashed_by, losses_of
from tests.spec.pair_coverage import PairCoverage
from tests.spec.programs import Body, Get, Program, Submit
from tests.spec.scenario import Node, Scenario, World
from tests.spec.scenes import LAPSES
from tests.spec.stories import Story
from tests.spec.strategies import fitted, scenario_of
from tests.spec.trial import run
from tests.spec.worlds import with_lost_items

OF_REMOTE_CLIENTS = "minray.protocol.client"
"""Module of the requests between a remote client and its server, which the simulation has not: they travel by gRPC alone."""


def protocol() -> set[str]:
    """Names of all requests that processes of the simulation may send each other."""
    for module in pkgutil.iter_modules(minray.protocol.__path__, "minray.protocol."):
        importlib.import_module(module.name)
    requests = (request for request in Request.__subclasses__() if request.__module__.startswith("minray."))
    return {request.__name__ for request in requests if request.__module__ != OF_REMOTE_CLIENTS}


def test_every_request_of_the_protocol_is_in_a_conversation() -> None:
    spoken = {request for conversation in CONVERSATIONS.values() for request in conversation}
    assert spoken == protocol()
    mixed = {request for mixture in MIXED for request in mixture}
    assert mixed | {*LATE_FREES, *LATE_REQUESTS} <= protocol()


def test_stories_whose_conversations_are_aimed_at_are_stories_and_conversations() -> None:
    assert TALK.keys() <= {story.__name__ for story in Story.__subclasses__() + Bundles.__subclasses__()}
    assert {name for talk in TALK.values() for name in talk} <= CONVERSATIONS.keys()


def test_all_conversations_and_kinds_are_aimed_at() -> None:
    worlds = [scenario_of(seed).world for seed in range(1000)]
    aims = {world.aims for world in worlds}
    assert {*CONVERSATIONS.values()} <= aims and {LATE_FREES, LATE_REQUESTS} <= aims
    assert {kind for world in worlds for kind in world.aimed} == {"delay", "reset", "long_delay", "cut"}
    senders = {world.targets for world in worlds if "posthumous" in world.rates}
    assert {("worker/",), ("driver/",), ("raylet/n",), ("gcs",)} <= senders
    checks = {name for lapse in LAPSES for name in lapse}
    assert {name for world in worlds for name in world.bounds} == SMALL.keys() | FEW_REFERENCES.keys() | checks


def test_a_dead_process_counts_as_crashed() -> None:
    key = ("posthumous", "worker/1>driver/0", "PushTask reply", 1)
    assert crashed_by([key]) == ["worker/1"]
    losses = losses_of({key: 1}, World())
    assert losses.deaths == 1 and losses.silence and not losses.nodes
    assert losses_of({("posthumous", "raylet/n1>gcs", "ReportResources", 1): 1}, World()).nodes


def test_an_answer_that_comes_after_the_death_of_its_worker_is_survived() -> None:
    program = Program((Body((Submit("task", Body()), Get("get", ("task",)))),))
    rates = {"posthumous": 1.0}
    verdicts = [
        run(Scenario(program, World((Node(),), rates, 1, ("worker/",), ("PushTask",)), seed)) for seed in range(10)
    ]
    assert all(verdict.ok and len(crashed_by(verdict.answers)) == 1 for verdict in verdicts)


def test_each_pair_is_drawn_in_turn() -> None:
    assert set(ORDER) == set(PAIRS) and len(ORDER) == len(PAIRS)
    seeds = [seed for seed in range(4 * len(ORDER)) if pair_of(seed) is not None]
    assert [pair_of(seed) for seed in seeds] == list(ORDER)
    drawn = [(pair_of(seed), features_of(scenario_of(seed))) for seed in seeds[::7]]
    failed = [pair for pair, features in drawn if pair is not None and not set(pair) <= set(features)]
    assert len(failed) <= len(drawn) // 50, failed


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_has_its_feature_and_ends(name: str) -> None:
    """Without any fault, too: its program breaks no guarantee."""
    for seed in range(3):
        random = Random(seed)
        scenario = with_feature(Scenario(Program((Body(),)), World((Node(),)), seed), name, CONDITIONS, random)
        scenario = fitted(scenario, random)
        assert OF_PROGRAMS[name](scenario.program) and scenario.is_feasible()
        verdict = run(scenario)
        assert verdict.ok, verdict.problems


@pytest.mark.parametrize("number", sample(range(len(TOGETHER))), ids=sample(list(TOGETHER)))
def test_what_fits_together_has_been_met(number: int) -> None:
    drawn = [scenario_of(12 * (number + len(TOGETHER) * turn) + 5) for turn in range(4)]
    assert all(scenario.is_feasible() for scenario in drawn)
    verdicts = [run(scenario) for scenario in drawn]
    assert all(verdict.ok for verdict in verdicts), [verdict.problems for verdict in verdicts]


def test_pairs_that_were_met_are_counted() -> None:
    program = Program((Body((Submit("task", Body(), returns=2), Submit("last", Body(), is_last=True))),))
    world = World((Node(),), {"duplicate": 1e-9}, inline_limit=1)
    scenario = Scenario(program, world)
    coverage = PairCoverage()
    coverage.add(scenario, run(scenario))
    names = ["several returns", "a worker's last task", "values in stores"]
    assert coverage.pairs.keys() == pairs_of(names) and len(pairs_of(names)) == 3, "no message was repeated"
    assert "pairs of features met: 3 of" in coverage.line() and "pairs not met: " in coverage.table()


def test_worlds_that_lose_a_message_for_good_are_not_posthumous() -> None:
    world = World((Node(),), {"crash_prefix": 0.4, "delay": 0.1}, aims=())
    drawn = [with_posthumous_messages(world, Random(seed)) for seed in range(100)]
    assert any("posthumous" in one.rates for one in drawn)
    assert not any("posthumous" in one.rates and "crash_prefix" in one.rates for one in drawn)


def test_worlds_of_heavy_answers_fickle_generators_and_bouquets_have_what_these_are_for() -> None:
    world, draws = World((Node(), Node())), [Random(seed) for seed in range(100)]
    silent = [with_silence(world, HEAVY, random) for random in draws]
    assert 30 < sum("cut" in one.rates and one.budget > 0 for one in silent) < 70
    lost = [one for one in (with_lost_items(world, random) for random in draws) if one.moves]
    assert 60 < len(lost) < 100 and all(len(one.nodes) == 3 and one.inline_limit == 1 for one in lost)
    few = [with_few_references(world, random) for random in draws]
    assert 50 < sum(one.bounds == FEW_REFERENCES for one in few) < 90
