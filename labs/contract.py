"""Checks the clauses of a lab's contract: runs their tests with pytest in another process, and reads which have passed.

Ray: has no counterpart.

A clause passes if all its tests pass. A test that was not run has failed: the file could not be imported, or the process has
died. One run of pytest serves all clauses; it ends no later than ``RUN_TIMEOUT_S``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from labs.lab import Clause, Hole
from labs.score import Part

TEST_TIMEOUT_S = 60
"""Seconds after which pytest fails a test: a test of a pure machine takes milliseconds, a wrong loop may be endless."""
RUN_TIMEOUT_S = 600
"""Seconds after which the run of pytest is ended."""
PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")
"""Plugins of pytest that the tests need. No other is loaded: it could change the order of tests, and with it the score."""
TOLD = 3
"""Number of failing tests of one clause that the reason names."""

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


def check(lab: Hole, root: Path) -> list[Part]:
    """Return a part of the score for each clause."""
    outcomes, trouble = outcomes_of(lab.test_files, root)
    return [_part(clause, outcomes, trouble) for clause in lab.clauses]


def outcomes_of(paths: Sequence[str], root: Path) -> tuple[Outcomes, str]:
    """Run the tests of these files or folders; return their outcomes, and what pytest said last."""
    with TemporaryDirectory(prefix="minray-lab-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += [word for plugin in PLUGINS for word in ("-p", plugin)]
        command += ["-o", f"timeout={TEST_TIMEOUT_S}", "--tb=short", "--hypothesis-seed=0", *paths]
        try:
            done = subprocess.run(
                command, cwd=root, env=environment(root), capture_output=True, text=True, timeout=RUN_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {}, f"the tests took longer than {RUN_TIMEOUT_S} s: look for an endless loop"
        if not report.exists():
            return {}, _tail(done.stdout + done.stderr)
        return _read(report, paths), _tail(done.stdout)


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


def _part(clause: Clause, outcomes: Outcomes, trouble: str) -> Part:
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
    again = f"python -m pytest {failing[0][0]}"
    return Part(clause.name, clause.points, False, "\n".join([*told, *more, f"run it with: {again}"]))


def first_line(text: str) -> str:
    """Return the first line that is not blank, cut to 200 characters."""
    return next((line for line in text.splitlines() if line.strip()), "")[:200]


def _tail(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-3:])[:400]
