"""Compares the page docs/one_scenario.md with the run that happens today."""

from __future__ import annotations

from tests.spec import one_scenario


def test_the_page_tells_the_run_that_happens_today() -> None:
    """If this fails: write the page with ``python -m tests.spec.one_scenario``, and review the changes."""
    page = one_scenario.PAGE.read_text()
    names = [match["name"] for match in one_scenario.BLOCK.finditer(page)]
    assert sorted(names) == sorted(one_scenario.parts())
    assert one_scenario.filled(page) == page
