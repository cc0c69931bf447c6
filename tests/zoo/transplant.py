"""Mutations of minray, located by symbol, applied to a copy of the package; programs that run on the copy.

A mutation names a module, a function in it (``LeaseBroker.give_back``), and the source of what is to be changed there:
statements that follow each other, or one expression. It is compared as a syntax tree, so that layout and comments do not
matter, and must be found exactly once: a mutation whose place has changed or gone is an error, never a silent success.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

CHECKOUT = Path(__file__).resolve().parents[2]
EXPECTED_PACKAGE = "MINRAY_ZOO_PACKAGE"
"""Environment variable: the folder that ``minray`` must have been imported from."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotTransplanted(Exception):
    """The place of a mutation is not there, or is there more than once."""


@dataclass(frozen=True)
class Mutation:
    """One change of one function."""

    module: str
    """Dotted, such as ``minray.raylet.lease_broker``."""
    symbol: str
    """``Class.function`` or ``function``."""
    fragment: str
    """Statements or an expression; found exactly once in the function."""
    replacement: str
    """What stands there instead; for statements this may be ``pass``."""

    @property
    def path(self) -> str:
        return self.module.replace(".", "/") + ".py"


@dataclass(frozen=True)
class Span:
    """A piece of a text, by offsets."""

    start: int
    end: int


def find_function(tree: ast.Module, symbol: str) -> Function:
    """The function of a dotted name; raises NotTransplanted."""
    scope: ast.AST = tree
    for name in symbol.split("."):
        found = [
            node
            for node in getattr(scope, "body", [])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if len(found) != 1:
            raise NotTransplanted(f"{symbol}: {name} is there {len(found)} times")
        scope = found[0]
    if not isinstance(scope, Function):
        raise NotTransplanted(f"{symbol} is not a function")
    return scope


def mutate(source: str, mutation: Mutation) -> str:
    """The text of a module with the mutation in it."""
    function = find_function(ast.parse(source), mutation.symbol)
    wanted = ast.parse(textwrap.dedent(mutation.fragment).strip()).body
    places = list(_statements(function, wanted))
    if not places and len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        places = [[node] for node in ast.walk(function) if _same(node, wanted[0].value)]
    if len(places) != 1:
        raise NotTransplanted(f"{mutation.module}:{mutation.symbol}: found {len(places)} times: {mutation.fragment}")
    span = span_of(source, places[0])
    column = getattr(places[0][0], "col_offset", 0)
    replacement = textwrap.dedent(mutation.replacement).strip().replace("\n", "\n" + " " * column)
    mutated = source[: span.start] + replacement + source[span.end :]
    if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
        raise NotTransplanted(f"{mutation.module}:{mutation.symbol}: changes nothing")
    return mutated


def _statements(function: Function, wanted: Sequence[ast.stmt]) -> Iterator[list[ast.AST]]:
    """All runs of neighbouring statements that are the wanted ones."""
    for block in blocks(function):
        for start in range(len(block) - len(wanted) + 1):
            run = block[start : start + len(wanted)]
            if all(_same(one, other) for one, other in zip(run, wanted, strict=True)):
                yield list(run)


def blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements in a function, its nested ones included."""
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _same(one: ast.AST, other: ast.AST) -> bool:
    return type(one) is type(other) and ast.dump(one) == ast.dump(other)


def span_of(source: str, nodes: Sequence[ast.AST]) -> Span:
    """Where nodes that follow each other stand in their source."""
    lines = source.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    first, last = nodes[0], nodes[-1]
    assert isinstance(first, ast.stmt | ast.expr) and isinstance(last, ast.stmt | ast.expr)
    assert last.end_lineno is not None and last.end_col_offset is not None
    return Span(offset(first.lineno, first.col_offset), offset(last.end_lineno, last.end_col_offset))


@contextmanager
def transplanted(mutations: Sequence[Mutation] = (), folders: Sequence[str] = ("minray",)) -> Iterator[Path]:
    """A folder with a copy of the package (and of other folders of the checkout) that has the mutations in it."""
    with TemporaryDirectory(prefix="minray-zoo-") as name:
        root = Path(name)
        for folder in folders:
            shutil.copytree(CHECKOUT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        for mutation in mutations:
            path = root / mutation.path
            path.write_text(mutate(path.read_text(), mutation))
        yield root


def run_python(root: Path, arguments: Sequence[str], timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy's ``minray``, and whatever else the checkout has."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(CHECKOUT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        EXPECTED_PACKAGE: str(root / "minray"),
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout_s)


def assert_transplanted() -> None:
    """In the program that runs: this is the copy, if there is to be one."""
    import minray

    expected = os.environ.get(EXPECTED_PACKAGE)
    assert minray.__file__ is not None
    actual = Path(minray.__file__).resolve().parent
    assert expected is None or actual == Path(expected).resolve(), f"minray is that of {actual}, not of {expected}"
