"""How a forked copy of this process gives SIGTERM back: it ends by the signal, as if there were no handler.

Ray: no counterpart

A signal that comes while the copy begins must not get lost. Three ways lead there:
  * Python forgets, in the child, the signals that it has noted when it forks. A pool of ``multiprocessing`` ends its workers
    by SIGTERM, sometimes before they have run at all. So SIGTERM is blocked around each fork.
  * What a handler raises in the callbacks of a fork is lost. A handler calls ``end_copy`` there.
  * So is a signal whose handler is taken away before Python has called it. ``give_back`` blocks SIGTERM meanwhile.
"""

from __future__ import annotations

import os
import signal
import threading

from minray.common.forks import at_fork

_forking = threading.local()
"""``mask``: the signals that the forking thread has blocked besides."""


def _hold() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


at_fork(before=_hold, after_in_parent=_let_through, after_in_child=_let_through)


def give_back() -> None:
    """To be called in the main thread; what comes meanwhile waits until it means what it does elsewhere."""
    can_wait = hasattr(signal, "pthread_sigmask")  # on Windows only this process itself sends SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,)) if can_wait else ()
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    finally:
        if can_wait:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_copy() -> None:
    """In a handler: end this process as if there were none."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
