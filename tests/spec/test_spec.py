"""The executable specification: a short campaign, every witness again, the strength of the judge, and the shrinker."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from click import UsageError
from hypothesis import given, settings

from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import PUSHED
from minray.core_worker.submission.lease_client import LeaseClient
from minray.core_worker.submission.outcomes import TaskOutcomes
from minray.core_worker.submission.task_manager import TaskManager
from minray.gcs.storage import GcsStorage
from minray.raylet.lease_broker import LeaseBroker
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler
from minray.simulation import SimCluster
from minray.simulation.faults import Key
from minray.simulation.garbage import without_garbage_collection
from tests.seeds import WANTS_ALL, long
from tests.spec import shrink as shrinking
from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.campaign import REGRESSIONS, campaign, compared, report
from tests.spec.fates import DIED, DRIVER, GROUP_REMOVED, UNAVAILABLE
from tests.spec.frees import Free
from tests.spec.groups import REMOVED, Describe, FindGroup, Group, Remove
from tests.spec.losses import MOMENT_S, losses_of
from tests.spec.model import CANCELLED, HEARD_S, Expectation, Losses, Model, problems
from tests.spec.moves import Move
from tests.spec.programs import (
    Await,
    Body,
    Call,
    Cancel,
    Drop,
    Exit,
    Generate,
    Get,
    Peek,
    Program,
    Put,
    Raise,
    RaiseAtFirst,
    Return,
    Sleep,
    Submit,
    Wait,
    Why,
)
from tests.spec.scenario import Answers, Node, Scenario, World, read_witness, save
from tests.spec.shrink import FAILURES, SEARCHED, Shrinker, Witness, is_small, replace, shrink, smallest
from tests.spec.stage import Stage, value_of
from tests.spec.strategies import scenario_of, scenarios
from tests.spec.trial import run
from tests.spec.verdict import Verdict, missed, struck
from tests.spec.writer import SIZES

WITNESSES = sorted(REGRESSIONS.glob("*.json"))
CAMPAIGN = 24 if WANTS_ALL else 12
"""Scenarios of a short campaign, among which all operations are that it names."""


def ran(name: str, node: str = "", mark: str = "", gpus: Sequence[int] = ()) -> str:
    """Line that a task prints when it begins."""
    return json.dumps(["run", name, [], [], node, mark, gpus])


def one(*operations: Any) -> Program:
    return Program((Body(operations),))


def test_a_short_campaign_finds_nothing() -> None:
    statistics, failure = campaign(first_seed=500_000, runs=CAMPAIGN)
    assert failure is None, f"seed {failure.scenario.seed}: {failure.verdict.problems}\n{failure.verdict.story}"
    assert statistics.scenarios == CAMPAIGN and statistics.repeated == 1 and not statistics.unrepeatable
    performed = {"Submit", "Put", "Get", "Wait", "Cancel", "Drop", "Generate", "Why", "Sleep", "Return", "Raise"}
    assert performed <= set(statistics.operations)


@pytest.mark.parametrize("path", WITNESSES, ids=lambda path: path.stem)
def test_no_witness_fails_any_more(path: Path) -> None:
    """Every override must still strike, too: otherwise a witness would pass whatever is broken."""
    scenario = Scenario.from_json(path.read_text())
    verdict = compared(run(scenario), run(scenario))
    assert verdict.ok, "\n".join([*verdict.problems, verdict.story])
    assert missed(scenario, verdict) == ()


def test_overrides_of_a_witness_that_do_not_strike_are_named() -> None:
    overrides: Answers = tuple((("stall", "driver/0", "user_code", step), 9) for step in (1, 99))
    scenario = Scenario(one(Put("a")), overrides=overrides)
    verdict = run(scenario)
    assert len(verdict.answers) == 1 and missed(scenario, verdict) == overrides  # Step 1 was asked, but has no answer 9.
    assert missed(replace(scenario, overrides=tuple(verdict.answers.items())), verdict) == ()


@pytest.mark.parametrize(
    ("witness", "error"),
    [
        ({"overrides": [[["krash", "gcs", "t", 1], 1]]}, "there is no kind of fault 'krash'"),
        ({"overrides": [[[], 1]]}, "there is no kind of fault ''"),
        ({"world": {"rates": {"krash": 0.1}}}, "there is no kind of fault 'krash'"),
        ({"overides": []}, "unknown field `overides`"),
        ({"world": {"budgets": 1}}, "unknown field `budgets`"),
        ({"world": {"nodes": [{"cpus": 1}]}}, "unknown field `cpus`"),
        ({"world": {"moves": [{"node": 1, "at": 1}]}}, "unknown field `at`"),
        ({"program": {"drivers": [{"operations": [{"kind": "Put", "name": "a", "size": 1}]}]}}, "unknown field `size`"),
    ],
)
def test_a_witness_with_a_misspelt_word_is_refused(witness: dict[str, Any], error: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps({"program": {"drivers": [{}]}} | witness))
    with pytest.raises(UsageError, match=error):
        read_witness(tmp_path / "w.json", Scenario.from_json)


@given(scenarios(SIZES["small"]))
@settings(max_examples=25)
def test_scenarios_are_json_feasible_and_have_unique_names(scenario: Scenario) -> None:
    assert Scenario.from_json(scenario.to_json()) == scenario and scenario.is_feasible()
    names = [operation.name for operation in scenario.program.walk()]
    assert len(names) == len(set(names))


@given(scenarios(SIZES["small"]))
@settings(max_examples=5)
def test_small_scenarios_that_hypothesis_draws_keep_the_guarantees(scenario: Scenario) -> None:
    verdict = run(scenario)
    assert verdict.ok, "\n".join([*verdict.problems, verdict.story])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=long), pytest.param(2, marks=long), 2018])
def test_a_scenario_is_decided_by_its_seed_and_replayed_by_its_answers(seed: int) -> None:
    """With the last seed, the size of a pickle decides which value has room. It depends on which parts are one object."""
    scenario = scenario_of(seed)
    assert scenario == scenario_of(seed)
    first = run(scenario)
    saved = Scenario(scenario.program, scenario.world, seed, tuple(first.answers.items())).to_json()
    again = run(Scenario.from_json(saved))
    assert first.digest == run(scenario).digest == again.digest


def test_a_world_leaves_no_objects_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes were killed there with calls on their way, tasks in flight, and unread generators."""
    loops: list[weakref.ref[Any]] = []
    enter = SimCluster.__enter__

    def watched_enter(self: SimCluster) -> SimCluster:
        cluster = enter(self)
        loops.append(weakref.ref(self.world.loop))
        return cluster

    monkeypatch.setattr(SimCluster, "__enter__", watched_enter)
    with without_garbage_collection():
        assert all(run(scenario_of(seed)).ok for seed in (9, 33, 39, 50))
        gc.collect()
        assert len(loops) >= 4 and not any(loop() for loop in loops)


# --- The model


def expectation(program: Program, name: str, losses: Losses = Losses()) -> Expectation:  # noqa: B008
    return Model(program, losses).objects[name]


def test_only_a_task_without_retries_left_may_fail_for_a_crash() -> None:
    program = one(Submit("once", Body(), max_retries=0), Submit("twice", Body(), max_retries=1))
    crash = Losses(deaths=1)
    assert expectation(program, "once").is_sure and expectation(program, "twice", crash).is_sure
    assert expectation(program, "once", crash).errors == {"WorkerCrashedError"}


def test_g20_only_a_task_that_is_never_retried_may_fail_because_its_node_has_no_memory() -> None:
    program = one(Submit("once", Body(), max_retries=0), Submit("twice", Body(), max_retries=1))
    assert expectation(program, "once", Losses(2, memory=2)).errors == {"OutOfMemoryError"}
    assert expectation(program, "twice", Losses(2, memory=2)).is_sure
    assert expectation(program, "twice", Losses(4, memory=2)).errors == {"WorkerCrashedError"}
    assert Model(program, Losses(4, memory=2)).most_runs(program.tasks()[1]) == 4


def test_g67_a_lost_value_is_made_again_if_its_task_has_retries() -> None:
    never, once = Submit("never", Body(), max_retries=0), Submit("once", Body(), max_retries=1)
    program = one(never, once, Submit("after", Body(), args=("never",)))
    lost = Losses(deaths=1, nodes=True, objects=True)
    assert expectation(program, "once", lost).is_sure and Model(program, lost).can_be_lost("once")
    assert "ObjectReconstructionFailedError" in expectation(program, "never", lost).errors
    assert "RayTaskError(ObjectReconstructionFailedError)" in expectation(program, "after", lost).errors
    assert "ObjectReconstructionFailedError" in expectation(program, "once", Losses(objects=True, files=True)).errors


def test_g67_a_lost_value_of_an_actor_s_call_is_made_again_while_the_actor_has_a_handle() -> None:
    lost = Losses(deaths=1, nodes=True, objects=True)
    kept = (Create("actor", max_restarts=-1, max_task_retries=-1), CALL)
    assert not expectation(one(*kept), "call", lost).errors
    assert expectation(one(*kept, Drop("drop", "actor")), "call", lost).errors == {DIED}


def test_g67_a_task_that_runs_again_for_a_lost_value_may_end_otherwise_and_no_other() -> None:
    program = one(Submit("a", Body(), max_retries=0), *(Get(f"get{number}", ("a",)) for number in range(2)))
    outcomes: list[Any] = [{"of": []}, {"of": ["a"], "values": ["a"]}, {"of": ["a"], "error": "NodeDiedError"}]
    death = Losses(deaths=1, nodes=True)
    assert [text[:3] for text in problems(program, death, [outcomes], [ran("a")])] == ["G43"]
    assert problems(program, Losses(1, True, True), [outcomes], [ran("a")]) == []
    assert problems(program, Losses(1, True, True), [[outcomes[0], *outcomes[:0:-1]]], [])[0].startswith("G43")


def test_a_task_fails_with_the_error_of_its_argument() -> None:
    program = one(Submit("bad", Body(end=Raise())), Submit("after", Body(), args=("bad",)))
    found = expectation(program, "after")
    assert not found.has_value and found.errors == {"RayTaskError(ValueError)"}


def test_a_cancellation_reaches_children_and_kills_no_worker_without_force() -> None:
    child = Submit("child", Body())
    program = one(Submit("parent", Body((child,))), Cancel("stop", "parent"), Submit("other", Body()))
    assert expectation(program, "child").errors == expectation(program, "parent").errors == CANCELLED
    assert expectation(program, "other").is_sure


def test_only_borrowers_lose_the_objects_of_a_dead_owner() -> None:
    maker = Submit("maker", Body((Put("inside"),), Return(("inside",))))
    model = Model(one(maker, Submit("ending", Body(end=Exit()))), Losses())
    assert model.errors_seen_by("", "inside") == {"OwnerDiedError"} and not model.errors_seen_by("maker", "inside")


def test_tasks_that_nobody_waits_for_may_see_that_the_program_has_removed_its_groups() -> None:
    actor, call = Create("actor", group="group"), Call("call", "actor", Body())
    task, reader = Submit("task", Body(), group="group"), Submit("reader", Body())
    model = Model(one(Group("group"), task, actor, call, reader), Losses())
    assert [sorted(model.errors_seen_by(viewer, "task")) for viewer in (DRIVER, "reader")] == [[], [REMOVED]]
    assert model.errors_seen_by("reader", "call") - model.errors_seen_by(DRIVER, "call") == {GROUP_REMOVED}


def test_a_freed_object_is_an_error_for_the_process_that_freed_it_and_then_for_its_owner() -> None:
    """A borrower may still have the value; a task that takes it as an argument fails."""
    program = one(Put("a"), Free("free", ("a",)), Submit("task", Body(), args=("a",)), Get("get", ("a",)))
    assert not expectation(program, "task").has_value
    assert expectation(program, "task").errors == {"RayTaskError(ObjectFreedError)"}
    history: list[Any] = [{"of": []}, {"of": ["a"]}, {"of": ["a"]}, {"of": ["a"], "error": "ObjectFreedError"}]
    assert problems(program, Losses(), [history], []) == []
    stale = [*history[:3], {"of": ["a"], "values": ["a"]}]
    assert problems(program, Losses(), [stale], []) == ["free: get got the value of a, which it has freed"]
    freer = Submit("task", Body((Free("free", ("a",)),)), nested=("a",))
    program = one(Put("a"), freer, Get("early", ("a",)), Get("end", ("task",)), Get("get", ("a",)))
    seen: list[Any] = [{"of": [name], "values": [name]} for name in ("a", "task", "a")]
    told = [*history[:2], *seen]
    assert problems(program, Losses(), [told], []) == ["free: get got the value of a, which it has freed"]
    assert problems(program, Losses(silence=True), [told], []) == []
    assert problems(program, Losses(), [[*told[:4], history[3]]], []) == []


def test_freeing_spare_copies_changes_no_outcome() -> None:
    program = one(Put("a"), Free("free", ("a",), local_only=True), Get("get", ("a",)))
    history: list[Any] = [{"of": []}, {"of": ["a"]}, {"of": ["a"], "error": "ObjectFreedError"}]
    assert [text[:3] for text in problems(program, Losses(), [history], [])] == ["G17"]


def test_an_await_with_a_timeout_may_show_no_value_but_no_wrong_one() -> None:
    program = one(Put("a"), Await("wait", ("a",), timeout=0.2), Peek("peek", ("a",)))
    history: list[Any] = [{"of": []}, {"of": ["a"], "late": True}, {"of": ["a"], "shown": []}]
    assert problems(program, Losses(), [history], []) == []
    wrong = [*history[:2], {"of": ["a"], "shown": [["a", ["value", "b"]]]}]
    assert problems(program, Losses(), [wrong], []) == ["G6: peek asked for a and got b"]
    error = [*history[:2], {"of": ["a"], "shown": [["a", ["error", "WorkerCrashedError"]]]}]
    assert [text[:3] for text in problems(program, Losses(), [error], [])] == ["G17"]


def test_g79_a_value_finds_no_room_only_where_disks_fail() -> None:
    program = one(Put("a"), Get("get", ("a",)))
    refused: list[Any] = [{"of": [], "no room": "ObjectStoreFullError"}, {"of": [], "values": []}]
    assert [text[:3] for text in problems(program, Losses(), [refused], [])] == ["G79", "G11"]
    assert problems(program, Losses(room=True), [refused], []) == []
    full = ((("disk_full", "raylet/head", "reserve", 1), 1),)
    assert [losses_of(dict(full), World(store_bytes=size)).room for size in (0, 2000, 4000)] == [False, True, False]


def test_g67_a_lost_item_is_made_again_if_its_generator_has_retries() -> None:
    lost = Losses(deaths=1, nodes=True, objects=True)

    def errors_of(**options: Any) -> frozenset[str]:
        return expectation(one(Generate("items", 2, **options)), "items.1", lost).errors

    assert errors_of(max_retries=3) == set()
    assert "ObjectReconstructionFailedError" in errors_of(max_retries=2) & errors_of(max_retries=3, cancel=True)
    assert errors_of(max_retries=-1) == set()
    for restarts, errors in ((-1, False), (1, True)):
        actor = Create("actor", max_restarts=restarts, max_task_retries=-1)
        items = Generate("items", 2, actor="actor", max_retries=-1)
        assert bool(expectation(one(actor, items), "items.1", lost).errors) == errors


def test_g93_the_last_item_that_is_taken_may_be_the_error_that_ended_the_generator() -> None:
    def codes(items: list[list[str]], deaths: int = 0, **options: Any) -> list[str]:
        program = one(Generate("items", 2, only_takes=True, max_retries=0, **options), Get("get", ("items.1",)))
        shown = {"error": "WorkerCrashedError"} if deaths else {"values": ["items.1"]}
        history: list[Any] = [{"of": [], "items": items}, {"of": ["items.1"], **shown}]
        return [text[:3] for text in problems(program, Losses(deaths), [history], [])]

    taken, over, failed = ["ref", ""], ["end", ""], ["error", "RayTaskError(ValueError)"]
    assert codes([taken, taken, over]) == codes([taken, taken, failed, over], type="ValueError") == []
    assert codes([taken, over], deaths=1) == []
    assert codes([taken, over]) == codes([taken, taken, over], type="ValueError") == ["G93"]
    assert codes([taken, taken, failed]) == ["G92"]


def test_g8_an_item_must_be_ready_once_its_value_was_read_and_not_before() -> None:
    def codes(shown: list[str], **options: Any) -> list[str]:
        program = one(Generate("items", 2, read=1, **options), Wait("wait", ("items.1",), timeout=0.1))
        history: list[Any] = [{"of": [], "items": [shown]}, {"of": ["items.1"], "ready": [], "rest": ["items.1"]}]
        return [text[:2] for text in problems(program, Losses(), [history], [])]

    assert codes(["ref", ""], only_takes=True) == []
    assert codes(["value", "items.1"]) == ["G8"]


def test_a_node_that_dies_in_the_middle_of_a_program_takes_the_values_in_its_store_along() -> None:
    moves = (Move(0, dies=True, is_silent=True, when="items"), Move(1))
    lost = losses_of({}, World(inline_limit=1, moves=moves))
    assert (lost.deaths, lost.nodes, lost.objects, lost.silence, lost.preemptions) == (1, True, True, True, 0)


# --- The model's actors


def errors_of(losses: Losses, create: Create, *operations: Any, call: str = "call") -> set[str]:
    return set(expectation(one(create, *operations), call, losses).errors)


CALL = Call("call", "actor", Body())
CRASH = Losses(deaths=1)


@pytest.mark.parametrize(
    ("restarts", "retries", "losses", "errors"),
    [
        (0, 0, Losses(), set()),
        (0, 1, CRASH, {DIED}),
        (1, 0, CRASH, {UNAVAILABLE}),
        (1, 1, CRASH, set()),
        (1, 1, Losses(deaths=2), {DIED, UNAVAILABLE}),
        (-1, 1, Losses(deaths=2), {UNAVAILABLE}),
        (-1, -1, Losses(deaths=2, silence=True), set()),
        (-1, 1, Losses(deaths=1, silence=True), {UNAVAILABLE}),
        (-1, 0, Losses(silence=True), set()),
    ],
)
def test_g37_a_call_fails_only_if_restarts_or_retries_can_be_used_up(
    restarts: int, retries: int, losses: Losses, errors: set[str]
) -> None:
    assert errors_of(losses, Create("actor", max_restarts=restarts, max_task_retries=retries), CALL) == errors


def test_g29_after_a_kill_no_call_of_the_killer_has_a_value() -> None:
    program = one(Create("actor"), Call("before", "actor", Body()), Kill("kill", "actor"), CALL)
    assert expectation(program, "before").has_value and not expectation(program, "call").has_value
    assert expectation(program, "before").errors == expectation(program, "call").errors == {DIED}


def test_a_call_that_exits_ends_its_actor_at_every_attempt() -> None:
    exits = Call("call", "actor", Body(end=Exit()), max_task_retries=1)
    assert errors_of(Losses(), Create("actor"), exits) == {DIED}
    assert errors_of(Losses(), Create("actor", max_restarts=1), exits) == {DIED, UNAVAILABLE}
    assert errors_of(Losses(), Create("actor", max_restarts=2), exits) == {UNAVAILABLE}
    assert errors_of(Losses(), Create("actor", max_restarts=-1), Call("call", "actor", Body(end=ExitActor()))) == {DIED}


@pytest.mark.parametrize("by_a_task", [False, True])
def test_g26_a_crash_of_a_detached_actor_may_lose_arguments_that_a_task_has_stored(by_a_task: bool) -> None:
    """After a crash the actor may restart in the worker of that task, and crash there too. The worker owns the arguments."""
    create = Create("actor", called="n", detached=True, max_restarts=-1)
    exits = Call("call", "actor", Body(end=Exit()))
    program = one(Submit("maker", Body((create, exits)))) if by_a_task else one(create, exits)
    for stored in (False, True):
        fate = Model(program, Losses(stored=stored)).fates.named("n")
        assert fate is not None and fate.may_end_by_itself == (stored and by_a_task)


def test_g33a_a_handle_that_was_found_by_name_keeps_its_actor_like_any_other() -> None:
    made, found, call = Create("actor", called="actor"), Find("found", "actor"), Call("call", "found", Body())
    assert not expectation(one(made, found, call), "call").errors
    assert not expectation(one(made, found, Drop("drop", "actor"), call), "call").errors
    assert not expectation(one(made, Drop("drop", "actor"), found, call), "call").errors


def test_g33a_get_if_exists_after_the_last_drop_returns_a_living_actor() -> None:
    first, again = (Create(name, called="actor", get_if_exists=True) for name in ("first", "again"))
    program = one(first, Drop("drop", "first"), again, Call("call", "again", Body()))
    assert not expectation(program, "call").errors
    assert expectation(program, "call", CRASH).errors == {DIED}


def test_g25_an_actor_ends_with_the_task_that_has_made_it() -> None:
    maker = Submit("maker", Body((Create("actor", max_restarts=-1),), Return(("actor",))))
    program = one(maker, Get("get", ("maker",)), CALL)
    assert expectation(program, "call").is_sure and DIED in expectation(program, "call", CRASH).errors


def test_objects_of_a_call_are_lost_with_its_actor() -> None:
    maker = Call("call", "actor", Body((Put("inside"),), Return(("inside",))))
    kept, let_go = one(Create("actor"), maker), one(Create("actor"), maker, Drop("drop", "actor"))
    assert not Model(kept, Losses()).errors_seen_by("", "inside")
    assert Model(let_go, Losses()).errors_seen_by("", "inside") == {"OwnerDiedError"}


def test_calls_out_of_order_and_constructors_that_run_too_often_are_seen() -> None:
    program = one(Create("actor", max_restarts=1), *(Call(name, "actor", Body()) for name in "ab"))
    outcomes: list[Any] = [{"of": []}, {"of": ["actor"]}, {"of": ["actor"]}]
    born, first, second = '["born", "actor", [], []]', ran("a"), ran("b")
    assert problems(program, Losses(), [outcomes], [born, first, second]) == []
    assert problems(program, Losses(), [outcomes], [born, second, first]) == ["G49: b began before a"]
    assert problems(program, CRASH, [outcomes], [born, born, first]) == []
    assert problems(program, CRASH, [outcomes], [born] * 3) == ["G35: actor ran 3 times, and may 2 times"]
    assert problems(program, Losses(), [outcomes], [first, first]) == ["G16: a ran 2 times, and may 1 times"]


def test_g39_a_call_that_raises_at_first_returns_if_it_is_retried_and_not_cancelled() -> None:
    def errors_with(retries: int, *more: Any, losses: Losses = Losses()) -> frozenset[str]:  # noqa: B008
        call = Call("call", "actor", Body(end=RaiseAtFirst()), max_task_retries=retries, retry_exceptions=True)
        return expectation(one(Create("actor", max_restarts=-1), call, *more), "call", losses).errors

    assert errors_with(1) == errors_with(-1, losses=CRASH) == set()
    for errors in (errors_with(0), errors_with(1, Cancel("cancel", "call")), errors_with(1, losses=CRASH)):
        assert "RayTaskError(ValueError)" in errors


def test_g41_g45_a_sleep_that_outlasts_its_cancellation_is_seen_unless_that_may_have_come_late() -> None:
    calls = (Submit("task", Body((Sleep("sleep", 9.0),))), Call("call", "actor", Body((Sleep("doze", 9.0),))))
    rest = (*calls, Cancel("end", "task"), Cancel("stop", "call"))
    coroutines, threads = one(Create("actor", is_async=True), *rest), one(Create("actor", max_concurrency=2), *rest)

    def found(task_at: float, call_at: float, program: Program = coroutines, **losses: Any) -> list[str]:
        ends = [{"of": ["task"], "at": task_at}, {"of": ["call"], "at": call_at}]
        slept = [{"of": [], "begun": 1.0, "ended": 10.0}]
        lines = [line for name in ("task", "call") for line in (ran(name), json.dumps(["end", name, slept]))]
        history: list[Any] = [{"of": []}, {"of": []}, {"of": ["actor"]}, *ends]
        return [problem.partition(":")[0] for problem in problems(program, Losses(**losses), [history], lines)]

    assert found(0.5, 0.5) == found(9.0, 9.0) == found(20.0, 20.0) == []
    assert found(2.0, 9.0) == ["G41"]
    assert found(9.0, 2.0) == ["G45"]
    assert found(2.0, 2.0, silence=True) == found(9.0, 2.0, threads) == []


def test_g16_g18_a_task_is_retried_for_the_chosen_kind_of_exception_alone() -> None:
    def most(**options: Any) -> float:
        task = Submit("task", Body(end=Raise("KeyError")), max_retries=2, **options)
        return Model(one(task), Losses()).most_runs(task)

    assert (most(), most(retry_exceptions=True), most(retry_only="KeyError"), most(retry_only="ValueError")) == (1, 3, 3, 1)


def test_g49_calls_by_several_handles_keep_the_order_of_their_process() -> None:
    handles = (Create("made", called="n"), Find("found", "n"))
    program = one(*handles, Call("a", "made", Body()), Call("b", "found", Body()))
    history: list[Any] = [{"of": [], "is": "x"}, {"of": [], "found": True, "is": "x"}, {"of": ["made"]}, {"of": ["found"]}]
    lines = [ran("a"), ran("b")]
    assert problems(program, Losses(), [history], lines) == []
    assert problems(program, Losses(), [history], lines[::-1]) == ["G49: b began before a"]


def test_a_find_that_misses_an_actor_which_must_have_its_name_is_seen() -> None:
    program = one(Create("actor", called="actor"), Find("find", "actor"))
    outcomes: list[Any] = [{"of": []}, {"of": [], "found": False}]
    assert problems(program, Losses(), [outcomes], []) == ["G32: find did not find actor"]
    assert problems(program, CRASH, [outcomes], []) == []


def test_g102_a_task_on_another_node_than_the_one_that_it_is_bound_to_is_seen() -> None:
    outcomes: list[Any] = [{"of": [], "on": "x"}]
    for is_soft, found in ((False, ["G102: a ran on node y, and is bound to x"]), (True, [])):
        program = one(Submit("a", Body(), node=1, is_soft=is_soft))
        assert problems(program, Losses(), [outcomes], [ran("a", "x")]) == []
        assert problems(program, Losses(), [outcomes], [ran("a", "y")]) == found


def test_g102_only_tasks_that_are_bound_to_a_node_are_unschedulable_when_it_may_be_gone() -> None:
    def errors(is_soft: bool, losses: Losses) -> frozenset[str]:
        return expectation(one(Submit("a", Body(), node=1, is_soft=is_soft)), "a", losses).errors

    gone = "TaskUnschedulableError"
    assert gone in errors(False, Losses(1, nodes=True)) & errors(False, Losses(departures=True))
    assert gone not in errors(True, Losses(1, nodes=True)) | errors(False, Losses()) | errors(False, Losses(1))


def test_g102_a_task_that_is_bound_to_no_node_has_no_value_unless_it_would_run_elsewhere() -> None:
    bound, soft = (one(Submit("a", Body(), node=0, is_soft=is_soft, nowhere=True)) for is_soft in (False, True))
    assert (expectation(bound, "a").has_value, expectation(bound, "a").errors) == (False, {"TaskUnschedulableError"})
    assert (expectation(soft, "a").has_value, expectation(soft, "a").errors) == (True, set())


@pytest.mark.parametrize(
    ("task", "zone", "gpus", "found"),
    [
        (Submit("a", Body(), zone="a", is_soft=False), "a", (), ""),
        (Submit("a", Body(), zone="a", is_soft=False), "", (), "labels"),
        (Submit("a", Body(), zone="!b", is_soft=False), "", (), ""),
        (Submit("a", Body(), zone="!b", is_soft=False), "b", (), "labels"),
        (Submit("a", Body(), zone="a"), "b", (), ""),
        (Submit("a", Body(), gpus=0.5), "", (1,), ""),
        (Submit("a", Body(), gpus=2.0), "", (0, 1), ""),
        (Submit("a", Body(), gpus=2.0), "", (0, 0), "GPUs"),
        (Submit("a", Body()), "", (0,), "GPUs"),
    ],
)
def test_a_task_without_the_label_or_the_gpus_that_it_needs_is_seen(
    task: Submit, zone: str, gpus: tuple[int, ...], found: str
) -> None:
    shown = problems(one(task), Losses(), [[{"of": [], "zones": {"x": zone}}]], [ran("a", "x", gpus=gpus)])
    assert [problem.partition(":")[0] for problem in shown] == ([found] if found else [])


def test_tasks_and_actors_are_given_up_where_no_worker_can_start() -> None:
    hopeless = Losses(hopeless=True)
    program = one(Submit("a", Body()), Create("actor"), Call("call", "actor", Body()), Generate("items"))
    assert expectation(program, "a", hopeless).errors == {"TaskUnschedulableError"}
    assert "ActorUnschedulableError" in expectation(program, "call", hopeless).errors
    assert "TaskUnschedulableError" in Model(program, hopeless).may_break_off("", Generate("items"))
    unborn = {("spawn", f"worker/{number}"): 1 for number in range(5)}
    assert losses_of(unborn, World()) == Losses(hopeless=True, files=True, lag_s=MOMENT_S)
    assert losses_of(dict(list(unborn.items())[1:]), World()) == Losses(lag_s=MOMENT_S)
    assert losses_of(dict(list(unborn.items())[1:]) | dict(crashes("worker/1f3c")), World()).hopeless


TEAMS = one(
    FindGroup("too early", "team"), Group("first", called="team"), Group("second", called="team"), FindGroup("find", "team"),
    Describe("describe", "first"), Remove("remove", "first"), FindGroup("too late", "team"), Describe("again", "first"),
)  # fmt: skip
TEAM_HISTORY: list[Any] = [
    {"of": [], "found": False}, {"of": [], "is": "1"}, {"of": [], "taken": True},
    {"of": [], "found": True, "is": "1", "bundles": 1}, {"of": ["first"], "states": ["PENDING"]}, {"of": ["first"]},
    {"of": [], "found": False}, {"of": ["first"], "states": ["REMOVED"]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("index", "outcome", "number"),
    [
        (0, {"of": [], "found": True, "is": "0", "bundles": 1}, "G106"),
        (2, {"of": [], "is": "2"}, "G104"),
        (3, {"of": [], "found": False}, "G104"),
        (3, {"of": [], "found": True, "is": "2", "bundles": 1}, "G104"),
        (3, {"of": [], "found": True, "is": "1", "bundles": 2}, "G104"),
        (4, {"of": ["first"], "states": ["REMOVED"]}, "G106"),
        (6, {"of": [], "found": True, "is": "1", "bundles": 1}, "G106"),
        (7, {"of": ["first"], "states": ["CREATED"]}, "G106"),
    ],
)
def test_g104_g106_a_group_by_a_wrong_name_or_in_a_wrong_state_is_seen(index: int, outcome: Any, number: str) -> None:
    assert problems(TEAMS, Losses(), [TEAM_HISTORY], []) == []
    wrong = [*TEAM_HISTORY[:index], outcome, *TEAM_HISTORY[index + 1 :]]
    assert [problem.partition(":")[0] for problem in problems(TEAMS, Losses(), [wrong], [])] == [number]


def test_g104_a_name_that_no_group_has_is_not_taken() -> None:
    alone, taken = one(Group("first", called="team")), [[{"of": [], "taken": True}]]
    assert problems(alone, Losses(), taken, []) == ["G104: first was not given the name 'team', which no group has"]


def test_g67_a_value_whose_lineage_was_evicted_may_be_lost_for_good() -> None:
    worlds = [World(lineage_bytes=most, inline_limit=1) for most in (0, 3000)]
    assert [losses_of({("node_loss", "n1"): 1}, world).files for world in worlds] == [False, True]
    assert not losses_of({}, worlds[1]).files


def test_a_task_in_another_environment_than_its_own_or_its_parents_is_seen() -> None:
    program = one(
        Submit("a", Body((Submit("b", Body()), Submit("c", Body(), mark="c"))), mark="a"),
        Create("actor"),
        Call("call", "actor", Body((Submit("d", Body()),))),
    )
    history: list[Any] = [{"of": []}, {"of": []}, {"of": ["actor"]}]
    right = [ran("a", mark="a"), ran("b", mark="a"), ran("c", mark="c"), '["run", "call", [], []]', ran("d", mark="any")]
    assert problems(program, Losses(), [history], right) == []
    wrong = [ran("a", mark="a"), ran("b"), ran("c", mark="a")]
    assert [text[:28] for text in problems(program, Losses(), [history], wrong)] == [
        "environment: b found '' in i", "environment: c found 'a' in ",
    ]  # fmt: skip


def test_g55_a_call_that_is_refused_too_early_is_seen() -> None:
    program = one(Create("actor", max_pending_calls=1), *(Call(name, "actor", Body()) for name in "ab"))
    taken, refused = {"of": ["actor"]}, {"of": ["actor"], "refused": True}
    assert problems(program, Losses(), [[{"of": []}, taken, refused]], []) == []
    found = problems(program, Losses(), [[{"of": []}, refused, taken]], [])
    assert found == ["G55: a was refused, although its handle cannot have too many pending calls"]
    assert Model(program, Losses()).sure_before["b"] == {"actor", "a"}


@pytest.mark.parametrize("manner", [{"has_group": True}, {"is_unordered": True}])
def test_g51_calls_of_an_actor_that_promises_no_order_may_begin_in_any(manner: Any) -> None:
    program = one(Create("actor", **manner), *(Call(name, "actor", Body()) for name in "ab"))
    outcomes: list[Any] = [{"of": []}, {"of": ["actor"]}, {"of": ["actor"]}]
    assert problems(program, Losses(), [outcomes], [ran("b"), ran("a")]) == []


@pytest.mark.parametrize(("stored", "most"), [(False, 2), (True, 3)])
def test_g67_with_one_node_each_of_several_returns_may_be_lost_by_itself(stored: bool, most: int) -> None:
    losses, program = Losses(1, nodes=True, objects=stored), one(Submit("a", Body(), returns=2))
    history: list[Any] = [{"of": []}]
    assert problems(program, losses, [history], [ran("a")] * most) == []
    assert len(problems(program, losses, [history], [ran("a")] * (most + 1))) == 1


def test_a_task_without_returns_makes_no_object() -> None:
    program = one(Submit("a", Body(), returns=0), Get("get", ("a",)))
    assert problems(program, Losses(), [[{"of": []}, {"of": [], "values": []}]], [ran("a")]) == []
    assert "a" not in Model(program, Losses()).objects


HISTORY = one(
    Submit("a", Body(), max_retries=0),
    Put("b"),
    Get("get", ("a", "b")),
    Wait("wait", ("a", "b"), 2),
    Why("why", "b"),
    Get("poll", ("b",), 0.0),
    Wait("look", ("a", "b"), 1, 0.0),
)
GOOD: list[Any] = [
    {"of": []}, {"of": []}, {"of": ["a", "b"], "values": ["a", "b"]}, {"of": ["a", "b"], "ready": ["a", "b"], "rest": []},
    {"of": ["b"], "why": ["b is ready"]}, {"of": ["b"], "values": ["b"]}, {"of": ["a", "b"], "ready": ["a"], "rest": ["b"]},
]  # fmt: skip
LINES = [ran("a"), '["end", "a", []]']


@pytest.mark.parametrize(
    ("index", "outcome", "number"),
    [
        (2, {"of": ["a", "b"], "values": ["b", "a"]}, "G6"),
        (2, {"of": ["a"], "values": ["a"]}, "G11"),
        (2, {"of": ["a", "b"], "error": "WorkerCrashedError"}, "G17"),
        (2, {"of": ["a", "b"], "error": "GetTimeoutError"}, "G7"),
        (2, {"of": ["a", "b"], "values": ["a[x]", "b"]}, "G60"),
        (3, {"of": ["a", "b"], "ready": ["a"], "rest": ["b"]}, "G8"),
        (3, {"of": ["a", "b"], "ready": ["b", "a"], "rest": []}, "G8"),
        (4, {"of": ["b"], "why": ["0b61-1: no task makes it any more"]}, "L8"),
        (5, {"of": ["b"], "error": "GetTimeoutError"}, "G7"),
        (6, {"of": ["a", "b"], "ready": [], "rest": ["a", "b"]}, "G8"),
    ],
)
def test_a_wrong_history_is_seen(index: int, outcome: Any, number: str) -> None:
    assert problems(HISTORY, Losses(), [GOOD], LINES) == []
    wrong = [*GOOD[:index], outcome, *GOOD[index + 1 :]]
    assert [problem.partition(":")[0] for problem in problems(HISTORY, Losses(), [wrong], LINES)] == [number]


def test_a_value_with_a_torn_array_is_a_wrong_value() -> None:
    stage, torn = Stage({}), numpy.zeros(3, numpy.uint8)
    whole = value_of("a", {}, 3)
    assert stage.open(whole) == "a" and stage.open(("b", {}, (torn, "b", 3))) == "b, torn"
    assert Stage({}).open(("b", {}, (whole[2][0], "b", 3))) == "b, torn", "it is the array of another value"
    assert Stage({}).open(("a", {}, (whole[2][0], "a", 4))) == "a, torn", "it is too short"
    wrong = [*GOOD[:2], {"of": ["a", "b"], "values": ["a, torn", "b"]}, *GOOD[3:]]
    assert [problem.partition(":")[0] for problem in problems(HISTORY, Losses(), [wrong], LINES)] == ["G6"]


def test_g40_a_task_that_was_cancelled_before_it_began_has_not_run() -> None:
    program = one(Submit("a", Body(), max_retries=0), Cancel("cancel", "a"), Get("get", ("a",)))
    unbegun: list[Any] = [{"of": []}, {"of": ["a"], "at": 0.0}, {"of": ["a"], "error": "TaskCancelledError"}]
    assert problems(program, Losses(), [unbegun], []) == []
    assert [text[:3] for text in problems(program, Losses(), [unbegun], [ran("a")])] == ["G40"]
    assert problems(program, Losses(silence=True), [unbegun], [ran("a")]) == []
    interrupted = [*unbegun[:2], {"of": ["a"], "error": "RayTaskError(TaskCancelledError)"}]
    assert problems(program, Losses(), [interrupted], [ran("a")]) == []


@pytest.mark.parametrize("kills", [False, True])
def test_g40_a_cancelled_call_whose_actor_was_killed_may_have_run(kills: bool) -> None:
    kill = (Kill("kill", "actor"),) if kills else ()
    call = Call("a", "actor", Body())
    program = one(Create("actor", max_concurrency=2), call, Cancel("cancel", "a"), *kill, Get("get", ("a",)))
    unbegun = [{"of": []}, {"of": ["actor"]}, {"of": ["a"], "at": 0.0}, *([{"of": ["actor"]}] if kills else [])]
    shown: list[Any] = [*unbegun, {"of": ["a"], "error": "TaskCancelledError"}]
    born = '["born", "actor", [], []]'
    assert [text[:3] for text in problems(program, Losses(), [shown], [born, ran("a")])] == ["G40"] * (not kills)


def test_a_task_that_runs_too_often_is_seen() -> None:
    assert problems(HISTORY, Losses(deaths=2), [GOOD], LINES * 2) == ["G16: a ran 2 times, and may 1 times"]


def test_a_program_that_does_not_end_is_a_problem() -> None:
    endless = one(Submit("a", Body((Sleep("sleep", 10.0),)), num_cpus=3), Get("get", ("a",)))
    assert run(Scenario(endless)).codes == {"L1"}


def test_l1_a_program_that_waits_for_more_than_it_sleeps_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    request_lease = LeaseClient.request_lease

    def late(self: LeaseClient, request: Any) -> None:
        asyncio.get_running_loop().call_later(10.0, request_lease, self, request)

    monkeypatch.setattr(LeaseClient, "request_lease", late)
    (problem,) = run(Scenario(one(Submit("a", Body()), Get("get", ("a",))))).problems
    assert problem.startswith("L1: without any loss, the programs took 10.")


def test_g108_a_head_that_ends_although_nothing_has_struck_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseBroker, "request", lambda self, *_: self.processes._platform.processes.exit(1))
    verdict = run(Scenario(one(Submit("a", Body()), Get("get", ("a",)))))
    assert verdict.is_over and verdict.codes == {"G108"}


# --- The judge, on planted bugs that no value shows


def lends_nothing(self: Any, object_id: bytes, *_: Any) -> None:
    """Note no ticket for a lent reference: a planted bug."""


def cancels_only_what_was_pushed(self: Any, task: Any, force: bool, recursive: bool) -> None:
    """Cancel a task only if it was pushed to a worker: a planted bug."""
    if task.state is PUSHED:
        CANCEL(self, task, force, recursive)


def believes_bad_news_only(
    self: Any, node_id: bytes, version: int, total: dict[str, int], available: dict[str, int], waiting: int
) -> None:
    """Ignore reports of a node that has more resources than before: a planted bug."""
    view = self.get(node_id)
    if view is None or all(count <= view.available.get(key, 0) for key, count in available.items()):
        HEAR(self, node_id, version, total, available, waiting)


CANCEL, HEAR = TaskOutcomes.cancel_task, ClusterResourceScheduler.on_resources
PLANTED = [
    ("S7", ReferenceCounter, "keep_after_task", lambda *_: []),
    ("S7", Borrowing, "lend_as_owner", lends_nothing),
    ("G40", TaskOutcomes, "cancel_task", cancels_only_what_was_pushed),
    ("L6", ClusterResourceScheduler, "on_resources", believes_bad_news_only),
]


@pytest.mark.parametrize(("number", "owner", "name", "planted"), PLANTED, ids=lambda value: str(value)[:20])
def test_a_campaign_sees_a_planted_bug_within_twenty_seeds(
    number: str, owner: Any, name: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, planted)
    assert any(number in run(scenario_of(seed)).codes for seed in range(20))


def crashes(name: str) -> Answers:
    return ((("crash", name, "t", 1), 1),)


@pytest.mark.parametrize(
    ("answers", "losses"),
    [
        ((), Losses()),
        (crashes("gcs"), Losses(silence=True)),
        (crashes("driver/0"), Losses()),
        (crashes("worker/1f3c"), Losses(1)),
        (crashes("raylet/n1"), Losses(1, nodes=True)),
        (((("memory", "raylet/n1", 1), 1),), Losses(1, memory=1)),
        (((("long_stall", "worker/1f3c", "t", 1), 1),), Losses(silence=True)),
        (((("long_stall", "worker/1f3c", "t", 1), 2),), Losses(1, nodes=True, silence=True)),
        (((("cut", "a>b", "PushTask", 1), 1), (("break", "a>b", "PushTask", 2), 1)), Losses(1, nodes=True, silence=True)),
    ],
)
def test_only_faults_that_have_struck_count_as_losses(answers: Answers, losses: Losses) -> None:
    assert dataclasses.replace(losses_of(dict(answers), World()), lag_s=HEARD_S) == losses


def runs_without_gcs_for_a_while() -> list[Verdict]:
    program = one(*[Submit(f"task{i}", Body((Sleep(f"sleep{i}", 1.0),))) for i in range(8)], Get("get", ("task7",)))
    world = World((Node(), Node()), {"crash": 0.1}, 1, ("gcs",), durable=True)
    return [run(Scenario(program, world, seed)) for seed in range(4)]


def test_g110_a_gcs_that_crashes_and_is_started_again_changes_nothing() -> None:
    verdicts = runs_without_gcs_for_a_while()
    assert [verdict.problems for verdict in verdicts] == [()] * 4
    assert any(struck(verdict)["crash"] for verdict in verdicts)


def test_s9_a_gcs_that_has_forgotten_a_job_that_is_over_may_have_dropped_its_values() -> None:
    """The gcs comes back with values of a job, stands still until all nodes have given it up, and keeps one finished job."""
    program = one(Submit("task", Body((Submit("child", Body()),))))
    moves = Move(2, leaves=True, when="holds"), Move(2), Move(2)
    bounds = {"maximum_gcs_finished_job_cached_count": 1, "publisher_max_reply_bytes": 300}
    world = World((Node(), Node(), Node()), durable=True, moves=moves, bounds=bounds)
    crash, stall = ("crash", "gcs", "KvPut(job:00000001)", 4), ("long_stall", "gcs", "ReleaseUnusedBundles(d2068f89)", 1)
    verdict = run(Scenario(program, world, 60656, ((crash, 1), (stall, 3))))
    assert verdict.problems == () and set(verdict.answers) == {crash, stall}


def test_s9_a_gcs_that_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GcsStorage, "put_job", lambda *_: None)
    problems = [problem for verdict in runs_without_gcs_for_a_while() for problem in verdict.problems]
    assert any(problem.startswith("S9: the gcs knows job 00000001 as None; it was there") for problem in problems), problems


# --- The shrinker, on planted bugs


def small(scenario: Scenario) -> bool:
    return len(scenario.program.tasks()) <= 3 and len(scenario.overrides or ()) <= 3


@long
def test_a_lease_that_is_never_returned_is_shown_with_one_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LeaseClient, "return_lease", lambda *_: None)
    drawn = (Scenario(scenario_of(seed, SIZES["small"]).program, World((Node(4),), {"delay": 0.2})) for seed in range(20))
    scenario, verdict = next((scenario, verdict) for scenario in drawn if (verdict := run(scenario)).codes == {"L2"})
    witness = shrink(scenario, verdict)
    assert len(list(witness.scenario.program.walk())) == 1 and not witness.scenario.overrides
    save(witness.scenario, tmp_path / "lease.json")
    assert Scenario.from_json((tmp_path / "lease.json").read_text()) == witness.scenario
    assert "raylet/head: 1 leases" in report(witness, tmp_path / "lease.json")


@long
def test_a_retry_that_is_forgotten_is_shown_with_one_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskManager, "begin_retry", lambda *_: False)
    tasks = [Submit(f"task{i}", Body((Sleep(f"sleep{i}", 0.1),))) for i in range(6)]
    program = one(*tasks, Get("get", tuple(task.name for task in tasks)))
    world = World((Node(), Node()), {"crash": 0.1, "delay": 0.2, "stall": 0.01}, 2)
    drawn = (Scenario(program, world, seed) for seed in range(20))
    scenario, verdict = next((scenario, verdict) for scenario in drawn if not (verdict := run(scenario)).ok)
    witness = shrink(scenario, verdict, max_runs=150)
    assert small(witness.scenario), witness.scenario.to_json()
    assert [key[0] for key, _ in witness.scenario.overrides or ()] == ["crash"]


OF_SIZE = {size: one(*(Submit(f"task{number}", Body()) for number in range(size))) for size in (1, 10, 20, 30)}


def verdict_of(*problems: str) -> Verdict:
    nothing: Any = None
    return Verdict(problems, {}, 0, "", nothing, Counter(), ())


FAILED = verdict_of("L2: something is left")


@pytest.mark.parametrize(
    ("sizes", "tried", "left"), [((1,), [0], 1), ((30, 10, 1, 30), [0, 7, 14], 1), ((20, 30, 10, 30, 1), [0, 7, 14, 21], 10)]
)
def test_a_witness_that_stays_large_is_replaced_by_one_of_a_further_failure(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], tried: list[int], left: int
) -> None:
    """Multiples of 7 are the seeds that fail. Their witnesses have these sizes."""
    of_seed = {7 * number: Scenario(OF_SIZE[size], World(), 7 * number) for number, size in enumerate(sizes)}
    shrunk = []

    def shrink_to(scenario: Scenario, *_: Any) -> Witness:
        shrunk.append(scenario.seed)
        return Witness(of_seed[scenario.seed], FAILED, 1)

    monkeypatch.setattr(shrinking, "shrink", shrink_to)
    monkeypatch.setattr(shrinking, "run", lambda scenario: verdict_of() if scenario.seed % 7 else FAILED)
    witness = smallest(Scenario(OF_SIZE[1], World(), 0), FAILED, lambda seed: Scenario(OF_SIZE[1], World(), seed))
    assert shrunk == tried and len(tried) <= FAILURES
    assert len(witness.scenario.program.performances()) == left and is_small(witness.scenario) == (left == 1)


def test_other_failures_are_looked_for_in_a_limited_number_of_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Scenario(OF_SIZE[30], World(), 5)
    seeds: list[int] = []

    def run_one(scenario: Scenario) -> Verdict:
        seeds.append(scenario.seed)
        return verdict_of("L3: something else")

    monkeypatch.setattr(shrinking, "shrink", lambda *_: Witness(large, FAILED, 1))
    monkeypatch.setattr(shrinking, "run", run_one)
    assert smallest(large, FAILED, lambda seed: Scenario(OF_SIZE[1], World(), seed)).scenario is large
    assert seeds == list(range(6, 5 + SEARCHED))


@pytest.mark.parametrize("kept", ["duplicate", "crash"])
def test_one_fault_at_another_point_replaces_many_that_only_shift_each_other(
    monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """All faults together fail. None of them fails alone where it struck, and one does at its third point."""
    kinds = ("stall", "duplicate", "stall", "delay", "crash", "break")
    faults: Answers = tuple(((kind, f"worker/{place}", "Message", 9), 2) for place, kind in enumerate(kinds))
    enough = (((kept, "worker/7", "Message", 3), 2),)
    scenario = Scenario(OF_SIZE[1], World(), overrides=faults)

    def ask(_: Scenario, on_chance: Callable[[Key], None], limit_s: float) -> Verdict:
        for kind in kinds:
            for count in range(1, 5):
                on_chance((kind, "worker/7", "Message", count))
        return verdict_of()

    monkeypatch.setattr(shrinking, "run", ask)
    shrinker = Shrinker(scenario, FAILED, run_one=lambda one: FAILED if one.overrides in (faults, enough) else verdict_of())
    assert shrinker.shrink().scenario.overrides == enough


def test_the_operations_of_a_task_take_its_place_if_they_are_enough() -> None:
    inmost = Submit("inmost", Body((Sleep("sleep", 0.1),)))
    program = one(Submit("outer", Body((Submit("inner", Body((inmost,))),))))

    def run_one(scenario: Scenario) -> Verdict:
        found = [operation for operation in scenario.program.walk() if operation == inmost]
        return FAILED if found else verdict_of()

    shrinker = Shrinker(Scenario(program, World(), overrides=()), FAILED, run_one=run_one)
    assert shrinker.shrink().scenario.program == one(inmost)


def test_a_storm_of_messages_and_a_program_that_never_ends_are_one_failure() -> None:
    storm, endless = verdict_of("L5: 30000 messages"), verdict_of("L1: not true after 1500 virtual seconds")
    scenario = Scenario(OF_SIZE[10], World(), overrides=())
    shrinker = Shrinker(scenario, storm, run_one=lambda one: endless if one.program.performances() else verdict_of())
    witness = shrinker.shrink()
    assert len(witness.scenario.program.performances()) == 1 and witness.verdict is endless


def test_a_scenario_that_fails_only_within_the_short_limit_is_shrunk_again_with_the_judge_s_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = verdict_of("L1: not true")

    def run_one(scenario: Scenario, *_: Any, limit_s: float = 1500.0) -> Verdict:
        enough = 1 if limit_s < 1500.0 else 3
        return endless if len(scenario.program.performances()) >= enough else verdict_of()

    monkeypatch.setattr(shrinking, "run", run_one)
    witness = shrink(Scenario(OF_SIZE[10], World(), overrides=()), endless)
    assert len(witness.scenario.program.performances()) == 3
