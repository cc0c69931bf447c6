"""The links of the chapters into the playground: every run can be had, and ends as its link's title says, if it has one."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minray.simulation.script import Script, Stage
from tests.zoo import in_a_page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r'\.\./playground/index\.html#(?P<state>[\w-]+)(?:" title="(?P<outcome>[^"]*)")?')
LINKS = [
    pytest.param(link["state"], link["outcome"], id=path.stem)
    for path in sorted((ROOT / "docs/learn").glob("*.md"))
    for link in LINK.finditer(path.read_text())
]


def state_of(encoded: str) -> dict[str, Any]:
    """The page's state in a link, as ``readLink`` of docs/playground/main.js decodes it."""
    state: dict[str, Any] = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return state


def program(name: str) -> str:
    (path,) = (ROOT / "docs/playground/programs").glob(f"[0-9][0-9]_{name}.py")
    return path.read_text()


@pytest.mark.parametrize(("encoded", "outcome"), LINKS)
def test_the_run_ends_as_the_link_says(encoded: str, outcome: str | None) -> None:
    state = state_of(encoded)
    state.pop("event", None)
    name = state.pop("program", "")
    if name.startswith("bug:"):
        wish = {"name": name.removeprefix("bug:"), "planted": state.get("planted", True)}
        ended = json.loads(in_a_page.show(json.dumps(wish)))["outcome"]
    else:
        fields = {**state, "source": state.get("source") or program(name)}
        done = Stage(msgspec.convert(fields, Script)).perform()
        assert not done.cluster.missed
        ended = done.outcome
    assert outcome is None or ended.startswith(outcome)
