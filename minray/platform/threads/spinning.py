"""Busy waiting: a loop that expects something within microseconds polls for it, instead of sleeping.

Ray: has no counterpart. Adaptive mutexes do this, and Linux before a core goes idle (its cpuidle governor haltpoll)

To wake a sleeping core takes twenty microseconds and more in a virtual machine. A synchronous call wakes two of them, the
worker's and then the caller's, which is more than half of its time. Two processes that take turns and wait awake need no
wake-ups. That pays only where a core is idle and waits are short.

Rules
  * A loop waits awake only if its last wait was short, and at most for ``limit_s``. So at most ``limit_s`` of CPU time is
    wasted after each short wait, and none where nothing happens.
  * Between two polls the core goes to any other thread that wants to run on it (``sched_yield``).
  * While more threads want to run than there are cores, every loop sleeps: the kernel runs a thread that has slept sooner
    than one that has not. The number of threads is read every few milliseconds of waiting awake, and after a pause.
  * Unrequested events (an actor's own timers and files) do not count as the end of a wait, and keep no loop awake.
  * It takes two cores, and a kernel that reports the number of runnable threads: Linux. Linux counts those of the whole
    machine, so a container on a busy machine will rarely wait awake.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from minray.common.clock import Clock
from minray.platform.process.host import runnable_threads

_sched_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""The function of ``os``, kept here because tests replace that. Systems without it never wait awake."""
LOOK_S = 0.002
"""Seconds of waiting awake between two readings of the number of runnable threads."""
PAUSE_S = 0.05
"""Seconds for which the loop does not wait awake after it has found too many threads."""
MORE_THREADS = 1
"""Number of runnable threads beyond the cores that is not too many: a caller has two awake threads, which take turns."""
PATIENCE = 4
"""How often in a row too many threads may be found before a pause; right after a pause, once is enough."""


class Spinner:
    """Keeps one loop awake between ``begin`` and ``end`` of a wait. Does nothing before ``allow``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._limit_s = 0.0
        """Seconds below which a wait counts as short, and that the loop waits awake at most; 0: never."""
        self._most_threads = 0
        """The largest number of runnable threads that is not too many."""
        self._since = 0.0
        """When the current wait began; 0 if there is none."""
        self._is_promising = False
        """Whether the last wait was short."""
        self._until = 0.0
        """The time until which the loop waits awake."""
        self._is_turning = False
        """Whether ``_turn`` is scheduled."""
        self._look_at = 0.0
        """When the number of threads is read next."""
        self._not_before = 0.0
        """The end of a pause; before it the loop does not wait awake."""
        self._patience = PATIENCE
        """How many more readings in a row may find too many threads before a pause; each good reading adds one."""

    def allow(self, limit_s: float, cores: int) -> None:
        """Allow waiting awake for at most ``limit_s`` at a time, if this process may use more than one core."""
        if cores > 1 and runnable_threads() > 0:
            self._limit_s, self._most_threads = limit_s, cores + MORE_THREADS

    def begin(self) -> None:
        """On the loop: a wait begins; keep the loop awake if the last one was short. Overlapping waits count as one."""
        if not self._limit_s:
            return
        now = Clock.monotonic()
        since = self._since = self._since or now
        if self._is_promising and now >= self._not_before:
            self._until = since + self._limit_s
            if not self._is_turning:
                self._turn_soon()

    def end(self) -> None:
        """From any thread: the awaited event has come."""
        since, self._since, self._until = self._since, 0.0, 0.0
        if since:
            self._is_promising = Clock.monotonic() - since < self._limit_s

    def give_up(self) -> None:
        """From any thread: the wait ends without its event; the next wait sleeps."""
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
        """Read the number of runnable threads; begin a pause if it was too large too often."""
        self._look_at = now + LOOK_S
        if 0 < runnable_threads() <= self._most_threads:
            self._patience = min(PATIENCE, self._patience + 1)
            return
        self._patience = max(0, self._patience - 1)
        if not self._patience:
            self._until = 0.0
            self._not_before = now + PAUSE_S
