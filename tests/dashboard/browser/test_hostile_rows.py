"""Names, errors and lines of logs are text: those that look like HTML run nowhere, and hidden marks are seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.dashboard.browser.visitor import NARROW, Visitor

Visit = Callable[..., Visitor]
PLACES = {
    "overview": "onerror", "waits": "onerror", "nodes?all=1": "onerror", "actors?all=1": "onerror", "tasks?all=1": "onerror",
    "placement_groups?all=1": "onerror", "timeline": "tick", "actors?search=nnnnnn": "10,000 characters",
    "tasks?search=nnnnnn&all=1": "10,000 characters",
}  # fmt: skip
"""View -> text of the attacker that it shows as text."""


@pytest.mark.parametrize(("view", "text"), PLACES.items())
@pytest.mark.parametrize("width", [1280, NARROW])
def test_markup_of_users_is_shown_as_text(visit: Visit, view: str, text: str, width: int) -> None:
    page = visit(width=width).open(view)
    page.locator("main", has_text=text).wait_for()
    assert page.locator("main img, main script, main iframe").count() == 0


@pytest.mark.parametrize(("search", "text"), [("onerror", "RuntimeError: <img src=x"), ("nnnnn", "n" * 1000)])
def test_the_page_of_a_failed_task_shows_the_error(visit: Visit, search: str, text: str) -> None:
    page = visit(width=NARROW).open(f"tasks?filter=state=FAILED&search={search}")
    page.locator("tbody tr a").first.click()
    page.locator("pre", has_text=text).wait_for()


def test_marks_that_turn_text_round_are_shown_by_their_numbers(visit: Visit) -> None:
    page = visit().open("actors?search=fdp.exe")
    page.locator("tbody", has_text="⟨U+202E⟩fdp.exe").wait_for()
    page.locator("tbody tr a").first.click()
    page.locator("main", has_text="⟨U+202E⟩fdp.exe").wait_for()


def test_a_log_shows_markup_and_no_escape_sequences(visit: Visit) -> None:
    page = visit().open("logs?search=worker")
    page.locator("tbody tr a").first.wait_for()
    links = page.locator("tbody tr a[href^='#/logs/']")
    addresses = links.evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    shown = []
    for address in addresses:
        page.goto(f"{page.url.split('#')[0]}{address}")
        page.locator(".counts", has_text="lines").wait_for()
        shown.append(page.locator(".log").inner_text())
    text = "\n".join(shown)
    assert "onerror" in text and "\x1b" not in text and "\u202e" not in text


NOWHERE = [
    "nowhere", "nowhere/<img src=x onerror=window.ran=1>", "actors/zz", "tasks?filter=nothing=1", "actors?offset=-1",
    "logs/x/y", "%zz",
]  # fmt: skip


@pytest.mark.parametrize("hash", NOWHERE)
def test_an_address_that_leads_nowhere_says_so(visit: Visit, hash: str) -> None:
    visitor = visit()
    page = visitor.open(hash)
    page.locator(".trouble, .missing:not([hidden])").first.wait_for()
    visitor.errors[:] = [error for error in visitor.errors if "Failed to load resource" not in error]  # The browser's own.
