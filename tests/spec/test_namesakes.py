"""Named and detached actors in campaigns: how they are drawn, what the model foresees, and which histories are problems."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from minray.gcs.gcs_actor_manager import ActorRow
from tests.seeds import long
from tests.spec.actors import Create, Find, Kill
from tests.spec.detached import Farewell
from tests.spec.fates import DIED
from tests.spec.model import Facts, Losses, Model, problems
from tests.spec.namesakes import with_heirs, with_namesakes, with_rounds
from tests.spec.programs import Body, Call, Drop, Get, Program, Put, Return, Submit
from tests.spec.scenario import Scenario, World
from tests.spec.strategies import scenario_of
from tests.spec.trial import run

DETACHED = Create("a", called="n", detached=True)
SHARED = Create("a", called="n", detached=True, get_if_exists=True)
OTHER = Create("b", called="n", detached=True, get_if_exists=True)
CRASH = Losses(deaths=1)
BORN = ['["born", "a", [], []]']


def of(*drivers: Sequence[Any]) -> Program:
    return Program(tuple(Body(tuple(operations)) for operations in drivers))


def made(actor_id: str) -> dict[str, Any]:
    return {"of": [], "is": actor_id}


def found(actor_id: str) -> dict[str, Any]:
    return {"of": [], "found": True, "is": actor_id}


def broken(
    program: Program, *histories: Any, losses: Losses | None = None, farewell: Farewell | None = None, lines: Any = ()
) -> set[str]:
    """Numbers of the guarantees that these histories break."""
    facts = Facts(farewells=[] if farewell is None else [farewell])
    return {text.partition(":")[0] for text in problems(program, losses or Losses(), histories, lines, facts)}


def test_programs_with_namesakes_stay_feasible() -> None:
    programs = [with_namesakes(of((Put("x"), Submit("t", Body()))), Random(seed)) for seed in range(40)]
    assert all(Scenario(program).is_feasible() for program in programs)
    for wrong in ((SHARED, Create("b", called="n")), (Create("a", detached=True),), (Create("a", get_if_exists=True),)):
        assert not Scenario(of(wrong)).is_feasible()
    assert any(sum(bool(Program((driver,)).actors()) for driver in program.drivers) == 2 for program in programs)


def test_g33a_an_actor_that_drivers_drop_and_ask_for_again_lives() -> None:
    plain = of((Put("x"),))
    programs = [program for seed in range(100) if (program := with_rounds(plain, Random(seed))) != plain]
    assert 8 <= len(programs) <= 30 and all(Scenario(program).is_feasible() for program in programs)
    for program in programs:
        model = Model(program, Losses())
        assert not any(model.objects[call.name].errors for call in program.walk() if isinstance(call, Call))
        assert len([one for one in program.walk() if isinstance(one, Drop)]) >= 2
    for seed, program in enumerate(programs[:4]):
        assert run(Scenario(program, World(rates={"delay": 0.3, "duplicate": 0.2, "preempt": 0.2}), seed)).ok


def test_g26_a_detached_actor_needs_neither_its_handle_nor_its_driver() -> None:
    call = Call("call", "f", Body())
    program = of((DETACHED,), (Find("f", "n"), call))
    assert not Model(program, Losses(), killed_drivers=[0]).objects["call"].errors - {DIED}
    assert not Model(program, Losses()).objects["call"].errors
    assert Model(program, CRASH).objects["call"].errors == {DIED}


def test_g25_an_actor_ends_with_its_driver_although_another_driver_has_a_handle() -> None:
    program = of((Create("a", called="n"),), (Find("f", "n"), Call("call", "f", Body())))
    assert Model(program, Losses(), killed_drivers=[0]).objects["call"].errors == {DIED}
    assert Model(program, Losses()).objects["call"].errors == set(), "its driver stays until all are through"


def test_a_killed_driver_may_have_killed_a_shared_actor() -> None:
    program = of((SHARED, Kill("kill", "a")), (OTHER, Call("call", "b", Body()), Get("get", ("call",))))
    history = [made("1"), {"of": ["b"]}, {"of": ["call"], "error": DIED}]
    assert broken(program, None, history) == set()
    assert broken(of((SHARED,), program.drivers[1].operations), [made("1")], history) == {"G17"}


def test_g33_g39b_a_name_shows_one_actor_and_never_a_replaced_one_again() -> None:
    program = of((SHARED,), (OTHER, Find("f", "n"), Find("g", "n")))
    assert broken(program, [made("1")], [made("1"), found("1"), found("1")]) == set()
    assert broken(program, [made("1")], [made("2"), found("2"), found("2")]) == {"G33"}
    assert broken(program, [made("1")], [made("1"), found("2"), found("1")], losses=CRASH) == {"G39b"}


def test_g31_a_name_is_taken_until_its_actor_is_killed() -> None:
    again = Create("b", called="n", detached=True)
    taken, free = {"of": [], "taken": True}, made("2")
    once = of((DETACHED, again))
    assert broken(once, [made("1"), taken]) == set() and "G31" in broken(once, [made("1"), free])
    killed = of((DETACHED, Kill("kill", "a"), Find("f", "n"), again))
    gone = {"of": [], "found": False}
    assert broken(killed, [made("1"), {"of": ["a"]}, gone, free]) == set()
    assert broken(killed, [made("1"), {"of": ["a"]}, found("1"), free]) == {"G31"}
    assert broken(killed, [made("1"), {"of": ["a"]}, gone, taken]) == {"G31"}
    assert broken(of((DETACHED,)), [taken]) == {"G31"}


@pytest.mark.parametrize(
    ("farewell", "losses", "lines", "number"),
    [
        (Farewell("n", True), Losses(), BORN, ""),
        (Farewell("n"), Losses(), BORN, "G26"),
        (Farewell("n"), CRASH, BORN, ""),
        (Farewell("n", True, DIED), Losses(), BORN, "G26"),
        (Farewell("n", True, "", True), Losses(), BORN, "G31"),
    ],
)
def test_g26_at_the_farewell_a_detached_actor_that_nothing_ended_lives(
    farewell: Farewell, losses: Losses, lines: Any, number: str
) -> None:
    assert broken(of((DETACHED,)), [made("1")], losses=losses, farewell=farewell, lines=lines) == {number} - {""}


def test_g26_the_detached_actor_of_a_killed_driver_lives_if_its_constructor_ran() -> None:
    program = of((DETACHED,), ())
    assert broken(program, None, [], farewell=Farewell("n")) == set()
    assert broken(program, None, [], farewell=Farewell("n"), lines=BORN) == {"G26"}


def test_g25_g26_an_actor_of_a_detached_actor_ends_with_it_unless_it_is_detached_too() -> None:
    """A driver that stands later in the program decides whether the maker may end."""

    def errors_of(heir: Create, *last: Any) -> frozenset[str]:
        making = Call("making", "f", Body((heir,), Return(("heir",))))
        user = (Find("f", "n"), making, Get("get", ("making",)), Call("call", "heir", Body()))
        return Model(of(user, (DETACHED, *last)), Losses()).objects["call"].errors

    plain, detached = Create("heir"), Create("heir", called="heir", detached=True)
    assert errors_of(plain) == errors_of(detached) == set()
    assert errors_of(plain, Kill("kill", "a")) == {DIED}


def test_calls_of_detached_actors_make_plain_and_detached_actors() -> None:
    program = of((SHARED, *[Call(f"call{number}", "a", Body()) for number in range(8)]))
    programs = [with_heirs(program, Random(seed)) for seed in range(40)]
    heirs = [create for program in programs for create in program.actors() if create.name.startswith("heir")]
    assert {create.detached for create in heirs} == {False, True} and programs.count(program) > 5
    assert all(Scenario(program).is_feasible() for program in programs)
    assert with_heirs(of((Create("a"),)), Random(1)) == of((Create("a"),))


# --- A planted bug


def ends_with_its_owner(self: ActorRow) -> bool:
    """Say that every actor needs its owner, detached ones too: the planted bug."""
    return True


@long
def test_a_campaign_sees_soon_that_detached_actors_end_with_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActorRow, "needs_owner", ends_with_its_owner)
    drawn = (scenario_of(seed) for seed in range(60))
    shared = (scenario for scenario in drawn if any(create.detached for create in scenario.program.actors()))
    assert any({"G17", "G26"} & run(scenario).codes for scenario in shared)
