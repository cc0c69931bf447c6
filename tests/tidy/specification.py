"""docs/specification.md and the tests that state its guarantees, held together in both directions.

A test states a guarantee by its name: ``test_g7_get_times_out``, ``test_g39a_...``, ``test_c4_...``; one that states
several says so (``test_g16_g17_...``). ``make specification`` writes these names into the table's last column; the
statuses stay a person's judgement, except that ``not yet`` becomes ``tested`` with the first test.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tidy import rules

PAGE = "docs/specification.md"
ROW = re.compile(
    r"^\| (?P<number>[GC]\d+[a-z]?) \| (?P<sentence>.*?) \| (?P<status>[^|]*?) \| ?(?P<tests>[^|]*?) ?\|$", re.M
)
TEST = re.compile(r"test_(?:[gc]\d+[a-z]?_)+")
TESTED = ("tested", "partly")


@dataclass(frozen=True)
class Row:
    """One guarantee."""

    number: str
    sentence: str
    status: str
    tests: tuple[str, ...]
    """Names of tests, as written in the table."""


def rows(root: Path) -> list[Row]:
    found = ROW.finditer((root / PAGE).read_text())
    return [Row(m["number"], m["sentence"], m["status"], tuple(re.findall(r"`(\w+)`", m["tests"]))) for m in found]


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


def disagreements(root: Path) -> list[str]:
    """What the page and the tests say differently."""
    page, existing = rows(root), tests(root)
    known = {row.number for row in page}
    complaints = [f"{row.number}: {name} does not exist" for row in page for name in row.tests if name not in existing]
    for name, numbers in sorted(existing.items()):
        complaints += [f"{name}: there is no {number}" for number in sorted(numbers - known)]
        unlisted = [row.number for row in page if row.number in numbers and name not in row.tests]
        complaints += [f"{number}: does not list {name}" for number in unlisted]
    for row in page:
        if bool(row.tests) != row.status.startswith(TESTED):
            complaints.append(f"{row.number}: is `{row.status}` with {len(row.tests)} tests")
    return complaints


def write(root: Path) -> None:
    """Bring the last column up to date: tests that name the guarantee, then those listed by hand that still exist."""
    existing = tests(root)

    def row(match: re.Match[str]) -> str:
        by_name = sorted(name for name, numbers in existing.items() if match["number"] in numbers)
        by_hand = [name for name in re.findall(r"`(\w+)`", match["tests"]) if name in existing and name not in by_name]
        status = "tested" if by_name and not match["status"].startswith(TESTED) else match["status"]
        names = ", ".join(f"`{name}`" for name in by_name + by_hand)
        return f"| {match['number']} | {match['sentence']} | {status} | {names} |"

    page = root / PAGE
    page.write_text(ROW.sub(row, page.read_text()))


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[2]
    if "--write" in sys.argv:
        write(checkout)
    print("\n".join(disagreements(checkout)))
