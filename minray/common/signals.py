"""Signals by which processes die, by number, also on a system that has no such signals.

Ray: has no counterpart; Ray needs a system with signals

Simulated processes die by the same numbers on every system. Windows has no SIGKILL, and another number for SIGABRT.
"""

from __future__ import annotations

import signal

SIGKILL = 9
"""The number of the signal that ends a process at once."""
SIGABRT = 6
"""The number of the signal with which ``os.abort`` ends a process."""
EVERYWHERE = {2: "SIGINT", 4: "SIGILL", SIGABRT: "SIGABRT", 8: "SIGFPE", SIGKILL: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""Names of signals by their numbers, which are the same on all systems with signals."""


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGSEGV, or ``signal 77`` if it has none here."""
    if number in EVERYWHERE:
        return EVERYWHERE[number]
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
