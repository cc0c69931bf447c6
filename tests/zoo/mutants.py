"""Small general mistakes in the protocol files, and whether anything notices; ``make mutants`` runs this.

    python -m tests.zoo.mutants [--by JUDGE...] [--minutes M] [--seeds N] [--guarantees GLOB] [--files FILE...]
    python -m tests.zoo.mutants --sample N [--without OPERATOR...] [--reach FILE] ...

The first form goes through each of the files. The second draws N mutants of all files together, one of each file and
operator in turn. Without ``--files`` these are all files of the four rooms.

An operator looks at the syntax tree of a function and lists changes; each change is one mutant. A mutant is *killed* if one
of three judges notices it, in this order:
  * the tests of its room
  * the scenario ``mix``, or a scenario of the campaign, with one of N seeds
  * the guarantees that are tested in the simulated cluster
Mutants that survive are printed as diffs. They are tried in an order drawn once, one of each operator in turn, so that a run
which the clock cuts short has tried a fair sample. All guarantees take four minutes. ``--guarantees`` names those that may
concern the file; ``test_guarantees*.py`` are all of them.

``--by campaign --seeds 2000`` measures the campaign alone. With ``--reach FILE``, which ``tests.zoo.reach`` has written, a
mutant is given only to N of the scenarios that reach it. Scenarios that reach the rarest places go first, since a rare
mistake needs rare events.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median_low

from tests.zoo.reach import ROOMS, Reach, all_files, line_of, stretch_at, stretches_of
from tests.zoo.scenarios import CAMPAIGN
from tests.zoo.transplant import CHECKOUT, Function, blocks, run_python, span_of, transplanted

DEFAULT_FILES = ("minray/raylet/lease_broker.py", "minray/core_worker/execution/task_receiver.py")
COPIED = ("minray", "tests")
ALL_GUARANTEES = "test_guarantees*.py"
TESTS_TIMEOUT_S = 120.0
SCENARIO_TIMEOUT_S = 120.0
GUARANTEES_TIMEOUT_S = 1200.0
NAMES_OF_LIVES = ("lease_id", "attempt", "incarnation", "sequence", "worker_id", "epoch", "worker", "acknowledged")
"""Comparisons of these tell one life of a thing from another."""
REPLIES = ("reply", "fail", "set_result", "set_exception")
RELEASES = ("release", "end", "forget", "unwatch", "stop_waiting", "cancel", "close", "withdraw", "return_lease")
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)

ACTING = (ast.Call, ast.Await, ast.Yield, ast.Delete)
"""Statements that may do more than read and bind names."""

Change = tuple[list[ast.AST], str]
"""Nodes that follow each other, and the text that shall stand there."""
Operator = Callable[[Function], Iterator[Change]]


def _called(statement: ast.AST) -> str:
    """The last name of what a statement calls; empty if it is no lone call."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call):
        return ast.unparse(call.func).rpartition(".")[2]
    return ""


def _statements(function: ast.AST) -> Iterator[ast.stmt]:
    for block in blocks(function):
        yield from block


def drop_await(function: ast.AST) -> Iterator[Change]:
    for statement in _statements(function):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Await):
            yield [statement], "pass"


def swap(function: ast.AST) -> Iterator[Change]:
    """Two neighbours; among others, what is said before what it says is noted. Constructors only note things."""
    if isinstance(function, Function) and function.name == "__init__":
        return
    for block in blocks(function):
        for first, second in zip(block, block[1:], strict=False):
            docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if isinstance(first, SIMPLE) and isinstance(second, SIMPLE) and not docstring and not _commute(first, second):
                yield [first, second], f"{ast.unparse(second)}\n{ast.unparse(first)}"


def _commute(first: ast.stmt, second: ast.stmt) -> bool:
    """Assignments of different things which call nothing and do not read each other's: their order means nothing."""
    stores: list[set[str]] = []
    loads: list[set[str]] = []
    for statement in (first, second):
        nodes = list(ast.walk(statement))
        entries = [node for node in nodes if isinstance(node, ast.Subscript)]
        if any(isinstance(node, ACTING) for node in nodes) or not _only_written(entries, statement):
            return False
        tables = [entry.value for entry in entries]
        named = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and node not in tables]
        stores.append({ast.unparse(node) for node in named if isinstance(node.ctx, ast.Store)} | {*map(ast.unparse, tables)})
        loads.append({ast.unparse(node) for node in named if isinstance(node.ctx, ast.Load)})
        if isinstance(statement, ast.AugAssign):
            loads[-1] |= stores[-1]
    return not (stores[0] & (stores[1] | loads[1]) or stores[1] & loads[0])


def _only_written(entries: list[ast.Subscript], statement: ast.stmt) -> bool:
    """To read an entry of a table may fail."""
    return not entries or (isinstance(statement, ast.Assign) and all(isinstance(entry.ctx, ast.Store) for entry in entries))


def drop_early_return(function: ast.AST) -> Iterator[Change]:
    for statement in _statements(function):
        if isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], ast.Return):
            yield [statement.body[-1]], "pass"


def keep_entry(function: ast.AST) -> Iterator[Change]:
    """``del table[key]`` and ``table.pop(key)``."""
    for statement in _statements(function):
        if isinstance(statement, ast.Delete) or _called(statement) in ("pop", "discard", "remove", "clear", "popleft"):
            yield [statement], "pass"


def drop_comparison(function: ast.AST) -> Iterator[Change]:
    """The comparison of two lives always has the more frequent outcome."""
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and not isinstance(node.comparators[-1], ast.Constant):
            names = {ast.unparse(side).rpartition(".")[2] for side in (node.left, *node.comparators)}
            if names & set(NAMES_OF_LIVES):
                yield [node], str(isinstance(node.ops[0], ast.Eq | ast.Is | ast.GtE | ast.Gt))


def drop_reply(function: ast.AST) -> Iterator[Change]:
    for statement in _statements(function):
        if _called(statement) in REPLIES:
            yield [statement], "pass"


def reply_first(function: ast.AST) -> Iterator[Change]:
    """A reply comes before all simple statements that lead to it; before one of them is a ``swap``."""
    for block in blocks(function):
        for index, statement in enumerate(block):
            start = index
            while start > 0 and isinstance(block[start - 1], SIMPLE):
                start -= 1
            if index - start > 1 and _called(statement).lstrip("_") in (*REPLIES, "answer", "send"):
                before = "\n".join(map(ast.unparse, block[start:index]))
                yield list(block[start : index + 1]), f"{ast.unparse(statement)}\n{before}"


def swallow_error(function: ast.AST) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Raise):
            yield [node], "pass"
        elif isinstance(node, ast.ExceptHandler) and not all(isinstance(one, ast.Pass) for one in node.body):
            yield list(node.body), "pass"


def keep_held(function: ast.AST) -> Iterator[Change]:
    """A release that does not happen, in ``finally`` or elsewhere."""
    for statement in _statements(function):
        if _called(statement).lstrip("_") in RELEASES:
            yield [statement], "pass"
    for node in ast.walk(function):
        if isinstance(node, ast.Try) and node.finalbody:
            yield list(node.finalbody), "pass"


def negate_guard(function: ast.AST) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            yield [node.test], f"not ({ast.unparse(node.test)})"


OPERATORS: tuple[Operator, ...] = (
    drop_await, swap, drop_early_return, keep_entry, drop_comparison, drop_reply, reply_first, swallow_error, keep_held,
    negate_guard,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One file with one mistake."""

    path: str
    operator: str
    line: int
    text: str


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a file; each changes what the file means, and they differ from each other."""
    tree = ast.parse(source)
    found: dict[str, Mutant] = {}
    unchanged = ast.dump(tree)
    for function in ast.walk(tree):
        if isinstance(function, Function):
            for operator in OPERATORS:
                for nodes, replacement in operator(function):
                    mutant = _applied(path, source, operator.__name__, nodes, replacement)
                    meaning = ast.dump(ast.parse(mutant.text))
                    if meaning != unchanged:
                        found.setdefault(meaning, mutant)
    return list(found.values())


def _applied(path: str, source: str, operator: str, nodes: list[ast.AST], replacement: str) -> Mutant:
    span = span_of(source, nodes)
    column = span.start - source.rfind("\n", 0, span.start) - 1
    replaced = replacement.replace("\n", "\n" + " " * column)
    text = source[: span.start] + replaced + source[span.end :]
    return Mutant(path, operator, source.count("\n", 0, span.start) + 1, text)


def killer(root: Path, mutant: Mutant, options: argparse.Namespace) -> str:
    """Judge that notices the mutant, in a copy of the checkout; empty if none does."""
    path = root / mutant.path
    source = path.read_text()
    try:
        path.write_text(mutant.text)
        judged = (JUDGES[name](root, mutant, options) for name in JUDGES if name in options.by)
        return next(filter(None, judged), "")
    except subprocess.TimeoutExpired:
        return "the clock"
    finally:
        path.write_text(source)


def by_tests(root: Path, mutant: Mutant, options: argparse.Namespace) -> str:
    """First those of its file, then all of its room."""
    room = root / "tests" / mutant.path.split("/")[1]
    own = sorted(room.glob(f"test_{Path(mutant.path).stem}*.py"))
    return "" if _pass(root, own) and _pass(root, [room]) else "tests"


def by_scenario(name: str, root: Path, mutant: Mutant, options: argparse.Namespace) -> str:
    seeds = f"0:{options.seeds}"
    if name == CAMPAIGN and options.reach:
        coming = seeds_that_reach(mutant, options.reach)[: options.seeds]
        if not coming:
            return ""
        seeds = ",".join(map(str, coming))
    arguments = ["-m", "tests.zoo.catch", name, seeds]
    done = run_python(root, arguments, SCENARIO_TIMEOUT_S + options.seeds)
    if done.returncode != 0:
        return f"{name}, by an exception"
    seed = json.loads(done.stdout.splitlines()[-1])["seed"]
    return "" if seed is None else f"{name}, seed {seed}"


def seeds_that_reach(mutant: Mutant, reach: Reach) -> list[int]:
    """Seeds of the campaign's scenarios that reach the mutant's stretch."""
    stretches = sorted((name for name in reach if name.startswith(f"{mutant.path}:")), key=line_of)
    return reach[stretch_at(stretches, mutant.line)] if stretches else []


def by_guarantees(root: Path, mutant: Mutant, options: argparse.Namespace) -> str:
    files = sorted(root.glob(f"tests/simulation/{options.guarantees}"))
    return "" if _pass(root, files, GUARANTEES_TIMEOUT_S) else "guarantees"


JUDGES: dict[str, Callable[[Path, Mutant, argparse.Namespace], str]] = {
    "tests": by_tests,
    "mix": partial(by_scenario, "mix"),
    "campaign": partial(by_scenario, CAMPAIGN),
    "guarantees": by_guarantees,
}
"""In the order in which they are asked."""


def _pass(root: Path, tests: Sequence[Path], timeout_s: float = TESTS_TIMEOUT_S) -> bool:
    """Whether these files and folders of tests pass, if there are any."""
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--timeout", "30"]
    names = [str(test.relative_to(root)) for test in tests]
    return not names or run_python(root, ["-m", "pytest", *options, *names], timeout_s).returncode == 0


def in_turns(mutants: list[Mutant]) -> list[Mutant]:
    """One of each file and operator, then the next of each, and so on: the frequent ones do not crowd out the others."""
    place: Counter[tuple[str, str]] = Counter()
    turns = []
    for mutant in mutants:
        kind = mutant.path, mutant.operator
        turns.append(place[kind])
        place[kind] += 1
    return [mutants[index] for index in sorted(range(len(mutants)), key=turns.__getitem__)]


def diff(mutant: Mutant, source: str) -> str:
    lines = difflib.unified_diff(source.splitlines(), mutant.text.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])


class Score:
    """Results of the mutants that were tried."""

    def __init__(self) -> None:
        self.killed: Counter[str] = Counter()
        """Judge -> number of mutants that it noticed."""
        self.seeds: list[int] = []
        """Seeds of the scenarios that have noticed mutants."""
        self.by: Counter[tuple[str, bool]] = Counter()
        """(operator or room, whether it was killed) -> count"""
        self.survivors = 0

    def add(self, mutant: Mutant, found: str, source: str, reach: Reach | None) -> None:
        """Count one and print it, in full if it has survived."""
        for name in (mutant.operator, mutant.path.split("/")[1]):
            self.by[name, bool(found)] += 1
        what, _, seed = found.partition(", seed ")
        if found:
            self.killed[what] += 1
            self.seeds += [int(seed)] if seed else []
            print(f"killed: {mutant.path}:{mutant.line} {mutant.operator}, by {found}", flush=True)
        else:
            self.survivors += 1
            never = ", where no scenario comes" if reach and not seeds_that_reach(mutant, reach) else ""
            print(f"--- survived: {mutant.path}:{mutant.line} {mutant.operator}{never}\n{diff(mutant, source)}", flush=True)

    def show(self, what: str, in_all: int) -> None:
        tried = self.survivors + self.killed.total()
        print(f"{what}: {self.killed.total()} of {tried} killed ({dict(self.killed)}); {in_all} mutants in all")
        if self.seeds:
            print(f"  seeds of the scenarios that noticed them: median {median_low(self.seeds)}, greatest {max(self.seeds)}")
        for name in (*(function.__name__ for function in OPERATORS), *ROOMS):
            dead, alive = self.by[name, True], self.by[name, False]
            if dead + alive:
                print(f"  {name:<20} {dead} of {dead + alive}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.mutants")
    parser.add_argument("--minutes", type=float, default=20.0, help="for each file, or the sample; none is begun after that")
    parser.add_argument("--by", nargs="+", choices=JUDGES, default=tuple(JUDGES), help="who is asked; default: all")
    parser.add_argument("--seeds", type=int, default=30, help="runs of a scenario for each mutant")
    names = [operator.__name__ for operator in OPERATORS]
    parser.add_argument("--without", nargs="+", choices=names, default=(), metavar="OPERATOR", help="make no such mutants")
    parser.add_argument("--reach", type=read_reach, default=None, metavar="FILE", help="which scenarios come where")
    parser.add_argument("--guarantees", default=ALL_GUARANTEES, help="files of tests/simulation; default: %(default)s")
    parser.add_argument("--sample", type=int, default=0, help="so many of all files together")
    parser.add_argument("--files", nargs="+", default=(), help=f"default: {DEFAULT_FILES}, or all with --sample")
    options = parser.parse_args()
    for file in options.files:
        if file.split("/")[:1] != ["minray"] or file.split("/")[1] not in ROOMS:
            parser.error(f"{file} is in none of the rooms {', '.join(ROOMS)}")
    with transplanted(folders=COPIED) as root:
        for name in ("setup.cfg", "pyproject.toml"):
            (root / name).write_text((CHECKOUT / name).read_text())
        if options.sample:
            judge_sample(root, options.files or all_files(), options.sample, options)
        for file in () if options.sample else options.files or DEFAULT_FILES:
            judge_sample(root, [file], len((root / file).read_text()), options)
    return 0


def read_reach(path: str) -> Reach:
    """Raises ArgumentTypeError if it cannot be read, or is that of other code."""
    try:
        found: Reach = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error}") from None
    if found.keys() != {name for file in all_files() for name in stretches_of(file)}:
        raise argparse.ArgumentTypeError(f"{path} was measured with other code; measure again")
    return rarest_first(found)


def rarest_first(found: Reach) -> Reach:
    """Order the scenarios of each stretch: first those that reach stretches which few others reach."""
    rarity: Counter[int] = Counter()
    for seeds in found.values():
        for seed in seeds:
            rarity[seed] += round(1_000_000 / len(seeds))
    return {name: sorted(seeds, key=lambda seed: (-rarity[seed], seed)) for name, seeds in found.items()}


def judge_sample(root: Path, files: Sequence[str], most: int, options: argparse.Namespace) -> None:
    """Try at most ``most`` mutants of these files, and print the results."""
    sources = {file: (root / file).read_text() for file in files}
    found = [mutant for file, source in sources.items() for mutant in mutants_of(file, source)]
    mutants = [mutant for mutant in found if mutant.operator not in options.without]
    Random(0).shuffle(mutants)
    chosen = in_turns(mutants)[:most]
    deadline = time.monotonic() + 60 * options.minutes
    score = Score()
    for mutant in chosen:
        if time.monotonic() > deadline:
            break
        score.add(mutant, killer(root, mutant, options), sources[mutant.path], options.reach)
    score.show(", ".join(files) if len(files) < 4 else f"{len(files)} files", len(mutants))


if __name__ == "__main__":
    sys.exit(main())
