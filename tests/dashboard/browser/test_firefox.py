"""Each view once in Firefox, at both widths and in both themes: it shows its rows, fits, and can be read."""

from __future__ import annotations

import base64
import os
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.dashboard.browser.test_views import VIEWS
from tests.dashboard.browser.visitor import CONTRASTS, NARROW, WIDE
from tests.firefox import NAMED, Firefox, path_of_firefox
from tests.helpers import wait_for_condition

PATH = path_of_firefox()
pytestmark = pytest.mark.skipif(PATH is None, reason=f"no Firefox: apt-get install firefox-esr, or set {NAMED}")
WAIT_S = 30
"""Seconds in which a view shows its rows on a busy machine."""
PICTURES = "MINRAY_TEST_PICTURES"
"""Environment variable with a folder for a picture of each view."""
NOTE_TROUBLE = """
const trouble = (window.wrappedJSObject ?? window).document.trouble = [];
document.trouble = trouble;
addEventListener("securitypolicyviolation", (event) => trouble.push(`${event.violatedDirective} ${event.blockedURI}`));
addEventListener("error", (event) => trouble.push(event.message));
addEventListener("unhandledrejection", (event) => trouble.push(String(event.reason)));
"""
WITH_TEXT = """
const [selector, text] = arguments;
return [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text));
"""


class Look(NamedTuple):
    """A browser at the dashboard, and how it looks at it."""

    firefox: Firefox
    origin: str
    name: str


@pytest.fixture(scope="module", params=[(WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")], ids=str)
def look(request: pytest.FixtureRequest, url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Look, None, None]:
    assert PATH is not None
    width, theme = request.param
    with Firefox(PATH, tmp_path_factory.mktemp("firefox"), width, theme) as firefox:
        firefox.command("WebDriver:Navigate", url=url)
        assert firefox.run("return innerWidth") == width
        firefox.run(NOTE_TROUBLE)
        yield Look(firefox, url.partition("/?")[0], f"{width}_{theme}")


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_view_shows_its_rows_and_can_be_read(look: Look, view) -> None:  # type: ignore[no-untyped-def]
    firefox = look.firefox
    firefox.run("location.hash = arguments[0]", f"#/{view.name}")
    selector, _, text = view.shows.removesuffix("')").partition(":has-text('")
    wait_for_condition(lambda: firefox.run(WITH_TEXT, "h1", view.title), WAIT_S, "no heading")
    wait_for_condition(lambda: firefox.run(WITH_TEXT, selector, text), WAIT_S, f"no {view.shows}")
    if os.environ.get(PICTURES):
        picture = firefox.command("WebDriver:TakeScreenshot", full=False)["value"]
        Path(os.environ[PICTURES], f"{look.name}_{view.name}.png").write_bytes(base64.b64decode(picture))
    assert firefox.run(f"return ({CONTRASTS})()") == []
    assert firefox.run("return document.trouble") == []
    assert firefox.run("return document.scrollingElement.scrollWidth - innerWidth") <= 0
