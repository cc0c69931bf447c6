"""The border between the loop and the threads that run user code, in the in-process world.

Ray: has no counterpart

The driver's threads are the program's own (``LocalDriverCode``). A worker has a thread that stands for its main thread, and
others for the calls of threaded actors (``LocalUserCode``). Each piece of work runs in a copy of its process's context, so
that the public API finds the worker that it runs in.

How work is interrupted: Python can raise an exception in another thread, where that thread runs Python code. The loop looks
at the thread while it holds the interpreter's lock. It raises KeyboardInterrupt there if the interrupt applies and the
moment is a good one (as in ``platform/threads/main_thread``). Waits of minray, ``time.sleep``, conditions and queues of
``threading`` and waits of asyncio are woken for it. A thread that waits in other compiled code, such as a plain lock or a
socket, hears of it when that wait is over.

Rules
  * When a process dies, ``ProcessGone`` is raised in its threads in the same way, again and again until they have ended.
  * A thread that cannot be ended (it waits in compiled code) is reported when the cluster ends: ``left_threads``.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures._base
import errno
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from types import FrameType
from typing import Any

from minray.common.clock import Clock
from minray.common.environment_variables import update_environment
from minray.common.thread_frames import frames_of_other_threads
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.in_process.process import LocalLoop, LocalProcess, close
from minray.in_process.worker_thread import WorkerThread
from minray.platform.base import Buffer, ProcessGone
from minray.platform.threads.main_thread import TERMINATED, is_bad_moment
from minray.platform.threads.spinning import Spinner
from minray.platform.threads.threads_beside import ThreadsBeside
from minray.platform.threads.user_code import BorderParker, DriverUserCode, LoopBorder

COLLECT_S = 0.05
"""Seconds from ``collect_later`` to the collection, so that many failures share one."""
YOUNG = 1
"""The generation, with those below it, that such a collection looks at: objects that two collections have not seen yet."""
AGAIN_S = 0.005
"""Seconds until an interrupt that came at a bad moment is tried again."""
WITH_LOCKS = tuple(str(module.__file__) for module in (logging, threading, queue, concurrent.futures._base))
IMPORTING = "<frozen importlib"
"""Files whose code may hold locks that all threads share, and the beginning of their names: no exception is raised there,
unless the thread waits."""
MAIN = "MainThread"
"""Name of a worker's first thread, for people and for stack dumps."""
logger = logging.getLogger(__name__)
_sleep = time.sleep
"""The function of ``time``, kept here because it is replaced while a cluster runs."""


_waits: dict[int, _thread.LockType] = {}
"""The lock on which a user thread waits, by the thread's ident: releasing it lets the thread run Python code."""


@contextmanager
def _waiting(lock: _thread.LockType) -> Iterator[None]:
    """Let an interrupt end what the calling thread waits for on this lock."""
    ident = threading.get_ident()
    _waits[ident] = lock
    try:
        yield
    finally:
        _waits.pop(ident, None)


def sleep(seconds: float) -> None:
    """Sleep in a worker's thread, so that a cancellation can end the sleep; replaces ``time.sleep`` there."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    until = Clock.monotonic() + seconds
    lock = _thread.allocate_lock()
    lock.acquire()
    with _waiting(lock):
        while (rest_s := until - Clock.monotonic()) > 0:
            lock.acquire(True, min(rest_s, threading.TIMEOUT_MAX))


class WaiterLock:
    """A lock on which a worker's thread waits, until it is released or an interrupt ends the wait."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        with _waiting(self._lock):
            return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


def raise_in_thread(ident: int, kind: type[BaseException]) -> None:
    """Raise an exception in another thread, as soon as that thread runs Python code."""
    import ctypes  # Few programs interrupt anything.

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind))
    lock = _waits.get(ident)
    if lock is not None:
        with suppress(RuntimeError):  # It has been released just now.
            lock.release()
        return
    frame = frames_of_other_threads().get(ident)
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop._run_once.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    if frame is not None:  # It waits for the files of an event loop of user code.
        with suppress(RuntimeError):
            frame.f_locals["self"].call_soon_threadsafe(_nothing)


class LocalParker(BorderParker):
    """A parker whose wait an interrupt can end."""

    __slots__ = ()

    def wait(self, timeout_s: float | None) -> bool:
        with _waiting(self._lock):
            return super().wait(timeout_s)


class _NeverAwake(Spinner):
    """Lets the loop sleep: threads of one process take turns, so a loop that waits awake would hold the others up."""

    def allow(self, limit_s: float, cores: int) -> None:
        """Do nothing."""


class _InContext(LoopBorder):
    """A border whose callbacks run in the context of its process, from whatever thread they come."""

    def __init__(self, loop: LocalLoop, process: LocalProcess) -> None:
        super().__init__(loop)
        self._context: Context = process.context
        self.spinner = _NeverAwake(loop)

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._drain, context=self._context)


class LocalDriverCode(_InContext, DriverUserCode):
    """Implements ``base.UserCode`` for the program around the cluster."""

    def run_exit_handlers(self) -> None:
        """Do nothing: they belong to the program."""


class LocalUserCode(_InContext):
    """Implements ``base.UserCode`` for a worker."""

    def __init__(self, loop: LocalLoop, process: LocalProcess, make_directory: Callable[[], object]) -> None:
        """``make_directory`` makes the directory below which packages are unpacked."""
        super().__init__(loop, process)
        self._process = process
        self._make_directory = make_directory
        self._busy: dict[int, None] = {}
        """Idents of the threads in which work runs."""
        self._threads: dict[int, threading.Thread] = {}
        """All threads in which work has run, by ident."""
        self._main_ident = 0
        """Ident of the main thread; 0 before it has run anything."""
        self._groups: list[ThreadsBeside] = []
        self._main = WorkerThread(loop.lead, self._in_main, self.post, f"{process.name} {MAIN}")
        self._held: list[tuple[Any, ...]] | None = []
        """Work that came before ``serve``; None afterwards."""
        self._will_collect = False
        """Whether a collection was asked for and has not begun."""
        self._event_loops: list[asyncio.AbstractEventLoop] = []
        process.on_death.append(self._end)

    def _new_group(self, limit: int, name: str) -> ThreadsBeside:
        group = ThreadsBeside(self.post, limit, _nothing, name)
        self._groups.append(group)
        return group

    def serve(self) -> None:
        """From the loop: begin to run work."""
        held, self._held = self._held or [], None
        for work in held:
            self.run(*work)

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        if self._held is not None:
            self._held.append((work, then, *args))
        else:
            self._main.run(work, then, *args)

    def threads_beside(self, limit: int) -> _Threads:
        return _Threads(self, self._new_group(limit, f"{self._process.name} call"))

    def _in_main(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._main_ident:
            self._main_ident, self._process.main_thread = threading.get_ident(), threading.current_thread()
        self.in_process(work, args)

    def in_process(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Run a piece of work of this process in the calling thread."""
        ident = threading.get_ident()
        if ident not in self._threads:
            self._threads[ident] = threading.current_thread()
        self._busy[ident] = None
        try:
            if self._process.alive:
                self._process.context.copy().run(work, *args)
        except ProcessGone:
            pass
        except KeyboardInterrupt:  # It came a moment too late, between two tasks: what was lost is not known.
            self._process.exit(None, 9)
        finally:
            self._busy.pop(ident, None)

    # --- what user code may ask for

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        self.post(then, *args)

    def parker(self) -> LocalParker:
        self.refuse_on_loop()
        return LocalParker(self)

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """Run the event loop as a piece of work that never ends: no other work runs in the main thread beside it."""
        self.run(lambda: self._run_event_loop(on_open))

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self.threads_beside(1).run(lambda: self._run_event_loop(on_open), _nothing)

    def _run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        ident = threading.get_ident()
        self._busy.pop(ident, None)  # No exception may come before the loop is known, since it has files.
        loop = asyncio.new_event_loop()
        self._event_loops.append(loop)
        report = loop.call_exception_handler
        loop.call_exception_handler = lambda context: report(context) if self._process.alive else None  # type: ignore
        asyncio.set_event_loop(loop)
        loop.call_soon(on_open, loop)
        self._busy[ident] = None
        try:
            if self._process.alive:
                loop.run_forever()
        finally:
            self._busy.pop(ident, None)
            _close(loop)

    def collect_later(self, at_once: bool = False) -> None:
        """Collect young objects in the main thread soon. All of the program's objects would take too long."""
        if not self._will_collect:
            self._will_collect = True
            self.post(self._plan_collection)

    def _plan_collection(self) -> None:
        self._loop.call_later(COLLECT_S, self._main.run, self._collect, None)

    def _collect(self) -> None:
        self._will_collect = False
        if gc.isenabled():
            gc.collect(YOUNG)

    def run_exit_handlers(self) -> None:
        """Run what this worker's code has registered, the last one first."""
        while self._process.exit_handlers:
            try:
                self._process.exit_handlers.pop()()
            except Exception:
                logger.exception("an exit handler of %s failed", self._process.name)

    def end_on_signal(self, is_in_task: Callable[[], bool], end: Callable[[], None]) -> None:
        """From now on let SIGTERM end this process in an orderly way: ``end`` is called in the main thread."""

        def terminate() -> None:
            self._main.run(end, None)
            if is_in_task():
                self._interrupt_with(_Terminated, is_in_task)

        def on_signal(number: int) -> None:
            handler = self._process.signal_handlers.get(number)
            if callable(handler):
                self.post(self.run, handler, None, number, None)
            elif handler == signal.SIG_IGN:
                return
            elif number == signal.SIGTERM:
                self.post(terminate)
            else:
                self._process.exit(None, number)

        self._process.on_signal = on_signal

    def threads(self) -> list[tuple[str, FrameType | None]]:
        frames = frames_of_other_threads()
        own = [(MAIN if ident == self._main_ident else "minray-call", frames.get(ident)) for ident in list(self._busy)]
        others = [(thread.name, frames.get(thread.ident or 0)) for thread in self._process.user_threads if thread.is_alive()]
        return own + others or [(MAIN, None)]

    def has_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        from minray.platform.storage import packages

        self._make_directory()
        packages.unpack(archive, directory, check)

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        """Set variables for this process alone. Packages join ``sys.path``, which all processes here share.

        Raises OSError for a working directory other than that of the program: one process of the system has only one.
        """
        if working_dir is not None and os.path.realpath(working_dir) != os.path.realpath(os.getcwd()):
            if not os.path.isdir(working_dir):
                os.stat(working_dir)
            reason = f"with local_mode all tasks run in the program's own directory, {os.getcwd()}; use processes for this"
            raise OSError(errno.ENOTSUP, reason, working_dir)
        added = [entry for entry in (*leading, *sys_path) if entry not in sys.path]
        sys.path[:0] = [entry for entry in added if entry in leading]
        sys.path.extend(entry for entry in added if entry not in leading)
        if env_vars:
            self._process.environ = real_environ()
            update_environment(os.environ, env_vars)

    # --- interrupts and the end

    def interrupt(self, applies: Callable[[], bool]) -> None:
        if self._process.signal_handlers.get(signal.SIGINT) != signal.SIG_IGN:
            self._interrupt_with(KeyboardInterrupt, applies)

    def _interrupt_with(self, kind: type[BaseException], applies: Callable[[], bool]) -> None:
        """Raise an exception in the main thread, now or at the next good moment, as long as the interrupt applies.

        That thread must run nothing between the look and the exception. The short sleep has the effect that this thread
        gets the interpreter's lock anew; it then keeps the lock for the switch interval of 5 ms, unless it waits.
        """
        _sleep(1e-6)
        if not applies():
            return
        frame = frames_of_other_threads().get(self._main_ident)
        if frame is not None and self._main_ident in self._busy and not _refuses_exceptions(frame, self._main_ident):
            raise_in_thread(self._main_ident, kind)
        else:
            self._loop.call_later(AGAIN_S, self._interrupt_with, kind, applies)

    def _end(self) -> None:
        """End the threads, since the process has died. Runs on the loop, in no process."""
        self.on_closed = ProcessGone  # type: ignore[assignment]  # It is raised, never caught.
        self._main.end()
        for group in self._groups:
            group.end()
        for parker in list(self.parked):
            parker.release()
        for loop in self._event_loops:
            _stop(loop)
        if self._idents():
            self._loop.call_later(AGAIN_S, self._end_threads)

    def _end_threads(self) -> None:
        frames, idents = frames_of_other_threads(), self._idents()
        for ident in idents:
            frame = frames.get(ident)
            if frame is not None and not _refuses_exceptions(frame, ident):
                raise_in_thread(ident, ProcessGone)
        if idents and not self._loop.is_closed():
            self._loop.call_later(AGAIN_S, self._end_threads)

    def _idents(self) -> list[int]:
        users = [thread.ident for thread in self._process.user_threads if thread.is_alive() and thread.ident is not None]
        return [*self._busy, *users]

    def is_over(self) -> bool:
        """Return whether the process has died and none of its threads runs any more."""
        runs = self._process.alive or self._idents() or any(thread.is_alive() for thread in self._threads.values())
        return not runs

    def join_idle(self, timeout_s: float) -> None:
        """From outside of the loop: wait until the threads of a dead process have ended, but for those that are busy."""
        for ident, thread in self._threads.items():
            if ident not in self._busy:
                thread.join(timeout_s)
        self.close_event_loops()

    def close_event_loops(self) -> None:
        """Close the event loops whose threads were interrupted while they did so."""
        for loop in self._event_loops:
            if not loop.is_closed() and not loop.is_running():
                _close(loop)

    def left_threads(self) -> list[tuple[str, FrameType | None]]:
        """Return the threads that still run although the process has died."""
        frames = frames_of_other_threads()
        return [(self._process.name, frames.get(ident)) for ident in self._idents()]


class _Threads:
    """Implements ``base.Threads`` for a worker."""

    def __init__(self, user_code: LocalUserCode, group: ThreadsBeside) -> None:
        self._user_code = user_code
        self._group = group

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        self._group.run(self._user_code.in_process, _Then(then), work, args)


class _Terminated(SystemExit):
    """Raised in a task when its process is told to end."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class _Then:
    """A callback for the end of a piece of work. ``ThreadsBeside`` calls it with the arguments of ``in_process``."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[..., None]) -> None:
        self._then = then

    def __call__(self, _work: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._then(*args)


def _nothing(*_: object) -> None:
    """Do nothing after a piece of work."""


def _refuses_exceptions(frame: FrameType, ident: int) -> bool:
    """Whether nothing may be raised in this thread now: it is in minray's own code, or may hold a lock of all threads."""
    name = frame.f_code.co_filename
    may_hold_lock = ident not in _waits and (name.endswith(WITH_LOCKS) or name.startswith(IMPORTING))
    return may_hold_lock or is_bad_moment(frame) or _ends_a_task(frame)


def _ends_a_task(frame: FrameType | None) -> bool:
    """Whether the executor handles what a task has raised: the thread will be free in a moment."""
    while frame is not None and frame.f_code is not TaskExecutor._on_exception.__code__:
        frame = frame.f_back
    return frame is not None


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        close(task)
    loop.close()


def real_environ() -> dict[Any, Any]:
    """Return a copy of the variables that the calling thread sees."""
    data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    return dict(data)
