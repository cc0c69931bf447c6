"""Threads in which one disk writes and reads, beside the loop of its process.

Ray: src/ray/raylet/worker_pool.h (IO workers, which are processes there)

Rules
  * Whatever fails in a thread is a ``DiskFailed``; for want of memory ``DiskBusy``, as where no thread can be started.
  * If it is only that there can be no more threads, those that are there do the work.
  * Work that was given up is not begun later: its memory may be somebody else's by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from minray.platform.base import DiskBusy, DiskFailed

THREADS = 4
"""Of one disk. Writing, reading and making checksums, all of them let other threads run."""

T = TypeVar("T")


class DiskThreads:
    """Those of one disk."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(THREADS, name)
        self._has_some = False
        """At least one has been started, and they stay: what is in their queue is done."""
        self._outcomes: set[Future[Any]] = set()
        """Of work that is waited for; the pool has no future for what it has queued without being able to start a thread."""

    async def run(self, failing: str, work: Callable[[], T]) -> T:
        """In some thread. Raises ``DiskFailed``, which says ``failing`` and why, unless the work has its own word for it."""
        outcome: Future[T] = Future()
        self._outcomes.add(outcome)
        try:
            self._submit(partial(_settle, outcome, work))
            return await asyncio.wrap_future(outcome)
        except DiskFailed:
            raise
        except Exception as error:
            kind = DiskBusy if isinstance(error, MemoryError | RuntimeError) else DiskFailed
            raise kind(f"{failing}: {str(error) or type(error).__name__}") from error
        finally:
            outcome.cancel()
            self._outcomes.discard(outcome)
            del outcome  # which knows the error, whose traceback knows this frame

    def post(self, work: Callable[[], None]) -> None:
        """The same, if that is possible; nobody waits for it."""
        with suppress(Exception):
            self._submit(work)

    def _submit(self, work: Callable[[], None]) -> None:
        try:
            self._pool.submit(work)
        except RuntimeError:  # there can be no more threads; the work is in the queue
            if not self._has_some:
                raise
        else:
            self._has_some = True

    def close(self) -> None:
        """Forget what has not begun."""
        self._has_some = False
        self._pool.shutdown(wait=False, cancel_futures=True)
        for outcome in list(self._outcomes):
            outcome.cancel()


def _settle(outcome: Future[T], work: Callable[[], T]) -> None:
    """Do it, unless it was given up."""
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        del outcome  # as above
