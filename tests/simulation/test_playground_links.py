"""The links into the playground: each shows a run that exists, and whose end its chapter tells.

A link's fragment is what ``link`` in ``docs/playground/main.js`` writes: JSON in base64. It has a program of the menu or its
text, a seed, nodes and faults; or a bug of the zoo.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from minray.simulation.script import Script, Stage
from tests.zoo.in_a_page import SHOWN

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {path.stem.partition("_")[2]: path for path in (ROOT / "docs/playground/programs").glob("*.py")}
LINK = re.compile(r"\.\./playground/index\.html#([\w-]+)")
LINKS = [
    pytest.param(page, fragment, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs/learn").glob("*.md"))
    for number, fragment in enumerate(LINK.findall(page.read_text()), 1)
]


def decoded(fragment: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(base64.urlsafe_b64decode(fragment + "=" * (-len(fragment) % 4)))
    return state


@pytest.mark.parametrize(("page", "fragment"), LINKS)
def test_the_linked_run_ends_as_its_chapter_says(page: Path, fragment: str) -> None:
    state = decoded(fragment)
    name = state.get("program", "")
    if name.startswith("bug:"):
        assert name.removeprefix("bug:") in SHOWN
        return
    source = PROGRAMS[name].read_text() if name else state["source"]
    overrides = state.get("overrides")
    faults = None if overrides is None else tuple((tuple(key), answer) for key, answer in overrides)
    done = Stage(Script(source, state["seed"], state["nodes"], tuple(state.get("faults", ())), faults)).perform()
    assert not done.cluster.missed, "a fault of the link does not strike any more: aim it anew, and say so in the chapter"
    assert done.outcome == "the program has ended" or done.outcome.partition(":")[0] in page.read_text(), done.outcome


def test_there_are_links() -> None:
    assert len(LINKS) >= 6
