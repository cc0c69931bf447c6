"""What the processes of a real cluster do and have done, as programs see it: a timeline."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import minray as ray

pytestmark = pytest.mark.usefixtures("cluster")
CLOCKS_US = 100_000
"""Two clocks are read one after the other, and somebody may adjust one of them meanwhile."""


@ray.remote(max_retries=0)
def work(fails: bool = False) -> tuple[float, float]:
    """When it was here, in microseconds."""
    began = time.time()
    if fails:
        raise ValueError
    sum(range(100_000))
    return began * 1e6, time.time() * 1e6


@ray.remote(max_concurrency=2, num_cpus=0)
class Both:
    def __init__(self) -> None:
        self.meeting = threading.Barrier(2)

    def meet(self) -> None:
        self.meeting.wait()


def rows_of(trace: Any) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The events of a timeline, by node and row."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trace:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    return rows


def test_a_timeline_is_in_order_and_nothing_in_a_row_overlaps(tmp_path: Path) -> None:
    refs = {ref.task_id().hex(): ref for ref in [work.remote() for _ in range(10)]}
    failing, actor = work.remote(fails=True), Both.remote()
    ray.wait([failing, *[actor.meet.remote() for _ in range(4)]], num_returns=5)
    times = dict(zip(refs, ray.get(list(refs.values())), strict=True))
    path = tmp_path / "trace.json"
    assert ray.timeline(str(path)) is None
    trace = json.loads(path.read_text())
    rows = rows_of(trace)
    for row in rows.values():
        for event, after in zip(row, row[1:], strict=False):
            assert event["ts"] + event["dur"] <= after["ts"]
    by_id = {event["args"]["task_id"]: event for row in rows.values() for event in row}
    for task_id, (began_us, ended_us) in times.items():
        event = by_id[task_id]
        assert event["dur"] >= ended_us - began_us - CLOCKS_US
        assert event["ts"] - CLOCKS_US <= began_us and ended_us <= event["ts"] + event["dur"] + CLOCKS_US
    assert by_id[failing.task_id().hex()]["args"]["state"] == "FAILED"
    calls = [event for event in by_id.values() if event["name"] == "Both.meet"]
    assert len({event["tid"] for event in calls}) == 2, "two at a time"
    names = {event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert {f"Node {ray.nodes()[0]['NodeManagerAddress']} {ray.nodes()[0]['NodeID'][:8]}"} < names
    assert by_id.keys() == {event["args"]["task_id"] for event in ray.timeline() or [] if event["ph"] == "X"}


def test_a_task_sees_itself_when_it_is_over() -> None:
    @ray.remote
    def look() -> list[str]:
        return [event["name"] for event in ray.timeline() or []]

    first, second = ray.get(look.remote()), ray.get(look.remote())
    assert second.count("look") == first.count("look") + 1


def test_a_timeline_can_only_be_written_where_there_is_room_for_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ray.timeline(str(tmp_path / "nowhere" / "trace.json"))
