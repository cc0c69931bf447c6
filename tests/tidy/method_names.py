"""The rule that a method's name leads a reader to few places: a verb that many classes of one process have gets a noun.

``begin_wait`` can be searched for and followed, ``begin`` cannot. A name may stand in three classes of a process, or in more
with a reason in ``SHARED``. Not counted are private methods, which only their own file calls, the members of a
``Protocol``, which names a role, and the real side of the seam, whose names are those of ``minray/platform/base.py``.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.tidy import rules

PROCESSES = ("gcs", "raylet", "core_worker")
"""Rooms of one kind of process each. Its classes are those of all files that the room needs."""
MOST_CLASSES = 3
"""Most classes of one process that have a public method of the same name."""
SHARED = {
    **dict.fromkeys(
        [("core_worker", "choose_node"), ("gcs", "choose_node"), ("raylet", "choose_node")],
        "each scheduling policy answers the same question, and a process asks the one that its configuration names",
    ),
    ("core_worker", "close"): "a part ends as the process does, and only what has made the part calls it",
    ("core_worker", "is_idle"): "a worker is idle if its parts are: each asks those below the same question",
    ("core_worker", "is_wanted"): "an object is wanted if one of its users says so: each asks those below the same question",
    ("core_worker", "job_id"): "the name that Ray gives to this part of an id, in four of its classes",
    ("core_worker", "run"): "a call of an actor goes through its group to the place where the group runs calls",
    ("gcs", "close"): "as in the core worker",
    ("gcs", "get"): "each table gives a row by its key, as a dictionary does",
    ("gcs", "load"): "each table reads its rows when the gcs starts, one after the other",
    ("gcs", "on_committed"): "each table hears that its rows are stored",
    ("raylet", "assign"): "each queue with a pool has one, which decides without waiting and returns what is to be done",
    ("raylet", "close"): "as in the core worker",
    ("raylet", "start"): "a part that has a loop begins as the raylet does, and ends with ``close``",
}
"""(process, name) -> why more than three classes have it."""


def method_names(root: Path, shared: dict[tuple[str, str], str] | None = None) -> list[str]:
    """A public method's name stands in at most three classes of one process, or there is a reason."""
    shared = SHARED if shared is None else shared
    modules = {source.module: source for source in rules.sources(root)}
    complaints, used = [], set()
    for process in PROCESSES:
        for name, places in _classes_by_method(_needed_by(process, modules)).items():
            if len(places) > MOST_CLASSES:
                used.add((process, name))
                if (process, name) not in shared:
                    where = f"{len(places)} classes of the {process}: {', '.join(sorted(places))}"
                    complaints.append(f"{name} stands in {where}")
    unused = sorted(shared.keys() - used)
    return complaints + [f"{name}: few classes of the {process} have it now" for process, name in unused]


def _needed_by(room: str, modules: dict[str, rules.Source]) -> list[rules.Source]:
    """Return the files of a room, and all that they import, directly or not."""
    needed: dict[str, rules.Source] = {}
    waiting = [source for name, source in modules.items() if f"{name}.".startswith(f"minray.{room}.")]
    while waiting:
        source = waiting.pop()
        if source.path not in needed:
            needed[source.path] = source
            waiting += [target for _, target in rules.imports_of_ours(source, modules)]
    return list(needed.values())


def _classes_by_method(sources: list[rules.Source]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and not _is_protocol(node):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                        found.setdefault(member.name, set()).add(node.name)
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0].rpartition(".")[2] == "Protocol" for base in node.bases)
