"""Rare words in campaigns: how they are drawn, that they are said, and which outcomes are problems."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from minray.core_worker.execution import return_values
from minray.core_worker.fetching import results
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.simulation.faults import Key
from minray.simulation.loop import to_ticks
from minray.simulation.trace import SEND
from minray.simulation.user_code import SimUserCode
from tests.spec import trial
from tests.spec.actors import Create, Settle
from tests.spec.api_coverage import Listener
from tests.spec.awkward import PLACES, Awkward
from tests.spec.bouquets import Bouquet
from tests.spec.brief import ENDS as LAST
from tests.spec.brief import STATES, Brief
from tests.spec.bundles import UNTOLD, Benches, Booths, Bundles, Crowd
from tests.spec.burdens import Burdens
from tests.spec.census import CLERKS, Census
from tests.spec.closures import Closure
from tests.spec.contests import Contest
from tests.spec.customs import CUSTOMS, Customs
from tests.spec.environments import IMPOSSIBLE, REFUSED, Environments
from tests.spec.fates import DRIVER
from tests.spec.fickle import INCONSISTENT, Fickle
from tests.spec.founders import Founding
from tests.spec.generators import ASKS, WAITS, Stream
from tests.spec.groups import Group
from tests.spec.grumblers import PLACES as DEATHBEDS
from tests.spec.grumblers import Grumbler, Grumbling
from tests.spec.hasty import THINGS, Hasty
from tests.spec.held import FATES, KINDS, LARGE, LATE, LATE_LARGE, OWNERS, SMALL, USERS, WAYS, Held
from tests.spec.homeless import Homeless
from tests.spec.inquiries import Inquiry
from tests.spec.job_environments import Hooked
from tests.spec.lanes import Lanes
from tests.spec.lines import Line
from tests.spec.luggage import Luggage
from tests.spec.model import Losses, Model, Reading, problems
from tests.spec.moves import Move
from tests.spec.overtaken import MANNERS as OVERTAKINGS
from tests.spec.overtaken import Overtaken
from tests.spec.poured import MANNERS as READINGS
from tests.spec.poured import READERS, SIZES, SOURCES, Poured
from tests.spec.programs import Ask, Body, Call, Exit, Get, Glance, Leave, Order, Program, Put, Submit, Wait, has_wishes
from tests.spec.remade import ARGUMENTS, MAKERS, Remade
from tests.spec.remade import READERS as INSPECTORS
from tests.spec.residents import NEEDS, Seating
from tests.spec.rushes import DRIVER as DRIVER_ITSELF
from tests.spec.rushes import KILLED, OTHER, RESULTS, Rush
from tests.spec.rushes import PLACES as TRACKS
from tests.spec.scenario import Node, Scenario, World
from tests.spec.smuggled import MANNERS, Smuggled
from tests.spec.spaces import Spaces
from tests.spec.stopped import FORCE, KILL, STOPS, TASK, WORKS, Stopped
from tests.spec.stopped import PLACES as WORKPLACES
from tests.spec.stories import Story
from tests.spec.strategies import scenario_of, with_slots
from tests.spec.tools import TOOLS, Tool
from tests.spec.towers import Tower
from tests.spec.trial import _unraisable, run
from tests.spec.vocabulary import (
    ODD_STORIES,
    STORIES,
    with_crossings,
    with_last_moments,
    with_later_stories,
    with_lines,
    with_new_stories,
    with_odd_stories,
    with_riches,
    with_setup_hooks,
    with_vocabulary,
)
from tests.spec.wishes import ActorWishes, CallWishes, TaskWishes
from tests.zoo.transplant import Mutation, planted

NODES = with_riches(with_slots((Node(2, num_gpus=1), Node(1)), 9))
NODES_THAT_DIE = (
    Move(0, 0.3, dies=True, when="holds"), Move(1, 3.0), Move(0, 8.0, dies=True, when="several"), Move(1, 12.0),
)  # fmt: skip
CRASH = Losses(deaths=1)
PLAIN = Program((Body((Put("x"), Submit("t", Body(), ("x",)), Wait("wait", ("t",)), Create("a"), Call("c", "a", Body()))),))


def of(*operations: Any) -> Program:
    return Program((Body(tuple(operations)),))


def test_rare_words_are_drawn_in_some_programs_and_leave_the_others_as_they_are() -> None:
    programs = [with_vocabulary(PLAIN, seed, has_gpus=True) for seed in range(300)]
    assert 60 < sum(program == PLAIN for program in programs) < 240
    drawn = {type(operation) for program in programs for operation in program.walk()}
    stories = {type(write("name", Random(0), True)) for write in STORIES}
    assert drawn >= {Order, Settle, Ask, Glance} | stories
    assert all(Scenario(program, World(NODES)).is_feasible() for program in programs)
    assert not any(Scenario(program).is_feasible() for program in programs if has_wishes(program))
    assert all(scenario_of(seed).is_feasible() for seed in range(60))


def test_without_a_gpu_no_story_needs_one() -> None:
    programs = [with_vocabulary(PLAIN, seed, has_gpus=False) for seed in range(300)]
    assert not any("GPU" in story.needs() for program in programs for story in program.walk() if isinstance(story, Story))


STORIES_TOLD = (
    *[Seating(f"seats {need}", 3, need, -1, "CPU" in need, 0.1) for need in NEEDS],
    Stream("long", 120, WAITS),
    Stream("asked", 3, ASKS, 1, 0.1, 0),
    Stream("empty", 0),
    Bundles("apart", 2, "STRICT_SPREAD", captures=True, is_labelled=True),
    Bundles("impossible", 3, "STRICT_PACK"),
    Spaces("spaces"),
    Spaces("shared", 0, is_shared=True),
    Lanes("threads", False, 6, 0.5, 2),
    Lanes("coroutines", True, 6, 20.0, 3),
    Closure("closure"),
    *[Environments(f"environments{number}", number) for number in range(len(IMPOSSIBLE))],
    *[Tool(tool, tool) for tool in TOOLS],
    *[Awkward(place, place) for place in PLACES],
    *[Grumbling(f"grumbling {place}", place) for place in DEATHBEDS],
    Hooked("hooked"),
    Contest("contest", 3, 3, 0.3, 2, "STRICT_PACK"),
    Contest("whole nodes", 3, 1, 0.3, 2, "SPREAD", fills_nodes=True),
    Burdens("burdens"),
    Luggage("luggage"),
    Benches("benches", 1, "STRICT_PACK", captures=True, impatience_s=0.0),
    Line("slow", 6),
    Line("waits", 6, waits=True),
    Homeless("killed"),
    Homeless("dropped", kills=False, force=True),
    *[Smuggled(f"smuggled by {manner}", manner, 300) for manner in MANNERS],
    Tower("tower", 4, 3),
    Inquiry("inquiry"),
    Booths("booths", 1),
    Booths("booths of two", 2, "STRICT_PACK"),
    Bouquet("bouquet"),
    *[Customs(custom, custom) for custom in CUSTOMS],
    *[Overtaken(f"overtaken {way}", 7, way) for way in OVERTAKINGS],
    Fickle("fickle"),
    Crowd("crowd", 2, "STRICT_PACK"),
    Crowd("capturing crowd", 1, captures=True),
)


@pytest.mark.parametrize("story", STORIES_TOLD, ids=lambda story: story.name)
def test_a_story_that_two_drivers_tell_at_once_ends_well_and_leaves_nothing(story: Story) -> None:
    verdict = run(Scenario(Program((Body((story,)), Body((story,)))), World(NODES), 3))
    assert not verdict.problems and len(verdict.histories) == 2


def crossed(*stories: Story) -> Any:
    """One driver tells them all, in a world that keeps large values in stores."""
    return run(Scenario(of(*stories), World(NODES, inline_limit=100), 3))


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("user", USERS)
def test_a_reference_in_any_state_is_used_in_any_way(fate: str, user: str) -> None:
    """The ways take turns among the owners and kinds of objects."""
    ways = itertools.cycle(WAYS)
    stories = [
        Held(f"{owner} {kind}", owner, kind, fate, user, (next(ways), next(ways)), 0 if user == TASK else number % 2)
        for number, (owner, kind) in enumerate(itertools.product(OWNERS, KINDS))
    ]
    verdict = crossed(*stories)
    assert not verdict.problems and len(verdict.histories[0]) == len(stories)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("place", WORKPLACES)
def test_g41_g45_work_of_any_kind_can_be_stopped_and_its_actor_serves_the_next_call(place: str, work: str) -> None:
    ends = [stops for stops in STOPS if (KILL if place == TASK else FORCE) not in stops]
    stories = [Stopped(f"{place} {work} {' '.join(stops)}", place, work, stops) for stops in ends]
    assert not crossed(*stories).problems


@pytest.mark.parametrize("source", SOURCES)
def test_generators_of_any_source_are_read_in_any_manner(source: str) -> None:
    readers = itertools.cycle(READERS)
    stories = [
        Poured(f"{source} {manner}", source, next(readers), manner, 3, size, 1, raises=size > 100)
        for manner, size in itertools.product(READINGS, SIZES)
    ]
    assert not crossed(*stories).problems


@pytest.mark.parametrize("caller", [DRIVER_ITSELF, OTHER, KILLED])
@pytest.mark.parametrize("place", dict.fromkeys(TRACKS))
def test_short_work_is_cancelled_behind_a_slow_piece_and_all_other_pieces_have_their_values(place: str, caller: str) -> None:
    pauses = itertools.cycle((0.0, 0.01, 0.3))
    stories = [
        Rush(f"{place} {result} {seconds}", place, result, caller, 8, 2, seconds, (1, 3, 6, 7), next(pauses), 3, seconds < 1)
        for result, seconds in itertools.product(dict.fromkeys(RESULTS), (0.05, 0.5, 5.0))
    ]
    verdict = crossed(*stories)
    assert not verdict.problems and len(verdict.histories[0]) == len(stories)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("moves", [(), NODES_THAT_DIE], ids=["stay", "die"])
def test_a_value_is_made_again_from_arguments_that_nobody_holds_any_more(moves: tuple[Move, ...], maker: str) -> None:
    switches = itertools.cycle((False, True, False))
    stories = [
        Remade(f"{argument} {reader}", maker, (argument,), reader, next(switches), next(switches), 0.5)
        for argument, reader in itertools.product(ARGUMENTS, INSPECTORS)
    ]
    verdict = run(Scenario(of(*stories), World(NODES, inline_limit=100, moves=moves), 3))
    assert not verdict.problems and len(verdict.histories[0]) == len(stories)


def test_only_worlds_that_lose_nodes_have_values_that_are_made_again() -> None:
    scenarios = [scenario_of(seed) for seed in range(300)]
    told = [scenario for scenario in scenarios if any(isinstance(one, Remade) for one in scenario.program.walk())]
    assert 20 < len(told) < 150 and all(len(scenario.world.nodes) > 1 for scenario in told)


@pytest.mark.parametrize("state", dict.fromkeys(STATES))
@pytest.mark.parametrize("is_detached", [False, True])
def test_g31_an_actor_that_ends_at_any_stage_of_its_creation_leaves_its_name_to_the_next(
    state: str, is_detached: bool
) -> None:
    stories = [
        Brief(f"{end} {pause_s}", state, (end, KILL, end), True, is_detached, pause_s > 0, pause_s)
        for end, pause_s in itertools.product(LAST, (0.0, 0.001, 0.2))
    ]
    verdict = crossed(*stories)
    assert not verdict.problems and len(verdict.histories[0]) == len(stories)


@pytest.mark.parametrize("clerk", CLERKS)
def test_the_state_api_shows_all_things_of_a_driver_in_every_field(clerk: str) -> None:
    stories = [Census(str(options), clerk, *options) for options in itertools.product((False, True), repeat=4)]
    assert not crossed(*stories).problems


@pytest.mark.parametrize(
    ("symbol", "fragment", "replacement", "field"),
    [
        ("task_state", "to_floats(task.resources)", "{}", "required_resources"),
        ("task_state", "task.error_type or None", "None", "error_type"),
        ("actor_state", "job_of_actor(info.actor_id).hex()", "''", "job_id"),
        ("placement_group_state", "group.job_id.hex()", "''", "creator_job_id"),
        ("placement_group_state", "bundle.node_id.hex() or None", "None", "node_id"),
        ("object_states", "use.task_status", "'NIL'", "task_status"),
        ("object_states", "use.reference_type", "'LOCAL_REFERENCE'", "reference_type"),
    ],
)
def test_a_wrong_field_of_the_state_api_is_a_problem(symbol: str, fragment: str, replacement: str, field: str) -> None:
    with planted([Mutation("minray.util.state.rows", symbol, fragment, replacement)]):
        problems = crossed(Census("census")).problems
    assert any(problem.startswith("G1: look") and field in problem for problem in problems)


@pytest.mark.parametrize("way", ["poll", "wait without a pause"])
def test_polls_that_never_wait_bring_a_value_from_another_node(way: str) -> None:
    stories = [
        Held(f"{owner} {kind} {user}", owner, kind, user=user, uses=(way,))
        for owner, kind, user in itertools.product(OWNERS, (SMALL, LARGE, LATE, LATE_LARGE), USERS)
    ]
    assert not crossed(*stories).problems


@pytest.mark.parametrize("silence", [False, True])
def test_polls_that_are_in_vain_are_a_problem_unless_a_process_was_silent(silence: bool) -> None:
    story = Held("held", uses=("poll",))
    reading = Reading(Model(of(story), Losses(silence=silence)), DRIVER)
    assert bool(list(story.check(reading, {"of": [], "looks": [("value", "in vain")]}))) != silence


def test_g41_work_that_is_stopped_too_late_is_a_problem_unless_a_process_was_silent() -> None:
    story = Stopped("stopped")
    outcome = {"of": [], "looks": [("value", "stopped late")]}
    for losses, expected in ((Losses(), {"G1"}), (Losses(silence=True), set())):
        reading = Reading(Model(of(story), losses), DRIVER)
        assert {problem[:2] for problem in story.check(reading, outcome)} == expected


@pytest.mark.parametrize("end", [Leave(), Exit()])
def test_what_a_driver_begins_at_the_last_moment_ends_with_its_job(end: Any) -> None:
    drivers = [Body((Hasty(f"last {thing}", (thing,)),), end) for thing in THINGS]
    assert not run(Scenario(Program((*drivers, Body((Hasty("last", tuple(THINGS)),), end))), World(NODES), 3)).problems


def test_most_programs_have_stories_in_which_rare_things_meet() -> None:
    programs = [with_crossings(PLAIN, Random(seed)) for seed in range(300)]
    told = [operation for program in programs for operation in program.walk() if isinstance(operation, Story)]
    assert {type(story) for story in told} == {Held, Stopped, Poured, Crowd, Rush, Brief, Census} and 500 < len(told) < 900
    assert all(FORCE not in story.stops for story in told if isinstance(story, Stopped) and story.place != TASK)


def test_drivers_that_leave_begin_things_at_the_last_moment() -> None:
    leaving = Program((Body((Put("x"),), Leave()), PLAIN.drivers[0]))
    programs = [with_last_moments(leaving, Random(seed)) for seed in range(300)]
    assert 200 < sum(isinstance(program.drivers[0].operations[-1], Hasty) for program in programs) < 280
    assert 20 < sum(len(program.drivers) == 3 for program in programs) < 80
    assert all(program.drivers[1] == PLAIN.drivers[0] for program in programs)


@pytest.mark.parametrize("in_actor", [False, True])
def test_g104_a_group_that_is_made_elsewhere_is_used_and_removed_by_a_driver(in_actor: bool) -> None:
    program = Program(tuple(Body((Founding(f"founded {number}", in_actor, 2),)) for number in range(2)))
    verdict = run(Scenario(program, World(NODES), 3))
    assert not verdict.problems and len(verdict.histories) == 2


def test_g104_a_group_whose_founder_is_lost_is_removed_all_the_same() -> None:
    """The founder's worker crashes after it has made the group."""
    program = of(Founding("founded", False, 1))
    quiet = run(Scenario(program, World(NODES), 3))
    (worker,) = {e.process for e in quiet.trace.events if "CreatePlacementGroup" in e.details and e.kind == SEND}
    verdict = run(Scenario(program, World(NODES), 3, (((("crash", worker, "user_code", 3)), 1),)))
    assert not verdict.problems and verdict.answers


def test_later_stories_are_told_in_some_programs() -> None:
    programs = [with_later_stories(PLAIN, Random(seed)) for seed in range(300)]
    told = [operation for program in programs for operation in program.walk() if isinstance(operation, Story)]
    assert {type(story) for story in told} == {Founding, Grumbling} and 10 < len(told) < 60


def test_new_stories_are_told_in_some_programs() -> None:
    programs = [with_new_stories(PLAIN, Random(seed)) for seed in range(300)]
    told = [operation for program in programs for operation in program.walk() if isinstance(operation, Story)]
    assert {type(story) for story in told} == {Contest, Burdens, Luggage} and 15 < len(told) < 70


def test_lines_and_benches_are_drawn_in_some_programs() -> None:
    programs = [with_lines(PLAIN, Random(seed)) for seed in range(300)]
    told = [operation for program in programs for operation in program.walk() if isinstance(operation, Story)]
    assert {type(story) for story in told} == {Benches, Line} and 15 < len(told) < 70


def test_odd_stories_are_told_in_some_programs() -> None:
    programs = [with_odd_stories(PLAIN, Random(seed)) for seed in range(300)]
    told = [operation for program in programs for operation in program.walk() if isinstance(operation, Story)]
    assert {type(story) for story in told} == {type(write("name", Random(0))) for write in ODD_STORIES}
    assert 30 < len(told) < 90


@pytest.mark.parametrize("results", [1, 2, 3])
def test_a_bouquet_that_is_too_large_for_an_answer_is_refused_and_leaves_nothing(results: int) -> None:
    world = World(NODES, bounds={"max_references_per_answer": 50})
    assert not run(Scenario(of(Bouquet("bouquet", results=results)), world, 3)).problems


def test_g95_items_that_a_generator_does_not_yield_again_are_errors() -> None:
    world = World(NODES, inline_limit=1, moves=(Move(0, 0.5, dies=True, when="items"),))
    verdict = run(Scenario(of(Fickle("fickle")), world, 3))
    assert not verdict.problems and ("error", INCONSISTENT) in verdict.histories[0][0]["looks"]


def test_a_generator_that_contradicts_itself_leaves_no_value_of_its_own_in_the_store() -> None:
    world = World(NODES, inline_limit=1, moves=(Move(0, 0.02, dies=True, when="items"),))
    verdict = run(Scenario(of(Fickle("fickle", 4, 0, 0.0)), world, 3))
    assert not verdict.problems and ("error", INCONSISTENT) in verdict.histories[0][0]["looks"]


def test_a_bouquet_that_comes_although_it_is_too_large_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "check_references", lambda *_: None)
    monkeypatch.setattr(return_values, "check_references", lambda *_: None)
    world = World(NODES, bounds={"max_references_per_answer": 50})
    assert run(Scenario(of(Bouquet("bouquet")), world, 3)).codes == {"G1"}


def test_a_task_that_gathers_its_items_leaves_no_value_of_its_own_in_the_store() -> None:
    assert not run(Scenario(of(Customs("customs", "gathered items")), World(NODES, inline_limit=1), 3)).problems


def test_g104_a_contest_makes_nodes_refuse_bundles_beside_others_that_they_have_reserved() -> None:
    verdict = run(Scenario(of(Contest("contest", 4, 3, 0.3, 2, "STRICT_PACK", pause_s=0.0)), World(NODES), 3))
    assert not verdict.problems
    assert sum("ReturnBundles" in event.details for event in verdict.trace.events if event.kind == SEND) > 3


def test_values_of_one_answer_that_get_the_buffers_of_others_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    on_answers = FutureResolver._on_answers

    def mixed(self: Any, questions: Any, answer: Any, error: Any, buffers: Any) -> None:
        on_answers(self, questions, answer, error, [*buffers[1:], *buffers[:1]])

    monkeypatch.setattr(FutureResolver, "_on_answers", mixed)
    assert run(Scenario(of(Burdens("burdens", 5)), World(NODES), 3)).problems


def test_a_working_directory_that_is_taken_for_the_modules_beside_it_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    enter = SimUserCode.enter_environment

    def confused(self: Any, leading: list[str], sys_path: Any, working_dir: str | None, env_vars: Any) -> None:
        enter(self, leading, sys_path, leading[-1] if leading else working_dir, env_vars)

    monkeypatch.setattr(SimUserCode, "enter_environment", confused)
    assert run(Scenario(of(Luggage("luggage")), World(NODES), 3)).codes == {"G1"}


def test_a_few_drivers_have_a_setup_hook_and_the_story_tells_if_it_was_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [with_setup_hooks(PLAIN, Random(seed)) for seed in range(300)]
    assert 3 < sum(isinstance(one, Hooked) for program in programs for one in program.walk()) < 40
    monkeypatch.setattr(trial, "hook_of", lambda _driver: None)
    assert run(Scenario(of(Hooked("hooked")), World(NODES), 3)).codes == {"G1"}


def test_an_error_in_a_destructor_of_minray_is_a_problem_and_one_of_a_program_is_none() -> None:
    found: list[str] = []
    with _unraisable(found):
        Grumbler(None)
        assert not found
        Raiser()
    assert found == ["escaped: RuntimeError('unexpected') in " + repr(Raiser.__del__)]


class Raiser:
    """A value whose destructor raises what nobody expects."""

    def __del__(self) -> None:
        raise RuntimeError("unexpected")


def broken(operation: Any, outcome: dict[str, Any], losses: Losses = Losses()) -> set[str]:  # noqa: B008 (a frozen record)
    """Numbers of the guarantees that this outcome of an operation breaks."""
    reading = Reading(Model(of(operation), losses), "")
    return {text.partition(":")[0] for text in operation.check(reading, {"of": []} | outcome)}


def looks(*shown: Any) -> dict[str, Any]:
    return {"looks": [("error", one) if isinstance(one, str) else ("value", one) for one in shown]}


IDS = {"made": ["1", "2"], "found": ["1", "2"], "again": ["1", "2"], "stranger": "none", "listed": 2}
SPOKEN = looks(["s one"] * 2, ["s two"] * 2, ["s one"] * 2, ["s two"] * 2)
DIED = "ActorDiedError"
NO_ARGUMENT = "RayTaskError(ObjectStoreFullError)"
INHERITED = ([["s", ""], ["s", "child"], ["grandchild", "child"]], [["s", ""], ["s", "child"]])
LATER = (["a", "b"], [1, 2, 3], ["again"])


@pytest.mark.parametrize(
    ("story", "outcome", "losses", "codes"),
    [
        (Seating("s", 2), looks([0, ""], [1, ""]), Losses(), set()),
        (Seating("s", 2), looks([0, ""]), Losses(), {"G1"}),
        (Seating("s", 2), looks([0, ""], [0, ""]), Losses(), {"G1"}),
        (Seating("s", 1, "environment"), looks([0, ""]), Losses(), {"G1"}),
        (Seating("s", 1), looks(DIED), Losses(), {"G17"}),
        (Seating("s", 1), looks(DIED), CRASH, set()),
        (Seating("s", 1, restarts=-1), looks(DIED), CRASH, {"G17"}),
        (Stream("s", 2), looks(1, 2, True, None), Losses(), set()),
        (Stream("s", 2), looks(2, 1, True, None), Losses(), {"G90"}),
        (Stream("s", 2), looks(1, True, None), Losses(), {"G93"}),
        (Stream("s", 2), looks(1, 2, False, None), Losses(), {"G93"}),
        (Stream("s", 2, max_retries=0), looks(1, "WorkerCrashedError", True, "WorkerCrashedError"), CRASH, set()),
        (Stream("s", 2, max_retries=0), looks(1, "WorkerCrashedError", True, None), Losses(), {"G92"}),
        (Stream("s", 1), looks(1, True, "WorkerCrashedError"), Losses(), {"G92"}),
        (Bundles("s", 1), looks(["n", "g", ""]), Losses(), {"G102"}),
        (Spaces("s", rounds=1), SPOKEN | {"ids": IDS}, Losses(), set()),
        (Spaces("s", rounds=1), SPOKEN | {"ids": IDS | {"found": ["1", "3"]}}, Losses(), {"G33"}),
        (Spaces("s", rounds=1), SPOKEN | {"ids": IDS | {"found": ["1", "none"]}}, CRASH, set()),
        (Spaces("s", rounds=1), SPOKEN | {"ids": IDS | {"made": ["1", "1"]}}, CRASH, {"G31"}),
        (Spaces("s", rounds=1), SPOKEN | {"ids": IDS | {"stranger": "3"}}, CRASH, {"G31"}),
        (Spaces("s", rounds=1), SPOKEN | {"ids": IDS | {"listed": 1}}, Losses(), {"G32"}),
        (Spaces("s", is_shared=True, rounds=1), looks(*[["x", "x"]] * 4) | {"ids": IDS}, Losses(), {"G1"}),
        (Lanes("s", True, 2, cancels=1), looks([0, "io"], [1, "work"], ["late"], [0, "io"]), Losses(), {"G1"}),
        (Lanes("s", True, 2, cancels=1), looks("TaskCancelledError", [1, "work"], *LATER), Losses(), set()),
        (Lanes("s", True, 2, cancels=1), looks([0, "io"], "TaskCancelledError", *LATER), Losses(), {"G17"}),
        (Lanes("s", True, 2), looks(DIED, DIED, *LATER), CRASH, set()),
        (Lanes("s", True, 2), looks(NO_ARGUMENT, [1, "work"], *LATER), Losses(room=True), set()),
        (Lanes("s", True, 2), looks(NO_ARGUMENT, [1, "work"], *LATER), CRASH, {"G17"}),
        (Closure("s"), looks("RayTaskError(ValueError)"), Losses(), {"G17"}),
        (Closure("s", 0), looks("WorkerCrashedError"), CRASH, set()),
        (Environments("s"), looks([["", ""]], REFUSED, *INHERITED), Losses(), {"G1"}),
        (Environments("s"), looks(REFUSED, REFUSED, *INHERITED), Losses(), set()),
        (Environments("s"), looks(REFUSED, REFUSED, REFUSED, INHERITED[1]), CRASH, {"G17"}),
        (Tool("s"), looks([0, 2, 4, 6]), Losses(), {"G1"}),
        (Tool("s"), looks([0, 2, 4, 6]), CRASH, set()),
        (Awkward("s", "put"), looks(None), Losses(), {"G1"}),
        (Line("s", 2), looks(0, 1, 2, 0, 0), Losses(), {"G1"}),
        (Line("s", 2), looks(0, 1, 2, 0, 1), Losses(), set()),
        (Line("s", 1, max_retries=0), looks(0, 1, 2, "WorkerCrashedError"), CRASH, set()),
        (Awkward("s", "put"), looks("ValueError"), Losses(), set()),
        (Homeless("s"), looks(["late"], 1, 2, 3, 4), Losses(), {"G1"}),
        (Homeless("s"), looks("GetTimeoutError"), CRASH, {"G1", "G17"}),
        (Smuggled("s", size=3), looks("OwnerDiedError"), Losses(), {"G17"}),
        (Smuggled("s", size=3), looks("RayTaskError(OwnerDiedError)"), CRASH, set()),
        (Tower("s", 1, 1), looks(2), Losses(), {"G1"}),
        (Tower("s", 1, 1), looks("RayTaskError(WorkerCrashedError)"), Losses(deaths=9), set()),
        (Inquiry("s", 1), looks(1, 2, 300, 4, [True, True]), Losses(), {"G1"}),
        (Bouquet("s", 4, 1), looks(4, 4, 5), Losses(), {"G1"}),
        (Overtaken("s", 2), looks([0, 1], [1, 11]), Losses(), {"G1"}),
        (Overtaken("s", 1), looks(DIED), CRASH, set()),
        (Fickle("s", 1), looks(300, 300, INCONSISTENT), Losses(), {"G17"}),
        (Fickle("s", 1), looks(300, 300, INCONSISTENT), CRASH, set()),
        (Customs("s", "hidden method"), looks(["attribute"], 1), Losses(), {"G1"}),
        (Customs("s", "leaving threads"), looks("over", "over", "GetTimeoutError", "over"), CRASH, {"G17"}),
    ],
)
def test_a_wrong_outcome_of_a_story_is_a_problem(
    story: Story, outcome: dict[str, Any], losses: Losses, codes: set[str]
) -> None:
    if isinstance(story, Bundles):
        outcome = {"looks": [("value", "group"), *outcome["looks"]], "nodes": 1, "has_changed": False}
    assert broken(story, outcome, losses) == codes


def test_g104_g105_bundles_are_where_their_strategy_says() -> None:
    visits = [("value", [place, "g", ""]) for place in ("m", "n")]
    spread, packed = Bundles("s", 2, "STRICT_SPREAD"), Bundles("s", 2, "STRICT_PACK")
    for nodes, apart, together in ((2, set(), {"G105"}), (1, {"G104"}, {"G105"})):
        assert broken(spread, {"looks": [("value", "g"), *visits], "nodes": nodes, "has_changed": False}) == apart
        assert broken(packed, {"looks": [("value", "g"), *visits], "nodes": nodes, "has_changed": False}) == together
    assert broken(spread, {"looks": [("value", "g"), visits[0], visits[0]], "nodes": 2, "has_changed": False}) == {"G105"}
    assert broken(packed, {"looks": [("value", "late")], "nodes": 2, "has_changed": False}) == {"G104"}
    assert broken(packed, {"looks": [("value", "late")], "nodes": 2, "has_changed": True}) == set()
    assert broken(spread, {"looks": [("value", "late")], "nodes": 1, "has_changed": False}) == set()
    assert broken(Benches("s"), {"looks": [("value", "late")], "nodes": 2, "has_changed": False}) == set()
    assert broken(Benches("s"), {"looks": [("value", UNTOLD)], "nodes": 2, "has_changed": False}) == {"G104"}


def test_wishes_are_said_and_change_no_outcome() -> None:
    wish = {"memory": 1000, "has_kind": True, "is_unrecorded": True, "falls_back": True}
    program = of(
        Group("g", 3),
        Order("task", Body(), wishes=TaskWishes(**wish, cpus=0.5, most_calls=3)),
        Order("inside", Body(), group="g", num_cpus=0, wishes=TaskWishes(in_old_words=True, in_bundle=True, captures=True)),
        Order("new", Body(), group="g", num_cpus=0, wishes=TaskWishes(in_bundle=True, captures=True)),
        Settle("actor", num_cpus=0, wishes=ActorWishes(**wish, has_seat=True, mark="a")),
        Settle("resident", group="g", wishes=ActorWishes(in_old_words=True, captures=True, bundle=1)),
        Ask("call", "actor", Body(), wishes=CallWishes(returns=2, is_unrecorded=True)),
        Call("other", "resident", Body()),
        Glance("glance", ("task", "call.2"), 2),
        Get("get", ("task", "inside", "new", "call", "call.2", "other")),
    )
    listener = Listener()
    with listener.listening():
        verdict = run(Scenario(program, World(NODES)))
    values = ["task", "inside", "new", "call", "call.2", "other"]
    assert not verdict.problems and verdict.histories[0][-1]["values"] == values
    said = {word for words in listener.said.values() for word in words}
    shared = {"memory", "accelerator_type", "enable_task_events", "label_selector", "fallback_strategy", "placement_group"}
    shared |= {"placement_group_bundle_index", "placement_group_capture_child_tasks"}
    assert said >= {(kind, word) for kind in ("task", "actor") for word in shared}
    assert said >= {("task", "max_calls"), ("actor", "runtime_env"), ("actor", "resources"), ("minray", "wait fetch_local")}
    assert said >= {("method", "num_returns"), ("method", "enable_task_events")}


def test_g8_a_glance_that_may_name_a_reference_twice_is_a_problem() -> None:
    program = of(Put("x"), Glance("glance", ("x",)))
    shown = {"of": ["x"], "ready": ["x"], "rest": []}
    for is_refused, codes in ((True, []), (False, ["G8"])):
        found = problems(program, Losses(), [[{"of": []}, shown | {"refused": is_refused}]], [])
        assert [text.partition(":")[0] for text in found] == codes


def test_a_driver_joins_late_or_never_if_the_head_is_dead() -> None:
    program = Program((Body((Put("x"),)), Body((Put("y"),))))
    late = run(Scenario(program, World(arrivals=(0.0, 5.0))))
    assert not late.problems and len(late.histories) == 2
    joined = [event.ticks for event in late.trace.events if event.process == "driver/1"]
    assert min(joined) >= to_ticks(5.0) > min(event.ticks for event in late.trace.events if event.process == "driver/0")
    crash = ("crash", "raylet/head", "report_resources(head)", 1)
    asked: list[Key] = []
    run(Scenario(program, World(arrivals=(0.0, 5.0)), overrides=((crash, 1),)), asked.append)
    point = next(key for key in asked if key[:2] == ("crash", "raylet/head"))
    lost = run(Scenario(program, World(arrivals=(0.0, 5.0)), overrides=((point, 1),)))
    assert lost.is_over and not lost.problems
