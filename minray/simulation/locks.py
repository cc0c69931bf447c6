"""Locks, conditions and events of ``threading`` in simulated user code: a thread that waits gives the baton to the loop.

A real lock would block its thread while that has the baton, so that no other thread could ever release it. Simulated code
gets these locks instead, whose waits are borders (see ``user_code``). Everything that Python builds on them (semaphores,
barriers, ``queue.Queue``) then waits at a border as well. So does ``queue.SimpleQueue`` in Python's own version, which
replaces the compiled one.

Rules
  * A released lock goes to the thread that has waited longest.
  * The loop, and code outside of the simulation, can take a free lock, but cannot wait for one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from types import TracebackType
from typing import Any, Never

from minray.simulation.loop import NotSimulated
from minray.simulation.user_thread import SimParker, this_thread

REAL_SIMPLE_QUEUE: Any = queue.SimpleQueue


class SimLock:
    """Replaces ``threading.Lock()`` in simulated user code."""

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
            raise NotSimulated("waiting for a lock on the loop, where no thread would ever release it")
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
        """Whether the lock is held. Conditions ask this; without it they would try to acquire the lock."""
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
    """Replaces ``threading.RLock()`` in simulated user code: Python's own version, on a ``SimLock``."""
    lock: Any = threading._RLock()
    lock._block = SimLock()
    return lock


def wait_for_notice(condition: Any, timeout_s: float | None) -> bool:
    """Replaces ``threading.Condition.wait``: does what Python does, but with a parker in the condition's list of waiters."""
    thread = this_thread()
    if thread is None:
        raise NotSimulated("waiting for a condition on the loop, where no thread would ever notify it")
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
    """Replaces ``queue.SimpleQueue`` in simulated user code. Code outside of the simulation gets the compiled one."""

    def __new__(cls) -> Any:
        is_simulated = this_thread() is not None or cls is not SimSimpleQueue
        return super().__new__(cls) if is_simulated else REAL_SIMPLE_QUEUE()
