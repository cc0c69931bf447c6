"""Mutations of minray, located by symbol, applied to a copy of the package, on which programs run, or to this process.

A mutation names a module, a function in it (``LeaseBroker.give_back``), and the source of the part to change. That is
statements that follow each other, or one expression. The source is compared as a syntax tree, so that layout and comments
do not matter. It must be found exactly once: a mutation whose place has changed or gone is an error, never a silent success.
"""

from __future__ import annotations

import ast
import importlib
import inspect
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
from types import CodeType, FunctionType
from typing import Any

from tests.syntax import Function, NoSuchFunction, find_function

CHECKOUT = Path(__file__).resolve().parents[2]
EXPECTED_PACKAGE = "MINRAY_ZOO_PACKAGE"
"""Environment variable: the folder that ``minray`` must have been imported from."""


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
    """The source that replaces it; for statements this may be ``pass``."""

    @property
    def path(self) -> str:
        return self.module.replace(".", "/") + ".py"


@dataclass(frozen=True)
class Span:
    """A piece of a text, by offsets."""

    start: int
    end: int


def mutate(source: str, mutation: Mutation) -> str:
    """The text of a module with the mutation in it."""
    try:
        function = find_function(ast.parse(source), mutation.symbol)
    except NoSuchFunction as error:
        raise NotTransplanted(f"{mutation.module}: {error}") from None
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


# --- In this process


@contextmanager
def planted(mutations: Sequence[Mutation]) -> Iterator[None]:
    """Run the functions of this process with the mutations in them, inside this context.

    A function gets another code, and stays the same object. So every holder of it runs the mutation, by whatever name, and
    ``super()`` works. Raises NotTransplanted if more than the code would have to change.
    """
    codes = _mutated_codes(mutations)
    own = [(function, function.__code__) for function, _ in codes]
    try:
        for function, code in codes:
            function.__code__ = code
        yield
    finally:
        for function, code in own:
            function.__code__ = code


def _mutated_codes(mutations: Sequence[Mutation]) -> list[tuple[FunctionType, CodeType]]:
    """Each function that is mutated, with what it runs then."""
    sources: dict[str, str] = {}
    for mutation in mutations:
        source = sources.get(mutation.module) or (CHECKOUT / mutation.path).read_text()
        sources[mutation.module] = mutated = mutate(source, mutation)
        if _head(mutated, mutation.symbol) != _head(source, mutation.symbol):
            raise NotTransplanted(f"{mutation.module}:{mutation.symbol}: its decorators and defaults have been used already")
    codes = []
    for module, symbol in dict.fromkeys((mutation.module, mutation.symbol) for mutation in mutations):
        function = _function_of(module, symbol)
        code = _code_of(compile(sources[module], function.__code__.co_filename, "exec", dont_inherit=True), symbol)
        if (code.co_freevars, code.co_flags) != (function.__code__.co_freevars, function.__code__.co_flags):
            raise NotTransplanted(f"{module}:{symbol}: it has other free variables, or is no more of the same kind")
        codes.append((function, code))
    return codes


def _head(source: str, symbol: str) -> list[str]:
    function = find_function(ast.parse(source), symbol)
    return [ast.dump(node) for node in (function.args, *function.decorator_list)]


def _function_of(module: str, symbol: str) -> FunctionType:
    """Function that a dotted name stands for, without its wrappers."""
    found: Any = importlib.import_module(module)
    for name in symbol.split("."):
        found = inspect.getattr_static(found, name)
    found = inspect.unwrap(getattr(found, "fget", getattr(found, "__func__", found)))
    if not isinstance(found, FunctionType) or found.__code__.co_qualname != symbol:
        raise NotTransplanted(f"{module}:{symbol} is {found!r}, not the function that is written there")
    return found


def _code_of(code: CodeType, symbol: str) -> CodeType:
    """Code of a function, out of its module's code."""
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for constant in nested:
        if constant.co_qualname == symbol:
            return constant
        if symbol.startswith(constant.co_qualname + "."):
            return _code_of(constant, symbol)
    raise NotTransplanted(f"{symbol} is not compiled")
