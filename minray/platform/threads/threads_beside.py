"""Threads beside a worker's main one, which run the calls of an actor that takes several at once.

Ray: BoundedExecutor in src/ray/core_worker/task_execution/thread_pool.h, a thread pool for each concurrency group

Short calls would spend most of their time with waking threads, if each was given to a thread of its own. So work is put into
one queue, and one thread is woken to look there, the *seeker*. When it has found something, it wakes the next if there is
more, because what it has found may take its time; and when that is done, it looks again. Calls that are over before the
next seeker gets the interpreter's lock are thus run by one thread, one after the other.

Rules
  * There are no more threads than calls may run at once: what belongs to a thread (a connection to a database, a
    ``threading.local``) is made no more often, and once if calls run one at a time.
  * Work never waits while nobody seeks, unless all threads are busy: whoever adds some looks for a seeker after that, a
    seeker that found something, or nothing, looks for work after it has ceased to be one, and a thread looks once more when
    others can see that it is idle.
  * Nothing here takes a lock, but to begin a thread; single operations of deque and attributes are indivisible. Two threads
    may both believe that nobody seeks; then two are woken.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Work = Callable[..., None]


class ThreadsBeside:
    """As many threads as there is work that blocks, up to a limit; they stay."""

    def __init__(self, post: Callable[..., None], limit: int) -> None:
        self._post = post
        """Has the loop call what follows a piece of work."""
        self._limit = limit
        self._works: deque[tuple[Work, Work, tuple[Any, ...]]] = deque()
        self._idle: deque[_thread.LockType] = deque()
        """The bells of threads that wait for being woken; the warmest last."""
        self._sought = False
        """Somebody was woken, and has not looked yet."""
        self._beginning = threading.Lock()
        self.count = 0
        """Threads that have been started."""

    def run(self, work: Work, then: Work, *args: Any) -> None:
        """``work(*args)`` in some thread, at once; ``then(*args)`` is posted when it is done."""
        self._works.append((work, then, args))
        if not self._sought:
            self._wake()

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
        if self._works and self._idle:  # Who has come to rest meanwhile; others left it to this search to wake him.
            self._wake()

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._main, name="minray-call", daemon=True).start()
        except RuntimeError as error:  # The machine has no more: those that are there do the rest.
            logger.warning("%d threads for calls, and no more: %s", self.count, error)
            if not self.count:
                self._sought = False
                raise
            return False
        return True

    def _main(self) -> None:
        bell = _thread.allocate_lock()
        bell.acquire()
        while True:
            self._sought = False
            while self._works:
                self._run_next()
            self._idle.append(bell)
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
