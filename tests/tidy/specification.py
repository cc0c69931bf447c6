"""docs/specification.md and the tests that state its guarantees, held together in both directions.

A test states a guarantee by its name: ``test_g7_get_times_out``, ``test_g39a_...``, ``test_c4_...``; one that states
several says so (``test_g16_g17_...``). ``make specification`` writes these names into the table's last column, and before
it where they are tested and under which faults; the statuses stay a person's judgement, except that ``not yet`` becomes
``tested`` with the first test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.tidy import rules
from tests.tidy.fault_models import described, worlds

PAGE = "docs/specification.md"
ROW = re.compile(
    r"^\| (?P<number>[GC]\d+[a-z]?) \| (?P<sentence>.*?) \| (?P<status>[^|]*?) \| ?(?P<faults>[^|]*?) ?"
    r"\| ?(?P<tests>[^|]*?) ?\|$",
    re.M,
)
TEST = re.compile(r"test_(?:[gc]\d+[a-z]?_)+")
TESTED = ("tested", "partly")


@dataclass(frozen=True)
class Row:
    """One guarantee."""

    number: str
    sentence: str
    status: str
    faults: str
    """Where it is tested, and what goes wrong there."""
    tests: tuple[str, ...]
    """Names of tests, as written in the table."""


def rows(root: Path) -> list[Row]:
    found = ROW.finditer((root / PAGE).read_text())
    names = re.compile(r"`(\w+)`")
    return [Row(m["number"], m["sentence"], m["status"], m["faults"], tuple(names.findall(m["tests"]))) for m in found]


def tests(root: Path) -> dict[str, set[str]]:
    """The name of every test -> the guarantees that it names."""
    found: dict[str, set[str]] = {}
    for source in rules.sources(root, "tests"):
        if source.path.rpartition("/")[2].startswith("test_"):
            for name in re.findall(r"^ *(?:async )?def (test_\w+)", source.text, re.M):
                match = TEST.match(name + "_")
                numbers = match[0].upper().removeprefix("TEST_").strip("_").split("_") if match else []
                found[name] = {number[:-1] + number[-1].lower() for number in numbers}
    return found


def fault_models(root: Path) -> dict[str, list[tuple[str, set[str]]]]:
    """The name of every test -> the worlds in which there is one, each with its faults."""
    found: dict[str, list[tuple[str, set[str]]]] = {}
    for source in rules.sources(root, "tests"):
        if source.path.rpartition("/")[2].startswith("test_"):
            for name, world, faults in worlds(source.path, source.text):
                found.setdefault(name, []).append((world, faults))
    return found


def _fault_model(names: Iterable[str], models: dict[str, list[tuple[str, set[str]]]]) -> str:
    return described([each for name in names for each in models.get(name, [])])


def disagreements(root: Path) -> list[str]:
    """What the page and the tests say differently."""
    page, existing = rows(root), tests(root)
    known = {row.number for row in page}
    complaints = [f"{row.number}: {name} does not exist" for row in page for name in row.tests if name not in existing]
    for name, numbers in sorted(existing.items()):
        complaints += [f"{name}: there is no {number}" for number in sorted(numbers - known)]
        unlisted = [row.number for row in page if row.number in numbers and name not in row.tests]
        complaints += [f"{number}: does not list {name}" for number in unlisted]
    models = fault_models(root)
    for row in page:
        if row.faults != _fault_model(row.tests, models):
            complaints.append(f"{row.number}: is tested {_fault_model(row.tests, models)}; run make specification")
        if bool(row.tests) != row.status.startswith(TESTED):
            complaints.append(f"{row.number}: is `{row.status}` with {len(row.tests)} tests")
    return complaints


def write(root: Path) -> None:
    """Bring the last column up to date: tests that name the guarantee, then those listed by hand that still exist."""
    existing, models = tests(root), fault_models(root)

    def row(match: re.Match[str]) -> str:
        by_name = sorted(name for name, numbers in existing.items() if match["number"] in numbers)
        by_hand = [name for name in re.findall(r"`(\w+)`", match["tests"]) if name in existing and name not in by_name]
        status = "tested" if by_name and not match["status"].startswith(TESTED) else match["status"]
        names = by_name + by_hand
        listed = ", ".join(f"`{name}`" for name in names)
        return f"| {match['number']} | {match['sentence']} | {status} | {_fault_model(names, models)} | {listed} |"

    page = root / PAGE
    page.write_text(ROW.sub(row, page.read_text()))


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[2]
    if "--write" in sys.argv:
        write(checkout)
    print("\n".join(disagreements(checkout)))
