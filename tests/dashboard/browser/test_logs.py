"""The page's side of logs, with a player in the server's place: the list, one file, a search, and lines that come."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.dashboard.browser.all_kinds import TURNED, markup
from tests.dashboard.browser.visitor import NARROW, Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Route

Visit = Callable[..., Visitor]
NODE, FILE = "ab" * 16, "worker-0123-7.out"
LINES = [*(f"line {number}" for number in range(2000)), markup("log"), TURNED, "x" * 10_000]


def answer(route: Route, body: dict[str, Any]) -> None:
    route.fulfill(body=json.dumps(body), content_type="application/json")


def play(visitor: Visitor) -> None:
    """Answer for the server about one file, of which a visitor sees the end."""
    row = {"file": FILE, "node_id": NODE, "size": 12_345, "modified": 1_700_000_000}
    table = {"rows": [row], "columns": list(row), "total": 1, "matching": 1, "limit": 50, "offset": 0, "silent": []}

    def read(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        wanted = query.get("search", [""])[0]
        found = [line for line in LINES if wanted in line]
        answer(route, {"lines": found[-int(query["tail"][0]) :]})

    visitor.page.route("**/api/logs?*", lambda route: answer(route, table))
    visitor.page.route(f"**/api/logs/{NODE}/{FILE}?*", read)
    news = f"data: {json.dumps({'lines': ['a new line']})}\n\n"
    visitor.page.route(
        f"**/api/logs/{NODE}/{FILE}/follow", lambda route: route.fulfill(body=news, content_type="text/event-stream")
    )


def test_a_file_opens_at_its_end_and_is_searched(visit: Visit) -> None:
    visitor = visit()
    play(visitor)
    page = visitor.open("logs")
    page.locator("tbody tr a", has_text=FILE).click()
    page.locator(".counts", has_text="1,000 lines").wait_for()
    assert page.locator(".log").evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight < 2")
    page.get_by_placeholder("Lines that contain").fill("line 77")
    page.locator(".counts", has_text="11 lines contain the text").wait_for()
    page.get_by_placeholder("Lines that contain").fill("nothing has this")
    page.locator(".log .empty").wait_for()


def test_lines_of_an_attacker_are_text_and_fit(visit: Visit) -> None:
    visitor = visit(width=NARROW)
    play(visitor)
    page = visitor.open(f"logs/{NODE}/{FILE}")
    page.locator(".log div", has_text="onerror").wait_for()
    text = page.locator(".log").inner_text()
    assert "⟨U+202E⟩" in text and "\x1b" not in text and "[31m" not in text
    assert "(10,000 characters)" in text


def test_lines_that_are_written_while_one_looks_come_at_the_end(visit: Visit) -> None:
    visitor = visit()
    play(visitor)
    page = visitor.open(f"logs/{NODE}/{FILE}?follow=1")
    page.locator(".log div", has_text="a new line").wait_for()
