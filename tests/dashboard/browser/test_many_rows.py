"""The page with ten thousand actors, a thousand nodes and a million tasks, which a player in the server's place tells of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.dashboard.browser.visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Route

Visit = Callable[..., Visitor]
ACTORS, NODES, TASKS = 10_000, 1_000, 1_000_000


def row_of(table: str, number: int) -> dict[str, Any]:
    if table == "actors":
        actor = {"actor_id": f"{number:032x}", "class_name": "Worker", "state": "ALIVE", "name": f"actor-{number}"}
        return {**actor, "num_restarts": 0, "max_restarts": -1}
    if table == "nodes":
        node = {"node_id": f"{number:032x}", "node_name": f"node-{number}", "health": "healthy"}
        return {**node, "cpu_used": 1, "cpu_total": 4}
    return {"task_id": f"{number:048x}", "name": "map", "state": "RUNNING", "type": "NORMAL_TASK", "attempt_number": 0}


def play(page: Any, table: str, total: int, **more: Any) -> None:
    """Answer for the server: each page has as many rows as it asks for, out of this total."""

    def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        offset, limit = int(query.get("offset", ["0"])[0]), int(query.get("limit", ["50"])[0])
        rows = [row_of(table, number) for number in range(offset, min(total, offset + limit))]
        body = {"rows": rows, "columns": list(rows[0]), "total": total, "matching": total, "limit": limit, "offset": offset,
                "left_out": 0, "notes": [], "silent": [], **more}  # fmt: skip
        route.fulfill(body=json.dumps(body), content_type="application/json")

    page.route(f"**/api/{table}?*", answer)


TOTALS = [("actors", ACTORS, "10,000 in all"), ("nodes", NODES, "1,000 in all"), ("tasks", TASKS, "1,000,000 in all")]


@pytest.mark.parametrize(("table", "total", "text"), TOTALS)
def test_a_large_table_shows_one_page_and_counts_all(visit: Visit, table: str, total: int, text: str) -> None:
    visitor = visit()
    play(visitor.page, table, total)
    page = visitor.open(table)
    page.locator(".counts", has_text=text).wait_for()
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("button", name="Next page").click()
    page.locator(".range", has_text="51–100").wait_for()
    page.get_by_label("Rows on a page").select_option("250")
    page.locator(".range", has_text="1–250").wait_for()
    assert page.locator("tbody tr").count() == 250


def test_processes_that_do_not_answer_and_rows_left_out_are_named(visit: Visit) -> None:
    visitor = visit()
    silent = [f"worker {number:08x}" for number in range(40)]
    play(visitor.page, "tasks", TASKS, silent=silent, left_out=900_000, notes=["900000 older tasks are not shown"])
    page = visitor.open("tasks")
    summary = page.locator(".missing summary")
    named = "worker 00000000; worker 00000001; worker 00000002; and 37 more"
    page.locator(".missing summary", has_text=f"No answer in time from: {named}").wait_for()
    summary.click()
    assert page.locator(".missing li").count() == 42


def task_that_waits(number: int) -> dict[str, Any]:
    return {"id": f"t-{number}", "kind": "task", "name": f"task {number}", "in_cycle": number > 997, "is_infeasible": False}


def test_the_graph_of_a_thousand_waiting_tasks_draws_the_cycle_and_counts_the_rest(visit: Visit) -> None:
    visitor = visit()
    pairs = [*((number, number + 1) for number in range(997)), (998, 999), (999, 998)]
    edges = [{"source": f"t-{one}", "target": f"t-{other}", "kind": "waits", "text": ""} for one, other in pairs]
    vertices = [task_that_waits(number) for number in range(1000)]
    body = {"vertices": vertices, "edges": edges, "cycles": [["t-998", "t-999"]], "silent": [], "notes": []}
    visitor.page.route("**/api/waits", lambda route: route.fulfill(body=json.dumps(body), content_type="application/json"))
    page = visitor.open("waits")
    page.locator(".vertex.cycle").first.wait_for()
    assert page.locator(".vertex").count() == 250
    page.locator(".graph", has_text="750 of 1,000 are not drawn").wait_for()
    page.locator(".reasons", has_text="499 more; search to see them").wait_for()


REST = 'The download has 100,000, and the command "minray timeline" writes all.'


@pytest.mark.parametrize(("total", "rest"), [(1_000_000, REST), (50_000, "The download has all.")])
def test_a_timeline_says_how_many_tasks_it_does_not_show_and_where_they_are(visit: Visit, total: int, rest: str) -> None:
    visitor = visit()
    event = {"cat": "task::f", "name": "f", "ph": "X", "pid": 0, "tid": 0, "ts": 1, "dur": 5, "args": {"task_id": "00"}}
    body = {"total": total, "left_out": total - 1, "most_downloaded": 100_000, "notes": ["3 older tasks are not kept"],
            "silent": ["process 7 of node 1f"], "traceEvents": [event]}  # fmt: skip
    answer = {"body": json.dumps(body), "content_type": "application/json"}
    visitor.page.route("**/api/timeline?*", lambda route: route.fulfill(**answer))
    page = visitor.open("timeline")
    left = f"Of {total:,} tasks {total - 1:,} are not shown: each worker ended them earlier than its others. {rest}"
    page.locator(".counts", has_text=left).wait_for()
    page.locator(".counts", has_text="No answer in time from: process 7 of node 1f. 3 older tasks are not kept").wait_for()
    page.get_by_text("These are sums of the tasks that are shown.").wait_for()
