"""The built site in a headless Chromium: a visitor starts the cluster, searches, and reads on a narrow screen.

``make test-site`` builds the site and runs these tests.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chromium import missing_chromium, running_chromium
from tests.served import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.dashboard.browser.visitor import Visitor

ASKED = "MINRAY_TEST_SITE"
"""Environment variable with the folder of the site."""
RUN_MS = 120_000
"""Milliseconds in which the playground loads and runs its first program, on a busy machine."""
PAGES = ["index", "learn/index", "use", "install", "reference/minray", "reference/settings", "reference/commands", "404"]

if reason := missing_chromium():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def url() -> Generator[str, None, None]:
    with served(Path(os.environ[ASKED])) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Generator[Browser, None, None]:
    with running_chromium() as running:
        yield running


def visit(browser: Browser, address: str, **options: int | str) -> Visitor:
    from tests.dashboard.browser.visitor import Visitor

    return Visitor(browser, address, **options)  # type: ignore[arg-type]


@pytest.mark.timeout(300)
def test_a_click_starts_a_cluster_in_the_page(browser: Browser, url: str) -> None:
    visitor = visit(browser, url)
    assert visitor.page.locator("iframe").count() == 0, "nothing is loaded before the click"
    visitor.page.click("#start-link")
    playground = visitor.page.frame_locator("iframe.playground")
    playground.locator("#proof:not([hidden])").wait_for(timeout=RUN_MS)
    assert playground.locator("#output").text_content() == "attempt 2 has succeeded"
    assert playground.locator("#lanes").is_visible()
    assert visitor.errors == []
    visitor.close()


def test_a_narrow_screen_shows_the_playground_alone(browser: Browser, url: str) -> None:
    visitor = visit(browser, url, width=390)
    visitor.page.click("#start-link")
    visitor.page.wait_for_url(f"{url}/playground/index.html#*")
    visitor.close()


def test_a_page_that_is_a_file_says_what_to_do(browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"file://{os.environ[ASKED]}/index.html")
    page.click("#start-link")
    page.locator("#start", has_text="python -m http.server").wait_for()
    page.close()


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_search_finds_a_word_without_a_network(browser: Browser, url: str, scheme: str) -> None:
    page = browser.new_page()
    page.goto(f"{url if scheme == 'http' else f'file://{os.environ[ASKED]}'}/search.html?q=spillback")
    page.locator(".search a", has_text="Architecture").wait_for()
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window(browser: Browser, url: str, width: int, theme: str) -> None:
    visitor = visit(browser, url, width=width, theme=theme)
    wide = []
    for page in PAGES:
        visitor.page.goto(f"{url}/{page}.html")
        wide += [page] * (visitor.page.evaluate("document.scrollingElement.scrollWidth") > width)
    assert (wide, visitor.errors) == ([], [])
    visitor.close()
