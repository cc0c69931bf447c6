"""Runs one task at a time in the thread for user code.

Ray: execute_task in python/ray/_raylet.pyx

Everything here but the constructor runs in that thread. Whatever user code does ends as an ``Execution``: values, or a
packed exception. ``SystemExit`` ends the process, as anywhere in Python; KeyboardInterrupt is a cancellation if one was
asked for. The beginning of each task is marked in memory that outlives the process (``Processes.marks``), so that after
a crash its raylet knows which of the pushed tasks never began.
"""

from __future__ import annotations

import inspect
import itertools
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle

from minray import serialization
from minray.common.ids import return_id
from minray.core_worker.function_manager import FunctionManager
from minray.core_worker.generator_executor import GeneratorExecutor
from minray.core_worker.memory_store import StoredObject
from minray.core_worker.outgoing_stream import StreamingTask
from minray.core_worker.results import Result, ResultKeeper
from minray.exceptions import TaskCancelledError, pack_exception
from minray.object_ref import ObjectRef
from minray.platform.base import Platform
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.serialization import Serialized

if TYPE_CHECKING:
    from minray.core_worker.task_receiver import ReceivedTask

MARKS = struct.Struct("<QQ")
"""Sequence of the last started task within its lease, and the lease's tag."""
NO_CALL: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


class Execution:
    """How a task ended, on its way to the loop."""

    __slots__ = ("status", "values", "error", "duration_us", "retryable")

    def __init__(self, status: int, values: list[Result], error: bytes, duration_us: int, retryable: bool) -> None:
        self.status = status
        self.values = values
        """One per return value, when OK; when FAILED those that a generator has yielded before."""
        self.error = error
        """A packed exception, when not."""
        self.duration_us = duration_us
        self.retryable = retryable


class _BrokenOff(Exception):
    """A generator that fills several return values has raised, or has yielded too few."""

    def __init__(self, results: list[Result], error: Exception) -> None:
        super().__init__()
        self.results = results
        self.error = error


class TaskExecutor:
    """The user thread's side of a worker."""

    def __init__(
        self,
        platform: Platform,
        functions: FunctionManager,
        make_refs: Callable[[StoredObject], list[ObjectRef[Any]]],
        results: ResultKeeper,
        generators: GeneratorExecutor,
        node_id_hex: str,
        node_ip: str,
    ) -> None:
        self._platform = platform
        self._functions = functions
        self._make_refs = make_refs
        self._results = results
        self._generators = generators
        self._node_id_hex = node_id_hex
        self._node_ip = node_ip
        self.current: ReceivedTask | None = None
        """The task on the stack of the user thread; written there only."""
        self.used_up = False
        """A function has been called ``max_calls`` times: nothing more is run here (G23); the user thread writes it."""
        self._call_counts: dict[bytes, int] = {}
        """Calls per function that has ``max_calls``."""

    def execute(self, task: ReceivedTask) -> None:
        """Run it, and leave an ``Execution`` on it; not if it was cancelled or taken back, or this process is used up."""
        if self.used_up or not task.claim():
            return
        MARKS.pack_into(self._platform.processes.marks, 0, task.sequence, task.lease_tag)
        started = time.perf_counter_ns()
        try:
            try:
                self.current = task
                if task.cancelled:  # between our claim and now, when an interrupt did not find it on the stack yet
                    raise KeyboardInterrupt
                values = self._call(task)
            finally:
                self.current = None
            execution = Execution(OK, values, b"", (time.perf_counter_ns() - started) // 1000, False)
        except BaseException as error:
            self.current = None
            execution = self._on_exception(task, error, (time.perf_counter_ns() - started) // 1000)
        template = task.header.template
        if template.max_calls:
            count = self._call_counts[template.function_id] = self._call_counts.get(template.function_id, 0) + 1
            self.used_up = count >= template.max_calls
        task.execution = execution

    def _call(self, task: ReceivedTask) -> list[Result]:
        template = task.header.template
        function = self._functions.load(template.function_id)
        args, kwargs = self._arguments(task) if task.takes_arguments else NO_CALL
        result = function(*args, **kwargs)
        del args, kwargs
        if template.is_streaming:
            self._generators.run(_streaming(task), _iterator(result, template.name))
            result = None
        if inspect.isgenerator(result):
            return self._fill(task, result)
        if template.num_returns == 1:
            return self._keep(task, [serialization.serialize(result)])
        if template.num_returns == 0:
            return []
        several = _several(result, template.num_returns, template.name)
        return self._keep(task, [serialization.serialize(value) for value in several])

    def _keep(self, task: ReceivedTask, values: list[Serialized]) -> list[Result]:
        """Put large results into the store of this node; all of them, or none."""
        results: list[Result] = []
        try:
            for value in values:
                self._keep_next(task, value, results)
        except BaseException:
            self._discard(task, results)
            raise
        return results

    def _keep_next(self, task: ReceivedTask, value: Serialized, results: list[Result]) -> None:
        object_id = return_id(task.task_id, len(results) + 1)
        results.append(self._results.keep(object_id, task.attempt, value, task.header.owner))

    def _discard(self, task: ReceivedTask, results: list[Result]) -> None:
        """Take back what was put, and what was about to be put when we were interrupted."""
        made = [return_id(task.task_id, index) for index in range(1, len(results) + 2)]
        self._results.discard(made, task.attempt)

    def _fill(self, task: ReceivedTask, generator: Iterator[Any]) -> list[Result]:
        """``num_returns`` values from a generator, each kept as it is yielded; an error leaves those before it."""
        name, count = task.header.template.name, task.header.template.num_returns
        results: list[Result] = []
        try:
            for value in itertools.islice(generator, count):
                self._keep_next(task, serialization.serialize(value), results)
            if len(results) < count:
                raise ValueError(f"task {name} has num_returns={count}, but yielded {len(results)} objects")
        except Exception as error:
            raise _BrokenOff(results, error) from None
        except BaseException:
            self._discard(task, results)
            raise
        if next(generator, generator) is not generator:
            self._discard(task, results)
            raise ValueError(f"task {name} has num_returns={count}, but yielded more objects")
        return results

    def _arguments(self, task: ReceivedTask) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self._deserialize(task.stored_args) if task.stored_args is not None else NO_CALL
        if not task.slots:
            return call
        return serialization.fill_slots(call, [self._deserialize(stored) for stored in task.slots])

    def _deserialize(self, stored: StoredObject) -> Any:
        refs = self._make_refs(stored) if stored.nested else []
        return serialization.deserialize(stored.data, stored.buffers, refs)

    def _on_exception(self, task: ReceivedTask, error: BaseException, duration_us: int) -> Execution:
        if isinstance(error, SystemExit):
            self._exit(error)
        if task.cancelled and isinstance(error, KeyboardInterrupt):
            cancelled = TaskCancelledError(task_name=task.header.template.name, task_id_hex=task.task_id.hex())
            return Execution(CANCELLED, [], self._pack(task, cancelled), duration_us, False)
        results: list[Result] = []
        if isinstance(error, _BrokenOff):
            results, error = error.results, error.error
        retryable = self._is_retryable(task, error)
        if retryable and results:
            self._discard(task, results)
            results = []
        return Execution(FAILED, results, self._pack(task, error), duration_us, retryable)

    def _exit(self, error: SystemExit) -> None:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        self._platform.processes.exit(code or 0)

    def _pack(self, task: ReceivedTask, error: BaseException) -> bytes:
        return pack_exception(
            error,
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
    return StreamingTask(task.task_id, task.attempt, task.header.owner, task.items_arrived, template.most_unread)


def _iterator(result: Any, name: str) -> Iterator[Any]:
    if not isinstance(result, Iterator):
        raise ValueError(
            f'task {name} has num_returns="streaming", but returned one object of type {type(result).__name__};'
            " it must be a generator function, or return an iterator"
        )
    return result


def _several(result: Any, count: int, name: str) -> list[Any]:
    try:
        values = list(result)
    except TypeError:
        raise ValueError(
            f"task {name} has num_returns={count}, but returned one object of type {type(result).__name__}"
        ) from None
    if len(values) != count:
        raise ValueError(f"task {name} has num_returns={count}, but returned {len(values)} objects")
    return values
