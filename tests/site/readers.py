"""A reader of the site, in a headless Chromium or in a headless Firefox: what the tests of the built site do in both.

playwright drives Chromium (``tests.dashboard.browser.visitor``), and Marionette drives Firefox (``tests.firefox``).
A reader has only what both can do: it goes to an address, clicks, and asks the page for the value of an expression.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from tests.dashboard.browser.visitor import WIDE, Visitor
from tests.firefox import Firefox

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""Name under which WebDriver says which element it has found."""
SCRIPT_ERRORS = """
return Services.console.getMessageArray()
  .filter((one) => one instanceof Ci.nsIScriptError && !(one.flags & Ci.nsIScriptError.warningFlag))
  .filter((one) => one.sourceName.startsWith(arguments[0]))
  .map((one) => one.errorMessage);
"""


class Reader(Protocol):
    """A browser with one page."""

    def go(self, address: str) -> None:
        """Load a page."""

    def click(self, selector: str) -> None:
        """Click an element that is visible."""

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""

    def address(self) -> str:
        """Return the address of the page."""

    def errors(self, site: str) -> list[str]:
        """Return the errors of the scripts of a site so far."""


class InChromium:
    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor

    def go(self, address: str) -> None:
        self._visitor.page.goto(address)

    def click(self, selector: str) -> None:
        self._visitor.page.click(selector)

    def value(self, expression: str) -> Any:
        return self._visitor.page.evaluate(expression)

    def address(self) -> str:
        return self._visitor.page.url

    def errors(self, site: str) -> list[str]:
        return self._visitor.errors  # It visits no other site.


class InFirefox:
    def __init__(self, firefox: Firefox) -> None:
        self._firefox = firefox

    def go(self, address: str) -> None:
        self._firefox.command("WebDriver:Navigate", url=address)

    def click(self, selector: str) -> None:
        found = self._firefox.command("WebDriver:FindElement", using="css selector", value=selector)["value"]
        self._firefox.command("WebDriver:ElementClick", id=found[ELEMENT])

    def value(self, expression: str) -> Any:
        return self._firefox.run(f"return ({expression})")

    def address(self) -> str:
        return str(self._firefox.command("WebDriver:GetCurrentURL")["value"])

    def errors(self, site: str) -> list[str]:
        self._firefox.command("Marionette:SetContext", value="chrome")
        found: list[str] = self._firefox.run(SCRIPT_ERRORS, site)
        self._firefox.command("Marionette:SetContext", value="content")
        return found


@contextmanager
def reading_in_chromium(browser: Browser, width: int = WIDE, theme: str = "light") -> Generator[Reader, None, None]:
    visitor = Visitor(browser, "about:blank", width, theme)
    yield InChromium(visitor)
    visitor.close()


@contextmanager
def reading_in_firefox(path: Path, width: int = WIDE, theme: str = "light") -> Generator[Reader, None, None]:
    with TemporaryDirectory() as profile, Firefox(path, Path(profile), width, theme) as firefox:
        yield InFirefox(firefox)
