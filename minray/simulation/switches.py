"""Switches of threads between any two lines of minray's own code, as an interpreter may make them.

User threads of the simulation give way at borders (``user_thread``). Real threads may be switched anywhere. With
``Switches`` a user thread may also give way at the beginning of any line of minray's code that runs beside a loop. It does
not within or below files with locks: the loop would wait for those locks for ever.
"""

from __future__ import annotations

import concurrent.futures._base
import functools
import logging
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from minray import core_worker, rpc
from minray.api import calls
from minray.common import sequence_ranges
from minray.common.package import HOLDS_LOCKS, has_mark
from minray.simulation.user_thread import this_thread

SWITCHED = (*core_worker.__path__, *rpc.__path__, str(calls.__file__), str(sequence_ranges.__file__))
"""Code of minray in which user threads may give way between lines: it runs beside a loop."""
LOCKED = (str(logging.__file__), str(concurrent.futures._base.__file__))
"""Python's files with locks; ours have ``HOLDS_LOCKS``. A thread does not give way in them, or in code that they call."""


class Switches:
    """Makes the user threads of one process give way to the loop between their borders."""

    def __init__(self, choose: Callable[[str, int], float | None]) -> None:
        """``choose(function, n)`` is called at the n-th line of this function that user threads of the process reach. It
        returns for how many seconds the thread gives way there; None: not at all."""
        self._choose = choose
        self._counts: Counter[str] = Counter()

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Callable[[FrameType, str, Any], Any] | None:
        """Trace a call; the function for ``sys.settrace``."""
        return self._on_line if _may_switch(frame.f_code.co_filename) else None

    def _on_line(self, frame: FrameType, event: str, _arg: Any) -> Callable[[FrameType, str, Any], Any]:
        if event == "line":
            name = frame.f_code.co_qualname
            self._counts[name] += 1
            thread = this_thread()
            if thread is not None and thread.process.alive:
                away_s = self._choose(name, self._counts[name])
                if away_s is not None and not may_hold_lock(frame):
                    thread.stay_away(away_s)
        return self._on_line


@functools.cache
def _may_switch(path: str) -> bool:
    return path.startswith(SWITCHED)


def may_hold_lock(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in LOCKED or has_mark(frame, HOLDS_LOCKS):
            return True
        frame = frame.f_back
    return False
