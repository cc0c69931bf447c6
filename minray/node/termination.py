"""SIGTERM for a driver: the signal ends the program with ``sys.exit``, so that the program cleans up.

Ray: the handler of SIGTERM in python/ray/_private/worker.py

The handler is there while the program is connected. It leaves a handler of the program as it is, and is set only if the main
thread connects. A forked copy of the program takes it back (``minray/platform/process/sigterm.py``).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from minray.common.forks import at_fork
from minray.platform.process import sigterm

_pid = 0
"""Id of the process that has installed the handler; differs from ``os.getpid()`` in a forked child."""


def take_sigterm() -> None:
    """Install the handler, unless the program has one of its own or this is not the main thread."""
    global _pid
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        _pid = os.getpid()
        signal.signal(signal.SIGTERM, _on_sigterm)


def leave_sigterm() -> None:
    """Take the handler away, if it is installed."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == _on_sigterm:
        sigterm.give_back()


def _on_sigterm(signal_number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _pid:  # a forked child whose hook has not run yet; an exception would be lost there
        sigterm.end_copy()
    sys.exit(signal_number)


at_fork(after_in_child=leave_sigterm)
