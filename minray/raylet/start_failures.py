"""Failures of a raylet to start workers: how many there were in a row, and when the next attempt may begin.

Ray: src/ray/raylet/worker_pool.h (its counts of failed starts)

Each failure in a row doubles the pause before the next attempt. The worker pool keeps one such count for starts, and one for
each job and environment whose workers die before they begin a task. Pure: time is an argument.
"""

from __future__ import annotations

import msgspec

MAX_FAILED_IN_A_ROW = 5
"""Number of failures in a row after which waiting leases fail, too."""
BACKOFF_FIRST_S = 0.1
"""Seconds before the next attempt after a first failure; the pause doubles with each further one."""
BACKOFF_MAX_S = 5.0
"""Longest pause, in seconds, after a failure."""
NOT_REGISTERED = "it did not register in time"
"""Reason of the failure of a worker whose process runs but does not register."""


class StartFailures(msgspec.Struct):
    """Counts failed attempts of one kind in a row, and says when to try again."""

    in_a_row: int = 0
    in_all: int = 0
    timed_out: int = 0
    """Number of these failures that are workers which did not register in time."""
    reason: str = ""
    again_at: float = 0.0
    since: float = 0.0
    """Time of the first failure in the row."""
    _failed_at: float = -1.0

    def add_failure(self, begun_at: float, reason: str, now: float) -> None:
        self.reason = reason
        if begun_at <= self._failed_at:
            return  # It began before the last failure was seen, so it has the same cause and does not count again.
        self.in_a_row += 1
        self.since = now if self.in_a_row == 1 else self.since
        self.in_all += 1
        self.timed_out += reason == NOT_REGISTERED
        self._failed_at = now
        self.again_at = now + min(BACKOFF_FIRST_S * 2 ** (self.in_a_row - 1), BACKOFF_MAX_S)

    @property
    def is_hopeless(self) -> bool:
        return self.in_a_row >= MAX_FAILED_IN_A_ROW

    def has_lasted(self, period_s: float, now: float) -> bool:
        return self.in_a_row > 0 and now >= self.since + period_s

    def end(self) -> None:
        """Reset the row, because an attempt has succeeded."""
        self.in_a_row, self.again_at = 0, 0.0

    def describe(self) -> str:
        """Return, to be appended to a text, how often in a row attempts have failed, and why the last one did."""
        in_a_row = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        return f"{in_a_row}: {self.reason}"
