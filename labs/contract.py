"""Checks the clauses of a lab's contract: runs their tests with pytest in another process, and reads which have passed.

Ray: has no counterpart.

A clause passes if all its tests pass. A test that was not run has failed: the file could not be imported, or the process has
died. One run of pytest serves all clauses. Its limits count processor time (``limits``), so that a busy machine changes no
score; what waits for ever is ended after ``RUN_TIMEOUT_S``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from labs.lab import Clause, Hole
from labs.limits import RUN_CPU_S, why_ended
from labs.score import Part, Tell, silent

TEST_TIMEOUT_S = 600
"""Seconds of the clock after which pytest fails a test, which must wait for something then; see ``limits``."""
RUN_TIMEOUT_S = 3600
"""Seconds of the clock after which the run of pytest is ended."""
PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin", "labs.limits")
"""Plugins of pytest that the tests need. No other is loaded: it could change the order of tests, and with it the score."""
TOLD = 3
"""Number of failing tests of one clause that the reason names."""
DURATION = re.compile(r" in \d[\d.]*s( \([\d:]+\))?")
"""Matches the time that pytest took, in its last line: a score has no time in it."""
PLACE = re.compile(r"\S+:\d+: ")
"""Matches the line of a traceback of pytest that names a file and a line."""

Outcomes = dict[str, str]
"""Test (``path::name``, without parameters) -> its failure; empty if it has passed."""


def environment(root: Path) -> dict[str, str]:
    """Return the environment in which the student's code runs: of this root alone, and the same each time."""
    return os.environ | {
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": os.devnull,
    }


def check(lab: Hole, root: Path, tell: Tell = silent) -> list[Part]:
    """Return a part of the score for each clause."""
    broken = syntax_error(root, lab.file)
    if broken:
        return [Part(clause.name, clause.points, False, broken) for clause in lab.clauses]
    tell(f"the tests of {len(lab.clauses)} clauses run")
    outcomes, trouble = outcomes_of(lab.test_files, root)
    return [_part(clause, outcomes, trouble, root) for clause in lab.clauses]


def syntax_error(root: Path, file: str) -> str:
    """Say where the student's file is no Python; empty if it is."""
    try:
        compile((root / file).read_bytes(), file, "exec")
    except (SyntaxError, ValueError, OSError) as error:
        place = f"{file}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else file
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        return f"{place}: {type(error).__name__}: {what}"
    return ""


def command(root: Path, *words: str) -> str:
    """Return a command for the student's shell, with the interpreter that runs now; relative to the root if it is there."""
    here = Path(sys.executable)
    python = here.relative_to(root) if here.is_relative_to(root) else here
    return shlex.join([str(python), *words])


def outcomes_of(paths: Sequence[str], root: Path) -> tuple[Outcomes, str]:
    """Run the tests of these files or folders; return their outcomes, and what pytest said last."""
    with TemporaryDirectory(prefix="minray-lab-") as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        words += [word for plugin in PLUGINS for word in ("-p", plugin)]
        words += ["-o", f"timeout={TEST_TIMEOUT_S}", "--tb=short", "--hypothesis-seed=0", *paths]
        try:
            done = subprocess.run(
                words, cwd=root, env=environment(root), capture_output=True, text=True, timeout=RUN_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {}, f"the tests took longer than {RUN_TIMEOUT_S} s: look for something that waits for ever"
        if not report.exists():
            return {}, why_ended(done.returncode, RUN_CPU_S) or _trouble(done.stdout + done.stderr)
        return _read(report, paths), _trouble(done.stdout)


def _read(report: Path, paths: Sequence[str]) -> Outcomes:
    """Read pytest's report, which names a test by its module, its class if any, and its function."""
    outcomes: Outcomes = {}
    modules = {path.removesuffix(".py").replace("/", "."): path for path in paths if path.endswith(".py")}
    for case in ElementTree.parse(report).iter("testcase"):
        place = case.get("classname", "")
        module = max((module for module in modules if f"{place}.".startswith(f"{module}.")), key=len, default="")
        scopes = [modules[module], *place[len(module) + 1 :].split(".")] if module else [f"{place.replace('.', '/')}.py"]
        name = "::".join([*filter(None, scopes), case.get("name", "").partition("[")[0]])
        failures = [child for child in case if child.tag in ("failure", "error", "skipped")]
        message = (failures[0].get("message") or failures[0].tag) if failures else ""
        outcomes[name] = outcomes.get(name) or message
    return outcomes


def _part(clause: Clause, outcomes: Outcomes, trouble: str, root: Path) -> Part:
    failing, count = [], 0
    for test in clause.tests:
        matching = [name for name in outcomes if name == test or name.startswith(f"{test}::")]
        count += len(matching)
        failing += [(name, outcomes[name]) for name in matching if outcomes[name]]
        if not matching:
            failing.append((test, f"it did not run: {trouble}"))
    if not failing:
        return Part(clause.name, clause.points, True, f"{count} of {count} tests pass")
    told = [f"{name}: {first_line(message)}" for name, message in failing[:TOLD]]
    more = [f"and {len(failing) - TOLD} more"] if len(failing) > TOLD else []
    again = command(root, "-m", "pytest", failing[0][0])
    return Part(clause.name, clause.points, False, "\n".join([*told, *more, f"run it with: {again}"]))


def first_line(text: str) -> str:
    """Return the first line that is not blank, cut to 200 characters."""
    return next((line for line in text.splitlines() if line.strip()), "")[:200]


def _trouble(text: str) -> str:
    """Return the first error that pytest tells, with its place; without one, pytest's last lines."""
    lines = [line.strip() for line in text.strip().splitlines()]
    error = next((number for number, line in enumerate(lines) if line.startswith("E ")), None)
    if error is None:
        return DURATION.sub("", " / ".join(lines[-3:]))[:400]
    place = next((line for line in reversed(lines[:error]) if PLACE.match(line)), "")
    return " / ".join(filter(None, [place, lines[error].removeprefix("E").strip()]))[:400]
