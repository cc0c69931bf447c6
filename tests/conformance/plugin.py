"""For pytest, when Ray is in minray's place: the table of known differences says which tests must fail there.

A test of the table that passes is a failure, so that the table stays true, unless Ray does otherwise only at times. One
that would wait for ever, or end the run, is not run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "differences_from_ray.md"
HEAD = "| tests | in Ray | decided |"


def differences() -> dict[str, str]:
    """From the name of a test, with ``[...]`` for one of its cases, to what Ray does instead."""
    table = PAGE.read_text().partition(HEAD)[2].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("| `")]
    return {name: instead for names, instead, _ in rows for name in re.findall(r"`(test_[^`]+)`", names)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = differences()
    for item in items:
        instead = known.get(item.name) or known.get(getattr(item, "originalname", ""))
        if instead is not None and instead.endswith("not run"):
            item.add_marker(pytest.mark.skip(reason=instead))
        elif instead is not None:
            item.add_marker(pytest.mark.xfail(strict=not instead.startswith("at times"), reason=instead))
