"""Grades the lab in which a student finds mistakes from pages of runs: what is broken, at which event, in which function.

Ray: has no counterpart.

The archive has pages of runs of minray with a mistake in it, and the hashes of right answers. A page is made when the
archive is made (``tests/labs/stories.py``), so it cannot drift from the code.

Rules
  * An answer is hashed with the digest of its page and its question as salt, by a function that is slow on purpose. So
    nobody reads an answer by accident. A program that tries all functions of minray finds them in some minutes.
  * An event counts if it is at most ``NEAR`` events from the one at which the run leaves the right path.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labs.lab import Stories
from labs.manifest import digest_of
from labs.score import Part

ANSWERS = "hashes.json"
"""File with the hashes of the right answers, in the folder of the lab, in the archive alone."""
ROUNDS = 100_000
"""Rounds of the hash: a twentieth of a second for each guess."""
NEAR = 3
"""Number of events by which an answer may miss: a reader cannot tell events of one moment apart."""
AT_END = "at end of document"
"""Words of ``tomllib`` about a mistake in the last line. It tells the number of any other line."""
POINTS = {"guarantee": 5, "event": 7, "function": 8}
"""Question -> points for it, in each story."""
ASKED = {
    "guarantee": "the guarantee that is broken",
    "event": "the event at which the run leaves the right path",
    "function": "the function that is wrong",
}


@dataclass(frozen=True)
class Answer:
    """The right answers about one story."""

    guarantee: str
    event: int
    functions: tuple[str, ...]
    """Functions of which any is right."""

    def accepted(self) -> dict[str, list[str]]:
        """Return the texts that are right for each question."""
        near = range(max(1, self.event - NEAR), self.event + NEAR + 1)
        return {"guarantee": [self.guarantee], "event": [str(number) for number in near], "function": list(self.functions)}


class NoStories(Exception):
    """The lab is graded where there are no pages: outside an archive."""


def page_of(root: Path, lab: Stories, number: int) -> Path:
    return root / "labs" / lab.name / f"story-{number}.html"


def write_hashes(root: Path, lab: Stories, answers: Iterable[Answer]) -> None:
    """Write the hashes of the right answers beside the pages, which must be there."""
    table = {}
    for number, answer in enumerate(answers, 1):
        salt = digest_of(page_of(root, lab, number))
        accepted = answer.accepted().items()
        table[key_of(number)] = {asked: sorted(hashed(text, salt, asked) for text in texts) for asked, texts in accepted}
    (root / "labs" / lab.name / ANSWERS).write_text(json.dumps(table, indent=1) + "\n")


def hashed(answer: str, salt: str, asked: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", answer.encode(), f"{salt} {asked}".encode(), ROUNDS).hex()


def key_of(number: int) -> str:
    return f"story-{number}"


def check(lab: Stories, root: Path) -> list[Part]:
    """Return a part for each question about each story. Raises NoStories."""
    path = root / "labs" / lab.name / ANSWERS
    if not path.is_file():
        raise NoStories(f"{path} does not exist: unpack the archive of the lab (make labs), and grade it there")
    right = json.loads(path.read_text())
    try:
        given = tomllib.loads((root / lab.file).read_text())
    except (OSError, ValueError) as error:
        reason = f"{lab.file} cannot be read: {error}".replace(AT_END, f"in the last line, {_last_line(root / lab.file)}")
        return [Part("the answers", sum(POINTS.values()) * lab.stories, False, reason)]
    parts = []
    for number in range(1, lab.stories + 1):
        salt = digest_of(page_of(root, lab, number))
        table = given.get(key_of(number), {})
        for asked, points in POINTS.items():
            answer = table.get(asked) if isinstance(table, dict) else None
            accepted = right[key_of(number)][asked]
            passed = _is_answer(asked, answer) and hashed(str(answer).strip(), salt, asked) in accepted
            reason = _reason(lab, number, asked, answer, passed)
            parts.append(Part(f"story {number}: {ASKED[asked]}", points, passed, reason))
    return parts


def _last_line(path: Path) -> int:
    """Return the number of the last line that is not blank; 0 if there is none."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)


def _is_answer(asked: str, answer: object) -> bool:
    return type(answer) is int if asked == "event" else isinstance(answer, str) and bool(answer.strip())


def _reason(lab: Stories, number: int, asked: str, answer: object, passed: bool) -> str:
    if passed:
        return f"{answer} is right"
    if answer is None or answer == "" or asked == "event" and answer == -1:
        return f"not answered: write it into {lab.file}, table [{key_of(number)}]"
    if not _is_answer(asked, answer):
        return f"{asked} must be {'a number' if asked == 'event' else 'a text in quotes'}, got {answer!r}: mend {lab.file}"
    return f"{answer} is wrong"
