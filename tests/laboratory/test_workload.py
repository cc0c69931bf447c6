"""Workloads: which ones are refused, their order, their own file format."""

from __future__ import annotations

import json

import pytest

from minray.laboratory.workload import (
    NodeFailure,
    TraceActor,
    TraceError,
    TraceTask,
    Workload,
    checked,
    critical_path_s,
    decode,
    encode,
    work_s,
)
from tests.laboratory.worlds import workload


def task(id: str, *inputs: str, **settings: object) -> TraceTask:
    return TraceTask(id, 1.0, tuple((source, 0) for source in inputs), **settings)  # type: ignore[arg-type]


def test_tasks_come_after_what_they_use_and_arrive_no_earlier() -> None:
    ordered = workload(task("sum", "late", "soon"), task("late", arrival_s=5.0), task("soon", arrival_s=1.0)).tasks
    assert [(each.id, each.arrival_s) for each in ordered] == [("soon", 1.0), ("late", 5.0), ("sum", 5.0)]


def test_work_and_critical_path() -> None:
    whole = workload(task("a"), task("b", "a", resources={"CPU": 3}), task("c", "a"))
    assert (work_s(whole), critical_path_s(whole.tasks)) == (5.0, 2.0)


def test_a_workload_is_written_and_read_again() -> None:
    whole = workload(task("a", outputs=(5, 6)), task("b", "a", group="user"), failures=(NodeFailure(1, 2.0, 3.0),))
    assert decode(encode(whole), "file") == whole


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ((), "has no tasks"),
        ((task("a"), task("a")), "two tasks have the id 'a'"),
        ((task("a", "b"),), "takes a result of 'b', but there is no such task"),
        ((TraceTask("a", 1.0), TraceTask("b", 1.0, (("a", 1),))), "takes output 1 of 'a'; it has 1, from 0"),
        ((TraceTask("a", -1.0),), "'a' has duration_s = -1.0"),
        ((TraceTask("a", float("nan")),), "'a' has duration_s = nan"),
        ((task("a", outputs=(-5,)),), "'a' has output 0 = -5"),
        ((task("a", outputs=()),), "'a' has no outputs"),
        ((task("a", "c"), task("b", "a"), task("c", "b"), task("d", "c")), "wait for each other, a <- c <- b <- a"),
    ],
)
def test_a_workload_that_cannot_run_is_refused(tasks: tuple[TraceTask, ...], reason: str) -> None:
    with pytest.raises(TraceError, match="^file: |^file has") as error:
        checked(Workload("it", tasks), "file")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (NodeFailure(0, 1.0), "node 0 cannot fail"),
        (NodeFailure(1, -1.0), "goes down at -1.0"),
        (NodeFailure(1, 5.0, 4.0), "goes down at 5.0 and up at 4.0"),
    ],
)
def test_a_failure_that_makes_no_sense_is_refused(failure: NodeFailure, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        workload(task("a"), failures=(failure,))


def call(id: str, actor: str = "one", **settings: object) -> TraceTask:
    return TraceTask(id, 1.0, actor=actor, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("actors", "tasks", "reason"),
    [
        ((), [call("a")], "task 'a' is a call of 'one', but there is no such actor"),
        ((TraceActor("one"),) * 2, [call("a")], "two actors have the id 'one'"),
        ((TraceActor("one"),), [task("a")], "actor 'one' has no calls"),
        ((TraceActor("one"),), [call("a", resources={"CPU": 1})], "task 'a' is a call and names resources; give them to"),
        ((TraceActor("one", start_s=-1.0),), [call("a")], "actor 'one' has start_s = -1.0"),
        ((TraceActor("one", resources={"CPU": float("nan")}),), [call("a")], "actor 'one' has resource CPU = nan"),
        ((TraceActor("one", concurrency=0),), [call("a")], "actor 'one' has concurrency 0"),
    ],
)
def test_actors_that_make_no_sense_are_refused(
    actors: tuple[TraceActor, ...], tasks: list[TraceTask], reason: str
) -> None:
    with pytest.raises(TraceError, match="^test: ") as error:
        workload(*tasks, actors=actors)
    assert reason in str(error.value)


def test_an_actor_arrives_no_later_than_its_first_call() -> None:
    late, early = TraceActor("late", arrival_s=9.0), TraceActor("early", arrival_s=1.0)
    whole = workload(call("a", "late", arrival_s=4.0), call("b", "early", arrival_s=5.0), actors=(late, early))
    assert [(actor.id, actor.arrival_s) for actor in whole.actors] == [("early", 1.0), ("late", 4.0)]
    assert decode(encode(whole), "file") == whole


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (NodeFailure(1, 4.0), "node 1 goes down at 4.0, but it is already down from 2.0 until 5.0"),
        (NodeFailure(1, 1.0), "node 1 goes down at 2.0, but it is already down from 1.0 for ever"),
        (NodeFailure(2, 4.0), None),
        (NodeFailure(1, 5.0), None),
    ],
)
def test_a_node_that_is_down_cannot_fail(second: NodeFailure, reason: str | None) -> None:
    failures = (NodeFailure(1, 2.0, 5.0), second)
    if reason is None:
        assert workload(task("a"), failures=failures).failures == failures
        return
    with pytest.raises(TraceError, match=reason):
        workload(task("a"), failures=failures)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is no workload of minray: Input data was truncated"),
        (b'{"format": "minray-workload"}', "missing required field `version`"),
        (b'{"format": "minray-workload", "version": 1, "workload": {"name": "x", "tasks": [{"id": 1}]}}', "tasks\\[0\\].id"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        decode(content, "file")


def test_a_file_of_another_version_is_refused() -> None:
    content = json.loads(encode(workload(task("a")))) | {"version": 2}
    with pytest.raises(TraceError, match="this minray reads version 1"):
        decode(json.dumps(content).encode(), "file")
