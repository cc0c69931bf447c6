"""Checks the map from the claims of papers to lines: each file, class, function and test that it names is there.

A row of a table has a claim, then files with the names defined in them (``path/to/file.py`` ``Class.method``), then tests
(``tests/path.py::test_name``). Names are looked up in the file's syntax tree, so nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PAGE = "docs/learn/papers.md"
HEADER = ["claim", "file and names", "test"]
QUOTED = re.compile(r"`([^`]+)`")


def rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row of the page's tables, without heads."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if [cell.strip(" |") for cell in cells] != HEADER:
                yield number, cells


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
    """Return complaints about names that are not there, and about rows without a file or a test."""
    found = []
    for line, cells in rows((root / PAGE).read_text()):
        if len(cells) != len(HEADER):
            found.append(f"{PAGE}:{line}: a row has {len(HEADER)} cells, this one {len(cells)}")
            continue
        files, tests = QUOTED.findall(cells[1]), [name.partition("::") for name in QUOTED.findall(cells[2])]
        if not files or not files[0].endswith(".py"):
            found.append(f"{PAGE}:{line}: the second cell begins with no file")
        if not tests:
            found.append(f"{PAGE}:{line}: no test")
        wanted = [(path, name) for path, _, name in tests]
        path = ""
        for word in files:
            path, name = (word, "") if word.endswith(".py") else (path, word)
            wanted.append((path, name))
        for path, name in wanted:
            if not (root / path).is_file():
                found.append(f"{PAGE}:{line}: {path} does not exist")
            elif name and name not in defined(root / path):
                found.append(f"{PAGE}:{line}: {path} has no {name}")
    return found
