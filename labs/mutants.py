"""Grades a specification: tests that a student writes for code that is right, and that must fail on each mutant of it.

Ray: has no counterpart.

The archive holds the mutants packed (``pack``), so that nobody reads them by accident. They are no secret: who wants to can
unpack them. The student's tests run in a copy of the tree in which one file is exchanged.

Rules
  * Tests that fail on the right code earn nothing, since such tests notice no mutant.
  * A mutant is caught if any test fails. A run that ends without a report, or collects no test, catches nothing.
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from labs.contract import first_line, outcomes_of, syntax_error
from labs.lab import Specification
from labs.manifest import FOR_STUDENTS
from labs.score import Part, Tell, silent

PACKED = "mutants.txt"
"""File in the folder of the lab, in the archive alone."""
POINTS_FOR_TRUTH = 10
"""Points for tests that pass on the right code. The mutants share the rest."""


@dataclass(frozen=True)
class PackedMutant:
    """A mutant as the archive holds it."""

    clause: str
    """The part of the contract that it breaks."""
    source: str
    """The whole changed file."""


class NoMutants(Exception):
    """The lab is graded where there are no mutants: outside an archive."""


def pack(mutants: Sequence[PackedMutant]) -> str:
    table = [[mutant.clause, mutant.source] for mutant in mutants]
    return base64.encodebytes(zlib.compress(json.dumps(table).encode(), 9)).decode()


def unpack(text: str) -> list[PackedMutant]:
    table = json.loads(zlib.decompress(base64.decodebytes(text.encode())))
    return [PackedMutant(clause, source) for clause, source in table]


def check(lab: Specification, root: Path, tell: Tell = silent) -> list[Part]:
    """Return a part for the right code and one for each mutant. Raises NoMutants."""
    path = root / "labs" / lab.name / PACKED
    if not path.is_file():
        raise NoMutants(f"{path} does not exist: unpack the archive of the lab (make labs), and grade it there")
    mutants = unpack(path.read_text())
    points = (100 - POINTS_FOR_TRUTH) // len(mutants)
    with TemporaryDirectory(prefix="minray-lab-") as name:
        copy = Path(name) / "tree"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "venv", "build", "__pycache__"))
        tell("your tests run on the right code")
        parts = [_truth(copy)]
        for number, mutant in enumerate(mutants, 1):
            title = f"mutant {number} is caught"
            if not parts[0].passed:
                parts.append(Part(title, points, False, "not run: the tests fail on the right code"))
                continue
            tell(f"your tests run on mutant {number} of {len(mutants)}")
            (copy / lab.subject).write_text(mutant.source)
            parts.append(_caught(copy, title, points, mutant.clause))
    return parts


def _truth(copy: Path) -> Part:
    title = "the tests pass on the right code"
    files = sorted(path.relative_to(copy).as_posix() for path in (copy / FOR_STUDENTS).rglob("*.py"))
    broken = [error for file in files if (error := syntax_error(copy, file))]
    if broken:
        return Part(title, POINTS_FOR_TRUTH, False, "\n".join(broken))
    outcomes, trouble = outcomes_of([FOR_STUDENTS], copy)
    failing = [f"{name}: {first_line(failure)}" for name, failure in outcomes.items() if failure]
    if not outcomes:
        return Part(title, POINTS_FOR_TRUTH, False, f"there is no test in {FOR_STUDENTS}, or it cannot be run: {trouble}")
    if failing:
        return Part(title, POINTS_FOR_TRUTH, False, "\n".join(failing))
    count = f"{len(outcomes)} of {len(outcomes)}"
    return Part(title, POINTS_FOR_TRUTH, True, f"{count} test functions pass, with all their parameters")


def _caught(copy: Path, title: str, points: int, clause: str) -> Part:
    outcomes, _ = outcomes_of([FOR_STUDENTS], copy)
    failing = [name for name, failure in outcomes.items() if failure]
    if failing:
        return Part(title, points, True, f"by {failing[0]}")
    return Part(title, points, False, f"all tests pass, although it breaks {clause}")
