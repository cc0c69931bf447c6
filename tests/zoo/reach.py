"""Which scenarios of the campaign come where in the protocol, for ``make reach``; where none comes, none sees a mistake.

    python -m tests.zoo.reach [--scenarios N] [--first SEED] [--unreached] [--output FILE]

The files of the four rooms are imported with a mark before each *stretch* of statements: what begins a block, or comes
after a statement at whose end one may not arrive (a branch, a loop, an ``await``). A stretch is called like its first line:
``minray/rpc/connection.py:120``. Written to FILE is, for each, the seeds of the scenarios that have come there;
``mutants --reach FILE`` then gives each mutant to these alone. Printed is, for each file, how many of its stretches were
reached, and with ``--unreached`` which were not.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import os
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.zoo.transplant import CHECKOUT, Function, blocks

ROOMS = ("scheduling", "raylet", "core_worker", "rpc")
MARK = "__reached__"
"""A function that is a builtin while marked modules run."""
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match)
WAITING = (ast.Await, ast.Yield, ast.YieldFrom)
Reach = dict[str, list[int]]
"""Stretch -> the seeds of the scenarios that come there."""


def all_files() -> list[str]:
    """Files of the four rooms."""
    return [str(path.relative_to(CHECKOUT)) for room in ROOMS for path in sorted((CHECKOUT / "minray" / room).rglob("*.py"))]


def beginnings(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """Blocks of functions, and where in them a stretch begins."""
    for function in [node for node in ast.walk(tree) if isinstance(node, Function)]:
        for block in _own_blocks(function):
            starts = [0, *(place + 1 for place, statement in enumerate(block[:-1]) if _may_not_pass(statement))]
            yield from ((block, start) for start in starts if not _is_docstring(block[start]))


def _own_blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """Those of a function without those of functions and classes in it."""
    inside = {
        id(block)
        for node in ast.walk(function)
        if node is not function and isinstance(node, Function | ast.ClassDef)
        for block in blocks(node)
    }
    yield from (block for block in blocks(function) if id(block) not in inside)


def _may_not_pass(statement: ast.stmt) -> bool:
    return _is_docstring(statement) or any(isinstance(node, (*BRANCHES, *WAITING, Function)) for node in ast.walk(statement))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def stretches_of(path: str) -> list[str]:
    """Stretches of a file, in order."""
    tree = ast.parse((CHECKOUT / path).read_text())
    return [f"{path}:{line}" for line in sorted({block[start].lineno for block, start in beginnings(tree)})]


def line_of(stretch: str) -> int:
    return int(stretch.rpartition(":")[2])


def stretch_at(stretches: Sequence[str], line: int) -> str:
    """Stretch of a line; ``stretches`` are those of its file."""
    return stretches[max(0, bisect_right([line_of(name) for name in stretches], line) - 1)]


class MarkingLoader(SourceFileLoader):
    """Compiles a file with its marks."""

    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.path)
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(CHECKOUT))
        for block, start in sorted(beginnings(tree), key=lambda place: -place[1]):
            mark = ast.Expr(ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(f"{name}:{block[start].lineno}")], []))
            block.insert(start, ast.copy_location(mark, block[start]))
        code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)
        return code


class MarkingFinder(MetaPathFinder):
    """Finds the modules of the four rooms."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(tuple(f"minray.{room}." for room in ROOMS)):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = MarkingLoader(name, spec.loader.path)
        return spec


reached: set[str] = set()
"""The stretches to which this process has come since it was emptied."""


def mark_what_is_imported() -> None:
    """From now on, in this process, which must not have imported minray."""
    assert "minray" not in sys.modules
    setattr(builtins, MARK, reached.add)
    sys.meta_path.insert(0, MarkingFinder())


def visit(seeds: Sequence[int]) -> None:
    """In a process of its own: print, for each seed, the stretches to which its scenario comes."""
    mark_what_is_imported()
    from tests.zoo.scenarios import CAMPAIGN, SCENARIOS

    found = {}
    for seed in seeds:
        reached.clear()
        verdict = SCENARIOS[CAMPAIGN](seed)
        assert not verdict.props, f"the scenario of seed {seed} breaks {verdict.props}: {verdict.text}"
        found[seed] = sorted(reached)
    print(json.dumps(found))


def measure(first: int, count: int) -> Reach:
    """On all cores."""
    found: Reach = {name: [] for path in all_files() for name in stretches_of(path)}
    parts = min(os.cpu_count() or 1, count)
    with ExitStack() as stack:
        processes = []
        for part in range(parts):
            text = f"from tests.zoo.reach import visit; visit(range({first + part}, {first + count}, {parts}))"
            process = subprocess.Popen([sys.executable, "-c", text], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)  # if another one has failed
            processes.append(process)
        for process in processes:
            printed, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"scenarios could not be run: a process ended with code {process.returncode}")
            for seed, names in json.loads(printed).items():
                for name in names:
                    found[name].append(int(seed))
    return {name: sorted(seeds) for name, seeds in found.items()}


def show(found: Reach, shows_unreached: bool) -> None:
    for path in all_files():
        names = [name for name in found if name.startswith(f"{path}:")]
        missing = [name for name in names if not found[name]]
        print(f"{path}: {len(names) - len(missing)} of {len(names)}")
        lines = (CHECKOUT / path).read_text().splitlines()
        for line in map(line_of, missing if shows_unreached else ()):
            print(f"  {line}: {lines[line - 1].strip()}")
    print(f"all: {sum(map(bool, found.values()))} of {len(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.reach")
    parser.add_argument("--scenarios", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--unreached", action="store_true", help="print where nobody came")
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = measure(options.first, options.scenarios)
    if options.output is not None:
        options.output.write_text(json.dumps(found))
    show(found, options.unreached)


if __name__ == "__main__":
    main()
