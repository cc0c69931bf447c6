"""Threads that act beside a campaign until it tells them to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class UntilStopped(ABC):
    """Runs ``_run`` in a thread of its own, which ends soon after ``_over`` is set."""

    def __init__(self) -> None:
        """Start the thread; a subclass calls this when it has set its own attributes."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, and wait for that."""
        self._over.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Act, again and again, with waits on ``_over``."""
