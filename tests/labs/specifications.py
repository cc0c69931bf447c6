"""Specifications of the reference counter for lab 6: minray's own tests of it, whole and in parts that are too weak.

A specification is one file that needs no other test file. So only tests of one process are taken from minray's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from labs.lab import ROOT

REAL = ROOT / "tests/core_worker/test_reference_counter.py"
FAILS = """

def test_an_unknown_object_is_known(counter: ReferenceCounter) -> None:
    assert len(counter)
"""


def tests_of_one_process(is_wanted: Callable[[str], bool]) -> str:
    """Return minray's tests whose names are wanted, with what stands before them, as a file that needs no other."""
    tree = ast.parse(REAL.read_text())
    tree.body = [statement for statement in tree.body if _stays(statement, is_wanted)]
    return ast.unparse(tree) + "\n"


def _stays(statement: ast.stmt, is_wanted: Callable[[str], bool]) -> bool:
    if isinstance(statement, ast.FunctionDef):
        has_other_processes = any(word in ast.unparse(statement) for word in ("Cluster", "cluster"))
        return not has_other_processes and (not statement.name.startswith("test_") or is_wanted(statement.name))
    return not (isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("tests."))


WHOLE = tests_of_one_process(lambda name: True)
WEAK = {
    "of one process that lends nothing": tests_of_one_process(lambda name: "g60" in name or "pinned" in name),
    "of an owner to whom nothing is repeated": tests_of_one_process(lambda name: "g58" in name or "dropp" in name),
    "of lineage alone": tests_of_one_process(lambda name: "g67" in name),
    "with one test that is wrong": WHOLE + FAILS,
}
"""Student's thought -> tests that catch too few mutants."""
