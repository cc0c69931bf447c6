"""Threads in which one disk writes and reads, beside the loop of its process.

Ray: src/ray/raylet/worker_pool.h (IO workers, which are processes there)

Rules
  * Any failure in a thread becomes a ``DiskFailed``; lack of memory, or of any thread at all, a ``DiskBusy``.
  * If the machine only refuses *more* threads, the existing ones do the work.
  * Work that its caller has given up never begins: other code may use its memory by then.
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
"""Number of threads of one disk. They run in parallel: writing, reading and checksums release the interpreter's lock."""

T = TypeVar("T")


class DiskThreads:
    """The threads of one disk."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(THREADS, name)
        self._has_some = False
        """Whether at least one thread has been started. Threads stay, so that queued work will be done."""
        self._outcomes: set[Future[Any]] = set()
        """Futures of work that callers wait for. The pool returns none if it has queued work but could not start a
        thread."""

    async def run(self, failing: str, work: Callable[[], T]) -> T:
        """Run the work in some thread and return its result. Raises ``DiskFailed``: the one that the work raised, or a new
        one that says ``failing`` and why."""
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
        """Run the work in some thread, if possible, without waiting for it. Never raises."""
        with suppress(Exception):
            self._submit(work)

    def _submit(self, work: Callable[[], None]) -> None:
        try:
            self._pool.submit(work)
        except RuntimeError:  # no more threads can be started, but the work is in the queue
            if not self._has_some:
                raise
        else:
            self._has_some = True

    def close(self) -> None:
        """Forget work that has not begun; its callers are cancelled."""
        self._has_some = False
        self._pool.shutdown(wait=False, cancel_futures=True)
        for outcome in list(self._outcomes):
            outcome.cancel()


def _settle(outcome: Future[T], work: Callable[[], T]) -> None:
    """Do the work and set its outcome, unless its caller has given it up."""
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        del outcome  # as above
