"""The programs of docs/policy_lab.md run, and its table is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minray.policies.making import HOOKS
from minray.policies.names import DEFAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "policy_lab.md").read_text()
HOOKS_PART = PAGE.partition("## What it costs")[0]


PROGRAMS = re.findall(r"^```python\n(.*?)^```", HOOKS_PART, re.M | re.S)


@pytest.mark.parametrize("code", PROGRAMS, ids=("question", "heft", "speeds"))
def test_the_programs_of_the_page_run(code: str) -> None:
    exec(code, {"__name__": "__main__"})


def test_the_table_of_the_page_has_all_policies() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| `(\w+)` \| (.*) \|$", HOOKS_PART, re.M)
    assert {setting: (default, others) for setting, default, others in rows} == {
        setting: (DEFAULTS[setting], ", ".join(f"`{name}`" for name in hook.built_in)) for setting, hook in HOOKS.items()
    }
