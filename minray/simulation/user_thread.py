"""Threads of user code in the simulated world: real ones, which run one at a time and hand a baton (the right to run) over.

User code blocks: in ``get``, in ``sleep``, wherever it likes. So it runs in a real thread of its own, as in a real worker,
but only while the loop stands still. The loop hands the baton to the thread as one step of its process. The thread gives it
back at a *border*: a wait, a simulated sleep, or the end of its work. Exactly one side runs at any time. So nothing here
needs a lock, and the same seed gives the same run.

Rules
  * A thread becomes ready like any callback of its process: first in, first out, struck by faults, stopped by stalls.
  * A thread of a dead process stays at its border until the world is closed. Then ``ProcessGone`` is raised there, and
    nothing that the thread does while it unwinds has any effect.
  * A step takes no virtual time, but polling does: after ``FREE_POLLS`` zero-length waits at one instant each further one
    takes ``POLL_S``.
  * Handing over costs two raw lock operations: 5-10 us when both threads share a core (``cores``), 50 us when not.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

from minray.common.package import DIRECTORY
from minray.common.thread_frames import frames_of_other_threads
from minray.platform.base import ProcessGone
from minray.simulation.loop import Deadlock, Failure, SimProcess, to_ticks
from minray.simulation.refusal import users_frame

if sys.platform == "emscripten":
    from minray.simulation.browser.stacks import StackLock as allocate_lock
    from minray.simulation.browser.stacks import start_new_thread
else:
    from _thread import allocate_lock, start_new_thread

STUCK_S = 60
"""Real seconds after which user code that does not come to a border fails the run."""
LOOK_S = 1.0
"""Real seconds after which an alarm ends the run although user code comes to no border."""
FREE_POLLS = 1000
"""Number of zero-length waits at one instant that take no time: an event loop has many turns in which it need not wait."""
POLL_S = 0.000_1
"""Virtual seconds of each further zero-length wait: in a program that only polls, nothing else moves time."""
USER_THREAD = "user thread"
"""Name of a user thread in the list of what waits in a deadlock."""
UNWIND_S = 5.0
"""Real seconds that a thread gets to end when its world is closed; after that it is left behind."""
Trace = Callable[[FrameType, str, Any], Any]
"""A function for ``sys.settrace``."""

_threads: dict[int, UserThread] = {}
"""The simulated user threads by the idents of their real threads."""


def this_thread() -> UserThread | None:
    """Return the simulated user thread in which the caller runs, or None."""
    return _threads.get(threading.get_ident())


def threads_of(process: SimProcess) -> list[UserThread]:
    """Return the user threads of a process that have begun."""
    return [thread for thread in _threads.values() if thread.process is process]


class UserThread:
    """One real thread that runs user code, and its half of the baton."""

    strike_name = "user_code"

    def __init__(self, process: SimProcess, trace: Trace | None = None) -> None:
        """``trace`` sees the lines of the thread's work (``switches``); None: nothing does, which is faster."""
        self.process = process
        self.trace = trace
        self.ident = 0
        """The ident of the real thread; 0 until it first runs."""
        self.native_id = process.next_thread_id()
        """The id that ``threading.get_native_id`` returns in it."""
        self.environ = dict(_environment())
        """The environment variables of its process."""
        self.working_dir: str | None = None
        """The simulated working directory; None: the real one."""
        self._go = allocate_lock()
        self._back = allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._parked = True
        self._waking = False
        """Whether ``resume`` is scheduled."""
        self._works: deque[tuple[Callable[..., None], Callable[..., None] | None, tuple[Any, ...]]] = deque()
        self._interrupts: list[Callable[[], bool]] = []
        self._idle = True
        """Whether it runs no work."""
        self._polled_at = 0
        """The tick of its last zero-length wait."""
        self._polls = 0
        """Number of zero-length waits since time was last moved by anything else."""
        self._unwinding = False
        self._ended = False

    def describe(self) -> str:
        """Return a line that says where the thread waits, for the message of a deadlock; empty if it does not wait."""
        frame = frames_of_other_threads().get(self.ident)
        if self._idle or self._ended or not self.process.alive or frame is None:
            return ""
        users = users_frame(frame)
        while users is None and frame.f_back is not None and frame.f_code.co_filename.startswith(DIRECTORY + os.sep):
            frame = frame.f_back
        frame = users or frame
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        return f"  {self.process.name:<20} {USER_THREAD:<30} {place}"

    # --- On the loop's side ---

    def add_work(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        if self.ident == 0:
            self.ident = start_new_thread(self._main, ())
            self.process.user_thread_idents[self.ident] = None
            _threads[self.ident] = self
            self.process.loop.on_close.append(self._unwind)
            self.process.loop.describers.append(self.describe)
        self._works.append((work, then, args))
        self.wake()

    def has_no_work(self) -> bool:
        return self._idle and not self._works

    def wake(self) -> None:
        """Let the thread run again soon, if it waits."""
        if self._parked and not self._waking:
            self._waking = True
            self.process.call_soon(self.resume)

    def interrupt(self, applies: Callable[[], bool]) -> None:
        if self.ident:  # Otherwise it has never run anything.
            self._interrupts.append(applies)
            self.wake()

    def resume(self) -> None:
        """Run the thread from this border to the next, as one step of its process."""
        self._waking = False
        self._parked = False
        with environment_of(self):
            self._go.release()
            for _ in range(int(STUCK_S / LOOK_S)):
                if self._back.acquire(timeout=LOOK_S):
                    return
                self.process.loop.interrupt()
        self._ended = True
        raise Deadlock(f"user code of {self.process.name} has come to no border for {STUCK_S} real seconds")

    def _unwind(self) -> None:
        """Let the thread end, since the world is closed."""
        if self._ended:
            return
        self._unwinding = True
        self._parked = False
        with environment_of(self):
            self._go.release()
            self._back.acquire(timeout=UNWIND_S)

    # --- On the thread's side ---

    def _main(self) -> None:
        self._go.acquire()
        sys.settrace(threading.gettrace())  # as in a thread of threading, so that coverage and debuggers see user code
        try:
            while not self._unwinding:
                self._interrupts.clear()
                if self._works:
                    work, then, args = self._works.popleft()
                    self._run(work, args)
                    if then is not None and self.process.alive:
                        self.process.call_soon(then, *args)
                if self._works:
                    self.give_way()
                else:
                    self.pause()
        except ProcessGone:
            pass
        finally:
            self._ended = True
            del _threads[self.ident]
            with contextlib.suppress(RuntimeError):  # An interrupted loop has not taken the last baton.
                self._back.release()

    def _run(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        context = self.process.context.copy()
        self._idle = False
        if self.trace is not None:
            sys.settrace(self.trace)
        try:
            context.run(work, *args)
        except Exception as error:
            if self.process.alive:
                self.process.loop.failures.append(Failure(self.process.name, "user code's frame raised", error))
        finally:
            if self.trace is not None:
                sys.settrace(None)
        self._idle = True

    def pause(self) -> None:
        """Give the baton to the loop until this thread is woken."""
        self._parked = True
        if not self._unwinding:
            self._back.release()
            self._go.acquire()
        if self._unwinding:
            raise ProcessGone

    def give_way(self) -> None:
        """Let the loop run what is ready, then go on."""
        self._waking = True
        self.process.call_soon(self.resume)
        self.pause()

    def stay_away(self, seconds: float) -> None:
        """Let the loop run for some seconds; unlike at a border, no KeyboardInterrupt is raised here."""
        if not seconds:
            self.give_way()
            return
        is_over = False

        def end() -> None:
            nonlocal is_over
            is_over = True
            self.wake()

        self.process.call_later(seconds, end)
        while not is_over:
            self.pause()

    def border(self) -> None:
        """Pause; raise KeyboardInterrupt if an interrupt applies to what runs here now, also one that came while it ran."""
        self._raise_interrupt()
        self.pause()
        self._raise_interrupt()

    def _raise_interrupt(self) -> None:
        interrupts, self._interrupts = self._interrupts, []
        for applies in interrupts:
            if applies():
                raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        SimParker(self).wait(seconds)

    def poll_s(self) -> float:
        """Return how many virtual seconds a zero-length wait takes."""
        if self.process.loop.ticks != self._polled_at:
            self._polls = 0
        self._polls += 1
        poll_s = POLL_S if self._polls > FREE_POLLS else 0.0
        self._polled_at = self.process.loop.ticks + to_ticks(poll_s)
        return poll_s

    def die(self, code: int | None, signal: int | None) -> None:
        """End the process; never returns."""
        self.process.exit(code, signal)
        self.pause()


class SimParker:
    """Implements ``base.Parker``: its wait is a border. Once released it stays released."""

    def __init__(self, thread: UserThread) -> None:
        self._thread = thread
        self._released = False
        self._make_error: Callable[[], Exception] | None = None

    def wait(self, timeout_s: float | None) -> bool:
        assert this_thread() is self._thread, "a parker blocks the thread that made it"
        timer, expired = None, False

        def expire() -> None:
            nonlocal expired
            expired = True
            self._thread.wake()

        if timeout_s is not None and not self._released:
            timer = self._thread.process.call_later(timeout_s or self._thread.poll_s(), expire)
        try:
            while not self._released and not expired:
                self._thread.border()
        finally:
            if timer is not None:
                timer.cancel()
        if self._make_error is not None:
            raise self._make_error()
        return self._released

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._thread.wake()

    def fail(self, make_error: Callable[[], Exception]) -> None:
        self._make_error = make_error
        self.release()


def _environment() -> dict[bytes, bytes]:
    """Return the dict behind ``os.environ``, which every access uses, however ``environ`` was imported."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data


@contextlib.contextmanager
def environment_of(thread: UserThread) -> Generator[None, None, None]:
    """Let ``os.environ`` show the variables of the thread's process while the thread runs.

    Changes then do not reach the interpreter's real environment, which child programs inherit.
    """
    outside, putenv, unsetenv = _environment(), os.putenv, os.unsetenv
    os.environ._data = thread.environ  # type: ignore[attr-defined]
    os.putenv = os.unsetenv = _change_nothing
    try:
        yield
    finally:
        os.environ._data = outside  # type: ignore[attr-defined]
        os.putenv, os.unsetenv = putenv, unsetenv


def _change_nothing(*_: object) -> None:
    """Do nothing, in place of ``os.putenv`` and ``os.unsetenv``."""
