"""Numbers of a campaign's scenarios: handed out once each, to one process or to several beside each other.

Rules
  * Numbers are handed out in order. So when one fails, all smaller ones have been handed out: each process finishes its own,
    and the smallest that fails is the same however many processes there are.
  * Scenarios are run in forks, which inherit the modules. What a fork returns is pickled: counts, and numbers of failures.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")


class Numbers:
    """0, 1, 2, ... until ``runs`` are handed out, ``seconds`` have passed, or one has failed. None: without this end."""

    def __init__(self, runs: int | None, seconds: float | None) -> None:
        forks = multiprocessing.get_context("fork")
        self._runs = runs
        self._end = None if seconds is None else time.monotonic() + seconds
        self._next = forks.Value("q", 0)
        self._has_failed = forks.Event()

    def take(self) -> int | None:
        """Return the next number, or None when there is no further one."""
        with self._next.get_lock():
            number = self._next.value
            is_last = number == self._runs or (self._end is not None and time.monotonic() >= self._end)
            if is_last or self._has_failed.is_set():
                return None
            self._next.value += 1
        return number

    def fail(self) -> None:
        """Hand out no further number, because one has failed."""
        self._has_failed.set()


_share: Callable[[], object] | None = None
"""The share of each fork. It holds locks that cannot be pickled, so forks inherit it."""


def _do(core: int) -> object:
    """Do a share on one core. Each simulated world stays on the core where it begins, which is not another fork's then."""
    assert _share is not None
    os.sched_setaffinity(0, {core})
    return _share()


def in_processes(count: int, share: Callable[[], Part]) -> list[Part]:
    """Return what ``share`` returns in each of this number of forks; with one, here. Raises what it raises."""
    free = sorted(os.sched_getaffinity(0))
    global _share
    if count == 1:
        return [share()]
    _share = share
    try:
        with ProcessPoolExecutor(count, multiprocessing.get_context("fork")) as pool:
            return [done.result() for done in [pool.submit(_do, free[i % len(free)]) for i in range(count)]]
    finally:
        _share = None


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
