"""The border to user code, with one user thread, which takes turns with the test: only one of them runs at a time.

The thread has its turn when it begins, and when it is released, until it waits again or ends. What it has posted happens
when the test says so (``work``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from minray.platform.base import WOULD_BLOCK


class WorkQueue:
    """Plays ``base.Threads``, and the main thread of ``base.UserCode``: work waits until the test lets it run."""

    def __init__(self) -> None:
        self.due: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        """Work for the thread, and what follows it on the loop."""

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        self.due.append((partial(work, *args), partial(then, *args)))


class UserThread:
    """As ``UserCode``."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], Any]] = deque()
        """Callbacks that are to run on the loop."""
        self.waits_at: Parker | None = None
        self.is_loop = False
        """Whether the present thread counts as the loop's."""
        self.tests_turn = threading.Semaphore(0)
        self._result: Any = None
        self._error: BaseException | None = None

    # --- what a test says

    def begin(self, work: Callable[[], Any]) -> None:
        """The thread runs this."""
        threading.Thread(target=self._run, args=(work,), daemon=True).start()
        self.tests_turn.acquire()
        self.work()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error
        self.tests_turn.release()

    def work(self) -> None:
        """Run all callbacks that were posted."""
        while self.posted:
            self.posted.popleft()()

    def interrupt(self, error: BaseException) -> None:
        assert self.waits_at is not None
        self.waits_at.let_go(error)
        self.work()

    def end_wait(self) -> float | None:
        """The time is up for which the thread waits; return it."""
        assert self.waits_at is not None
        timeout_s = self.waits_at.timeout_s
        self.waits_at.let_go()
        self.work()
        return timeout_s

    def result(self) -> Any:
        """Return the result of the thread; raise what it has raised."""
        assert self.waits_at is None, "it still waits"
        if self._error is not None:
            raise self._error
        return self._result

    # --- as user code

    def post(self, callback: Callable[..., Any], *args: Any) -> None:
        self.posted.append(partial(callback, *args))

    def parker(self) -> Parker:
        if self.is_loop:
            raise RuntimeError(WOULD_BLOCK)
        return Parker(self)


class Parker:
    """As ``Parker``."""

    def __init__(self, thread: UserThread) -> None:
        self._thread = thread
        self._is_released = False
        self.timeout_s: float | None = None
        self._error: BaseException | None = None
        self._threads_turn = threading.Semaphore(0)

    def wait(self, timeout_s: float | None) -> bool:
        if not self._is_released:
            self.timeout_s = timeout_s
            self._thread.waits_at = self
            self._thread.tests_turn.release()
            self._threads_turn.acquire()
        if self._error is not None:
            raise self._error
        return self._is_released

    def release(self) -> None:
        self._is_released = True
        if self._thread.waits_at is self:
            self.let_go()

    def fail(self, make_error: Callable[[], Exception]) -> None:
        self._is_released = True
        self.let_go(make_error())

    def let_go(self, error: BaseException | None = None) -> None:
        self._error = error
        self._thread.waits_at = None
        self._threads_turn.release()
        self._thread.tests_turn.acquire()
