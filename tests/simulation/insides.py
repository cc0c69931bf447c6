"""Rules that look into a class's private parts, and classes whose private parts are somebody else's.

A lab asks for what a class does, not for how it does it. So when the file of a lab is run, rules that look into it are left
out (``labs.scenarios``). What it does is judged by all other rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Rule = Callable[[Any, float], Iterator[str]]
"""Gets a core worker, raylet or gcs, and the time on its clock; says what is wrong there."""
AnyRule = TypeVar("AnyRule", bound=Rule)

closed: set[str] = set()
"""Files into which no rule may look."""
_files: dict[Rule, frozenset[str]] = {}
"""Rule -> the files into which it looks, of those that labs have."""

LEASES = "minray/scheduling/local_lease_manager.py"
PULLS = "minray/object_manager/pull_manager.py"
SPILLING = "minray/raylet/local_object_manager.py"
SUBMITTER = "minray/core_worker/submission/normal_task_submitter.py"
CALLS = "minray/core_worker/submission/actor_task_submitter.py"
ACTORS = "minray/gcs/gcs_actor_manager.py"


def looks_into(*files: str) -> Callable[[AnyRule], AnyRule]:
    """Say into which of these files a rule looks."""

    def note(rule: AnyRule) -> AnyRule:
        _files[rule] = frozenset(files)
        return rule

    return note


def allowed(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the rules that look into no closed file."""
    return tuple(rule for rule in rules if not closed & _files.get(rule, frozenset())) if closed else rules
