"""The headless Chromium of the tests that look at pages, and the reason to skip those where they cannot run.

The system installs Chromium; playwright, which drives it, belongs to the extra ``test-browser``.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATHS = [Path("/usr/bin/chromium"), Path("/usr/bin/chromium-browser"), Path("/usr/bin/google-chrome")]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def missing_chromium() -> str:
    """Return what is missing, and the remedy; empty if tests can run. Skips all of them without playwright."""
    pytest.importorskip("playwright", reason="playwright is missing: pip install 'minray[test-browser]'")
    found = any(path.exists() for path in PATHS)
    return "" if found else f"no Chromium at {', '.join(map(str, PATHS))}: apt-get install chromium"


def skip_folder(items: list[pytest.Item], folder: Path, reason: str) -> None:
    """Skip all tests below a folder."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@contextmanager
def running_chromium() -> Generator[Browser, None, None]:
    """Run a Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(path for path in PATHS if path.exists())
        browser = playwright.chromium.launch(executable_path=str(path), args=FLAGS)
        yield browser
        browser.close()
