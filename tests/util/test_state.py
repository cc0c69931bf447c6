"""``minray.util.state`` without a cluster: filters, limits, sums."""

from __future__ import annotations

from typing import Any

import pytest

import minray
from minray.util.state import get_actor, get_node, get_objects, list_objects
from minray.util.state.common import ActorState, ActorSummaries, ObjectState, ObjectSummaries, TaskState, TaskSummaries
from minray.util.state.exception import RayStateApiException
from minray.util.state.filters import matching, parse


def state(**fields: Any) -> ObjectState:
    known: dict[str, Any] = {
        "object_id": "ab",
        "object_size": 1 << 20,
        "task_status": "NIL",
        "attempt_number": 1,
        "reference_type": "LOCAL_REFERENCE",
        "call_site": "disabled",
        "type": "DRIVER",
        "pid": 1,
        "ip": "127.0.0.1",
    }
    return ObjectState(**{**known, **fields})


def test_sums_are_by_call_site() -> None:
    states = [state(call_site="x"), state(call_site="x", pid=2, object_size=-1), state(call_site="y", ip="10.0.0.1")]
    summaries = ObjectSummaries.to_summary(objects=states)
    assert (summaries.total_objects, summaries.total_size_mb, summaries.callsite_enabled) == (3, 2.0, True)
    x = summaries.summary["x"]
    assert (x.total_objects, x.total_size_mb, x.total_num_workers, x.total_num_nodes) == (2, 1.0, 2, 1)
    assert (x.ref_type_counts, x.task_state_counts, x.task_attempt_number_counts) == (
        {"LOCAL_REFERENCE": 2},
        {"NIL": 2},
        {"1": 2},
    )
    assert not ObjectSummaries.to_summary(objects=[state()]).callsite_enabled


def test_a_record_is_also_a_dictionary() -> None:
    assert state().asdict()["object_id"] == "ab" and len(state().asdict()) == 9


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"limit": 0}, "limit must be from 1 to 10000, not 0"),
        ({"limit": 10_001}, "limit must be from 1"),
        ({"filters": [("colour", "=", "red")]}, "objects have no 'colour' to filter by; they have object_id, "),
        ({"filters": [("pid", "<", 1)]}, "not by '<'"),
        ({"address": "10.0.0.1:1"}, "minray list --address"),
        ({"filters": "state=ALIVE"}, "filters must be a list of filters, not str"),
        ({"filters": ("pid", "=", 1)}, "a filter is a tuple such as .*, not 'pid'"),
        ({"filters": [("pid", 1)]}, "a filter is a tuple such as"),
        ({"limit": "many"}, "limit must be an int, not str"),
        ({"timeout": "long"}, "timeout must be a number"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        list_objects(**arguments)


@pytest.mark.parametrize("id", [None, 5])
def test_an_id_is_text(id: Any) -> None:
    for get in (get_actor, get_node, get_objects):
        with pytest.raises(TypeError, match="an id is a str of hexadecimal digits"):
            get(id)


def test_without_a_cluster_there_is_no_state_and_none_is_started() -> None:
    with pytest.raises(RayStateApiException, match="not connected"):
        list_objects()
    with pytest.raises(RuntimeError, match="not connected"):
        minray.experimental.get_object_locations([])
    assert not minray.is_initialized()


def actor(class_name: str, state: str) -> ActorState:
    return ActorState("ab", class_name, state, "01", "", None, 0, "")


def task(name: str, state: str, kind: str = "NORMAL_TASK") -> TaskState:
    return TaskState("ab", 0, name, state, "01", None, kind, name, "", None, None, None)


def test_actors_are_summed_up_by_class_and_tasks_by_name() -> None:
    some = [actor("A", "ALIVE"), actor("A", "DEAD"), actor("A", "DEAD"), actor("B", "ALIVE")]
    actors = ActorSummaries.to_summary(actors=some)
    assert actors.total_actors == 4 and actors.summary["A"].state_counts == {"ALIVE": 1, "DEAD": 2}
    others = [task("f", "RUNNING"), task("f", "FINISHED"), task("A.g", "FAILED", "ACTOR_TASK")]
    tasks = TaskSummaries.to_summary(tasks=others)
    assert (tasks.total_tasks, tasks.total_actor_tasks, tasks.total_actor_scheduled) == (2, 1, 0)
    assert tasks.summary["f"].state_counts == {"RUNNING": 1, "FINISHED": 1} and tasks.summary["A.g"].type == "ACTOR_TASK"


def test_details_are_columns_only_if_wanted() -> None:
    assert "error_message" in TaskState.columns(True) and "error_message" not in TaskState.columns(False)
    assert ObjectState.columns(True) == ObjectState.columns(False) == list(state().asdict())


def test_filters_compare_text_and_all_must_hold() -> None:
    rows = [actor("A", "ALIVE"), actor("A", "DEAD"), actor("B", "ALIVE")]
    assert matching(rows, [("state", "=", "alive"), ("class_name", "!=", "B")], 10) == rows[:1]
    assert matching(rows, [("is_detached", "=", False), ("pid", "=", 0), ("node_id", "=", "")], 2) == rows[:2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state=ALIVE", ("state", "=", "ALIVE")),
        ("state != DEAD", ("state", "!=", "DEAD")),
        ("name=a=b", ("name", "=", "a=b")),
    ],
)
def test_filters_as_text(text: str, expected: tuple[str, str, str]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["state", "=ALIVE", "!=x", ""])
def test_text_that_is_no_filter(text: str) -> None:
    with pytest.raises(ValueError, match="is not a filter such as"):
        parse(text)
