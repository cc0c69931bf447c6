"""The pytest plugin's work: hooks around the tests that use one of minray's fixtures.

Ray: has no counterpart

``_minray_pytestplugin.py`` has the options, marks and fixtures. It makes the ``WorkingPlugin`` when the first test that uses
a fixture is collected, so other test runs import nothing of minray.

Rules
  * A time-out, of pytest-timeout or of ``--minray-timeout``, adds a section to the report: what the cluster waits for.
  * pytest-timeout's method ``thread`` ends the process, so the section is printed a moment before.
  * Under pytest-xdist each worker has a plugin and clusters of its own.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Never

import pytest

from minray.testing.pending import pending_text
from minray.testing.shared_cluster import SharedCluster
from minray.testing.simulated_test import run_test
from minray.testing.watch import FAILED, SHARED, SimulatedCluster, Watch, shared_description
from minray.testing.worlds import RAY, SIMULATION

WATCH = "_minray_watch"
"""The fixture that watches a test."""
SECTION = "minray: what the cluster waits for"
TIMED_OUT = ("from pytest-timeout", "(--minray-timeout)")
"""Texts by which a failure is known to be a time-out."""
BEFORE_END_S = 3.0
"""Seconds before pytest-timeout ends the process, in which the cluster is asked; less if the time-out is short."""


class WorkingPlugin:
    """The hooks, and the cluster that tests share."""

    def __init__(self, config: pytest.Config, chosen: tuple[str | None, str], limit_s: float | None) -> None:
        """Note the settings of the run. Raises UsageError for a pattern of leaks that is not valid.

        ``chosen``: the world (None: that of each fixture), and what a leak does. ``limit_s``: most seconds of each phase of
        a test; None: any number.
        """
        self._config = config
        self._chosen = chosen
        self._allowed = _patterns(config.getini("minray_leaks_allow"))
        self._shared = SharedCluster()
        self._watch: Watch | None = None
        """The test that runs now."""
        self._item: pytest.Item | None = None
        self._timer: threading.Timer | None = None
        self._limit_s = limit_s
        self._has_timeout_plugin = config.pluginmanager.hasplugin("timeout")

    def prepare(self, item: pytest.Item, names: list[str]) -> None:
        """Let a collected test be watched: before the first of its function-scoped fixtures, and after the last."""
        if WATCH not in names:
            names.insert(_first_of_function(item, names), WATCH)
        if self._limit_s is not None and self._has_timeout_plugin and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(self._limit_s))

    @contextmanager
    def watching(self, item: pytest.Item) -> Iterator[Watch]:
        """Watch a test until the block ends."""
        watch = Watch(item, self._shared, self._chosen, self._allowed)
        self._watch = watch
        try:
            with watch.watching():
                yield watch
        finally:
            self._watch = None

    @contextmanager
    def shared_cluster(self) -> Iterator[SharedCluster | SimulatedCluster]:
        """Run the shared cluster that the current test asks for, until no further test asks for it."""
        item = self._item
        name = next((name for name in SHARED if name in getattr(item, "fixturenames", ())), None)
        if item is not None and name is not None:
            watch = Watch(item, self._shared, self._chosen, self._allowed)
            if watch.world == SIMULATION:
                yield SimulatedCluster()
                return
            self._shared.ensure(shared_description(item, name, watch.world))
        try:
            yield self._shared
        finally:
            self._shared.stop()

    # --- hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        self._item = item
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a test of the world ``simulation``."""
        watch = self._watch
        if watch is None or watch.item is not pyfuncitem or watch.world != SIMULATION:
            return None
        run_test(pyfuncitem, watch.described)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note a failure. A time-out of a test with a cluster tells what the cluster waits for."""
        report = yield
        if report.failed:
            item.stash[FAILED] = True
            if self._watch is not None and call.excinfo is not None and _is_timeout(str(call.excinfo.value)):
                if self._watch.world not in (SIMULATION, RAY):
                    report.sections.append((SECTION, pending_text()))
        return report

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
        """Print what the cluster waits for a moment before pytest-timeout's thread ends this process."""
        if settings.method == "thread" and settings.timeout and self._watches(item):
            rest_s = min(BEFORE_END_S, settings.timeout / 2)
            self._timer = threading.Timer(settings.timeout - rest_s, self._print, [rest_s * 2 / 3])
            self._timer.daemon = True
            self._timer.name = "pytest_timeout minray"
            self._timer.start()
        return (yield)

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return (yield)

    def _watches(self, item: pytest.Item) -> bool:
        return WATCH in getattr(item, "fixturenames", ())

    def _print(self, patience_s: float) -> None:
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        text = pending_text(patience_s)
        with capture.global_and_fixture_disabled():
            terminal.section(SECTION)
            terminal.write_line(text)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Iterator[None]:
        """Fail a phase of a test after ``--minray-timeout``, unless pytest-timeout does it."""
        limit_s = self._limit_s
        if limit_s is None or self._has_timeout_plugin or not self._watches(item):
            yield
            return
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            pytest.fail("--minray-timeout needs alarm signals here; pytest-timeout has another way: install it", False)

        def on_alarm(_number: int, _frame: FrameType | None) -> Never:
            pytest.fail(f"not done within {limit_s:g} s (--minray-timeout)")

        before = signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _patterns(lines: list[str]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(line) for line in lines]
    except re.error as error:
        raise pytest.UsageError(f"minray_leaks_allow: {error.pattern!r} is no regular expression: {error}") from None


def _first_of_function(item: pytest.Item, names: list[str]) -> int:
    """Return the place of a test's first function-scoped fixture among all its fixtures."""
    definitions: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for index, name in enumerate(names):
        found = definitions.get(name)
        if found and found[-1].scope == "function":
            return index
    return len(names)


def _is_timeout(text: str) -> bool:
    return any(words in text for words in TIMED_OUT)
