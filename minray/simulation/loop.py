"""The event loop of the simulated world: asyncio in virtual time, for many simulated processes in one thread.

``SimLoop`` has no selector. When nothing is ready it moves time to the next timer. When there is no timer either, it raises
``Deadlock`` and lists everything that waits. So a lost wake-up is an exception and never a hung test.

Rules
  * The unit of nondeterminism is process, link and timer. Within a process callbacks run first in, first out, as asyncio
    documents it. Every ``SimProcess`` has its own ready queue, and a turn of the loop is one pass over one queue.
  * A callback belongs to the process found in its context (``current_process``); tasks inherit it when they are created.
  * A crashed process never runs again. Its tasks are not cancelled, and their ``finally`` blocks do not run. The tasks are
    kept until the world is closed, because a coroutine that is freed would unwind.
  * Time is a whole number of ticks of about one microsecond, which makes all sums exact. Every process has a clock of its
    own with another zero, so that a comparison of ``loop.time()`` between two processes is a visible bug.
  * Tasks and futures hash by a counter: asyncio iterates over sets of them, and addresses differ between runs.

What we do not like about it yet: a step takes no virtual time, so a process that computes for long looks infinitely fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import math
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Never, TypeVar, TypeVarTuple

from minray.platform.base import ProcessGone

TICKS_PER_SECOND = 1 << 20
MAX_STEPS_AT_ONE_INSTANT = 1_000_000
"""The largest number of steps without any time passing; more are a livelock."""
MIN_CANCELLED_TIMERS = 500
"""Smallest number of cancelled timers that are swept out of the heap, once they are also more than half of it."""
LOOK_TICKS = TICKS_PER_SECOND // 100
"""Ticks between two looks of ``SimLoop.run_until`` at its condition."""
WORLD = "world"
"""The process of everything that is no part of the cluster: the test itself, the faults."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

current_process: ContextVar[SimProcess | None] = ContextVar("current_process", default=None)
"""The simulated process whose code is running, on the loop and in user threads alike; None outside of simulations."""


class Deadlock(Exception):
    """The awaited event has not happened, and nothing can happen any more, or the time limit is reached."""


class NotSimulated(RuntimeError):
    """Simulated code asked for something that has no meaning in the simulated world, such as a thread or a socket."""


def to_ticks(seconds: float) -> int:
    """Return the ticks of a duration, rounded up so that a timer never fires early."""
    return math.ceil(seconds * TICKS_PER_SECOND)


class SimFuture(asyncio.Future[T]):
    """A future with a reproducible hash."""

    __slots__ = ("ordinal",)

    def __init__(self, loop: asyncio.AbstractEventLoop, ordinal: int) -> None:
        self.ordinal = ordinal
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.ordinal


class SimTask(asyncio.Task[T]):
    """A task with a reproducible hash, and a name that does not count across runs."""

    __slots__ = ("ordinal", "process")

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        ordinal: int,
        process: SimProcess,
        name: str,
        context: Context,
    ) -> None:
        self.ordinal = ordinal
        self.process = process
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.ordinal

    @property
    def strike_name(self) -> str:
        """The name at which faults aim: callbacks whose object has this attribute can be struck."""
        return self.get_name()


class SimHandle(asyncio.Handle):
    """A callback that waits for its turn in the queue of its process."""

    __slots__ = ("process",)
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], loop: SimLoop, context: Context, process: SimProcess
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._source_traceback = None
        self._repr = None
        self.process = process


class SimTimer(asyncio.TimerHandle):
    """A callback that waits for its time; ``when()`` is on the clock of its process."""

    __slots__ = ("process",)
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: Context,
        process: SimProcess,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._source_traceback = None
        self._repr = None
        self._when = when
        self._scheduled = True
        self.process = process

    def cancel(self) -> None:
        if not self._cancelled:
            self.process.loop.on_timer_cancelled()
            asyncio.Handle.cancel(self)


class SimProcess:
    """One simulated process, as the loop sees it."""

    def __init__(
        self, loop: SimLoop, name: str, node: str, pid: int, clock_offset_s: int, parent: SimProcess | None = None
    ) -> None:
        self.loop = loop
        self.name = name
        """The process's name, as in ``Platform.name``; unique among the living processes of this world."""
        self.node = node
        self.pid = pid
        self.parent = parent
        """The process that has started this one; None for the world."""
        self.clock_offset_s = clock_offset_s
        """The time that this process's ``loop.time()`` shows when the world begins."""
        self.context = contextvars.Context()
        """The context in whose copies all code of the process runs."""
        self.context.run(current_process.set, self)
        self.ready: deque[SimHandle | SimTimer] = deque()
        self.queued = False
        """Whether the process is in the loop's list of processes to run."""
        self.alive = True
        self.stalled_until = 0
        """Tick before which the process does not run."""
        self.ordinals: dict[str, int] = {}
        """Counters of events in the process by name, such as the steps of each task while faults may strike."""
        self.on_death: list[Callable[[], object]] = []
        """Callbacks for its death; each is called once, in order, outside of the process."""
        self.tombs: list[object] = []
        """Tasks, handles and timers of a dead process, kept so that none of them unwinds."""
        self.user_thread_idents: dict[int, None] = {}
        """The idents of the real threads that run its user code; a dict, to keep their order."""
        self._thread_count = 0
        """Number of simulated threads that it has had."""
        self.on_exit: Callable[[int | None, int | None], None] | None = None
        """Called with ``(code, signal)`` when the process ends itself or is killed; set by its machine, to know the
        status."""
        self.on_text: Callable[[str, str], None] | None = None
        """Receives what the process prints, as ``(stream, text)``; None: it goes to this interpreter's own streams."""
        self.on_init: Callable[[], None] | None = None
        """Joins the cluster, unless the process is connected; called by ``minray.init``, in a user thread of a driver."""
        self.on_shutdown: Callable[[], None] | None = None
        """Leaves the cluster, unless the process has left it; called by ``minray.shutdown``, as ``on_init``."""
        self.random_bytes: Callable[[int], bytes] | None = None
        """The process's source of entropy; set by its machine."""
        self.classes: dict[str, Any] = {}
        """The classes that it has pickled or unpickled by value, by their names (``SimLoop.class_names``)."""

    def __repr__(self) -> str:
        return f"<SimProcess {self.name}>"

    @property
    def can_run(self) -> bool:
        return self.alive and self.stalled_until <= self.loop.ticks

    def time(self) -> float:
        return self.loop.ticks / TICKS_PER_SECOND + self.clock_offset_s

    def exit(self, code: int | None, signal: int | None = None) -> None:
        """End the process. The call returns, so that the caller can leave; nothing that it does after that has any
        effect."""
        if self.on_exit is not None:
            self.on_exit(code, signal)
        self.loop.kill(self)

    def next_ordinal(self, name: str) -> int:
        """Count an event and return its number: faults aim at "the third step of this task", "the second message of that
        kind"."""
        ordinal = self.ordinals[name] = self.ordinals.get(name, 0) + 1
        return ordinal

    def next_thread_id(self) -> int:
        """Return the native id of a new thread: for the first one the process's pid, as on Linux."""
        self._thread_count += 1
        return self.pid if self._thread_count == 1 else (self.pid << 10) + self._thread_count

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        """From anywhere in the simulated world: call back in this process."""
        return self.loop.call_soon(callback, *args, context=self.context)

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, callback, *args, context=self.context)

    def create_task(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self.loop.create_task(coro, name=name, context=self.context.copy())


@dataclass(frozen=True)
class Failure:
    """An uncaught exception: a bug of ours."""

    process: str
    message: str
    exception: BaseException | None

    def __str__(self) -> str:
        return f"{self.process}: {self.message}: {self.exception!r}"


Strike = Callable[[SimProcess, str, int], None]
"""Called before every step of a task with ``(process, task name, ordinal)``; may kill or stall the process."""
Condition = Callable[[], bool]
"""Awaited by the world: it only looks, and changes nothing."""
Pace = Callable[[SimProcess], float]
"""Called after every callback of a process; returns how many seconds the callback has taken."""


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of a world; the head of this file describes it."""

    _thread_id: int | None
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0
        """Virtual time, in ticks."""
        self.limit_ticks = to_ticks(24 * 3600)
        """The tick after which the world ends with Deadlock."""
        self.steps = 0
        """Number of callbacks run so far."""
        self.strike: Strike | None = None
        self.pace: Pace | None = None
        self.failures: list[Failure] = []
        self.unnamed_tasks: dict[str, None] = {}
        """Coroutines whose tasks were made without a name. Faults aim at names, so minray should name its tasks."""
        self.class_names: dict[Any, str] = {}
        """The names that cloudpickle uses in this world for classes that are pickled by value."""
        self.current: SimProcess | None = None
        """The process whose turn it is; None between turns."""
        self.on_close: list[Callable[[], None]] = []
        """Callbacks for the end of the world, in order (they end user threads)."""
        self.interruption: Callable[[], object] | None = None
        """Called once, before the next turn; it may raise to end the run. Set by signal handlers, which must not raise just
        anywhere: a ``__del__`` swallows exceptions, and a coroutine that is being made is left behind."""
        self._interrupted_by: BaseException | None = None
        self.describers: list[Callable[[], str]] = []
        """Each returns a line about something that waits beside the tasks (a user thread), or an empty text."""
        self._ordinal = 0
        self._sequence = 0
        """Number of the last timer: timers of one instant fire in the order in which they were set."""
        self._timers: list[tuple[int, int, SimTimer]] = []
        self._cancelled_timers = 0
        self._runnable: deque[SimProcess] = deque()
        self._step_of_last_instant = 0
        self._condition: Condition | None = None
        """Awaited by ``run_until``."""
        self._next_look = 0
        """The tick from which on the condition is looked at again."""
        self.processes: list[SimProcess] = []
        """All processes, dead ones too, in order of their start."""
        self.world = self.add_process(WORLD, node="", clock_offset_s=0)

    # --- Processes ---

    def add_process(self, name: str, node: str, clock_offset_s: int) -> SimProcess:
        """Add a process; its parent is the process that runs now, or the world."""
        parent = self.current or next(iter(self.processes), None)
        process = SimProcess(self, name, node, 1000 + len(self.processes), clock_offset_s, parent)
        self.processes.append(process)
        return process

    def kill(self, process: SimProcess) -> None:
        """Kill a process: none of its code runs from now on. Called from within it, the current step is its last."""
        if not process.alive:
            return
        assert process is not self.world
        self._bury(process, [task for task in self.pending_tasks() if task.process is process])
        on_death, process.on_death = process.on_death, []
        for callback in on_death:
            callback()

    def _bury(self, process: SimProcess, tasks: list[SimTask[Any]]) -> None:
        process.alive = False
        process.tombs.extend(tasks)
        process.tombs.extend(process.ready)
        process.ready.clear()

    def stall(self, process: SimProcess, duration_s: float) -> None:
        """Stop a process for a while; its messages and timers wait, as between SIGSTOP and SIGCONT."""
        process.stalled_until = max(process.stalled_until, self.ticks + to_ticks(duration_s))
        self.world.call_later(duration_s, self._maybe_queue, process)

    def _maybe_queue(self, process: SimProcess) -> None:
        if process.ready and not process.queued and process.can_run:
            process.queued = True
            self._runnable.append(process)

    def pending_tasks(self) -> list[SimTask[Any]]:
        """Return the pending tasks in the order of their creation."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.ordinal)

    def next_ordinal(self) -> int:
        self._ordinal += 1
        return self._ordinal

    # --- What asyncio asks of a loop ---

    def time(self) -> float:
        process = self.current
        return self.ticks / TICKS_PER_SECOND + (process.clock_offset_s if process is not None else 0)

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if context is None:
            context = self._ambient_context()
        process = context.get(current_process) or self.world
        handle = SimHandle(callback, args, self, context, process)
        if process.alive:
            process.ready.append(handle)
            if not process.queued and process.stalled_until <= self.ticks:
                process.queued = True
                self._runnable.append(process)
        else:
            process.tombs.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_thread()
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._schedule(self.ticks + to_ticks(max(delay, 0)), callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        offset_s = self.current.clock_offset_s if self.current is not None else 0
        return self._schedule(max(to_ticks(when - offset_s), self.ticks), callback, args, context)

    def _schedule(
        self, tick: int, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = self._ambient_context()
        process = context.get(current_process) or self.world
        when = tick / TICKS_PER_SECOND + process.clock_offset_s
        timer = SimTimer(when, callback, args, self, context, process)
        self._sequence += 1
        heapq.heappush(self._timers, (tick, self._sequence, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self, self.next_ordinal())

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if name is None:
            name = getattr(coro, "__qualname__", type(coro).__name__)
            self.unnamed_tasks[name] = None
        if context is None:
            context = self._ambient_context()
        process = context.get(current_process) or self.world
        task = SimTask(coro, self, self.next_ordinal(), process, name, context)
        if not process.alive:
            process.tombs.append(task)  # The process has died in this very step, so the task never begins.
        return task

    def run_in_executor(self, executor: object, func: Callable[[*Ts], object], *args: *Ts) -> Never:
        raise NotSimulated("run_in_executor: threads have no meaning on a simulated loop")

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an uncaught exception, with which the world fails, unless its process is dead anyway."""
        subject = context.get("task") or context.get("future")
        process = subject.process if isinstance(subject, SimTask) else self.current or self.world
        if process.alive and not self.is_closed():
            name = f" ({subject.get_name()})" if isinstance(subject, SimTask) else ""
            self.failures.append(Failure(process.name, f"{context['message']}{name}", context.get("exception")))

    def _ambient_context(self) -> Context:
        return contextvars.copy_context() if self.current is not None else self.world.context.copy()

    def is_loop_thread(self) -> bool:
        return threading.get_ident() == self._thread_id

    def _check_thread(self) -> None:
        ident = threading.get_ident()
        if ident != self._thread_id and (self.current is None or ident not in self.current.user_thread_idents):
            raise NotSimulated("call_soon_threadsafe from a thread that is no part of the simulation")

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self.create_task(agen.aclose(), name="aclose")

    # --- Running ---

    def run_until(self, condition: Condition, limit_s: float) -> None:
        """Run the world until the condition is true. Raises Deadlock after ``limit_s`` virtual seconds.

        The world looks between two instants, every 10 ms of virtual time at most. This costs no step, and wakes no process.
        """
        if condition():
            return
        earlier_limit_ticks, self.limit_ticks = self.limit_ticks, self.ticks + to_ticks(limit_s)
        self._condition, self._next_look = condition, self.ticks
        try:
            self.run_forever()
        finally:
            self._condition, self.limit_ticks = None, earlier_limit_ticks

    def _is_awaited(self) -> bool:
        """Tell whether the awaited condition has become true, at the end of an instant."""
        assert self._condition is not None
        self._next_look = self.ticks + LOOK_TICKS
        return self._condition()

    def _run_once(self) -> None:
        """Run one turn of one process; if none is ready, move time to the next instant instead."""
        if self.interruption is not None:
            self.interrupt()
        if not self._runnable:
            self._advance()
            return
        if self.steps - self._step_of_last_instant > MAX_STEPS_AT_ONE_INSTANT:
            raise Deadlock(f"livelock: {MAX_STEPS_AT_ONE_INSTANT} steps without any time passing\n{self.describe()}")
        process = self._runnable.popleft()
        self.current = process
        try:
            self._run_turn(process)
        finally:
            self.current = None
            process.queued = bool(process.ready) and process.can_run
            if process.queued:
                self._runnable.append(process)

    def interrupt(self) -> None:
        """Call ``interruption``, if there is one."""
        interruption, self.interruption = self.interruption, None
        try:
            if interruption is not None:
                interruption()
        except BaseException as error:
            self._interrupted_by = error
            raise

    def _run_turn(self, process: SimProcess) -> None:
        ready, strike = process.ready, self.strike
        for _ in range(len(ready)):
            if not process.alive or process.stalled_until > self.ticks or self._stopping:
                return
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if strike is not None:
                name = getattr(getattr(handle._callback, "__self__", None), "strike_name", None)
                if name is not None:
                    strike(process, name, process.next_ordinal(name))
                    if not process.can_run:
                        (ready if process.alive else process.tombs).insert(0, handle)
                        return
            self.steps += 1
            self._run_handle(handle)
            if self.pace is not None and (step_s := self.pace(process)):
                self.stall(process, step_s)

    def _run_handle(self, handle: SimHandle | SimTimer) -> None:
        """Run a callback as ``asyncio.Handle`` does, but handle errors that concern the process or the whole world here."""
        try:
            handle._context.run(handle._callback, *handle._args)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, Deadlock) or error is self._interrupted_by:
                raise
            self.call_exception_handler({"message": f"in {handle._callback!r}", "exception": error})
        except SystemExit as error:
            handle.process.exit(error.code if isinstance(error.code, int) else 1 if error.code else 0)
        except ProcessGone:
            assert not handle.process.alive

    def _advance(self) -> None:
        """Move time to the next timer, and put all timers due then into the ready queues."""
        timers = self._timers
        while timers and self._is_void(timers[0][2]):
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing can ever happen again\n{self.describe()}")
        tick = timers[0][0]
        if self._condition is not None and tick >= self._next_look and self._is_awaited():
            self.stop()
            return
        if tick > self.limit_ticks:
            raise Deadlock(f"not done after {self.limit_ticks / TICKS_PER_SECOND:.0f} virtual seconds\n{self.describe()}")
        if tick > self.ticks:
            self._step_of_last_instant = self.steps
        self.ticks = tick
        while timers and timers[0][0] == tick:
            timer = heapq.heappop(timers)[2]
            if not self._is_void(timer):
                process = timer.process
                process.ready.append(timer)
                self._maybe_queue(process)

    def _is_void(self, timer: SimTimer) -> bool:
        """Whether a timer is cancelled or its process is dead; called once for each timer taken off the heap."""
        if timer._cancelled:
            self._cancelled_timers -= 1
            return True
        process = timer.process
        if not process.alive:
            process.tombs.append(timer)
            return True
        return False

    def on_timer_cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > max(MIN_CANCELLED_TIMERS, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def describe(self) -> str:
        """Return a text with every pending task and user thread, by process and name, and the line where it waits."""
        lines = [
            f"  {task.process.name:<20} {task.get_name():<30} {_where(task)}"
            for task in self.pending_tasks()
            if task.process.alive
        ]
        lines += filter(None, [describe() for describe in self.describers])
        return "\n".join(["what waits:", *lines]) if lines else "nothing waits"

    # --- The end of the world ---

    def close(self) -> None:
        """End the world and unwind all tasks and threads. Nothing that they call while they unwind has any effect."""
        if self.is_closed():
            return
        tasks: dict[SimProcess, list[SimTask[Any]]] = {}
        for task in self.pending_tasks():
            tasks.setdefault(task.process, []).append(task)
        for process in self.processes:
            if process.alive:
                self._bury(process, tasks.get(process, []))
        super().close()
        for callback in self.on_close:
            callback()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # A coroutine that never began is no mistake here.
            for process in self.processes:
                for tomb in process.tombs:
                    if isinstance(tomb, SimTask):
                        unwind(tomb)
        for process in self.processes:
            process.tombs.clear()
        self._timers.clear()
        self._runnable.clear()


def _where(task: asyncio.Task[Any]) -> str:
    """Return file and line of the innermost Python frame in which a task waits."""
    coro: Any = task.get_coro()
    frame = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame is not None else ""


def unwind(task: asyncio.Task[Any]) -> None:
    """Close a task's coroutine and ignore every exception that it raises."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        task.get_coro().close()
