"""Each view in a real browser: it shows its rows, at both widths and in both themes, and nothing moves by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.dashboard.browser.visitor import NARROW, WIDE, Visitor

Visit = Callable[..., Visitor]


class View(NamedTuple):
    """A view, and what it shows of the cluster."""

    name: str
    title: str
    shows: str
    """A selector that matches when the rows are there."""
    asks: str
    """Path that the view asks for again when something has changed; empty: it asks only when it is told to."""


VIEWS = [
    View("overview", "Overview", "td:has-text('NORMAL_TASK')", "/api/tasks/summary"),
    View("waits", "Who waits for whom", ".problems li:has-text('Deadlock')", "/api/waits"),
    View("nodes", "Nodes", "tbody tr:has-text('healthy')", "/api/nodes"),
    View("workers", "Workers", "tbody tr:has-text('DRIVER')", "/api/workers"),
    View("jobs", "Jobs", "tbody tr:has-text('RUNNING')", "/api/jobs"),
    View("actors", "Actors", "tbody tr:has-text('DEAD')", "/api/actors"),
    View("tasks", "Tasks", "tbody tr:has-text('PENDING_NODE_ASSIGNMENT')", "/api/tasks"),
    View("objects", "Objects", "tbody tr:has-text('8.0 MiB')", "/api/objects"),
    View("placement_groups", "Placement groups", "tbody tr:has-text('CREATED')", "/api/placement_groups"),
    View("timeline", "Timeline", "tbody tr:has-text('tick')", "/api/timeline"),
    View("logs", "Logs", "tbody tr a", "/api/logs"),
    View("metrics", "Metrics", "li:has-text('CPU of the machines')", "/api/metrics/history"),
    View("stacks", "Stacks", "button:has-text('Dump')", ""),
]
TABLES = {"workers": "WORKER", "actors": "Counter", "tasks": "tick", "objects": "LOCAL_REFERENCE", "jobs": "RUNNING"}
"""View with a table -> text in some of its rows."""
each_view = pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)


@each_view
def test_a_view_shows_its_rows_and_stays_where_it_is(visit: Visit, view: View) -> None:
    visitor = visit()
    page = visitor.open(view.name, view.title)
    page.locator(view.shows).first.wait_for()
    visitor.forget_moves()
    for _ in range(3 if view.asks else 0):
        visitor.ask_again(view.asks)
    assert visitor.moves() == []


@each_view
def test_a_view_fits_a_phone_and_can_be_read_in_the_dark(visit: Visit, view: View) -> None:
    visitor = visit(width=NARROW, theme="dark", motion="reduce")
    visitor.open(view.name, view.title).locator(view.shows).first.wait_for()
    assert visitor.faint_texts() == []


@each_view
def test_a_view_can_be_read_in_the_light(visit: Visit, view: View) -> None:
    visitor = visit(width=WIDE)
    visitor.open(view.name, view.title).locator(view.shows).first.wait_for()
    assert visitor.faint_texts() == []


@pytest.mark.parametrize(("name", "text"), TABLES.items())
def test_a_search_asks_the_server_and_says_how_many_match(visit: Visit, name: str, text: str) -> None:
    visitor = visit()
    page = visitor.open(name)
    page.locator("tbody tr").first.wait_for()
    page.locator("input[type=search]").fill("no row has this text")
    page.locator(".counts", has_text="0 of").wait_for()
    assert page.locator("tbody tr").count() == 0
    page.locator("input[type=search]").fill(text)
    page.locator("tbody tr").first.wait_for()
    assert f"search={text}" in page.url


def test_filters_order_and_pages_stand_in_the_address(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("actors")
    page.get_by_label("State of Actors").select_option("DEAD")
    page.locator(".counts", has_text=" of ").wait_for()
    assert page.locator("tbody tr:not(:has-text('DEAD'))").count() == 0
    page.get_by_role("button", name="Class").click()
    page.locator("th[aria-sort=ascending]", has_text="Class").wait_for()
    page.get_by_role("button", name="Class").click()
    page.locator("th[aria-sort=descending]", has_text="Class").wait_for()
    assert "filter=state%3DDEAD" in page.url and "sort=-class_name" in page.url
    page.go_back()
    page.locator("th[aria-sort=ascending]").wait_for()
    page.reload()
    page.locator("th[aria-sort=ascending]").wait_for()
    assert page.get_by_label("State of Actors").input_value() == "DEAD"


def test_a_filter_is_added_and_taken_away(visit: Visit) -> None:
    page = visit().open("actors")
    page.locator("tbody tr").first.wait_for()
    page.locator("summary", has_text="Filter").click()
    page.get_by_label("Column").select_option("name")
    page.get_by_label("Condition").select_option("!=")
    page.get_by_label("Value").fill("pair-0")
    page.get_by_role("button", name="Add filter").click()
    page.locator(".counts", has_text=" of ").wait_for()
    assert page.locator("tbody tr", has_text="pair-0").count() == 0
    page.locator(".chips button").click()
    page.locator("tbody tr", has_text="pair-0").wait_for()


def test_an_actor_has_a_page_with_its_death_certificate(visit: Visit) -> None:
    page = visit().open("actors?filter=state=DEAD")
    page.locator("tbody tr a").first.click()
    page.locator("h2", has_text="Death certificate").wait_for()
    assert "ValueError" in page.locator("main").inner_text()


def test_a_task_has_a_page_that_says_why_it_is_not_done(visit: Visit) -> None:
    page = visit().open("tasks?filter=func_or_class_name=too_large")
    page.locator("tbody tr a").first.click()
    page.locator(".reasons li", has_text="GPU").first.wait_for()


def test_the_graph_says_what_it_draws(visit: Visit) -> None:
    page = visit().open("waits")
    page.locator(".problems li", has_text="Cannot be satisfied").first.wait_for()
    assert page.locator(".vertex.cycle").count() >= 2
    assert page.locator(".edge.cycle").count() >= 2
    assert page.locator(".vertex.bad").count() >= 1
    assert "in a cycle" in page.locator(".reasons").inner_text()


def test_the_timeline_zooms_by_keys_and_is_a_file_for_perfetto(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("timeline")
    page.locator("tbody tr", has_text="tick").wait_for()
    page.locator(".chart").focus()
    for key in ["+", "+", "ArrowRight", ".", "-", "0"]:
        page.keyboard.press(key)
    page.locator(".chosen a").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download for Perfetto").click()
    assert any(event["ph"] == "X" for event in json.loads(download.value.path().read_text())["traceEvents"])


def test_a_log_is_searched_and_followed(visit: Visit) -> None:
    page = visit().open("logs?search=worker")
    page.locator("tbody tr a").first.wait_for()
    page.locator("tbody tr a").first.click()
    page.locator(".log").wait_for()
    page.get_by_role("button", name="Follow").click()
    page.locator(".counts", has_text="following").wait_for()
    page.get_by_placeholder("Lines that contain").fill("no line has this text")
    page.locator(".log .empty").wait_for()


def test_stacks_are_dumped_by_a_button(visit: Visit) -> None:
    page = visit().open("stacks")
    page.get_by_role("button", name="Dump stacks").click()
    page.locator("pre", has_text="all_kinds.py").first.wait_for()
