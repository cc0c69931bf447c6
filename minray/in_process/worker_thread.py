"""The thread that stands for the main thread of a worker in the in-process world.

Ray: has no counterpart

It runs pieces of user code one at a time, and begins with the first piece. In between it lends itself to the loop
(``lead``). It takes the lead as soon as a piece is over, so that the answer to that piece wakes no other thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from minray.in_process.lead import Bell, Lead

Work = Callable[..., None]


class WorkerThread:
    """Runs the work of one worker in order, in one thread that lasts until ``end``."""

    def __init__(
        self, lead: Lead, enter: Callable[[Work, tuple[Any, ...]], None], post: Callable[..., None], name: str
    ) -> None:
        self._lead = lead
        self._enter = enter
        """Runs a piece of work with its arguments, as code of the worker."""
        self._post = post
        """Posts a callback to the loop (``UserCode.post``)."""
        self._name = name
        self._works: deque[tuple[Work, Work | None, tuple[Any, ...]]] = deque()
        """Work that has not begun."""
        self._bell = Bell()
        """Rung when there is work, when the thread must end, and when the loop has something to do."""
        self._has_begun = False
        self._is_over = False

    def run(self, work: Work, then: Work | None, *args: Any) -> None:
        """From the loop: run ``work(*args)`` in the thread, and post ``then(*args)`` to the loop when it is done."""
        self._works.append((work, then, args))
        if self._has_begun:
            self._bell.ring()
        else:
            threading.Thread(target=self._main, name=self._name, daemon=True).start()
            self._has_begun = True

    def end(self) -> None:
        """From any thread: begin no more work. The thread ends now, or after what it does."""
        self._is_over = True
        self._bell.ring()

    def _is_wanted(self) -> bool:
        return bool(self._works) or self._is_over

    def _main(self) -> None:
        while not self._is_over:
            if self._works:
                self._run_next()
            else:
                self._lead.wait(self._bell, self._is_wanted)

    def _run_next(self) -> None:
        work, then, args = self._works.popleft()
        self._enter(work, args)
        if self._works or not self._lead.take():
            if then is not None:
                self._post(then, *args)
            return
        try:
            if then is not None:
                self._post(then, *args)
            self._lead.run(self._is_wanted)
        finally:
            self._lead.give_back()
