"""User code in the simulated world: real threads that run one at a time and hand a baton (the right to run) to each other.

User code blocks: in ``get``, in ``sleep``, wherever it likes. So it runs in a real thread of its own, as in a real worker,
but only while the loop stands still. The loop hands the baton to the thread as one step of its process. The thread gives it
back at a *border*: a wait, a simulated sleep, or the end of its work. Exactly one side runs at any time. So nothing here
needs a lock, and the same seed gives the same run.

Rules
  * A thread becomes ready like any callback of its process: first in, first out, struck by faults, stopped by stalls.
  * A thread of a dead process stays at its border until the world is closed. Then ``ProcessGone`` is raised there, and
    nothing that the thread does while it unwinds has any effect.
  * With ``Switches``, a thread may also give way at the beginning of any line of minray's own code, since an interpreter may
    switch threads anywhere. It does not within or below files with locks: the loop would wait for those locks for ever.
  * A step takes no virtual time, but polling does: after ``FREE_POLLS`` zero-length waits at one instant each further one
    takes ``POLL_S``.
  * Handing over costs two raw lock operations: 5-10 us when both threads share a core (``one_core``), 50 us when not.
  * Threads beside the main one run an actor's calls. For threads that user code starts itself an error is raised
    (see ``interpreter``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures._base
import contextlib
import copy
import functools
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from pathlib import Path
from types import FrameType
from typing import Any, Never, TypeVar, TypeVarTuple

from minray import core_worker, rpc
from minray.api import calls
from minray.common import sequence_ranges
from minray.common.environment_variables import update_environment
from minray.common.package import DIRECTORY, HOLDS_LOCKS, has_mark
from minray.common.thread_frames import frames_of_other_threads
from minray.platform.base import WOULD_BLOCK, Buffer, ProcessGone
from minray.simulation.loop import (
    Deadlock,
    Failure,
    SimFuture,
    SimProcess,
    SimTask,
    to_ticks,
    unwind,
)
from minray.simulation.refusal import refusal, users_frame

if sys.platform == "emscripten":
    from minray.simulation.browser.stacks import StackLock as allocate_lock
    from minray.simulation.browser.stacks import start_new_thread
else:
    from _thread import allocate_lock, start_new_thread

STUCK_S = 60
"""Real seconds after which user code that does not come to a border fails the run."""
LOOK_S = 1.0
"""Real seconds after which an alarm ends the run although user code comes to no border."""
SWITCHED = (*core_worker.__path__, *rpc.__path__, str(calls.__file__), str(sequence_ranges.__file__))
"""Code of minray in which user threads may give way between lines: it runs beside a loop."""
LOCKED = (str(logging.__file__), str(concurrent.futures._base.__file__))
"""Python's files with locks; ours have ``HOLDS_LOCKS``. A thread does not give way in them, or in code that they call."""
FREE_POLLS = 1000
"""Number of zero-length waits at one instant that take no time: an event loop has many turns in which it need not wait."""
POLL_S = 0.000_1
"""Virtual seconds of each further zero-length wait: in a program that only polls, nothing else moves time."""
USER_THREAD = "user thread"
"""Name of a user thread in the list of what waits in a deadlock."""
UNWIND_S = 5.0
"""Real seconds that a thread gets to end when its world is closed; after that it is left behind."""
PROCESSOR = 36
"""Index of the field ``processor`` of ``/proc/thread-self/stat`` behind the command's name (proc_pid_stat(5))."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_threads: dict[int, UserThread] = {}
"""The simulated user threads by the idents of their real threads."""


def this_thread() -> UserThread | None:
    """Return the simulated user thread in which the caller runs, or None."""
    return _threads.get(threading.get_ident())


class Switches:
    """Makes the user threads of one process give way to the loop between their borders."""

    def __init__(self, choose: Callable[[str, int], float | None]) -> None:
        """``choose(function, n)`` is called at the n-th line of this function that user threads of the process reach. It
        returns for how many seconds the thread gives way there; None: not at all."""
        self._choose = choose
        self._counts: Counter[str] = Counter()

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Callable[[FrameType, str, Any], Any] | None:
        """Trace a call; the function for ``sys.settrace``."""
        return self._on_line if _may_switch(frame.f_code.co_filename) else None

    def _on_line(self, frame: FrameType, event: str, _arg: Any) -> Callable[[FrameType, str, Any], Any]:
        if event == "line":
            name = frame.f_code.co_qualname
            self._counts[name] += 1
            thread = this_thread()
            if thread is not None and thread.process.alive:
                away_s = self._choose(name, self._counts[name])
                if away_s is not None and not _may_hold_lock(frame):
                    thread.stay_away(away_s)
        return self._on_line


@functools.cache
def _may_switch(path: str) -> bool:
    return path.startswith(SWITCHED)


def _may_hold_lock(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in LOCKED or has_mark(frame, HOLDS_LOCKS):
            return True
        frame = frame.f_back
    return False


class UserThread:
    """One real thread that runs user code, and its half of the baton."""

    strike_name = "user_code"

    def __init__(self, process: SimProcess, switches: Switches | None = None) -> None:
        self.process = process
        self.switches = switches
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
        with _environment_of(self):
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
        with _environment_of(self):
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
            self._back.release()

    def _run(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        context = self.process.context.copy()
        self._idle = False
        if self.switches is not None:
            sys.settrace(self.switches.on_call)
        try:
            context.run(work, *args)
        except Exception as error:
            if self.process.alive:
                self.process.loop.failures.append(Failure(self.process.name, "user code's frame raised", error))
        finally:
            if self.switches is not None:
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
        """Pause; raise KeyboardInterrupt if an interrupt applies to what runs here now."""
        self.pause()
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


class SimThreads:
    """Implements ``base.Threads`` with simulated user threads."""

    def __init__(self, process: SimProcess, main: UserThread, limit: int) -> None:
        self._process = process
        self._main = main
        self._limit = limit
        self._threads: list[UserThread] = []

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        thread = next((thread for thread in self._threads if thread.has_no_work()), None)
        if thread is None:
            assert len(self._threads) < self._limit, "more work at once than was announced"
            thread = UserThread(self._process, self._main.switches)
            self._threads.append(thread)
        thread.environ, thread.working_dir = self._main.environ, self._main.working_dir
        thread.add_work(work, then, *args)


class SimUserCode:
    """Implements ``base.UserCode`` for a simulated process."""

    def __init__(
        self,
        process: SimProcess,
        preempt: Callable[[int], bool] = lambda ordinal: False,
        switch: Callable[[str, int], float | None] | None = None,
        directories: dict[str, bytes] | None = None,
    ) -> None:
        """``switch``: the ``choose`` of ``Switches``; None: no switches, which is faster."""
        self._process = process
        self._preempt = preempt
        """Called at the n-th ``post`` of a user thread; returns whether the loop runs right then."""
        self.thread = UserThread(process, None if switch is None else Switches(switch))
        """The main user thread."""
        self._held: list[tuple[Any, ...]] | None = None
        """Work that came between ``hold`` and ``serve``; None: work is run as it comes."""
        self.on_dropped: Callable[[Sequence[bytes]], None] = lambda _names: None
        self._directories = {} if directories is None else directories
        """Packages that are unpacked on this machine, by directory."""

    def renewed(self) -> SimUserCode:
        """Return the same threads for another connection of the process; references of this one are dropped in silence."""
        other = copy.copy(self)
        self.on_dropped = other.on_dropped = lambda _names: None
        return other

    def hold(self) -> None:
        """Let work wait for ``serve``, as in a real worker work waits until that has started completely."""
        self._held = []

    def serve(self) -> None:
        held, self._held = self._held or [], None
        for work in held:
            self.thread.add_work(*work)

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        if self._held is not None:
            self._held.append((work, then, *args))
        else:
            self.thread.add_work(work, then, *args)

    def threads_beside(self, limit: int) -> SimThreads:
        return SimThreads(self._process, self.thread, limit)

    def collect_later(self) -> None:
        """Do nothing: if minray itself keeps objects in a cycle, that must be noticed."""

    def collect_garbage(self) -> None:
        """Do nothing, as ``collect_later``."""

    def run_exit_handlers(self) -> None:
        """Do nothing: exit handlers belong to this interpreter, not to the simulated process."""

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """Run the event loop as a piece of work that never ends: no other work runs in this thread beside it."""
        self.run(lambda: _run_event_loop(on_open))

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self.threads_beside(1).run(lambda: _run_event_loop(on_open), lambda: None)

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        self.post(then, *args)

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        if not self._process.alive:
            return
        self._process.call_soon(callback, *args)
        thread = this_thread()  # It belongs to another process if an object of this one is freed there.
        if thread is not None and thread.process is self._process and self._preempt(self._process.next_ordinal("post")):
            thread.give_way()

    def post_later(self, callback: Callable[..., None], *args: Any) -> None:
        self.post(callback, *args)

    def drop(self, name: bytes) -> None:
        """Post each name on its own, so that anything may happen in between.

        The caller is a ``__del__``, which cannot raise: a thread that is unwound meanwhile ends at its next border.
        """
        with contextlib.suppress(ProcessGone):
            self.post(self.on_dropped, [name])

    def parker(self) -> SimParker:
        thread = this_thread()
        if thread is None and self.is_loop_thread():
            raise RuntimeError(WOULD_BLOCK)
        assert thread is not None and thread.process is self._process, "only user threads of this process can wait"
        return SimParker(thread)

    def future(self) -> concurrent.futures.Future[Any]:
        return concurrent.futures.Future()

    def interrupt(self, applies: Callable[[], bool]) -> None:
        self.thread.interrupt(applies)

    def time(self) -> float:
        return self._process.time()

    def is_loop_thread(self) -> bool:
        return self._process.loop.is_loop_thread()

    def threads(self) -> list[tuple[str, FrameType | None]]:
        """Return the threads that run user code; each is at a border."""
        frames = frames_of_other_threads()
        here = [thread for thread in _threads.values() if thread.process is self._process]
        names = ["MainThread" if thread is self.thread else "minray-call" for thread in here]
        return list(zip(names, (None if one.has_no_work() else frames.get(one.ident) for one in here), strict=True))

    def has_directory(self, path: str) -> bool:
        return path in self._directories or os.path.isdir(path)

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        """Note that the machine has the directory; nothing is written."""
        if directory not in self._directories:
            check()
            self._directories[directory] = bytes(archive)

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        """Set working directory and variables. ``leading`` and ``sys_path`` have no effect: all processes share modules."""
        if working_dir is not None:
            if working_dir not in self._directories:
                os.stat(working_dir)
            self.thread.working_dir = working_dir
        with _environment_of(self.thread):
            update_environment(os.environ, env_vars)


def _run_event_loop(on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.call_soon(on_open, loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


class SimulatedUserLoop(asyncio.BaseEventLoop):
    """The event loop of ``asyncio.run`` inside simulated user code: an ordinary loop whose waits are borders."""

    def __init__(self, thread: UserThread) -> None:
        super().__init__()
        self._thread = thread
        self._selector = _BorderSelector(thread)

    def time(self) -> float:
        return self._thread.process.time()

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self, self._thread.process.loop.next_ordinal())

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        name = name or str(getattr(coro, "__qualname__", "task"))
        process = self._thread.process
        return SimTask(coro, self, process.loop.next_ordinal(), process, name, context or copy_context())

    def run_in_executor(self, executor: object, func: Callable[[*Ts], object], *args: *Ts) -> Never:
        raise refusal("run_in_executor: threads inside simulated user code; use tasks, an actor, or coroutines")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an uncaught exception, as any loop does; a process that is unwound ends at its next border instead."""
        if not isinstance(context.get("exception"), ProcessGone):
            super().call_exception_handler(context)

    def close(self) -> None:
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            unwind(task)
        super().close()

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        self._selector.parker.release()


class _BorderSelector:
    """The part of a selector that ``BaseEventLoop`` uses. It selects no files; callbacks from outside wake it."""

    def __init__(self, thread: UserThread) -> None:
        self._thread = thread
        self.parker = SimParker(thread)

    def select(self, timeout_s: float | None) -> list[object]:
        if timeout_s == 0:
            timeout_s = self._thread.poll_s()
        if timeout_s is None or timeout_s > 0:
            self.parker.wait(timeout_s)
            self.parker = SimParker(self._thread)
        return []


def _environment() -> dict[bytes, bytes]:
    """Return the dict behind ``os.environ``, which every access uses, however ``environ`` was imported."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data


@contextlib.contextmanager
def _environment_of(thread: UserThread) -> Generator[None, None, None]:
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


@contextlib.contextmanager
def one_core() -> Generator[None, None, None]:
    """Keep this thread, and those it starts, on one core, so that a hand-over need not wake another core.

    It is the core on which the thread runs now: the system has chosen that, so that processes side by side share no core.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_current_core(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _current_core(cores: list[int]) -> int:
    """Return the core on which this thread runs; any of ``cores`` where the system does not say."""
    try:
        core = int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[PROCESSOR])
    except OSError:
        core = os.getpid()
    return core if core in cores else cores[core % len(cores)]
