"""Threads beside a worker's main thread, which run the calls of an actor that takes several at once.

Ray: BoundedExecutor in src/ray/core_worker/task_execution/thread_pool.h, a thread pool for each concurrency group

If each short call was given to a thread of its own, it would spend most of its time waking that thread. So all work is put
into one queue, and one thread, the *seeker*, is woken to take work from it. When the seeker has taken a piece and more is
left, it wakes the next seeker, because its piece may take long. When the piece is done, it takes the next. So one thread
runs all calls that end before the next seeker gets the interpreter's lock, one after the other.

Rules
  * There are no more threads than calls may run at once. So a resource of a thread (a database connection, a
    ``threading.local``) is made at most that often, and once if calls run one at a time.
  * Work never waits without a seeker, unless all threads are busy. Three checks ensure that. The loop looks for a seeker
    after it has added work. A thread looks for work after it has stopped being the seeker. And a thread looks once more
    after it is on the list of idle ones.
  * Only beginning a thread takes a lock; single operations of deque and attributes are atomic. Two threads may both find
    that there is no seeker; then two are woken.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

Work = Callable[..., None]


class ThreadsBeside:
    """Implements ``base.Threads`` with up to ``limit`` threads, begun when all others are busy; they last until ``end``."""

    def __init__(
        self, post: Callable[..., None], limit: int, on_idle: Callable[[], None], name: str = "minray-call"
    ) -> None:
        self._post = post
        """Posts a callback to the loop (``UserCode.post``)."""
        self._on_idle = on_idle
        """Called in a thread that has no work any more."""
        self._limit = limit
        self._name = name
        self._is_over = False
        self._works: deque[tuple[Work, Work, tuple[Any, ...]]] = deque()
        self._idle: deque[_thread.LockType] = deque()
        """The locks (bells) on which idle threads wait; the one that ran last is at the end."""
        self._sought = False
        """Whether there is a seeker: a thread was woken and has not looked at the queue yet."""
        self._beginning = threading.Lock()
        self.count = 0
        """Number of threads that have been started."""

    def run(self, work: Work, then: Work, *args: Any) -> None:
        """Run ``work(*args)`` in some thread, once one is idle; post ``then(*args)`` to the loop when it is done."""
        self._works.append((work, then, args))
        if not self._sought:
            self._wake()

    def end(self) -> None:
        """From any thread: begin no more work. Idle threads end now, the others after what they do."""
        self._is_over = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().release()

    def _wake(self) -> None:
        try:
            bell = self._idle.pop()
        except IndexError:
            if self.count < self._limit:
                self._sought = True
                self._begin_thread()
        else:
            self._sought = True
            bell.release()

    def _begin_thread(self) -> None:
        with self._beginning:
            if self.count < self._limit and self._start():
                self.count += 1
                return
            self._sought = False
        if self._works and self._idle:  # A thread became idle meanwhile, and relied on this search to wake it.
            self._wake()

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._main, name=self._name, daemon=True).start()
        except RuntimeError as error:  # The system allows no more threads: the existing ones do the work.
            logger.warning("no more than %d threads for calls can be started: %s", self.count, error)
            if not self.count:
                self._sought = False
                raise
            return False
        return True

    def _main(self) -> None:
        bell = _thread.allocate_lock()
        bell.acquire()
        while not self._is_over:
            self._sought = False
            while self._works and not self._is_over:
                self._run_next()
            self._on_idle()
            self._idle.append(bell)
            if self._is_over:
                return
            if self._works:
                self._wake()
            bell.acquire()

    def _run_next(self) -> None:
        try:
            work, then, args = self._works.popleft()
        except IndexError:
            return
        if self._works and not self._sought:
            self._wake()
        work(*args)
        self._post(then, *args)
