"""docs/specification.md and the tests that state its guarantees, held together in both directions.

A test states a guarantee by its name: ``test_g7_get_times_out``, ``test_g39a_...``, ``test_c4_...``; one that states
several says so (``test_g16_g17_...``). The page gives each guarantee one of these, the canonical test: the one that reads
most like its sentence. A person chooses it. ``make specification`` writes docs/specification_trace.md, which lists all of
them, with the worlds in which they run and the faults that strike there.

Rules:

  * Tests are read off the syntax tree, so that a test inside a string is none.
  * A canonical test exists, names its guarantee, and has at most ``MOST_LINES`` lines; exceptions give their reasons.
  * No line of the page is longer than ``WIDEST``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.tidy import rules
from tests.tidy.fault_models import described, worlds

PAGE = "docs/specification.md"
TRACE = "docs/specification_trace.md"
ROW = re.compile(
    r"^\| (?P<number>[GC]\d+[a-z]?) \| (?P<sentence>.*?) \| (?P<status>[^|]*?) \| ?(?P<canonical>[^|]*?) ?\|$", re.M
)
SECTION = re.compile(r"^## (.*)$", re.M)
TEST = re.compile(r"test_(?:[gc]\d+[a-z]?_)+")
TESTED = ("tested", "partly")
MOST_LINES = 15
"""Lines from ``def`` to the end, without decorators: a reader takes them in at one look."""
WIDEST = 600
"""Characters of one line of the page: a sentence, its status and one test."""
WITHOUT_CANONICAL_TEST: dict[str, str] = {}
"""Guarantee -> why none of its tests is short and reads like its sentence."""
PREFACE = """# Where each guarantee is tested

`make specification` writes this page from the names of the tests; change the tests instead.
[The specification](specification.md) has the sentences.

After each number stands the fault model: in which worlds its tests run, and what goes wrong in them. *Alone* are parts of
minray by themselves, with what their messages and neighbours may do written out. In the *simulation* the faults are those of
[its table](simulation.md); *all quiet ones* and *a swarm* are several kinds at once. *Real* are processes of this machine.
"""


@dataclass(frozen=True)
class Row:
    """One guarantee on the page."""

    number: str
    sentence: str
    status: str
    canonical: str
    """The test that reads most like the sentence, as pytest names it; empty if there is none."""
    section: str


@dataclass(frozen=True)
class Case:
    """One test function."""

    path: str
    name: str
    numbers: frozenset[str]
    """The guarantees that its name states."""
    lines: int
    """From ``def`` to the end, without decorators."""
    world: str
    faults: frozenset[str]
    """Faults that strike in it, in the words of ``fault_models``."""

    @property
    def id(self) -> str:
        return f"{self.path}::{self.name}"


def rows(root: Path) -> list[Row]:
    text = (root / PAGE).read_text()
    sections = [(match.start(), match[1]) for match in SECTION.finditer(text)]
    found = []
    for match in ROW.finditer(text):
        section = ([name for start, name in sections if start < match.start()] or [""])[-1]
        found.append(Row(match["number"], match["sentence"], match["status"], match["canonical"].strip("`"), section))
    return found


def cases(root: Path) -> list[Case]:
    """Every test of the checkout, by path and name."""
    found = []
    for source in rules.sources(root, "tests"):
        if source.path.rpartition("/")[2].startswith("test_"):
            lengths = dict(_functions(source.tree))
            for name, world, faults in worlds(source):
                found.append(Case(source.path, name, stated(name), lengths[name], world, frozenset(faults)))
    return sorted(found, key=lambda case: (case.path, case.name))


def stated(name: str) -> frozenset[str]:
    """The guarantees that the name of a test states."""
    match = TEST.match(name + "_")
    numbers = match[0].upper().removeprefix("TEST_").strip("_").split("_") if match else []
    return frozenset(number[:-1] + number[-1].lower() for number in numbers)


def _functions(module: ast.Module) -> Iterator[tuple[str, int]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.name, node.end_lineno - node.lineno + 1


def disagreements(root: Path) -> list[str]:
    """Where the page, the trace and the tests say different things."""
    page, existing = rows(root), cases(root)
    known = {row.number for row in page}
    complaints = [f"{case.id}: there is no {number}" for case in existing for number in sorted(case.numbers - known)]
    for row in page:
        named = [case for case in existing if row.number in case.numbers]
        if bool(named) != row.status.startswith(TESTED):
            complaints.append(f"{row.number}: is `{row.status}` with {len(named)} tests")
        complaints += [f"{row.number}: {complaint}" for complaint in _about_canonical(row, named, existing)]
    if not (root / TRACE).exists() or (root / TRACE).read_text() != trace(page, existing):
        complaints.append(f"{TRACE} is not what the tests say; run make specification")
    return complaints + [
        f"{PAGE}:{number}: a line of {len(line)} characters"
        for number, line in enumerate((root / PAGE).read_text().splitlines(), 1)
        if len(line) > WIDEST
    ]


def _about_canonical(row: Row, named: list[Case], existing: list[Case]) -> Iterator[str]:
    reason = WITHOUT_CANONICAL_TEST.get(row.number)
    if not row.canonical:
        if named and not reason:
            yield "has no canonical test, and WITHOUT_CANONICAL_TEST gives no reason"
        return
    if reason:
        yield "has a canonical test, and WITHOUT_CANONICAL_TEST says that it has none"
    chosen = [case for case in existing if case.id == row.canonical]
    if not chosen:
        yield f"{row.canonical} does not exist"
    for case in chosen:
        if case not in named:
            yield f"{case.name} does not name it"
        if case.lines > MOST_LINES:
            yield f"{case.name} has {case.lines} lines, more than {MOST_LINES}"


def trace(page: list[Row], existing: list[Case]) -> str:
    """The text of the page that lists all tests of each guarantee."""
    lines = [PREFACE]
    for section, members in groupby(page, key=lambda row: row.section):
        lines.append(f"## {section}\n")
        for row in members:
            named = [case for case in existing if row.number in case.numbers]
            model = described([(case.world, set(case.faults)) for case in named])
            lines.append(f"**{row.number}** {model or row.status}\n")
            for path, of_path in groupby(named, key=lambda case: case.path):
                lines.append(f"* `{path}`")
                lines += [f"  * `{case.name}`" for case in of_path]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def write(root: Path) -> None:
    """Write the trace, and ``tested`` for what was ``not yet`` and has a test now."""
    existing = cases(root)
    tested = {number for case in existing for number in case.numbers}

    def row(match: re.Match[str]) -> str:
        return match[0].replace("| not yet |", "| tested |") if match["number"] in tested else match[0]

    page = root / PAGE
    page.write_text(ROW.sub(row, page.read_text()))
    (root / TRACE).write_text(trace(rows(root), existing))


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[2]
    if "--write" in sys.argv:
        write(checkout)
    print("\n".join(disagreements(checkout)))
