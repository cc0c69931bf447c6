"""The event loop of an async actor, which runs in pieces, in turn with the worker's own loop.

Ray: init_fiber and the event loops of python/ray/_raylet.pyx, which have a thread beside the worker's

User code expects to be in the main thread (G54), and a short call should be read, run and answered without waking another
thread. So the user's loop never waits: it runs while it has something to do, as a piece of work among others. When there
is nothing left, the worker's loop, which does wait, asks for the next piece: if a file of the user's is ready, if a timer
is due, or if something was added by another thread.

Rules
  * No wake-up is lost: ``_is_due`` goes down before a piece looks at what is ready, and up after something was added.
  * Files are polled when the worker's loop has seen that one of them is ready, which it looks for between pieces.
  * To user code the loop runs all the time: ``is_running`` is true, and it cannot be stopped.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Never

from minray.common.clock import Clock
from minray.platform.base import UserCode
from minray.platform.threads.spinning import Spinner
from minray.platform.threads.user_code import TURN_S

LASTING = "an actor's event loop runs as long as the actor does; to end both, call exit_actor()"


class UserEventLoop(asyncio.SelectorEventLoop):
    """Asyncio's own loop, with someone else who waits for it. Made in the main thread."""

    if TYPE_CHECKING:
        _ready: deque[asyncio.Handle]
        _scheduled: list[asyncio.TimerHandle]
        _run_once: Callable[[], None]

    def __init__(self, user_code: UserCode, worker_loop: asyncio.AbstractEventLoop, spinner: Spinner) -> None:
        self._user_code = user_code
        self._worker_loop = worker_loop
        self._spinner = spinner
        """The worker's loop's; events of the user's own are not what that waits for."""
        self._is_due = False
        """A piece is on its way."""
        self._timer: asyncio.TimerHandle | None = None
        """The worker's loop's, for ..."""
        self._timer_due = math.inf
        """... this time, the earliest that is wanted of it."""
        self._files = _Files()
        super().__init__(self._files)
        self._thread_id: int | None = threading.get_ident()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        user_code.post(self._watch_files)

    def stop(self) -> Never:
        """RuntimeError: this is not what ends an actor."""
        raise RuntimeError(LASTING)

    def close(self) -> Never:
        """Nor does this."""
        raise RuntimeError(LASTING)

    def end(self) -> None:
        """In the main thread, when no piece will run any more."""
        self._thread_id = None
        super().close()

    def _write_to_self(self) -> None:
        """Something was added, by any thread."""
        running = asyncio._get_running_loop()
        if self._is_due or running is self:
            return
        self._is_due = True
        if running is self._worker_loop:
            self._user_code.run(self._run_piece)
        else:
            self._user_code.post(self._user_code.run, self._run_piece)

    def _run_piece(self) -> None:
        """In the main thread: do what there is to do."""
        self._is_due = False
        until = Clock.monotonic() + TURN_S
        asyncio._set_running_loop(self)
        try:
            self._run_once()
            while self._ready and Clock.monotonic() < until:
                self._run_once()
        finally:
            asyncio._set_running_loop(None)
        if self._ready:
            self._is_due = True
            self._user_code.run(self._run_piece)
        elif self._scheduled and self._scheduled[0].when() < self._timer_due:
            self._timer_due = self._scheduled[0].when()
            self._user_code.post(self._set_timer, self._timer_due)

    # --- on the worker's loop

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._worker_loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_due = math.inf
        self._spinner.give_up()
        self._write_to_self()

    def _watch_files(self) -> None:
        self._worker_loop.add_reader(self._files.fileno(), self._on_file_ready)

    def _on_file_ready(self) -> None:
        """It stays so until a piece has polled."""
        self._spinner.give_up()
        self._worker_loop.remove_reader(self._files.fileno())
        self._files.some_ready = True
        self._user_code.run(self._run_piece, self._watch_files)


class _Files(selectors.DefaultSelector):
    """The files of a loop that never waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.some_ready = False
        """Somebody has seen that."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.some_ready:
            return []
        self.some_ready = False
        return super().select(0)
