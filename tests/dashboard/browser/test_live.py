"""The page follows the cluster, says when it cannot, and comes back by itself. Keys reach everything."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests import leaks
from tests.dashboard.browser.conftest import Program, serve
from tests.dashboard.browser.visitor import Visitor

Visit = Callable[..., Visitor]
NAMELESS = """[...document.querySelectorAll("button, a, input, select, summary")]
    .filter((one) => one.checkVisibility())
    .filter((one) => !(one.getAttribute("aria-label") || one.labels?.length || one.textContent.trim()))
    .map((one) => one.outerHTML)"""
"""Returns the controls of which a screen reader would know the kind alone."""


def test_a_dashboard_that_was_killed_and_started_again_is_found_again(browser: Any, cluster: Program) -> None:
    dashboard, address = serve(cluster, "--port=0")
    visitor = Visitor(browser, address)
    page = visitor.open("tasks")
    page.locator("#live", has_text="live").wait_for()
    dashboard.end()
    page.locator("#live.lost", has_text="connection lost, retrying").wait_for()
    assert page.locator("tbody tr").count() > 0, "the old rows stay"
    dashboard, _ = serve(cluster, f"--port={urlsplit(address).port}")
    try:
        page.locator("#live", has_text="live").wait_for()
        visitor.wait_answers("/api/tasks", 2)
    finally:
        visitor.close()
        dashboard.end()


START_HEAD = ("start", "--head", "--num-cpus=1", "--include-dashboard")


def kill_session(directory: str) -> None:
    """Kill all processes of a session at once. Those of this test, such as the browser, are no part of it."""
    own = set(psutil.Process().children(recursive=True))
    for process in set(leaks.processes(Path(directory))) - own:
        process.kill()


def minray(*arguments: str) -> str:
    """Run a command of minray to its end and return what it prints."""
    command = [sys.executable, "-m", "minray", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def test_the_page_comes_back_when_the_head_is_killed_and_started_again(browser: Any) -> None:
    said = minray(*START_HEAD, "--dashboard-port=0")
    found = re.search(r"cluster at (127\.0\.0\.1:(\d+)):.* session (\S+)\n.*Dashboard: (http://\S+:(\d+)/\S+)", said, re.S)
    assert found is not None, said
    address, port, session, url, dashboard_port = found.groups()
    visitor = Visitor(browser, url)
    try:
        page = visitor.open("nodes")
        page.locator("tbody tr", has_text="healthy").wait_for()
        node_id = page.locator("tbody tr").get_attribute("data-key")
        kill_session(session)
        page.locator("#live.lost").wait_for()
        minray(
            "start", "--head", "--num-cpus=1", f"--port={port}", "--include-dashboard", f"--dashboard-port={dashboard_port}"
        )
        page.locator("#live", has_text="live, updated").wait_for()
        page.locator(f"tbody tr:not([data-key='{node_id}'])", has_text="healthy").wait_for()
    finally:
        visitor.close()
        minray("stop", f"--address={address}")


def test_updates_stop_while_they_are_paused(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("tasks")
    visitor.wait_answers("/api/tasks", 2)
    page.keyboard.press("p")
    page.locator("#live", has_text="paused").wait_for()
    page.keyboard.press("p")
    page.locator("#live", has_text="live").wait_for()
    visitor.wait_answers("/api/tasks", 2)


def test_keys_reach_the_search_the_rows_the_help_and_other_views(visit: Visit) -> None:
    page = visit().open("actors")
    page.locator("tbody tr a").first.wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.locator(".box").focus()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 1
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2
    page.keyboard.press("?")
    page.locator("#help[open]").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.locator("h1", has_text="Nodes").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"


def test_the_first_tab_stop_skips_to_the_content(visit: Visit) -> None:
    page = visit().open("nodes")
    page.locator("tbody tr").first.wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_screen_reader_finds_landmarks_names_and_orders(visit: Visit) -> None:
    page = visit().open("tasks?sort=name")
    page.locator("tbody tr").first.wait_for()
    for landmark in ("banner", "navigation", "main", "search"):
        assert page.get_by_role(landmark).count() == 1, landmark  # type: ignore[arg-type]
    assert page.get_by_role("status").get_attribute("aria-live") == "polite"
    assert page.locator("thead th:not([scope=col])").count() == 0
    assert page.locator("tbody tr > :first-child:not(th[scope=row])").count() == 0
    assert page.locator("th[aria-sort=ascending]").inner_text() == "Name"
    assert page.evaluate(NAMELESS) == []


def test_the_focus_stays_with_its_row_when_rows_come_before_it(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("tasks?filter=name=tick")
    page.locator("tbody tr a").first.wait_for()
    page.keyboard.press("r")
    page.locator(".box").focus()
    page.keyboard.press("j")
    key = page.evaluate("document.activeElement.closest('tr').dataset.key")
    visitor.wait_answers("/api/tasks", 3)
    assert page.evaluate("document.activeElement.closest('tr')?.dataset.key") == key
