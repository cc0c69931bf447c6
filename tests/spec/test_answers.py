"""A settled cluster that gives wrong answers is seen, although all its tables are empty; so are impossible looks before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.spec.actors import Create, Kill
from tests.spec.groups import SLOT, Group, Ready, Remove
from tests.spec.looks import FIELDS, GIVEN_UP_S, HEARD_S, REPORTED_S, RESOURCES, Look, contradictions, stale
from tests.spec.model import Facts, Losses, problems
from tests.spec.moves import Move
from tests.spec.programs import Body, Call, Get, Miscount, Program, Put, Sleep, Submit
from tests.spec.scenario import Node, Scenario, World
from tests.spec.trial import run
from tests.spec.variations import FAR
from tests.zoo.transplant import Mutation, planted

ROWS, CALLS, ACTOR = "minray.util.state.rows", "minray.api.calls", "minray.actor"
SWAPPED = """
ips = {info.node_id: info.ip for info in found.nodes}
found = found._replace(living=[("DRIVER", *rest) for _, *rest in found.living])
"""
WRONG_ANSWERS = {
    "list_named_actors": Mutation(ACTOR, "named_actors", 'info.state != "DEAD" and not info.is_ending', "info.start_time"),
    "available": Mutation(CALLS, "available_resources", "report.available", '{**report.available, "ghost": 10_000}'),
    "total": Mutation(
        CALLS,
        "cluster_resources",
        "[info.resources_total for info in known_nodes() if info.alive]",
        "[info.resources_total for info in known_nodes()]",
    ),
    "list_nodes": Mutation(ROWS, "node_state", '"ALIVE" if info.alive else "DEAD"', '"ALIVE"'),
    "list_actors": Mutation(ROWS, "actor_state", "info.state", '"ALIVE" if info.state == "DEAD" else info.state'),
    "list_workers": Mutation(ROWS, "worker_listing", "found.living", "found.living[1:]"),
    "list_jobs": Mutation(ROWS, "job_state", '"SUCCEEDED" if info.end_time else "RUNNING"', '"SUCCEEDED"'),
    "list_tasks": Mutation(ROWS, "task_state", "task.state", '"RUNNING"'),
    "list_workers shows": Mutation(ROWS, "worker_listing", "ips = {info.node_id: info.ip for info in found.nodes}", SWAPPED),
    "and its pid is": Mutation(ROWS, "job_state", "str(info.driver_pid)", '"1"'),
    "an impossible job": Mutation(ROWS, "job_state", "int(info.end_time * MS) or None", "int(info.end_time * MS)"),
    "says that a task has finished": Mutation(ROWS, "task_state", "task.error_type or None", '"WORKER_DIED"'),
    "says that a task was in a worker": Mutation(
        ROWS,
        "task_state",
        "(process.worker_id if process is not None else task.worker_id).hex() or None",
        '"0123456789"',
    ),
}
"""Words of a problem -> the mistake that causes it and leaves all tables empty."""
PROGRAM = Program(
    (
        Body(
            (
                Create("stays", called="stays", detached=True),
                Create("goes", called="goes"),
                Call("call", "goes", Body()),
                Submit("task", Body((Sleep("sleep", 1.0),))),
                Get("get", ("call", "task")),
                Kill("kill", "goes"),
            )
        ),
    )
)
WORLD = World((Node(), Node()), moves=(Move(1, 0.5, dies=True),))


def test_right_answers_are_no_problem() -> None:
    assert run(Scenario(PROGRAM, WORLD)).problems == ()


@pytest.mark.parametrize("words", WRONG_ANSWERS)
def test_wrong_answers_of_a_settled_cluster_are_seen(words: str) -> None:
    with planted([WRONG_ANSWERS[words]]):
        found = run(Scenario(PROGRAM, WORLD)).problems
    assert found and all(problem.startswith("state: ") for problem in found)
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ("restarts, and it is", Mutation(ROWS, "actor_state", "info.restarts", "info.restarts + 1")),
        ("list_objects is wrong", Mutation(ROWS, "object_states", '"DRIVER" if use.is_driver else "WORKER"', '"WORKER"')),
        ("bytes, and it has", Mutation(ROWS, "object_states", "use.size", "use.size + 1")),
    ],
)
def test_wrong_answers_about_what_lives_on_are_seen(words: str, mistake: Mutation) -> None:
    """A driver that stays holds the argument of an actor."""
    operations = (Put("put", padding=1000), Create("stays", ("put",), called="stays", detached=True, max_restarts=-1))
    scenario = Scenario(Program((Body(operations),)), World((Node(), Node()), inline_limit=100))
    assert run(scenario).problems == ()
    with planted([mistake]):
        assert any(words in problem for problem in run(scenario).problems)


def test_a_name_that_still_finds_a_dead_actor_is_seen() -> None:
    stale_name = Mutation("minray.gcs.gcs_actor_manager", "GcsActorManager._on_dead", "self._forget_name(info)", "pass")
    with planted([stale_name]):
        found = run(Scenario(PROGRAM, WORLD)).problems
    assert any(problem.startswith("state: get_actor('stays') finds 0") for problem in found), found


# --- Looks in the middle of a program


def looked(table: str, rows: list[list[Any]], begun: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"of": [], "begun": begun, "ended": begun + 0.1, "job": "j", "rows": rows, "handles": {}, **more}


def actor_row(state: str, **fields: Any) -> list[Any]:
    row = {"actor_id": "x", "state": state, "name": "", "node_id": "n", "pid": 1, "death_cause": None, "num_restarts": 0}
    return list((row | fields).values())


def task_row(state: str, name: str = "task", attempt: int = 0) -> list[Any]:
    return ["t", state, attempt, name, "j", "", None, None]


def codes(operations: list[Any], history: list[Any], losses: Losses = Losses()) -> list[str]:  # noqa: B008
    found = problems(Program((Body(tuple(operations)),)), losses, [history], [])
    return [problem.partition(":")[0] for problem in found]


def test_impossible_actors_are_seen() -> None:
    for row, expected in (
        (actor_row("ALIVE"), []),
        (actor_row("ALIVE", pid=0), ["state"]),
        (actor_row("ALIVE", node_id=None), ["state"]),
        (actor_row("DEAD"), ["state"]),
        (actor_row("DEAD", death_cause={}), []),
        (actor_row("PENDING_CREATION", pid=0, node_id=None), []),
    ):
        assert codes([Look("look")], [looked("actors", [row])]) == expected
    assert codes([Look("look")], [looked("actors", [actor_row("ALIVE")] * 2)]) == ["state"]


def test_an_actor_that_nothing_has_ended_is_shown_and_one_that_was_killed_is_dead() -> None:
    made: dict[str, Any] = {"of": [], "is": "x"}
    create, dead = Create("actor", called="actor"), actor_row("DEAD", death_cause={})
    handles = {"handles": {"actor": "x"}}
    for rows, expected in (([actor_row("ALIVE")], []), ([dead], ["state"]), ([], ["state"])):
        assert codes([create, Look("look")], [made, looked("actors", rows, **handles)]) == expected
    assert codes([create, Look("look")], [made, looked("actors", [dead], **handles)], Losses(deaths=1)) == []
    operations, before = [create, Kill("kill", "actor"), Look("look")], [made, {"of": ["actor"]}]
    assert codes(operations, [*before, looked("actors", [dead], **handles)]) == []
    assert codes(operations, [*before, looked("actors", [actor_row("ALIVE")], **handles)]) == ["state"]
    assert codes(operations, [*before, looked("actors", [], **handles)]) == ["state"]
    assert codes(operations, [*before, looked("actors", [], **handles)], Losses(forgets_actors=True)) == []


def test_a_task_whose_value_is_known_is_shown_as_finished() -> None:
    operations = [Submit("task", Body()), Get("get", ("task",)), Look("look", "tasks")]
    before = [{"of": []}, {"of": ["task"], "values": ["task"]}]
    assert codes(operations, [*before, looked("tasks", [task_row("FINISHED")])]) == []
    assert codes(operations, [*before, looked("tasks", [task_row("FAILED")])]) == ["state"]
    assert codes(operations, [*before, looked("tasks", [task_row("FAILED", "other")])]) == []
    lost = Losses(deaths=1, nodes=True, objects=True)
    assert codes(operations, [*before, looked("tasks", [task_row("PENDING_ARGS_AVAIL")])], lost) == []
    yielding = [Submit("task", Body((), Miscount()), returns=2, yields=True), *operations[1:]]
    assert codes(yielding, [*before, looked("tasks", [task_row("FAILED")])]) == []


def test_what_a_placement_group_has_reserved_is_not_free() -> None:
    look = Look("look", RESOURCES, REPORTED_S)
    operations = [Group("group", 2), Ready("ready", "group"), look, Remove("remove", "group"), look]
    there: dict[str, Any] = {"of": ["group"], "there": True}

    def found(free: int, free_later: int, losses: Losses = Losses()) -> list[str]:  # noqa: B008
        shown = [{"of": [], "available": {SLOT: count}, "total": {SLOT: 5}} for count in (free, free_later)]
        history = [{"of": [], "is": "g"}, there, shown[0], {"of": ["group"]}, shown[1]]
        return codes(operations, history, losses)

    assert found(3, 5) == found(5, 5, Losses(silence=True)) == []
    assert found(4, 5) == ["state"]
    program = Program((Body(tuple(operations[:3])),))
    everything = Mutation(CALLS, "available_resources", "report.available", "{**report.available, 'slot': 50_000}")
    with planted([everything]):
        assert "state" in run(Scenario(program, World((Node(resources={SLOT: 5}),)))).codes


def test_what_is_over_is_never_again_shown_as_living() -> None:
    look, over, alive = Look("look", "nodes"), [["n", "DEAD", ""]], [["n", "ALIVE", ""]]

    def found(*pairs: tuple[list[list[Any]], float]) -> int:
        return len(list(contradictions([(look, looked("nodes", rows, begun)) for rows, begun in pairs])))

    assert found((over, 1.0), (alive, 2.0)) == found((alive, 2.0), (over, 1.0)) == 1
    assert found((alive, 1.0), (over, 2.0)) == found((over, 1.0), (alive, 1.05)) == 0


def test_a_process_that_has_ended_is_not_shown_as_living_for_ever() -> None:
    looks = [(Look("look", "workers"), looked("workers", [["w", True, None]], 100.0))]
    assert not list(stale(looks, {"w": 100.0 - HEARD_S + 0.1}, False))
    assert len(list(stale(looks, {"w": 100.0 - HEARD_S - 0.1}, False))) == 1
    assert not list(stale(looks, {"w": 100.0 - HEARD_S - 0.1}, True))
    assert len(list(stale(looks, {"w": 100.0 - GIVEN_UP_S - 0.1}, True))) == 1
    program = Program((Body((looks[0][0],)),))
    assert problems(program, Losses(), [[looks[0][1]]], [], Facts(ends={"w": 1.0}))


def test_all_tables_are_looked_at_and_no_problem() -> None:
    looks = [Look(f"look at {table}", table) for table in FIELDS]
    program = Program((Body((*PROGRAM.drivers[0].operations, *looks)),))
    verdict = run(Scenario(program, WORLD))
    assert verdict.ok and [len(outcome["rows"]) > 0 for outcome in verdict.histories[0][-len(looks) :]].count(True) >= 5
    assert json.dumps(verdict.histories[0])


# --- Labels that only another node has


def test_a_task_waits_for_a_node_that_joins_later_with_its_label() -> None:
    program = Program((Body((Submit("task", Body(), zone=FAR, is_soft=False), Get("get", ("task",)))),))
    verdict = run(Scenario(program, World(moves=(Move(1, 2.0, zone=FAR),))))
    assert verdict.ok and verdict.histories[0][1]["values"] == ["task"]


def test_a_label_that_is_ignored_is_seen() -> None:
    program = Program((Body((Submit("task", Body(), zone=FAR, is_soft=False), Get("get", ("task",)))),))
    ignored = Mutation("minray.common.labels", "matches", "all(_holds(term, labels) for term in terms)", "True")
    with planted([ignored]):
        assert run(Scenario(program, World((Node(), Node(zone=FAR))))).codes == {"labels"}
