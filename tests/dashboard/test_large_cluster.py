"""A cluster with more tasks than the dashboard keeps: all are counted, and each is found by its id."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from benchmarks.dashboard_scale import EVENTS_OF_WORKER, Cluster, ask, id_of, serve
from minray.common.ids import TASK_ID_BYTES
from minray.dashboard import server, tables
from minray.platform.threads.user_code import IoThread

TASKS, KEPT = 20_000, 400
"""Number of tasks, of two drivers, and of the rows that are kept."""


@pytest.fixture(scope="module")
def port() -> Generator[int, None, None]:
    thread = IoThread()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tables, "MOST_ROWS", KEPT)
        served = thread.run(serve(Cluster(3, 6, TASKS)))
        yield served.port
        thread.run(served.close())
        thread.stop()


def answer(port: int, path: str) -> Any:
    return json.loads(ask(port, path)[2])


def test_all_tasks_are_counted_and_those_that_are_not_shown_are_named(port: int) -> None:
    table = answer(port, "/api/tasks?limit=1000")
    assert table["total"] == TASKS and len(table["rows"]) == KEPT and table["left_out"] == TASKS - KEPT
    assert table["notes"] == [f"{TASKS - KEPT} older tasks are counted but not shown, because their processes have so many"]
    summary = answer(port, "/api/tasks/summary")
    assert (summary["total"], summary["left_out"]) == (TASKS, TASKS - KEPT)


def test_the_graph_of_waits_says_how_many_tasks_it_has_not_looked_at(port: int) -> None:
    notes = answer(port, "/api/waits")["notes"]
    assert f"{TASKS - KEPT} further tasks were not looked at, because their processes have so many" in notes


def test_a_task_that_is_not_among_the_rows_is_found_by_its_whole_id(port: int) -> None:
    oldest = id_of(9_999, TASK_ID_BYTES, 1).hex()
    shown = {row["task_id"] for row in answer(port, "/api/tasks?limit=1000")["rows"]}
    assert oldest not in shown and answer(port, f"/api/tasks/{oldest}")["row"]["task_id"] == oldest
    assert answer(port, f"/api/why/{oldest}")["lines"]


def test_a_timeline_counts_what_it_leaves_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_DRAWN", 30)
    monkeypatch.setattr(server, "MOST_DOWNLOADED", 90)
    run = 6 * EVENTS_OF_WORKER
    drawn, file = answer(port, "/api/timeline?limit=20"), answer(port, "/api/timeline")
    assert [sum(event["ph"] == "X" for event in trace["traceEvents"]) for trace in (drawn, file)] == [20, 90]
    assert [(trace["total"], trace["left_out"]) for trace in (drawn, file)] == [(run, run - 20), (run, run - 90)]
    drawn_rows = {event["tid"] for event in file["traceEvents"] if event["ph"] == "X"}
    assert len(drawn_rows) == 6, "each worker has a share"
