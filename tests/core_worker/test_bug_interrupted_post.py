"""Interrupts at bad moments: in the middle of a post, and in a destructor.

The first must not leave the loop asleep for all that is posted later, the second must not be lost.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minray.platform.threads.user_code import DriverUserCode


class InterruptedOnce:
    """A loop; Ctrl-C hits while it is told for the first time that something was posted."""

    def __init__(self) -> None:
        self.woken = 0

    def call_soon_threadsafe(self, callback: Any) -> None:
        self.woken += 1
        if self.woken == 1:
            raise KeyboardInterrupt
        callback()


def test_an_interrupted_post_does_not_put_the_loop_to_sleep() -> None:
    loop: Any = InterruptedOnce()
    border, called = DriverUserCode(loop), []
    with pytest.raises(KeyboardInterrupt):
        border.post(called.append, 1)
    border.post(called.append, 2)
    assert called == [1, 2]


def test_a_loop_that_is_closed_calls_nobody() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    border = DriverUserCode(loop)
    border.post(pytest.fail)
    border.post(pytest.fail)


def test_an_interrupt_is_not_swallowed_by_a_destructor() -> None:
    """Most moments of this work are spent in a destructor, where an exception would be printed and forgotten."""
    program = Path(__file__).with_name("interrupted_in_destructors.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted 8 times\n", "")
