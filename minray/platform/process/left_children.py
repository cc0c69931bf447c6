"""Child processes that user code has left behind: they are reaped without taking an exit status from anybody.

Ray: src/ray/util/subreaper.h, which reaps what dead workers leave; a living worker keeps its zombies there

A task that starts a process and does not wait for it leaves a zombie in its worker, which lives on. Python knows such
children itself:

  * ``subprocess`` remembers children whose ``Popen`` was dropped before they had ended. Nobody can ask for their status.
  * ``multiprocessing`` remembers all children. It reaps those that have ended when the next one is started, and keeps their
    exit codes for ``join`` and ``exitcode``.

Rules
  * No other child is touched. Its ``Popen`` may still be asked, and so may ``os.waitpid``.
  * A process that uses neither library pays for two look-ups.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def are_left() -> bool:
    """Tell whether there may be children to reap, now or when they have ended."""
    return bool(subprocess._active or _of_multiprocessing())  # type: ignore[attr-defined]


def reap() -> None:
    """Reap those that have ended."""
    subprocess._cleanup()  # type: ignore[attr-defined]
    if _of_multiprocessing():
        sys.modules["multiprocessing.process"].active_children()  # It reaps all that have ended before it returns.


def _of_multiprocessing() -> Any:
    """Return the children that ``multiprocessing`` remembers; None if it was not imported."""
    return getattr(sys.modules.get("multiprocessing.process"), "_children", None)
