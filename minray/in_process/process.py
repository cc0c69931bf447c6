"""Processes that are groups of callbacks on one loop, and the loop that keeps them apart.

Ray: has no counterpart

A callback belongs to the process in its context (``current_process``). Tasks inherit the context in which they are made, and
so do the callbacks of their futures. User threads of a process run in copies of its context.

Rules
  * A dead process runs no callback any more. Its tasks are closed when it dies, so their ``finally`` blocks run then.
    Nothing that they do has any effect, since the process's channels and children are gone before.
  * A process may be ended from any thread. It counts as dead at once; what follows from that happens on the loop.
  * Pids of processes here are larger than any pid of the system, so that neither is taken for the other. A driver has the
    pid of the program around the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, ContextVar, copy_context
from heapq import heappush
from typing import Any, TypeVar, TypeVarTuple

from minray.common.clock import Clock
from minray.in_process.lead import Lead, LedLoop
from minray.platform.base import ExitStatus, PlatformError, ProcessGone

FIRST_PID = 1 << 23
"""The first pid of a process here; Linux has none above 1 << 22."""
KILLED = ExitStatus(None, 9)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

current_process: ContextVar[LocalProcess | None] = ContextVar("minray_local_process", default=None)
"""The process whose code is running, on the loop and in user threads alike; None for the program around the cluster."""
_pids = itertools.count(FIRST_PID)


class LocalProcess:
    """One process of an in-process cluster."""

    def __init__(
        self, loop: LocalLoop, name: str, node: str, parent: LocalProcess | None = None, program_pid: int = 0
    ) -> None:
        """``program_pid``: for a driver, the pid of the program that it stands for."""
        self.loop = loop
        self.name = name
        self.node = node
        """The name of its machine."""
        self.parent = parent
        self.pid = program_pid or next(_pids)
        self.is_program = bool(program_pid)
        """Whether this process is a driver. Its user code is the program's own, so nothing is replaced for it."""
        self.alive = True
        self.status: ExitStatus | None = None
        """How it ended; None while it lives."""
        self.on_death: list[Callable[[], object]] = []
        """Called on the loop, in order, once the process has died."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.environ: dict[Any, Any] | None = None
        """Environment variables of its own; None as long as they are those of the program."""
        self.user_threads: list[threading.Thread] = []
        """Threads that user code has started in this process."""
        self.main_thread: threading.Thread | None = None
        """The thread that stands for the main thread of a worker, once it has run something."""
        self.classes: dict[str, Any] = {}
        """The process's copies of classes that are pickled by value, by cloudpickle's id of the class."""
        self.exit_handlers: list[Callable[[], object]] = []
        """The functions that user code has registered with ``atexit``, in order."""
        self.signal_handlers: dict[int, Any] = {}
        """The handlers that user code has set with ``signal.signal``, by the number of the signal."""
        self.on_signal: Callable[[int], None] = lambda number: self.exit(None, number)
        """Called, from any thread, when the process is sent a signal other than SIGKILL."""
        self._dying = threading.Lock()
        self.context = Context()
        self.context.run(current_process.set, self)

    def __repr__(self) -> str:
        return f"<LocalProcess {self.name}>"

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.Handle:
        """From the loop: call back in this process."""
        return self.loop.call_soon(callback, *args, context=self.context)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """From the loop: begin a task of this process."""
        return self.loop.create_task(coroutine, context=self.context.copy())

    def exit(self, code: int | None, signal: int | None = None) -> None:
        """From any thread: end the process. The caller goes on, but nothing that it does for this process has any effect."""
        with self._dying:
            if not self.alive:
                return
            self.alive = False
            self.status = ExitStatus(code, signal)
        if self.loop.is_loop_thread():
            self.loop.call_soon(self._bury, context=Context())
        else:
            with contextlib.suppress(RuntimeError):  # The loop has been closed with its world.
                self.loop.call_soon_threadsafe(self._bury, context=Context())

    def _bury(self) -> None:
        on_death, self.on_death = self.on_death, []
        for callback in on_death:
            callback()
        for task in list(self.tasks):
            close(task)
        self.tasks.clear()


class _OfProcess:
    """The part of a handle that asks, when its turn has come, whether its process still lives."""

    __slots__ = ()
    _process: LocalProcess | None
    _loop: asyncio.AbstractEventLoop
    _callback: Callable[..., object]
    _args: Sequence[Any]
    _context: Context

    def _run(self) -> None:
        process = self._process
        if process is not None and not process.alive:
            return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            message = f"Exception in callback {self._callback!r}"
            self._loop.call_exception_handler({"message": message, "exception": error})


class ProcessHandle(_OfProcess, asyncio.Handle):
    """A callback that waits for its turn."""

    __slots__ = ("_process",)

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], loop: LocalLoop, context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._source_traceback = None
        self._repr = None
        self._process = self._context.get(current_process)


class ProcessTimer(_OfProcess, asyncio.TimerHandle):
    """A callback that waits for its time."""

    __slots__ = ("_process",)

    def __init__(
        self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], loop: LocalLoop, context: Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._process = self._context.get(current_process)


class LocalLoop(LedLoop):
    """The loop of an in-process cluster. It serves callbacks and timers, and no files."""

    def __init__(self) -> None:
        super().__init__()
        self.lead = self._selector = Lead(self)
        self._write_to_self = self.lead.wake
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def _process_events(self, event_list: None) -> None:
        """Do nothing: there are no files."""

    def time(self) -> float:
        """Return the time of the timers, which goes on when user code puts other functions into ``time``."""
        return Clock.monotonic()

    def is_loop_thread(self) -> bool:
        return self._thread_id == threading.get_ident()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error, unless a task has ended with its process, or nobody was left to hear of a dead peer."""
        error = context.get("exception")
        is_unheard = isinstance(error, PlatformError) and "never retrieved" in context.get("message", "")
        if not isinstance(error, ProcessGone) and not is_unheard:
            super().call_exception_handler(context)

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = ProcessHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = self.call_soon(callback, *args, context=context)
        self._write_to_self()
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = ProcessTimer(when, callback, args, self, context)
        heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], context: Context | None = None, **options: Any
) -> asyncio.Task[T]:
    process = current_process.get() if context is None else context.get(current_process)
    task = asyncio.Task(coroutine, loop=loop, context=context, **options)
    if process is not None:
        process.tasks.add(task)
    return task


def close(task: asyncio.Task[Any]) -> None:
    """Close a task's coroutine, which will never run again, and ignore every exception that it raises."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if not task.done() and coroutine is not None:
        with contextlib.suppress(BaseException):
            coroutine.close()
