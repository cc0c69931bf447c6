"""Locks, conditions and events of ``threading`` in simulated user code: whoever waits for one waits at the border.

A real lock would stop its thread with the baton in its hand, so that nobody could ever release it. Simulated code gets
these instead; all that Python builds on them (semaphores, barriers, ``queue.Queue``) then waits at the border as well, and
so does ``queue.SimpleQueue`` when it is Python's instead of the compiled one.

Rules
  * A lock that is released goes to who has waited longest.
  * The loop, and whoever is not simulated, gets a free lock, but cannot wait for another.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from types import TracebackType
from typing import Any, Never

from minray.simulation.loop import NotSimulated
from minray.simulation.user_code import SimParker, this_thread

REAL_SIMPLE_QUEUE: Any = queue.SimpleQueue


class SimLock:
    """What ``threading.Lock()`` is in simulated user code."""

    def __init__(self) -> None:
        self._locked = False
        self._waiting: deque[SimParker] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if self._locked:
            return self._wait(0 if not blocking else None if timeout < 0 else timeout)
        self._locked = True
        return True

    def _wait(self, timeout_s: float | None) -> bool:
        thread = this_thread()
        if thread is None:
            raise NotSimulated("waiting for a lock on the loop, where nobody would ever release it")
        parker = SimParker(thread)
        self._waiting.append(parker)
        try:
            granted = parker.wait(timeout_s)
        except BaseException:
            if parker in self._waiting:
                self._waiting.remove(parker)
            else:
                self.release()
            raise
        if not granted:
            self._waiting.remove(parker)
        return granted

    def release(self) -> None:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._locked = False

    def locked(self) -> bool:
        return self._locked

    def _is_owned(self) -> bool:
        """Asked by conditions, which would find out by trying, at a border."""
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __reduce__(self) -> Never:
        raise TypeError("cannot pickle '_thread.lock' object")


def reentrant_lock() -> Any:
    """What ``threading.RLock()`` is there: Python's own, on such a lock."""
    lock: Any = threading._RLock()
    lock._block = SimLock()
    return lock


def wait_for_notice(condition: Any, timeout_s: float | None) -> bool:
    """``threading.Condition.wait``: as Python does it, but that a parker stands in the list of those to be told."""
    thread = this_thread()
    if thread is None:
        raise NotSimulated("waiting for a condition on the loop, where nobody would ever meet it")
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    parker = SimParker(thread)
    condition._waiters.append(parker)
    held = condition._release_save()
    try:
        return parker.wait(None if timeout_s is None else max(timeout_s, 0))
    finally:
        condition._acquire_restore(held)
        if parker in condition._waiters:
            condition._waiters.remove(parker)


class SimSimpleQueue(queue._PySimpleQueue):  # type: ignore[name-defined,misc]
    """What ``queue.SimpleQueue`` is there. Whoever is not simulated gets the compiled one."""

    def __new__(cls) -> Any:
        is_simulated = this_thread() is not None or cls is not SimSimpleQueue
        return super().__new__(cls) if is_simulated else REAL_SIMPLE_QUEUE()
