"""Runs tasks, and the calls of this process's actor, in the threads for user code.

Ray: execute_task in python/ray/_raylet.pyx

Tasks run in these threads; only ``on_cancelled`` and an async actor's ``mark`` run on the core worker's loop. Every task
ends as an ``Execution``: values, or a packed exception.

  * ``SystemExit`` ends the process, as anywhere in Python. An actor that exits without an error code ends in an orderly way.
  * KeyboardInterrupt counts as a cancellation if the task was cancelled.
  * A cancelled actor call yields no value, even if its method returns one. A cancelled coroutine ends as cancelled even if
    it raises another exception.
  * The beginning of each task is marked in memory that outlives the process (``Processes.marks``). After a crash the raylet
    knows which of the pushed tasks never began.
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
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from minray.common.clock import Clock
from minray.core_worker.execution.actor_instance import construct, method_of, words_of
from minray.core_worker.execution.function_manager import FunctionManager
from minray.core_worker.execution.generator_executor import GeneratorExecutor, as_async_iterator, as_iterator
from minray.core_worker.execution.return_values import ReturnValues
from minray.core_worker.execution.task_errors import TaskErrors
from minray.core_worker.execution.task_names import OutputNames, Speaker, TaskTitle
from minray.core_worker.records.received_task import Execution, Result
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ActorDiedError, AsyncioActorExit
from minray.platform.base import Platform
from minray.protocol.actor import CALL_METHOD, READY_METHOD, TERMINATE_METHOD
from minray.protocol.core_worker import OK
from minray.values import serialization
from minray.values.object_ref import ObjectRef

if TYPE_CHECKING:
    from minray.core_worker.execution.task_profile import TaskProfile
    from minray.core_worker.records.received_task import ReceivedTask

logger = logging.getLogger(__name__)

MARKS = struct.Struct("<QQ")
"""Layout of the mark: sequence number of the last started task within its lease, and the lease's tag."""
CLEAN_UP = "__ray_shutdown__"
"""Name of the user's method that is called before the process of an actor ends; it is Ray's name."""
_beside_main: ContextVar[ReceivedTask | None] = ContextVar("minray_call", default=None)
"""The actor call that runs in this thread or coroutine; None for a task that the main thread alone runs."""
NO_CALL: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
UNNOTED = "the end of a task could not be recorded"


class TaskExecutor:
    """Runs the tasks of one worker in its user threads, and knows which task each thread runs."""

    def __init__(
        self,
        platform: Platform,
        functions: FunctionManager,
        make_refs: Callable[[StoredObject], list[ObjectRef[Any]]],
        returns: ReturnValues,
        errors: TaskErrors,
        generators: GeneratorExecutor,
        profile: TaskProfile,
    ) -> None:
        self._platform = platform
        self._functions = functions
        self._make_refs = make_refs
        self._returns = returns
        self._errors = errors
        self._generators = generators
        self._profile = profile
        self._note = profile.note
        """Function called once for each recorded task when it is over. ``execute`` calls it directly, not through ``_end``,
        because another function call costs time."""
        self._in_main: ReceivedTask | None = None
        """The task on the stack of the main thread; written there only."""
        self.actor: Any = None
        """The actor instance of this process; None if there is none."""
        self.wants_exit = ""
        """Reason why the actor wants to end, empty if it does not; written by user threads."""
        self._leaving: list[ReceivedTask] = []
        """Calls that have asked to end the actor. They have no value, even if they swallow AsyncioActorExit."""
        self._birthplace = 0
        """Ident of the thread in which the constructor ran."""
        self.used_up = False
        """Whether a function was called ``max_calls`` times, so that nothing more runs here (G23); written by the user
        thread."""
        self._call_counts: dict[bytes, int] = {}
        """Number of calls by function id, for functions that have ``max_calls``."""
        self.output = OutputNames()
        self.title = TaskTitle()

    @property
    def current(self) -> ReceivedTask | None:
        """The task that the calling thread or coroutine runs; in other threads, that of the main thread."""
        return _beside_main.get() or self._in_main

    @property
    def speaker(self) -> Speaker:
        """The calling thread or coroutine as the origin of output."""
        beside = _beside_main.get()
        return threading.get_ident(), beside.task_id if beside is not None else b""

    def ask_to_exit(self, reason: str) -> None:
        """Note that the actor must end when its running calls have ended, and that the calling task has no value.

        A thread that user code has started inside a call is not taken for that call.
        """
        self.wants_exit = self.wants_exit or reason
        task = _beside_main.get()
        if task is None and threading.get_ident() == self._birthplace:
            task = self._in_main
        if task is not None:
            self._leaving.append(task)

    def make_leave(self, tasks: list[ReceivedTask]) -> None:
        """Make running calls end without a value, because their actor's time is up."""
        self._leaving += tasks

    def mark(self, task: ReceivedTask) -> None:
        """Mark that a task begins, so that the raylet knows it after this process's death."""
        MARKS.pack_into(self._platform.processes.marks, 0, task.sequence, task.lease_tag)

    def execute(self, task: ReceivedTask) -> None:
        """Run a task in the main thread and leave an ``Execution`` on it.

        The task is skipped if it was cancelled or taken back, if this process is used up, or if its actor wants to end.
        """
        if self.used_up or self.wants_exit or not task.claim():
            return
        if task.lease_tag:
            self.mark(task)
        if self.output.is_named:
            self.output.forget_name()
        template = task.header.template
        if template is not self.title.template:
            self.title.show(template)
        started = Clock.perf_counter_ns()
        try:
            try:
                self._in_main = task
                if task.cancelled:  # after the claim, before an interrupt found it on the stack
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
            if self.output.unended:
                self.output.end_lines(task, b"")
            if template.max_calls:
                count = self._call_counts[template.function_id] = self._call_counts.get(template.function_id, 0) + 1
                self.used_up = count >= template.max_calls
            if template.is_recorded:
                self._note(task, started, execution)
        except Exception:
            logger.exception(UNNOTED)

    def execute_beside(self, task: ReceivedTask) -> None:
        """Run a call of a threaded actor in one of its threads, and leave an ``Execution`` on it."""
        if self.wants_exit or not task.claim():
            return
        if self.output.is_named:
            self.output.forget_name()
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
        """Run a call on an async actor's event loop, and leave an ``Execution`` on it; the caller has claimed it."""
        if self.output.is_named:
            self.output.forget_name()
        started = Clock.perf_counter_ns()
        _beside_main.set(task)
        try:
            function, args, kwargs = self._prepare(task)
            result = function(*args, **kwargs)
            del args, kwargs
            if inspect.isawaitable(result) and not isinstance(result, ObjectRef):  # a reference is a value like others
                result = await result
            if self._platform.processes.is_copy:
                raise SystemExit
            if task.header.template.is_streaming:
                await self._generators.run_async(task, as_async_iterator(result, task.header.template.name))
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
        """React to the cancellation of a running actor call: a generator that is held up goes on to its end."""
        self._generators.on_cancelled(task)

    def end_unstarted(self, task: ReceivedTask) -> None:
        """Leave an ``Execution`` on a call whose coroutine was cancelled before its first step.

        Nothing of ``execute_async`` has run for it.
        """
        error = asyncio.CancelledError()
        self._end(task, Clock.perf_counter_ns(), self._on_exception(task, error, 0, is_coroutine=True))

    def _end(self, task: ReceivedTask, started: int, execution: Execution) -> None:
        task.execution = execution
        try:
            if self.output.unended:
                self.output.end_lines(task, task.task_id)
            if task.header.template.is_recorded:
                self._note(task, started, execution)
        except Exception:
            logger.exception(UNNOTED)

    def is_in_task(self) -> bool:
        """Whether the main thread runs a task now."""
        return self._in_main is not None

    def end_process(self, error: SystemExit) -> None:
        """Exit the process after the user's clean-up, for an exit that is not an actor's orderly end."""
        self.shut_down_actor()
        self._exit(error)

    def shut_down_actor(self) -> None:
        """Run the user's clean-up method, then the steps of an interpreter's end: exit handlers, the destructor (G27)."""
        clean_up = method_of(self.actor, CLEAN_UP) if hasattr(type(self.actor), CLEAN_UP) else None
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
            self._generators.run(task, as_iterator(result, task.header.template.name))
            result = None
        if task in self._leaving:
            raise AsyncioActorExit(self.wants_exit)
        if task.cancelled and task.header.template.method:
            raise asyncio.CancelledError
        return self._returns.keep(task, result)

    def _prepare(self, task: ReceivedTask) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return the function or method to call, and its unpickled arguments."""
        template = task.header.template
        args, kwargs = self._arguments(task) if task.takes_arguments else NO_CALL
        if template.method:
            return self._method(template.method), args, kwargs
        function = self._functions.load(template.function_id)
        return (function if template.actor is None else partial(self._construct, function)), args, kwargs

    def _construct(self, actor_class: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._birthplace = threading.get_ident()
        return construct(actor_class, args, kwargs, self._on_constructed)

    def _on_constructed(self, actor: Any) -> None:
        self.actor, self.output.actor_words = actor, words_of(actor)
        self.title.become(actor)

    def _method(self, name: str) -> Callable[..., Any]:
        if name == CALL_METHOD:
            return lambda function, *args, **kwargs: function(self.actor, *args, **kwargs)
        if name == READY_METHOD:
            return lambda: True
        if name == TERMINATE_METHOD:
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
        except Exception as problem:
            return self._errors.unserializable(task, problem, duration_us)

    def _failure(self, task: ReceivedTask, error: BaseException, duration_us: int, is_coroutine: bool) -> Execution:
        if self._platform.processes.is_copy:
            self._end_copy(error)
        # An exception and the frames that it has passed often form a reference cycle (asyncio.run makes one, and so does the
        # result of an executor's future). Objects that they refer to would stay in the cluster while this worker is idle.
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
            return self._errors.cancelled(task, error, duration_us)
        return self._errors.failed(task, error, duration_us, exits)

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
        """End a child process that user code has forked, when it returns from user code, as a program would end.

        The task belongs to its parent.
        """
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
            error = SystemExit(1)
        self._exit(error)


def _us_since(started_ns: int) -> int:
    return (Clock.perf_counter_ns() - started_ns) // 1000
