"""Children that user code has left are reaped, and nobody's exit status is taken."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import warnings

import psutil
import pytest

from minray.platform.process import left_children
from tests.helpers import wait_for_condition

WITH_SEVEN = [sys.executable, "-c", "raise SystemExit(7)"]


def has_ended(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def is_reaped(pid: int) -> bool:
    """Reap once more: a kernel may show a child as ended a moment before its status can be had."""
    left_children.reap()
    return not psutil.pid_exists(pid) and not left_children.are_left()


def test_a_child_whose_popen_was_dropped_is_reaped() -> None:
    assert not left_children.are_left()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pid = subprocess.Popen([sys.executable, "-c", ""]).pid
    assert left_children.are_left()
    wait_for_condition(lambda: is_reaped(pid))


def test_the_status_of_a_popen_that_is_kept_is_its_owners() -> None:
    child = subprocess.Popen(WITH_SEVEN)
    wait_for_condition(lambda: has_ended(child.pid))
    left_children.reap()
    assert has_ended(child.pid) and child.wait() == 7
    by_hand = os.posix_spawn(sys.executable, WITH_SEVEN, os.environ)
    wait_for_condition(lambda: has_ended(by_hand))
    left_children.reap()
    assert os.waitstatus_to_exitcode(os.waitpid(by_hand, 0)[1]) == 7


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_of_multiprocessing_is_reaped_and_keeps_its_exit_code() -> None:
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
    child.start()
    assert left_children.are_left() and child.pid is not None
    wait_for_condition(lambda: is_reaped(child.pid or 0))
    child.join()
    assert child.exitcode == 7
