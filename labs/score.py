"""The score of a submission, with its reasons, and the formats in which others read it.

Ray: has no counterpart.

A score has parts: one for each clause of the contract, and one for the scenarios. A part has all its points or none,
because a protocol that is right in most runs is wrong. There is no clock in it: the same file gets the same text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Tell = Callable[[str], object]
"""Function that tells the student what the grader does, one line at a time. The score does not depend on it."""


def silent(line: str) -> None:
    """Tell nothing."""


@dataclass(frozen=True)
class Part:
    """One line of a score."""

    name: str
    points: int
    """Points that it has if it passes."""
    passed: bool
    reason: str
    """Sentences about what was checked or has failed, and what to do."""
    link: str = ""
    """Address at which the playground shows the failure, of some kilobytes; empty: there is none."""

    @property
    def earned(self) -> int:
        return self.points if self.passed else 0

    def line(self) -> str:
        """Return the part's outcome without its reason."""
        return f"{'pass' if self.passed else 'FAIL'} {self.earned:3} of {self.points:2}  {self.name}"


@dataclass(frozen=True)
class Score:
    """The result of one grading."""

    lab: str
    parts: list[Part]
    notes: list[str] = field(default_factory=list)
    """Remarks for the teacher: the manifest's digest, files that were edited."""

    @property
    def points(self) -> int:
        return sum(part.earned for part in self.parts)

    @property
    def most(self) -> int:
        return sum(part.points for part in self.parts)

    def text(self) -> str:
        """Return the score for a terminal."""
        lines = [f"lab {self.lab}: {self.points} of {self.most} points"]
        for part in self.parts:
            lines.append(f"  {part.line()}")
            lines += [f"         {line}" for line in part.reason.splitlines()]
            lines += ["         the playground runs it: --link FILE writes the link"] if part.link else []
        return "\n".join([*lines, *self.notes])

    def gradescope(self) -> str:
        """Return the score as Gradescope's ``results.json``."""
        tests: list[dict[str, Any]] = [
            {
                "name": part.name,
                "number": str(number),
                "score": part.earned,
                "max_score": part.points,
                "status": "passed" if part.passed else "failed",
                "output": _with_link(part),
                "visibility": "visible",
            }
            for number, part in enumerate(self.parts, 1)
        ]
        table = {"score": self.points, "output": "\n".join(self.notes), "visibility": "visible", "tests": tests}
        return json.dumps(table, indent=1) + "\n"

    def classroom(self) -> str:
        """Return the score as GitHub Classroom's reporter reads it: JSON in base64, from an environment variable."""
        tests = [
            {
                "name": part.name,
                "status": "pass" if part.passed else "fail",
                "score": part.earned,
                "message": _with_link(part),
                "test_code": f"python -m labs.grade {self.lab}",
                "filename": "",
                "line_no": 0,
                "execution_time": 0,
            }
            for part in self.parts
        ]
        status = "pass" if self.points == self.most else "fail"
        table = {"version": 1, "status": status, "max_score": self.most, "tests": tests}
        return base64.b64encode(json.dumps(table).encode()).decode()


def _with_link(part: Part) -> str:
    return f"{part.reason}\nthe playground runs it: {part.link}" if part.link else part.reason
