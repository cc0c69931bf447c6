"""Waiting awake: a loop that expects something within microseconds looks for it again and again, instead of sleeping.

Ray: has no counterpart. Adaptive mutexes do this, and Linux before a core goes idle (its cpuidle governor haltpoll)

To wake a sleeping core takes twenty microseconds and more in a virtual machine. A call that somebody waits for wakes two of
them, the worker's and then the caller's, which is more than half of its time. Two processes that take turns and wait awake
wake nobody. That pays only where a core is to spare and waits are short.

Rules
  * Who waits sleeps, unless the wait before this one was short; and at the latest when this one is not. So what is burnt for
    nothing is at most ``limit_s`` after each short wait, and nothing at all where nothing happens.
  * Between two looks the core goes to whoever else is to run on it (``sched_yield``).
  * While more threads are to run than there are cores, everybody sleeps: a thread that has slept is let in sooner by the
    kernel than one that has not. How many there are is asked every few milliseconds of waiting awake, and after a pause.
  * What comes unasked (timers and files of an actor's own) is not what somebody waits for, and keeps nobody awake.
  * It takes two cores, and a kernel that says how many threads are to run: Linux. It tells those of the whole machine, also
    in a container, which on a busy machine will rarely wait awake.
"""

from __future__ import annotations

import asyncio
import os

from minray.common.clock import Clock
from minray.platform.process.host import runnable_threads

_sched_yield = os.sched_yield
"""The real one, whatever tests put in its place."""
LOOK_S = 0.002
"""So often it is asked how many threads are to run."""
PAUSE_S = 0.05
"""So long nobody waits awake if these are too many."""
MORE_THREADS = 1
"""So many more than there are cores are not too many: of a caller two are awake, which take turns."""
PATIENCE = 4
"""So many times in turn; after a pause, once."""


class Spinner:
    """Of one loop: ``begin`` and ``end`` of each wait. It does nothing before ``allow``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._limit_s = 0.0
        """A wait is short if it is shorter; 0: nobody waits awake."""
        self._most_threads = 0
        """More than these are too many."""
        self._since = 0.0
        """When the wait began that has not ended; 0 if there is none."""
        self._is_promising = False
        """The last wait was short."""
        self._until = 0.0
        """Until then this one goes on awake."""
        self._is_turning = False
        """``_turn`` is on its way."""
        self._look_at = 0.0
        """When the number of threads is to be asked next."""
        self._not_before = 0.0
        """The end of a pause."""
        self._patience = PATIENCE
        """So many more looks may find too many; each that does not adds one."""

    def allow(self, limit_s: float, cores: int) -> None:
        """From now on wait awake for so long, on a machine with so many cores for us."""
        if cores > 1 and runnable_threads() > 0:
            self._limit_s, self._most_threads = limit_s, cores + MORE_THREADS

    def begin(self) -> None:
        """On the loop: somebody waits, if not for long then awake. Waits that overlap count as one."""
        if not self._limit_s:
            return
        now = Clock.monotonic()
        since = self._since = self._since or now
        if self._is_promising and now >= self._not_before:
            self._until = since + self._limit_s
            if not self._is_turning:
                self._turn_soon()

    def end(self) -> None:
        """From any thread: what was waited for has come."""
        since, self._since, self._until = self._since, 0.0, 0.0
        if since:
            self._is_promising = Clock.monotonic() - since < self._limit_s

    def give_up(self) -> None:
        """From any thread: the wait is over, but nothing has come; who waits next sleeps."""
        self._since = self._until = 0.0
        self._is_promising = False

    def _turn_soon(self) -> None:
        self._loop.call_soon(self._turn)
        self._is_turning = True

    def _turn(self) -> None:
        self._is_turning = False
        now = Clock.monotonic()
        if self._look_at <= now < self._until:
            self._look(now)
        if now < self._until:
            _sched_yield()
            self._turn_soon()

    def _look(self, now: float) -> None:
        """Are there too many others?"""
        self._look_at = now + LOOK_S
        if 0 < runnable_threads() <= self._most_threads:
            self._patience = min(PATIENCE, self._patience + 1)
            return
        self._patience = max(0, self._patience - 1)
        if not self._patience:
            self._until = 0.0
            self._not_before = now + PAUSE_S
