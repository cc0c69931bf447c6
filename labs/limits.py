"""Limits of the processor time that a student's code may use, so that an endless loop ends.

Ray: has no counterpart.

A limit in seconds of a clock would depend on what else the machine does: on a busy one the same file would get another
score. Limits of the clock exist, too, in ``contract`` and ``scenarios``: they end code that waits for ever, and are long.

As a plugin of pytest (``-p labs.limits``) this module fails each test that needs more than ``TEST_CPU_S``.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Generator
from types import FrameType

import pytest

TEST_CPU_S = 60
"""Seconds of processor time after which a test fails. A test of a pure machine takes milliseconds, a search some seconds."""
AGAIN_PER_TEST = 10
"""A test that goes on (a search tries what has failed once more) fails again after this part of its time."""
RUN_CPU_S = 600
"""Seconds of processor time after which a run of pytest is ended."""
BLOCK_CPU_S = 200
"""Seconds of processor time after which a block of scenarios is ended. A block takes about 15 s of one core."""


def limit_process(seconds: int) -> None:
    """Have this process ended by SIGXCPU when it has used this processor time."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = seconds if most == resource.RLIM_INFINITY else min(seconds, most)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, most))


def why_ended(return_code: int, seconds: int) -> str:
    """Say that a process has used up its time; empty if it ended for another reason."""
    if return_code != -signal.SIGXCPU:
        return ""
    return f"it took longer than {seconds} s of processor time: look for an endless loop"


def pytest_configure(config: pytest.Config) -> None:
    limit_process(RUN_CPU_S)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail the test from a signal, as pytest-timeout does, with a timer that runs while the process computes."""

    def fail(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it took longer than {TEST_CPU_S} s of processor time: look for an endless loop")

    before = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S, TEST_CPU_S / AGAIN_PER_TEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
