"""The playground's site, served on this machine, and browsers that visit it.

``make test-playground`` builds the site and runs these tests. They need Chromium, and playwright, of the extra
``test-browser``. ``test_firefox.py`` needs a Firefox, and is skipped without one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.chromium import missing_chromium, running_chromium, skip_folder
from tests.served import served

if TYPE_CHECKING:
    from tests.dashboard.browser.visitor import Visitor

pytest.register_assert_rewrite("tests.dashboard.browser.visitor")  # It tells what went wrong on a page.
ASKED = "MINRAY_TEST_PLAYGROUND"
"""Environment variable with the folder of the site; without it the tests are skipped."""
READY_MS = 120_000
"""Milliseconds for the page to load Python and minray; a busy machine takes half a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder unless they are asked for and can run."""
    if reason := missing():
        skip_folder(items, Path(__file__).parent, reason)


def missing() -> str:
    if not os.environ.get(ASKED):
        return f"run by make test-playground, which builds the site and sets {ASKED}"
    return missing_chromium()


@pytest.fixture(scope="session")
def url() -> Generator[str, None, None]:
    with served(Path(os.environ[ASKED])) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Generator[Any, None, None]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def visit(browser: Any, url: str) -> Generator[Callable[..., Visitor], None, None]:
    """Make visitors of the page. They are checked at the end of the file: no script failed, no other host was asked.

    A page loads Python and minray, which takes seconds, so tests share pages where they can.
    """
    from tests.dashboard.browser.visitor import Visitor

    visitors: list[Visitor] = []

    def make(path: str = "index.html", **options: Any) -> Visitor:
        visitor = Visitor(browser, f"{url}/{path}", **options)
        visitors.append(visitor)
        if path.startswith("index.html"):
            visitor.page.locator("#state", has_text="Ready").wait_for(timeout=READY_MS)
        return visitor

    yield make
    try:
        for visitor in visitors:
            visitor.check()
    finally:
        for visitor in visitors:
            visitor.close()
