"""Keeps the faults that have made a test fail in a file, so that later runs try them first.

Ray: has no counterpart.

A file belongs to one test (or program) and is JSON: ``{"test": "test_jobs.py::test_total", "failures": [...]}``. A failure
has the seed, the faults, the error and the sentence. The latest failure comes first. The page of its run lies beside it,
with the ending ``.html``.

Rules
  * A file is made to be committed, so that others meet the same faults. A ``.gitignore`` beside it leaves the pages out.
  * A file is replaced as a whole: a run that is killed leaves the old one.
  * Faults whose moment never comes, because the program has changed, do nothing. Their seed is tried too.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

from minray.simulation.faults import Oracle
from minray.testing.shrink import Answers

DIRECTORY = ".minray_faults"
"""Name of the directory of these files, unless the user names another."""
MOST_FAILURES = 8
"""Number of failures kept for one test: enough to remember several bugs, and each costs a run."""
MOST_CHARACTERS = 80
"""Characters of a file's name, without its ending."""


class SavedFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The faults with which a test has failed."""

    seed: int
    overrides: tuple[tuple[tuple[str | int, ...], int], ...]
    error: str
    """Class and place of the error: ``AssertionError at test_jobs.py:31``."""
    sentence: str


class SavedFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file."""

    test: str
    failures: tuple[SavedFailure, ...] = ()


def file_name(test: str) -> str:
    """Return the name of a test's file: readable, and another one for each test."""
    plain = re.sub(r"\.py::|::|/", ".", test)
    safe = re.sub(r"[^\w.-]+", "-", plain)[:MOST_CHARACTERS].strip("-.") or "program"
    if safe == plain:
        return f"{safe}.json"
    return f"{safe}-{hashlib.blake2b(test.encode(), digest_size=3).hexdigest()}.json"


def read_faults(path: Path) -> SavedFaults | None:
    """Read a file; None if there is none. Raises ValueError for a file that ``save_failure`` has not written."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=SavedFaults)
        for failure in saved.failures:
            Oracle(failure.seed, overrides=dict(failure.overrides))  # raises for faults that do not exist
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is no file of saved faults: {error}. Restore it, or delete it.") from None
    return saved


def save_failure(path: Path, test: str, seed: int, faults: Answers, error: str, sentence: str) -> None:
    """Write a failure to the file of its test, in front of those that are there."""
    known = read_faults(path)
    newest = SavedFailure(seed=seed, overrides=faults, error=error, sentence=sentence)
    others = [old for old in (known.failures if known else ()) if old.overrides != newest.overrides]
    saved = SavedFaults(test, (newest, *others)[:MOST_FAILURES])
    make_directory(path.parent)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")
    beside.replace(path)


def make_directory(directory: Path) -> None:
    """Make the directory of the files if it is not there, with a ``.gitignore`` for the pages."""
    if not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".gitignore").write_text("# Pages are made again by a replay.\n*.html\n")
