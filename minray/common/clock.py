"""The clocks of processes in which user code runs: the real ones, whatever that puts in their places.

Ray: absl::GetCurrentTimeNanos and its like; what is replaced in Python does not reach them

Tests stop time: they replace the functions of the module ``time``, and those that other modules have imported from there
(freezegun, unittest.mock). What minray measures, and its timers, go on meanwhile. In a class those functions are not found.
"""

from __future__ import annotations

import time


class Clock:
    """As in the module ``time``."""

    perf_counter_ns = staticmethod(time.perf_counter_ns)
    """The simulation has another one."""
    monotonic = staticmethod(time.monotonic)
    """For the real platform alone."""
