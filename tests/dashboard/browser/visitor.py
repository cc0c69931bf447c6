"""A person at the dashboard, in a browser without a window: what is seen, and what must never happen.

Each page counts, from its first moment on, the errors of its scripts, what its security policy refused, the elements that
moved by themselves, and requests to other hosts. ``Visitor.check`` fails if there are any.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

pytest.importorskip("playwright", reason="playwright is missing: pip install 'minray[test-browser]'")

TIMEOUT_MS = 20_000
WIDE, NARROW = 1280, 390
WATCH = Path(__file__).with_name("watch.js").read_text()
OVERFLOW = "() => [document.scrollingElement.scrollWidth, innerWidth]"
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text()


class Visitor:
    """One page, and what went wrong on it."""

    def __init__(
        self, browser: Browser, url: str, width: int = WIDE, theme: str = "light", motion: str = "no-preference"
    ) -> None:
        """Visit the address with the token, which sets the cookie."""
        self.origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        self.context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=theme, reduced_motion=motion, locale="en-GB"
        )  # type: ignore[arg-type]
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.add_init_script(WATCH)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[Request] = []
        self.page.on("console", self._on_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.goto(url)

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def open(self, view: str, title: str = "") -> Page:
        """Open a view, and wait until its heading is there."""
        self.page.goto(f"{self.origin}/#/{view}")
        heading = self.page.locator("h1", has_text=title) if title else self.page.locator("h1")
        heading.wait_for()
        return self.page

    def wait_answers(self, path: str, count: int) -> None:
        """Wait until the server has answered the page so often from now on."""
        for _ in range(count):
            with self.page.expect_response(lambda response: urlsplit(response.url).path == path):
                pass

    def ask_again(self, path: str) -> None:
        """Make the view ask again, as if it had news, and wait for the answer. A real key would excuse what moves."""
        with self.page.expect_response(lambda response: urlsplit(response.url).path == path):
            self.page.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'r', bubbles: true }))")

    def forget_moves(self) -> None:
        """Begin to count anew what moves: what comes before is a view that opens."""
        self.page.evaluate("window.moved.length = 0")

    def moves(self) -> list[Any]:
        found: list[Any] = self.page.evaluate("window.moved")
        return found

    def check(self) -> None:
        """Fail if a script failed or was foreign, something was refused, another host was asked, or the page overflows."""
        assert self.errors == []
        assert self.page.evaluate("window.refused") == []
        assert self.page.evaluate("typeof window.ran") == "undefined"
        others = {request.url for request in self.requests if not request.url.startswith(self.origin)}
        assert others == set()
        width, room = self.page.evaluate(OVERFLOW)
        assert width <= room, f"the page is {width} pixels wide in a window of {room}"

    def faint_texts(self) -> list[str]:
        """Return the texts whose contrast with their ground is below 4.5."""
        found: list[str] = self.page.evaluate(CONTRASTS)
        return found

    def close(self) -> None:
        self.context.close()
