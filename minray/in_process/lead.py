"""The lead of the loop: which thread runs it. Only speed; skip this file at first reading.

Ray: has no counterpart

The loop has a thread of its own, its *home*. To wake a thread on another core takes longer than all of minray's work for a
short call. So the main thread of a worker, when it has no user code to run, runs the loop itself (it *leads*), as the main
thread of a real worker does (``platform/threads/main_thread``). A call of a driver that waits then wakes two threads instead
of four: the worker's, which takes the call from the loop, runs it and answers it, and the driver's.

A driver's thread never leads, although it waits too: Ctrl-C would raise KeyboardInterrupt in the middle of a callback.

Rules
  * The thread that leads holds ``_held``. Every thread that has given the lead back looks for callbacks after that. So a
    callback from another thread wakes nobody while a thread leads, and is not lost.
  * While no thread leads, a callback wakes the worker's thread that has waited for the shortest time, or else the home.
  * A thread that is woken for user code leaves the lead to others before it runs that.
  * Only the home waits for timers and calls back for them. A thread that gives the lead back wakes the home if a timer has
    become the earliest one. It gives the lead back after ``MOST`` callbacks, and at once when the home is due.
  * An interrupt never strikes a thread that leads. Only a thread that leads raises exceptions in other threads, and only
    where user code runs. The other thread meets the exception as soon as it gets the interpreter's lock, before it leads.

Left out: threads of threaded and async actors, and tasks that wait for others, do not lead.
"""

from __future__ import annotations

import _thread
import asyncio
import math
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from minray.common.clock import Clock

MOST = 100
"""Number of callbacks that a worker's thread calls before it lets the home look at the timers."""
MORE = 8
"""Number of callbacks that such a thread still calls when it is wanted elsewhere. Often none is left then, so that the home
need not be woken."""


class Bell:
    """Wakes one thread. A bell that is rung while nobody waits ends the next wait."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        """Free if the bell was rung since the last wait."""
        self._lock.acquire()

    def ring(self) -> None:
        """From any thread: let the current wait end, or else the next one."""
        with suppress(RuntimeError):  # It was rung already.
            self._lock.release()

    def wait(self, timeout_s: float | None = None) -> None:
        self._lock.acquire(True, -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))


class LedLoop(asyncio.BaseEventLoop):
    """A loop that several threads may run in turn. It names the parts of asyncio's loop that ``Lead`` uses."""

    _ready: Any
    """Handles of callbacks whose turn it is."""
    _scheduled: list[Any]
    """Heap of timers."""
    _stopping: bool
    _thread_id: int | None
    """Ident of the thread that leads; that of the home if no thread does."""
    _asyncgen_firstiter_hook: Callable[[Any], None]
    _asyncgen_finalizer_hook: Callable[[Any], None]


class Lead:
    """Decides which thread runs a loop. It stands in the place of the loop's selector, because the loop waits for no files.

    A selector costs four system calls for each callback from another thread, and one for each turn without one.
    """

    def __init__(self, loop: LedLoop) -> None:
        self._loop = loop
        self._held = _thread.allocate_lock()
        """Held by the thread that leads. The home has it from the start, and for good when its loop has been stopped."""
        self._held.acquire()
        self._home = Bell()
        self._home_until = -math.inf
        """The time at which the home takes the lead, to call back for a timer. Only a thread that leads changes it."""
        self._is_home_due = False
        """Whether the home asks for the lead, to call back for a timer."""
        self._waiting: list[Bell] = []
        """The bells of workers' threads that wait without work and may lead, the last one to wait at the end."""

    def wake(self) -> None:
        """From any thread: have the loop run, because it has something to do."""
        if not self._held.locked():
            try:
                bell = self._waiting[-1]
            except IndexError:
                bell = self._home
            bell.ring()

    def select(self, timeout_s: float | None) -> None:
        """In the thread that leads: wait as a selector does. Only the home waits, and other threads may lead meanwhile."""
        if timeout_s == 0:
            return
        self._home_until = self._first_timer()
        self._held.release()
        while (left_s := self._home_until - Clock.monotonic()) > 0:
            if (self._loop._ready or self._loop._stopping) and self._held.acquire(False):
                return
            self._home.wait(left_s)
        self._is_home_due = True
        self._held.acquire()
        self._is_home_due = False

    def take(self) -> bool:
        """In another thread: lead, unless another thread does. Call ``give_back`` afterwards."""
        return not self._is_home_due and self._held.acquire(False)

    def run(self, is_wanted: Callable[[], bool]) -> None:
        """In a thread that has taken the lead: call back until nothing is left or this thread is wanted; see ``MOST``."""
        loop = self._loop
        home, loop._thread_id = loop._thread_id, threading.get_ident()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(loop._asyncgen_firstiter_hook, loop._asyncgen_finalizer_hook)
        asyncio._set_running_loop(loop)
        try:
            rest = MOST
            while rest and self._has_callbacks():
                rest = min(rest, MORE if is_wanted() else MOST) - 1
                handle = loop._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            loop._thread_id = home

    def give_back(self) -> None:
        """In a thread that has taken the lead: leave timers, the end of the loop and callbacks that are left to the home."""
        first, before = self._first_timer(), self._home_until
        self._home_until = min(first, before)
        is_over = self._loop._stopping
        self._held.release()
        if first < before or is_over or self._loop._ready:
            self._home.ring()

    def wait(self, bell: Bell, is_wanted: Callable[[], bool]) -> None:
        """In a thread without work: wait until it is wanted, which its bell says. Meanwhile lead when a callback comes."""
        while not is_wanted():
            if self._has_callbacks() and self.take():
                try:
                    self.run(is_wanted)
                finally:
                    self.give_back()
                continue
            self._waiting.append(bell)
            try:
                if not is_wanted() and (self._held.locked() or not self._has_callbacks()):
                    bell.wait()
            finally:
                self._waiting.remove(bell)
        if self._has_callbacks():  # They may have rung for this thread alone.
            self.wake()

    def _first_timer(self) -> float:
        """Return the time of the first timer; infinity if there is none."""
        timers = self._loop._scheduled
        return timers[0].when() if timers else math.inf

    def _has_callbacks(self) -> bool:
        """Whether there are callbacks that another thread than the home may call."""
        return bool(self._loop._ready) and not self._is_home_due and not self._loop._stopping
