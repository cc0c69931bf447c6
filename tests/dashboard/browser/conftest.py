"""A browser, a cluster with rows of all kinds, and its dashboard: one of each for all files of this folder.

``make test-browser`` runs these tests. They need Chromium, which the system installs, and playwright, of the extra
``test-browser``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.chromium import missing_chromium, running_chromium, skip_folder

if TYPE_CHECKING:
    from tests.dashboard.browser.visitor import Visitor

ASKED = "MINRAY_TEST_BROWSER"
"""Environment variable with which the tests run: each takes a second or more of a whole core."""
PROGRAM = Path(__file__).with_name("all_kinds.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder unless they are asked for and can run."""
    if reason := missing():
        skip_folder(items, Path(__file__).parent, reason)


def missing() -> str:
    if not os.environ.get(ASKED):
        return f"run by make test-browser, which sets {ASKED}"
    return missing_chromium()


class Program:
    """A process that says when it is ready, and ends with its stdin."""

    session = ""
    """Directory of the session of the cluster that it has started; empty if it has none."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def read_until(self, wanted: Callable[[str], bool]) -> str:
        """Return the first line that is wanted. Raises RuntimeError if the process ends before."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if wanted(line):
                return line.strip()
        raise RuntimeError("the program ended:\n" + "".join(seen))

    def end(self) -> None:
        """Close its stdin, or terminate it if it reads none."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.terminate()
        self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait(timeout=20)


def serve(cluster: Program, *options: str) -> tuple[Program, str]:
    """Start a dashboard of a cluster and return it with its address."""
    dashboard = Program("-m", "minray", "dashboard", f"--address={cluster.session}", *options)
    return dashboard, dashboard.read_until(lambda line: "http://" in line)


@pytest.fixture(scope="session")
def cluster() -> Generator[Program, None, None]:
    """A cluster on which something of each kind is, and small tasks run all the time."""
    program = Program(str(PROGRAM))
    try:
        program.session = program.read_until(lambda line: line.startswith("ready ")).split()[1]
        yield program
    finally:
        program.end()


@pytest.fixture(scope="session")
def url(cluster: Program) -> Generator[str, None, None]:
    dashboard, address = serve(cluster, "--port=0")
    try:
        yield address
    finally:
        dashboard.end()


@pytest.fixture(scope="session")
def browser() -> Generator[Any, None, None]:
    with running_chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Any, url: str) -> Generator[Callable[..., Visitor], None, None]:
    """Make visitors, whose pages are checked at the end."""
    from tests.dashboard.browser.visitor import Visitor

    visitors: list[Visitor] = []

    def make(**options: Any) -> Visitor:
        visitors.append(Visitor(browser, options.pop("url", url), **options))
        return visitors[-1]

    yield make
    try:
        for visitor in visitors:
            visitor.check()
    finally:
        for visitor in visitors:
            visitor.close()
