"""Log lines about visitors who do something wrong: one line of each kind, and then their number from time to time.

Ray: has no counterpart

A log that a stranger can fill is a weapon. So the first case of a kind has its line at once, and those of the next ten
seconds share one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

PAUSE_S = 10.0
"""Least seconds between two lines of a kind."""


class Complaints:
    """Writes these lines, for any thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._silent_until: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}
        """Number of cases of each kind since its last line."""

    def note(self, kind: str, text: str) -> None:
        """Note a case. Kinds are a handful of words of ours, never of a visitor."""
        with self._lock:
            now = self._now()
            if now < self._silent_until.get(kind, 0.0):
                self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
                return
            unsaid = self._unsaid.pop(kind, 0)
            self._silent_until[kind] = now + PAUSE_S
        more = f" ({unsaid} such cases more since the last line)" if unsaid else ""
        logger.warning("%s%s", text.encode("unicode_escape").decode(), more)
