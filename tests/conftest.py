"""The frame of every test run: which minray is tested, where its sessions live, and that nothing of it is left.

Each test process (pytest, or each of pytest-xdist's workers) has a short directory of its own for sessions; at the end
no process, socket, file but logs, or shared memory of them may remain. The fixtures ``ray_start``, ``ray_start_cluster``
and ``shutdown_only`` follow Ray's own tests; parametrize them indirectly with the arguments of ``init`` or ``Cluster``.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests import helpers, leaks

CHECKOUT = Path(__file__).resolve().parent.parent
SESSIONS = Path(leaks.SESSIONS)
"""Short, because the path of a unix socket below it may have about 100 characters."""

os.environ["MINRAY_TMPDIR"] = str(SESSIONS)
# Programs that tests start import the minray of this checkout too.
PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if str(CHECKOUT) not in PATH:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT), *PATH]))

# A shell script ignores SIGINT in what it runs in the background. The programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines are shared and noisy: how long an example takes says nothing. A failure prints the line that replays it.
settings.register_profile("minray", deadline=None, print_blob=True)
settings.load_profile("minray")


@pytest.fixture(scope="session", autouse=True)
def frozen_heaps() -> Generator[None, None, None]:
    """Until the end, no part of a test thaws what was frozen for the tests around it. (On Ray, nothing would.)"""
    try:
        from minray.simulation.garbage import frozen_heap
    except ModuleNotFoundError:
        yield
    else:
        with frozen_heap():
            yield


@pytest.fixture(scope="module", autouse=True)
def heap_of_others(frozen_heaps: None) -> None:
    """Worlds and fixtures that collect what they have left need not look at the million objects that libraries and pytest
    have made before this file."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def level_of_log() -> Generator[None, None, None]:
    """Give the logger its level back, which ``init`` sets: the next file's tests read its lines."""
    logger = logging.getLogger("minray")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Fail the run if a process, socket, file or shared memory of its sessions outlives its last test."""
    shared_memory_before = leaks.shared_memory()
    yield
    if (certificates := sys.modules.get("tests.platform.certificates")) is not None:
        certificates.kept.close()
    try:
        helpers.wait_for_condition(lambda: not leaks.describe(SESSIONS, shared_memory_before), timeout_s=2)
    except AssertionError:
        left = leaks.describe(SESSIONS, shared_memory_before)
        for process in leaks.processes(SESSIONS):
            try:
                process.kill()
            except psutil.Error:
                continue
        if left:
            pytest.fail("the tests left behind:\n" + "\n".join(left), pytrace=False)
    if not request.session.testsfailed:
        shutil.rmtree(SESSIONS, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says where the logs are; a time-out also what every process was doing, while they still do it."""
    report = yield
    if report.failed and SESSIONS.exists():
        report.sections.append(("logs", str(SESSIONS)))
    if report.failed and "from pytest-timeout" in report.longreprtext:
        report.sections.append(("whereabouts", helpers.whereabouts()))
    return report


def _shut_down() -> None:
    minray = sys.modules.get("minray")
    if minray is not None:
        minray.shutdown()


@pytest.fixture
def shutdown_only() -> Generator[None, None, None]:
    """For tests that call ``init`` themselves."""
    yield
    _shut_down()


@pytest.fixture
def ray_start(request: pytest.FixtureRequest) -> Generator[Any, None, None]:
    """A cluster of one node with 2 CPUs, connected to; gives what ``init`` returned."""
    import minray

    arguments = {"num_cpus": 2, **getattr(request, "param", {})}
    try:
        yield minray.init(**arguments)
    finally:
        minray.shutdown()


@pytest.fixture
def ray_start_cluster(request: pytest.FixtureRequest) -> Generator[Any, None, None]:
    """An empty ``Cluster``, or one as parametrized; nodes are the test's to add."""
    from minray.cluster_utils import Cluster

    cluster = Cluster(**getattr(request, "param", {}))
    try:
        yield cluster
    finally:
        _shut_down()
        cluster.shutdown()
