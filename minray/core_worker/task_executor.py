"""Runs tasks, and the calls of the actor that lives here, in the threads for user code.

Ray: execute_task in python/ray/_raylet.pyx

Everything here but the constructor runs in such a thread. Whatever user code does ends as an ``Execution``: values, or a
packed exception. ``SystemExit`` ends the process, as anywhere in Python (an actor that exits without an error code ends in
an orderly way); KeyboardInterrupt is a cancellation if one was asked for. A call of an actor that was cancelled has no
value, though its method returns one; a coroutine may not even fail in a way of its own. The beginning of each task is
marked in memory that outlives the process (``Processes.marks``): after a crash its raylet knows which of the pushed tasks
never began.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from minray import cloudpickle, serialization
from minray.common.clock import Clock
from minray.core_worker.function_manager import FunctionManager
from minray.core_worker.generator_executor import GeneratorExecutor, as_async_iterator, as_iterator
from minray.core_worker.memory_store import StoredObject
from minray.core_worker.outgoing_stream import StreamingTask
from minray.core_worker.results import Result
from minray.core_worker.return_values import BrokenOff, ReturnValues
from minray.exceptions import ActorDiedError, AsyncioActorExit, RaySystemError, TaskCancelledError
from minray.object_ref import ObjectRef
from minray.packed_exception import pack_exception
from minray.platform.base import Platform
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.tracebacks import is_runtime

if TYPE_CHECKING:
    from minray.core_worker.task_intake import ReceivedTask
    from minray.core_worker.task_profile import TaskProfile

logger = logging.getLogger(__name__)

MARKS = struct.Struct("<QQ")
"""Sequence of the last started task within its lease, and the lease's tag."""
CALL, READY, TERMINATE = "__ray_call__", "__ray_ready__", "__ray_terminate__"
"""Methods that every actor has: to run a function on it, to wait until it exists, to end it after all calls made before."""
CLEAN_UP = "__ray_shutdown__"
"""The method of the user's that is called before the process of an actor ends."""
_beside_main: ContextVar[ReceivedTask | None] = ContextVar("minray_call", default=None)
"""What runs in this thread, or on this event loop, if that is not the main thread alone."""
MOST_WORDS = 100
"""An actor's description of itself is cut there, in characters."""
NO_CALL: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
UNNOTED = "a task was run, and not noted"
Speaker = tuple[int, bytes]
"""Who prints: a thread, and the id of the call that it runs, if that is not the main thread's."""


class Execution(msgspec.Struct, eq=False):
    """How a task ended, on its way to the loop."""

    status: int
    values: list[Result]
    """One per return value, when OK; when FAILED those that a generator has yielded before."""
    error: bytes
    """A packed exception, when not."""
    duration_us: int
    retryable: bool
    ends_actor: bool = False
    """Whether the call has ended its actor."""


class TaskExecutor:
    """The user thread's side of a worker."""

    def __init__(
        self,
        platform: Platform,
        functions: FunctionManager,
        make_refs: Callable[[StoredObject], list[ObjectRef[Any]]],
        returns: ReturnValues,
        generators: GeneratorExecutor,
        profile: TaskProfile,
        node_id_hex: str,
        node_ip: str,
    ) -> None:
        self._platform = platform
        self._functions = functions
        self._make_refs = make_refs
        self._returns = returns
        self._generators = generators
        self._note = profile.note
        """Called once for each task, when it is over; in ``execute`` at its own place, because another call costs time."""
        self._node_id_hex = node_id_hex
        self._node_ip = node_ip
        self._in_main: ReceivedTask | None = None
        """The task on the stack of the main thread; written there only."""
        self.actor: Any = None
        """The instance that lives here."""
        self._actor_words = ""
        """How it has described itself after its constructor, if its class says how; empty otherwise."""
        self.wants_exit = ""
        """Why the actor wants to end; user threads write it."""
        self._leaving: list[ReceivedTask] = []
        """Calls that have asked for the end: none of them has a value, also if it has swallowed what that has raised."""
        self._birthplace = 0
        """The thread in which the actor was made."""
        self.used_up = False
        """A function has been called ``max_calls`` times: nothing more is run here (G23); the user thread writes it."""
        self._call_counts: dict[bytes, int] = {}
        """Calls per function that has ``max_calls``."""
        self.unended: set[tuple[Speaker, Callable[[Speaker, str], None]]] = set()
        """Who has begun a line of output, and what ends it if that has not happened; written by the streams."""
        self.named = ""
        """Under whose name output is shown that does not pass the streams; written by them."""
        self.forget_names: list[Callable[[], None]] = []
        """Let the streams forget it."""

    @property
    def current(self) -> ReceivedTask | None:
        """The task that the calling thread or coroutine belongs to."""
        return _beside_main.get() or self._in_main

    @property
    def speaker(self) -> Speaker:
        """The calling thread or coroutine."""
        beside = _beside_main.get()
        return threading.get_ident(), beside.task_id if beside is not None else b""

    def shown_name(self, task: ReceivedTask) -> str:
        """What a task is called where its output is shown: a call, after its actor."""
        template = task.header.template
        if self._actor_words and template.name.endswith(f".{template.method}"):
            return f"{self._actor_words}.{template.method}"
        return template.name

    def ask_to_exit(self, reason: str) -> None:
        """The actor is to end when its running calls have. A thread that a call has begun does not speak for that."""
        self.wants_exit = self.wants_exit or reason
        task = _beside_main.get()
        if task is None and threading.get_ident() == self._birthplace:
            task = self._in_main
        if task is not None:
            self._leaving.append(task)

    def mark(self, task: ReceivedTask) -> None:
        """It begins, and whoever looks at this process after its death is to know."""
        MARKS.pack_into(self._platform.processes.marks, 0, task.sequence, task.lease_tag)

    def execute(self, task: ReceivedTask) -> None:
        """Run it, and leave an ``Execution`` on it; not if it was cancelled or taken back, or this process is used up."""
        if self.used_up or self.wants_exit or not task.claim():
            return
        if task.lease_tag:
            self.mark(task)
        if self.named:
            self._forget_name(task)
        started = Clock.perf_counter_ns()
        try:
            try:
                self._in_main = task
                if task.cancelled:  # between our claim and now, when an interrupt did not find it on the stack yet
                    raise KeyboardInterrupt
                values = self._call(task)
            finally:
                self._in_main = None
            execution = Execution(OK, values, b"", (Clock.perf_counter_ns() - started) // 1000, False)
        except BaseException as error:
            self._in_main = None
            execution = self._on_exception(task, error, (Clock.perf_counter_ns() - started) // 1000)
        task.execution = execution
        try:
            if self.unended:
                self._end_lines(task, b"")
            template = task.header.template
            if template.max_calls:
                count = self._call_counts[template.function_id] = self._call_counts.get(template.function_id, 0) + 1
                self.used_up = count >= template.max_calls
            if template.is_recorded:
                self._note(task, started, execution)
        except Exception:
            logger.exception(UNNOTED)

    def execute_beside(self, task: ReceivedTask) -> None:
        """The same in a thread beside the main one, for an actor with several."""
        if self.wants_exit or not task.claim():
            return
        if self.named:
            self._forget_name(task)
        started = Clock.perf_counter_ns()
        token = _beside_main.set(task)
        try:
            execution = Execution(OK, self._call(task), b"", _us_since(started), False)
        except BaseException as error:
            execution = self._on_exception(task, error, _us_since(started))
        finally:
            _beside_main.reset(token)
        self._end(task, started, execution)

    async def execute_async(self, task: ReceivedTask) -> None:
        """The same on an actor's event loop; the caller has claimed it."""
        if self.named:
            self._forget_name(task)
        started = Clock.perf_counter_ns()
        _beside_main.set(task)
        try:
            function, args, kwargs = self._prepare(task)
            result = function(*args, **kwargs)
            del args, kwargs
            if inspect.isawaitable(result) and not isinstance(result, ObjectRef):  # which is a value like others
                result = await result
            if self._platform.processes.is_copy:
                raise SystemExit
            if task.header.template.is_streaming:
                await self._generators.run_async(_streaming(task), as_async_iterator(result, task.header.template.name))
                result = None
            if task in self._leaving:
                raise AsyncioActorExit(self.wants_exit)
            if task.cancelled:
                raise asyncio.CancelledError
            execution = Execution(OK, self._returns.keep(task, result), b"", _us_since(started), False)
        except BaseException as error:
            execution = self._on_exception(task, error, _us_since(started), is_coroutine=True)
        self._end(task, started, execution)

    def on_cancelled(self, task: ReceivedTask) -> None:
        """It is a call of an actor, and runs."""
        self._generators.on_cancelled(task)

    def end_unstarted(self, task: ReceivedTask) -> None:
        """Its coroutine was cancelled before the first step, so nothing of ``execute_async`` has run."""
        error = asyncio.CancelledError()
        self._end(task, Clock.perf_counter_ns(), self._on_exception(task, error, 0, is_coroutine=True))

    def _end(self, task: ReceivedTask, started: int, execution: Execution) -> None:
        task.execution = execution
        try:
            if self.unended:
                self._end_lines(task, task.task_id)
            if task.header.template.is_recorded:
                self._note(task, started, execution)
        except Exception:
            logger.exception(UNNOTED)

    def _forget_name(self, task: ReceivedTask) -> None:
        """Unless it is this task's."""
        if self.named != self.shown_name(task):
            self.named = ""
            for forget in self.forget_names:
                with suppress(OSError, ValueError):  # Nobody reads it any more, or it is closed.
                    forget()

    def _end_lines(self, task: ReceivedTask, call: bytes) -> None:
        """What it has begun to print ends with it; so does what a call beside the main thread has begun in any thread."""
        main = threading.get_ident(), b""
        for one in [one for one in list(self.unended) if (one[0][1] == call if call else one[0] == main)]:
            self.unended.discard(one)
            with suppress(OSError, ValueError):  # Nobody reads it any more, or it cannot be encoded.
                one[1](one[0], self.shown_name(task))

    def is_in_task(self) -> bool:
        """Whether the main thread runs one now."""
        return self._in_main is not None

    def end_process(self, error: SystemExit) -> None:
        """By an exit that is not an actor's orderly one, after the user's clean-up."""
        self.shut_down_actor()
        self._exit(error)

    def shut_down_actor(self) -> None:
        """The user's own clean-up, and then what the end of an interpreter brings: exit handlers, the destructor (G27)."""
        clean_up = method_of(self.actor, CLEAN_UP) if hasattr(self.actor, CLEAN_UP) else None
        if clean_up is not None:
            try:
                if inspect.iscoroutine(cleaning := clean_up()):
                    cleaning.close()
                    raise TypeError("it must be a plain method: nobody can await it when its actor has ended")
            except Exception:
                logger.exception("__ray_shutdown__ failed")
        self._platform.user_code.run_exit_handlers()
        self.actor = None

    def _call(self, task: ReceivedTask) -> list[Result]:
        function, args, kwargs = self._prepare(task)
        result = function(*args, **kwargs)
        del args, kwargs
        if self._platform.processes.is_copy:
            raise SystemExit
        if task.header.template.is_streaming:
            self._generators.run(_streaming(task), as_iterator(result, task.header.template.name))
            result = None
        if task in self._leaving:
            raise AsyncioActorExit(self.wants_exit)
        if task.cancelled and task.header.template.method:
            raise asyncio.CancelledError
        return self._returns.keep(task, result)

    def _prepare(self, task: ReceivedTask) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """What is called, and with what."""
        template = task.header.template
        args, kwargs = self._arguments(task) if task.takes_arguments else NO_CALL
        if template.method:
            return self._method(template.method), args, kwargs
        function = self._functions.load(template.function_id)
        return (function if template.actor is None else partial(self._construct, function)), args, kwargs

    def _construct(self, actor_class: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._birthplace = threading.get_ident()
        self.actor = actor_class(*args, **kwargs)
        self._actor_words = _words_of(self.actor)

    def _method(self, name: str) -> Callable[..., Any]:
        if name == CALL:
            return lambda function, *args, **kwargs: function(self.actor, *args, **kwargs)
        if name == READY:
            return lambda: True
        if name == TERMINATE:
            return self._terminate
        return method_of(self.actor, name)

    def _terminate(self) -> None:
        raise AsyncioActorExit("__ray_terminate__ was called")

    def _arguments(self, task: ReceivedTask) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self._deserialize(task.stored_args) if task.stored_args is not None else NO_CALL
        if not task.slots:
            return call
        return serialization.fill_slots(call, [self._deserialize(stored) for stored in task.slots])

    def _deserialize(self, stored: StoredObject) -> Any:
        refs = self._make_refs(stored) if stored.nested else []
        return serialization.deserialize(stored.data, stored.buffers, refs)

    def _on_exception(
        self, task: ReceivedTask, error: BaseException, duration_us: int, is_coroutine: bool = False
    ) -> Execution:
        try:
            return self._failure(task, error, duration_us, is_coroutine)
        except Exception as problem:  # whatever is wrong with it, the call is answered
            problem.__context__ = None  # What was raised does not want to be looked at.
            logger.exception("what a task has raised cannot be told")
            broken = RaySystemError(reason=f"what was raised cannot be told: {type(problem).__name__}")
            return Execution(FAILED, [], self._pack(task, broken), duration_us, False)

    def _failure(self, task: ReceivedTask, error: BaseException, duration_us: int, is_coroutine: bool) -> Execution:
        if self._platform.processes.is_copy:
            self._end_copy(error)
        # An exception and the frames that it has left often keep each other (asyncio.run makes such a cycle, and so does the
        # result of an executor's future): what they held would stay in the cluster for as long as this worker rests.
        self._platform.user_code.collect_later()
        is_leaving = task in self._leaving
        exits = bool(task.header.template.method) and (is_leaving or self._is_orderly_exit(error))
        if exits:
            reason = str(error.args[0]) if error.args and isinstance(error.args[0], str) else "it has exited"
            self.wants_exit = self.wants_exit or reason
            error = ActorDiedError(actor_id=task.actor_id.hex(), reason=self.wants_exit)
        elif is_leaving or task.header.template.actor is not None and self._is_orderly_exit(error):
            error = AsyncioActorExit(self.wants_exit or "it has exited").with_traceback(error.__traceback__)
        elif isinstance(error, SystemExit):
            self.end_process(error)
        if task.cancelled and (is_coroutine or isinstance(error, KeyboardInterrupt | asyncio.CancelledError)):
            cancelled = TaskCancelledError(task_name=task.header.template.name, task_id_hex=task.task_id.hex())
            packed = self._pack(task, cancelled.with_traceback(error.__traceback__), is_bodys=True)
            return Execution(CANCELLED, [], packed, duration_us, False)
        results: list[Result] = []
        if isinstance(error, BrokenOff):
            results, error = error.results, error.error
        at_fault = _values_at_fault(error)
        retryable = not exits and self._is_retryable(task, error)
        if retryable and results:
            self._returns.discard(task, results)
            results = []
        return Execution(FAILED, results, self._pack(task, error, at_fault=at_fault), duration_us, retryable, exits)

    @staticmethod
    def _is_orderly_exit(error: BaseException) -> bool:
        return isinstance(error, AsyncioActorExit) or isinstance(error, SystemExit) and error.code in (None, 0)

    def _exit(self, error: SystemExit) -> None:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        self._platform.processes.exit(code or 0)

    def _end_copy(self, error: BaseException) -> None:
        """A child that user code has forked ends where it comes back to what is its parent's, as a program would."""
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
            error = SystemExit(1)
        self._exit(error)

    def _pack(self, task: ReceivedTask, error: BaseException, is_bodys: bool = False, at_fault: str = "") -> bytes:
        return pack_exception(
            error,
            is_bodys=is_bodys,
            introduction=at_fault,
            task_name=task.header.template.name,
            pid=self._platform.processes.pid,
            node_id=self._node_id_hex,
            ip=self._node_ip,
        )

    def _is_retryable(self, task: ReceivedTask, error: BaseException) -> bool:
        template = task.header.template
        if not template.retry_exceptions or not isinstance(error, Exception):
            return False
        if not template.retry_exception_types:
            return True
        try:
            return isinstance(error, cloudpickle.loads(template.retry_exception_types))
        except Exception:
            return False


def _streaming(task: ReceivedTask) -> StreamingTask:
    template = task.header.template
    owner, rerun = task.header.owner, task.rerun
    most_unread, lost = template.most_unread, frozenset(rerun.items_lost)
    lender, call = (None, task) if task.actor_id else (task, None)
    return StreamingTask(task.task_id, task.attempt, owner, rerun.items_arrived, most_unread, lost, lender, call)


_AT_FAULT = {
    FunctionManager.load.__code__: "Raised while its definition was unpickled:",
    TaskExecutor._arguments.__code__: "Raised while its arguments were unpickled:",
    serialization.serialize.__code__: "Raised while what it returns was pickled:",
    ReturnValues.exactly.__code__: "",
    ReturnValues._fill.__code__: "",
    as_iterator.__code__: "",
}
"""Where values of the user's may raise, or are found to be wrong; what is raised there itself needs no introduction."""


def _values_at_fault(error: BaseException) -> str:
    """Whether it was raised because of what a body has got or returned, and not in the body; then without our frames."""
    entry, found = error.__traceback__, None
    while entry is not None and is_runtime(entry.tb_frame.f_code.co_filename):
        found = _AT_FAULT.get(entry.tb_frame.f_code, found)
        entry = entry.tb_next
    if found is None or entry is not None and not found:
        return ""
    error.__traceback__ = entry
    return found


def method_of(actor: Any, name: str) -> Callable[..., Any]:
    """The method of that name of the actor's class, bound to the actor.

    As in Ray, an attribute of the instance with the name of a method hides nothing: ``self.done = False`` leaves ``done()``.
    """
    if name in getattr(actor, "__dict__", ()):
        for each in type(actor).__mro__:
            if name in vars(each):
                found = vars(each)[name]
                bind = getattr(type(found), "__get__", None)
                method: Callable[..., Any] = found if bind is None else bind(found, actor, type(actor))
                return method
    method = getattr(actor, name)
    return method


def _words_of(actor: Any) -> str:
    kind: Any = type(actor)
    if kind.__repr__ is object.__repr__:
        return ""
    try:
        return " ".join(repr(actor).split())[:MOST_WORDS]
    except Exception:
        logger.exception("the actor cannot be described")
        return ""


def _us_since(started_ns: int) -> int:
    return (Clock.perf_counter_ns() - started_ns) // 1000
