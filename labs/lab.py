"""A lab as its ``lab.toml`` describes it: the holes, the clauses of the contract, the scenarios.

Ray: has no counterpart.

There are three kinds. In a *hole* the student writes functions, and tests judge them. In a *specification* the student
writes tests, and mutants judge them (``labs/mutants.py``); its ``lab.toml`` has a ``subject``, the file that they are about.
In *stories* the student answers questions about runs (``labs/stories.py``); its ``lab.toml`` has the number of ``stories``.

    title = "The lease manager"
    file = "minray/scheduling/local_lease_manager.py"
    write = ["LocalLeaseManager.assign"]        # functions whose bodies the student writes
    remove = ["LocalLeaseManager._rank"]        # private helpers that the starter does not have

    [scenarios]                                 # consecutive seeds of the campaign (tests/spec)
    first = 0
    count = 200
    size = "medium"

    [[clause]]                                  # its points count if all its tests pass
    name = "..."
    points = 10
    tests = ["tests/scheduling/test_local_lease_manager.py::test_..."]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the unpacked archive, that this file belongs to."""
CLAUSE_POINTS = 55
"""Points of all clauses together. A solution that breaks a scenario has no more than these, which is below 60."""
SCENARIO_POINTS = 100 - CLAUSE_POINTS
"""Points for scenarios, all of which must pass."""


@dataclass(frozen=True)
class Clause:
    """One promise of the contract, and the tests that check it."""

    name: str
    points: int
    tests: tuple[str, ...]
    """Files, or tests in files (``path::name``), without parameters."""


@dataclass(frozen=True)
class Scenarios:
    """Consecutive seeds of the campaign."""

    first: int
    count: int
    size: str

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class Lab:
    """One lab of any kind."""

    name: str
    """Name of its folder, such as ``01-lease-manager``."""
    title: str
    file: str
    """The file that the student writes, relative to the root."""

    @property
    def test_files(self) -> list[str]:
        """Return the test files that are handed out for this lab."""
        return []


@dataclass(frozen=True)
class Specification(Lab):
    """A lab in which the student writes tests."""

    subject: str
    """The file that the tests are about, of which there are mutants."""


@dataclass(frozen=True)
class Stories(Lab):
    """A lab in which the student finds mistakes of minray from pages of runs."""

    stories: int
    """Number of pages."""


@dataclass(frozen=True)
class Hole(Lab):
    """A lab in which the student writes functions."""

    write: tuple[str, ...]
    """Dotted names of the functions that the student writes."""
    remove: tuple[str, ...]
    """Dotted names of the functions that the starter does not have."""
    scenarios: Scenarios
    clauses: tuple[Clause, ...]

    @property
    def test_files(self) -> list[str]:
        """Return the test files of all clauses, each once."""
        return list(dict.fromkeys(test.partition("::")[0] for clause in self.clauses for test in clause.tests))


class NoSuchLab(Exception):
    """A name that is none of a lab's."""


def names(root: Path = ROOT) -> list[str]:
    """Return the names of all labs, in their order."""
    return sorted(path.parent.name for path in (root / "labs").glob("*/lab.toml"))


def load(name: str, root: Path = ROOT) -> Lab:
    """Read a lab. Raises NoSuchLab with the names that there are."""
    path = root / "labs" / name / "lab.toml"
    if not path.is_file():
        raise NoSuchLab(f"there is no lab {name!r} in {root / 'labs'}; there are: {', '.join(names(root))}")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "subject" in table:
        return Specification(name, table["title"], table["file"], table["subject"])
    if "stories" in table:
        return Stories(name, table["title"], table["file"], table["stories"])
    return _hole(name, table)


def _hole(name: str, table: dict[str, Any]) -> Hole:
    clauses = tuple(Clause(entry["name"], entry["points"], tuple(entry["tests"])) for entry in table["clause"])
    total = sum(clause.points for clause in clauses)
    if total != CLAUSE_POINTS:
        raise ValueError(f"lab {name}: its clauses have {total} points together, not {CLAUSE_POINTS}: change lab.toml")
    return Hole(
        name=name,
        title=table["title"],
        file=table["file"],
        write=tuple(table["write"]),
        remove=tuple(table["remove"]),
        scenarios=Scenarios(**table["scenarios"]),
        clauses=clauses,
    )
