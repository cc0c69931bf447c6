"""Checks the map from the claims of papers to lines: each file, class, function and test that it names is there.

A claim is an item of a list. The items beneath it name files with what they define (``path/to/file.py`` ``Class.method``),
and tests (``tests/path.py::test_name``). Names are looked up in the file's syntax tree, so nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PAGE = "docs/learn/papers.md"
QUOTED = re.compile(r"`([^`]+)`")


@dataclass
class Claim:
    """A claim of a paper, with what the page names beneath it."""

    line: int
    """Number of its first line."""
    names: list[tuple[str, str]] = field(default_factory=list)
    """(file, dotted name in it); the name is empty for the file itself."""
    tests: list[tuple[str, str]] = field(default_factory=list)
    """(file, name of a function in it)."""


def claims(text: str) -> Iterator[Claim]:
    """Yield the claims of the page in order."""
    claim: Claim | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("* "):
            if claim is not None:
                yield claim
            claim = Claim(number)
        elif line.startswith("  * ") and claim is not None:
            path = ""
            for word in QUOTED.findall(line):
                file, is_test, name = word.partition("::")
                if is_test:
                    claim.tests.append((file, name))
                elif word.endswith(".py"):
                    path = word
                    claim.names.append((path, ""))
                else:
                    claim.names.append((path, word))
    if claim is not None:
        yield claim


@cache
def defined(path: Path) -> set[str]:
    """Dotted names of the classes and functions that a file defines, at its top and in classes."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(path.read_text()).body, "")
    return found


def complaints(root: Path) -> list[str]:
    """Return complaints about names that are not there, and about claims without a file or a test."""
    found = []
    for claim in claims((root / PAGE).read_text()):
        where = f"{PAGE}:{claim.line}"
        if not claim.names:
            found.append(f"{where}: no file")
        if not claim.tests:
            found.append(f"{where}: no test")
        for path, name in claim.names + claim.tests:
            if not path.endswith(".py"):
                found.append(f"{where}: {name} has no file before it")
            elif not (root / path).is_file():
                found.append(f"{where}: {path} does not exist")
            elif name and name not in defined(root / path):
                found.append(f"{where}: {path} has no {name}")
    return found
