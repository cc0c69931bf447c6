"""Restores the default effect of SIGTERM in a forked copy of this process: the signal ends the copy.

Ray: no counterpart

A signal that comes while the copy runs its fork callbacks must not get lost. An exception that a handler raises there is
lost. A signal is also lost if its handler is removed before Python has called it.
"""

from __future__ import annotations

import os
import signal


def give_back() -> None:
    """Restore the default handler; call this in the main thread. A SIGTERM that comes meanwhile waits, then ends the
    copy."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_copy() -> None:
    """End this process by SIGTERM, from within its handler, as if there were no handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
