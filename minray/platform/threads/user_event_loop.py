"""The event loop of an async actor, which runs in pieces that alternate with the worker's own loop.

Ray: init_fiber and the event loops of python/ray/_raylet.pyx, which have a thread beside the worker's

User code expects to be in the main thread (G54), and a short call should be read, run and answered without waking another
thread. So the user's loop never waits. It runs while it has something to do, as one piece of work among others. Then the
worker's loop waits in its place. It asks for the next piece when a file of the user's loop is ready, when a timer is due, or
when another thread has added something.

Rules
  * No wake-up is lost: ``_is_due`` is cleared before a piece reads what is ready, and set after something was added.
  * A piece polls files only after the worker's loop has seen that one of them is ready; that loop watches them between
    pieces.
  * To user code the loop seems to run all the time: ``is_running`` is true, and it cannot be stopped.
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
    """An asyncio loop for which the worker's loop waits. Must be made in the main thread."""

    if TYPE_CHECKING:
        _ready: deque[asyncio.Handle]
        _scheduled: list[asyncio.TimerHandle]
        _run_once: Callable[[], None]

    def __init__(self, user_code: UserCode, worker_loop: asyncio.AbstractEventLoop, spinner: Spinner) -> None:
        self._user_code = user_code
        self._worker_loop = worker_loop
        self._spinner = spinner
        """The spinner of the worker's loop. Events of the user's loop do not end its waits."""
        self._is_due = False
        """Whether a piece is scheduled."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the worker's loop that asks for the next piece."""
        self._timer_due = math.inf
        """The earliest time for which that timer is wanted."""
        self._files = _Files()
        super().__init__(self._files)
        self._thread_id: int | None = threading.get_ident()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        user_code.post(self._watch_files)

    def stop(self) -> Never:
        """Raise RuntimeError: stopping the loop does not end an actor."""
        raise RuntimeError(LASTING)

    def close(self) -> Never:
        """Raise RuntimeError, as ``stop``."""
        raise RuntimeError(LASTING)

    def end(self) -> None:
        """Close the loop; called in the main thread when no piece will run any more."""
        self._thread_id = None
        super().close()

    def _write_to_self(self) -> None:
        """Ask for a piece, since something was added; asyncio calls this in any thread."""
        running = asyncio._get_running_loop()
        if self._is_due or running is self:
            return
        self._is_due = True
        if running is self._worker_loop:
            self._user_code.run(self._run_piece)
        else:
            self._user_code.post(self._user_code.run, self._run_piece)

    def _run_piece(self) -> None:
        """Run what is ready, for at most ``TURN_S`` unless a callback takes longer; called in the main thread."""
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
        """Ask for a piece that polls. Stop watching until it has run, since the file stays ready until then."""
        self._spinner.give_up()
        self._worker_loop.remove_reader(self._files.fileno())
        self._files.some_ready = True
        self._user_code.run(self._run_piece, self._watch_files)


class _Files(selectors.DefaultSelector):
    """The selector of a loop that never waits for its files."""

    def __init__(self) -> None:
        super().__init__()
        self.some_ready = False
        """Whether the worker's loop has seen that a file is ready."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.some_ready:
            return []
        self.some_ready = False
        return super().select(0)
