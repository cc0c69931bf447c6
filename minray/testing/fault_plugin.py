"""pytest's marker ``minray_faults``: the marked test runs in the simulation, under many seeds of injected faults.

Ray: has no counterpart.

    @pytest.mark.minray_faults(seeds=200, nodes=3)
    def test_pipeline():
        assert pipeline(range(20)) == 380

The test function is the driver, with the values of its fixtures as arguments. Its keyword arguments are those of
``minray.testing.faults``. A marked function stays one test, which ends at its first failing seed; parameters make several
tests, as ever. So pytest-xdist runs all seeds of a test in one of its workers.

Rules
  * ``_minray_pytestplugin.py`` has the options, and registers this module when the first marked test is collected. Without
    one nothing of the simulation is imported.
  * Fixtures are set up once, before seed 0. All runs of a test get the same values.
  * The output of a test is shown for the failing run only. A test that uses ``capsys`` or ``capfd`` reads its output.
  * Skipping inside of the test skips it, if seed 0 does so. A run with faults that skips counts as passed.
"""

from __future__ import annotations

import functools
import shlex
import unittest
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from minray.common.clock import Clock

if TYPE_CHECKING:
    from minray.testing.program_runs import FaultSettings
    from minray.testing.search import FaultReport

MARKER = "minray_faults"
ARGUMENTS = ("seeds", "nodes", "faults", "budget", "lose_driver", "timeout", "seconds")
CAPTURES = {"capsys", "capfd", "capsysbinary", "capfdbinary"}
"""Fixtures with which a test reads its own output."""
REPORT_S = 10.0
"""Real seconds between two lines of progress: few lines, and none for a test that is over soon."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse tests whose body no hook can run."""
    if item.get_closest_marker(MARKER) is None:
        return
    kind = getattr(item, "cls", None)
    if not isinstance(item, pytest.Function) or (kind is not None and issubclass(kind, unittest.TestCase)):
        what = "a method of a unittest.TestCase" if kind is not None else "no test function"
        pytest.fail(f"{item.nodeid} is {what}: {MARKER} needs a function, or a method of a plain class", pytrace=False)
    if hasattr(item.obj, "hypothesis"):
        pytest.fail(
            f"{item.nodeid} is a test of Hypothesis, whose examples are drawn by chance: a seed of {MARKER} could not be "
            f"replayed. Call minray.testing.faults inside of the test instead.",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let pytest call the search in place of a marked test.

    Plugins that run coroutine functions, such as anyio's, then find none.
    """
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None:
        return (yield)
    function: Callable[..., Any] = pyfuncitem.obj
    pyfuncitem.obj = functools.partial(_search, pyfuncitem, marker, function)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = function


def _search(item: pytest.Function, marker: pytest.Mark, function: Callable[..., Any], **arguments: Any) -> None:
    """Run a marked test under its seeds; ``arguments`` are the values of its fixtures."""
    from minray.testing.search import FaultSearch

    path, command = _place(item)
    search = FaultSearch(
        _driver(item, function, arguments),
        _settings(item, marker),
        item.nodeid,
        path,
        command,
        _Progress(item),
        show_output=bool(CAPTURES.intersection(item.fixturenames)),
    )
    if item.config.getoption("minray_fault_replay") is None:
        _note(item, search.run())
    else:
        search.replay()


def _place(item: pytest.Function) -> tuple[Path, str]:
    """Return the file of a test's saved faults, and the command that replays it."""
    from minray.testing.saved_faults import file_name, read_faults
    from minray.testing.search import shown_path

    given = item.config.getoption("minray_fault_replay")
    if given is not None:
        saved = read_faults(given)
        if saved is None:
            pytest.fail(f"--minray-fault-replay: there is no file {given}", pytrace=False)
        if saved.test != item.nodeid:
            pytest.skip(f"--minray-fault-replay: {given} has the faults of {saved.test}")
        path = Path(given)
    else:
        path = item.config.rootpath / str(item.config.getini("minray_faults_dir")) / file_name(item.nodeid)
    return path, f"python -m pytest {shlex.quote(item.nodeid)} --minray-fault-replay {shlex.quote(shown_path(path))}"


def _settings(item: pytest.Function, marker: pytest.Mark) -> FaultSettings:
    """Return the settings of a marker; fail the test if it makes no sense."""
    from minray.testing.program_runs import FaultSettings

    if marker.args:
        pytest.fail(f"{MARKER} takes keyword arguments only, as in seeds=200; got {marker.args!r}", pytrace=False)
    if unknown := sorted(set(marker.kwargs).difference(ARGUMENTS)):
        pytest.fail(f"{MARKER} has no argument {unknown[0]!r}, only {', '.join(ARGUMENTS)}", pytrace=False)
    limit_s = item.config.getoption("minray_fault_seconds")
    try:
        return FaultSettings(**{**marker.kwargs, **({"seconds": limit_s} if limit_s is not None else {})})
    except (TypeError, ValueError) as error:
        pytest.fail(f"{MARKER}: {error}", pytrace=False)


def _driver(item: pytest.Function, function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    """Return the test with its fixtures' values, as a program without arguments."""
    from minray.testing.simulated_test import program_of

    call = program_of(item, function, arguments)
    seeds_run = 0

    def drive() -> None:
        nonlocal seeds_run
        seeds_run += 1
        try:
            call()
        except (pytest.skip.Exception, pytest.xfail.Exception):
            if seeds_run == 1:
                raise

    return drive


class _Progress:
    """Writes a line of progress to the terminal, once in a while."""

    def __init__(self, item: pytest.Function) -> None:
        self._name = item.nodeid
        self._terminal: Any = item.config.pluginmanager.get_plugin("terminalreporter")
        self._capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
        is_shown = item.config.get_verbosity() > 0 or (self._terminal is not None and self._terminal.isatty)
        self._is_shown = self._terminal is not None and is_shown
        self._began = self._shown_at = Clock.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = Clock.monotonic()
        if not self._is_shown or now - self._shown_at < REPORT_S:
            return
        self._shown_at = now
        with self._capture.global_and_fixture_disabled():
            self._terminal.write_line(f"{self._name}: {done} of {total} seeds, {now - self._began:.0f} s")


def _note(item: pytest.Function, report: FaultReport) -> None:
    """Keep the line for the summary with the test's report, which pytest-xdist sends to the terminal's process."""
    if report.is_cut_short or item.config.get_verbosity() > 0:
        item.user_properties.append((MARKER, f"{item.nodeid}: {report.line()}"))
