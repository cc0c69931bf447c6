"""``minray.util.state`` without a cluster: filters, limits, sums."""

from __future__ import annotations

from typing import Any

import pytest

import minray
from minray.util.state import list_objects
from minray.util.state.common import ObjectState, ObjectSummaries
from minray.util.state.exception import RayStateApiException


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
        ({"filters": [("colour", "=", "red")]}, "no 'colour' to filter by"),
        ({"filters": [("pid", "<", 1)]}, "not by '<'"),
        ({"address": "10.0.0.1:1"}, "minray memory --address"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        list_objects(**arguments)


def test_without_a_cluster_there_is_no_state_and_none_is_started() -> None:
    with pytest.raises(RayStateApiException, match="not connected"):
        list_objects()
    with pytest.raises(RuntimeError, match="not connected"):
        minray.experimental.get_object_locations([])
    assert not minray.is_initialized()
