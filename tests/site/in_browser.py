"""The built site in Chromium and in Firefox: a visitor starts the cluster, searches, and reads on a narrow screen.

``make test-site`` builds the site and runs these tests. Without a Firefox its tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.chromium import missing_chromium, running_chromium
from tests.firefox import NAMED, path_of_firefox
from tests.helpers import wait_for_condition
from tests.served import served

if reason := missing_chromium():
    pytest.skip(reason, allow_module_level=True)

from tests.site.readers import Reader, reading_in_chromium, reading_in_firefox

ASKED = "MINRAY_TEST_SITE"
"""Environment variable with the folder of the site."""
WAIT_S = 30
"""Seconds in which a page shows what is expected, on a busy machine."""
RUN_S = 120
"""Seconds in which the playground loads and runs its first program, on a busy machine."""
PAGES = ["index", "learn/index", "use", "install", "reference/minray", "reference/settings", "reference/commands", "404"]
PLAYGROUND = "document.querySelector('iframe.playground')"
IN_PLAYGROUND = f"{PLAYGROUND}.contentDocument.querySelector"
Reading = Callable[..., AbstractContextManager[Reader]]


@pytest.fixture(scope="module")
def url() -> Generator[str, None, None]:
    with served(Path(os.environ[ASKED])) as address:
        yield address


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest) -> Generator[Reading, None, None]:
    """Opens a reader of a width and a theme, in one of the browsers."""
    if request.param == "chromium":
        with running_chromium() as running:
            yield partial(reading_in_chromium, running)
    elif (path := path_of_firefox()) is None:
        pytest.skip(f"no Firefox: apt-get install firefox-esr, or set {NAMED}")
    else:
        yield partial(reading_in_firefox, path)


@pytest.mark.timeout(300)
def test_a_click_starts_a_cluster_in_the_page(browser: Reading, url: str) -> None:
    with browser() as reader:
        reader.go(f"{url}/index.html")
        assert reader.value(PLAYGROUND) is None, "nothing is loaded before the click"
        reader.click("#start-link")
        has_run = f"{PLAYGROUND}?.contentDocument.querySelector('#proof:not([hidden])') != null"
        wait_for_condition(lambda: reader.value(has_run), RUN_S, "the playground shows no run")
        assert reader.value(f"{IN_PLAYGROUND}('#output').textContent") == "attempt 2 has succeeded"
        assert reader.value(f"{IN_PLAYGROUND}('#lanes').checkVisibility()")
        assert reader.errors(url) == []


def test_a_narrow_screen_shows_the_playground_alone(browser: Reading, url: str) -> None:
    with browser(width=390) as reader:
        reader.go(f"{url}/index.html")
        reader.click("#start-link")
        wait_for_condition(lambda: reader.address().startswith(f"{url}/playground/index.html#"), WAIT_S, "no playground")
        shows_book = "document.querySelector('#book:not([hidden])') != null"
        wait_for_condition(lambda: reader.value(shows_book), WAIT_S, "no way back to the book")
        reader.click("#book a")
        wait_for_condition(lambda: reader.address() == f"{url}/index.html", WAIT_S, "the way back leads elsewhere")


def test_a_page_that_is_a_file_says_what_to_do(browser: Reading) -> None:
    with browser() as reader:
        reader.go(f"file://{os.environ[ASKED]}/index.html")
        reader.click("#start-link")
        assert "python -m http.server" in reader.value("document.getElementById('start').textContent")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_search_finds_a_word_without_a_network(browser: Reading, url: str, scheme: str) -> None:
    with browser() as reader:
        reader.go(f"{url if scheme == 'http' else f'file://{os.environ[ASKED]}'}/search.html?q=spillback")
        found = "[...document.querySelectorAll('.search a')].some((link) => link.textContent.includes('Architecture'))"
        wait_for_condition(lambda: reader.value(found), WAIT_S, "the search does not find Architecture")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window(browser: Reading, url: str, width: int, theme: str) -> None:
    with browser(width=width, theme=theme) as reader:
        wide = []
        for page in PAGES:
            reader.go(f"{url}/{page}.html")
            assert reader.value("innerWidth") == width
            assert reader.value(f"matchMedia('(prefers-color-scheme: {theme})').matches")
            wide += [page] * (reader.value("document.scrollingElement.scrollWidth") > width)
        assert (wide, reader.errors(url)) == ([], [])
