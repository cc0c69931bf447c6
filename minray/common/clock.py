"""The real clocks, for processes in which user code may replace the functions of the module ``time``.

Ray: absl::GetCurrentTimeNanos and its like; what is replaced in Python does not reach them

Users' tests stop time: freezegun and unittest.mock replace the functions of ``time``, also where other modules have imported
them. minray's timers and measurements must go on meanwhile. Such tools do not look inside a class, so a class holds the
real functions.
"""

from __future__ import annotations

import time


class Clock:
    """References to the real functions of the module ``time``."""

    perf_counter_ns = staticmethod(time.perf_counter_ns)
    """Nanoseconds for measuring durations. The simulation replaces it with virtual time."""
    monotonic = staticmethod(time.monotonic)
    """Seconds for the event loops' timers. Only the real platform uses it."""
