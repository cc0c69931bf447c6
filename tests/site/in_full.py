"""Every program and command that a page shows, run: ``make test-docs``. All pages together take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site import pages

SHOWING = [page for page in pages.pages() if pages.steps(page, (pages.ROOT / page).read_text())]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SHOWING)
def test_the_page_shows_what_happens(page: str, tmp_path: Path) -> None:
    assert pages.run_page(page, tmp_path) == []
