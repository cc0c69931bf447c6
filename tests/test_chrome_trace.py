"""The tasks that workers have run, as a trace that browsers show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import minray
from minray.observability import chrome_trace
from minray.observability.chrome_trace import in_rows, newest, trace_events, trace_pieces, write_trace
from minray.protocol.state import ProfileEvent, ProfileEvents

TASK, ACTOR = b"t" * 20 + b"job1", b"a" * 12 + b"job1"


def event(start_us: int, duration_us: int = 10, name: str = "f", **fields: Any) -> ProfileEvent:
    known = {"task_id": TASK, "attempt": 0, "kind": "NORMAL_TASK", "actor_id": b"", "state": "FINISHED", **fields}
    return ProfileEvent(name=name, start_us=start_us, duration_us=duration_us, **known)


def worker(name: bytes, *events: ProfileEvent, node: bytes = b"node-1", ip: str = "10.0.0.1") -> ProfileEvents:
    return ProfileEvents(node, ip, name, 7, len(events), list(events))


def test_the_newest_tasks_are_those_that_ended_last() -> None:
    workers = [worker(b"v", event(0, 10), event(20, 10)), worker(b"w", event(0, 5), event(10, 90)), worker(b"x", event(1))]
    ends = [[one.start_us + one.duration_us for one in kept.events] for kept in newest(workers, 3)]
    assert ends == [[30], [100], [11]]
    assert newest(workers, 5) == workers
    assert sum(len(kept.events) for kept in newest([worker(b"v", *[event(0)] * 10)] * 2, 7)) == 7, "ties are no excuse"


def test_the_pieces_of_a_trace_are_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [worker(bytes([number]), *[event(start * 100) for start in range(number)]) for number in range(30)]
    whole = trace_events(workers)
    for size in (1, 3000, 10**6):
        monkeypatch.setattr(chrome_trace, "PIECE_BYTES", size)
        pieces = list(trace_pieces(workers, b"[", b"]"))
        assert json.loads(b"".join(pieces)) == whole
        assert size == 10**6 or max(map(len, pieces)) < size + 20_000
    assert b"".join(trace_pieces([], b"[", b"]")) == b"[]"


def test_a_task_is_a_complete_event_with_rays_keys() -> None:
    call = event(1000, 25, "A.f", kind="ACTOR_TASK", actor_id=ACTOR, attempt=2, state="FAILED")
    (found, *names) = trace_events([worker(b"w", call)])
    assert found == {
        "cat": "task::A.f",
        "name": "A.f",
        "pid": 0,
        "tid": 0,
        "ts": 1000,
        "dur": 25,
        "ph": "X",
        "cname": "terrible",
        "args": {
            "task_id": TASK.hex(),
            "job_id": b"job1".hex(),
            "attempt_number": 2,
            "func_or_class_name": "A.f",
            "actor_id": ACTOR.hex(),
            "type": "ACTOR_TASK",
            "state": "FAILED",
        },
    }
    assert names == [
        {"name": "process_name", "ph": "M", "args": {"name": f"Node 10.0.0.1 {b'node-1'.hex()[:8]}"}, "pid": 0},
        {"name": "thread_name", "ph": "M", "args": {"name": f"worker:{b'w'.hex()}"}, "pid": 0, "tid": 0},
    ]


def test_phases_are_inside_their_task() -> None:
    def spans(*ends: int) -> list[tuple[str, int, int]]:
        found = trace_events([worker(b"w", event(1000, 25, phase_ends_us=list(ends)))])
        return [(one["name"], one["ts"], one["dur"]) for one in found if one["ph"] == "X"]

    whole, arguments = ("f", 1000, 25), ("task:deserialize_arguments", 1000, 4)
    assert spans() == [whole]
    assert spans(4) == [whole, arguments, ("task:execute", 1004, 21)]
    assert spans(4, 20) == [whole, arguments, ("task:execute", 1004, 16), ("task:store_outputs", 1020, 5)]
    assert spans(4, 26)[-1] == ("task:store_outputs", 1025, 0), "two clocks"
    (_, *phases, _, _) = trace_events([worker(b"w", event(1, phase_ends_us=[2, 3]))])
    assert {phase["cat"] for phase in phases} == {"task:deserialize_arguments", "task:execute", "task:store_outputs"}
    assert len({(phase["pid"], phase["tid"], phase["args"]["task_id"]) for phase in phases}) == 1


def test_a_task_has_no_actor_and_a_constructor_is_its_classes() -> None:
    events = trace_events([worker(b"w", event(1), event(20, name="A.__init__", kind="ACTOR_CREATION_TASK", actor_id=ACTOR))])
    task, made = (found["args"] for found in events if found["ph"] == "X")
    assert (task["actor_id"], task["func_or_class_name"]) == (None, "f")
    assert (made["actor_id"], made["func_or_class_name"]) == (ACTOR.hex(), "A")


def test_nodes_are_groups_and_workers_are_rows() -> None:
    workers = [
        worker(b"w3", event(3), node=b"node-2", ip="10.0.0.2"),
        worker(b"w1", event(1)),
        worker(b"idle"),
        worker(b"w2", event(2)),
    ]
    found = trace_events(workers)
    assert [(one["ts"], one["pid"], one["tid"]) for one in found if one["ph"] == "X"] == [(1, 0, 0), (2, 0, 1), (3, 1, 2)]
    named = {(one["pid"], one.get("tid")): one["args"]["name"] for one in found if one["ph"] == "M"}
    assert named[1, None].startswith("Node 10.0.0.2") and named[1, 2] == f"worker:{b'w3'.hex()}" and len(named) == 5


def test_calls_at_the_same_time_are_in_rows_of_their_own() -> None:
    first, second, inside, after = event(0, 10), event(5, 10), event(6, 1), event(10, 1)
    assert in_rows([inside, second, first, after]) == [[first, after], [second], [inside]]
    names = [one["args"]["name"] for one in trace_events([worker(b"w", first, second)]) if one["name"] == "thread_name"]
    assert names == [f"worker:{b'w'.hex()}", f"worker:{b'w'.hex()} (2)"]


def test_nothing_has_run() -> None:
    assert [one for one in trace_events([worker(b"w")]) if one["ph"] == "X"] == [] and trace_events([]) == []


def test_a_trace_is_written_as_json(tmp_path: Path) -> None:
    events = trace_events([worker(b"w", event(1))])
    write_trace(str(tmp_path / "trace.json"), events)
    assert json.loads((tmp_path / "trace.json").read_text()) == events


def test_without_a_cluster_there_is_no_timeline() -> None:
    with pytest.raises(RuntimeError, match="not connected to a cluster"):
        minray.timeline()
