"""How a copy of this process, which somebody has forked, gives SIGTERM back: it ends by it, as if there were no handler.

Ray: no counterpart

A signal that comes while the copy is in the callbacks of its fork must not get lost there: what a handler raises is lost,
and so is a signal whose handler is taken away before Python has called it.
"""

from __future__ import annotations

import os
import signal


def give_back() -> None:
    """To be called in the main thread; what comes meanwhile waits until it means what it does elsewhere."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_copy() -> None:
    """In a handler: end this process as if there were none."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
