"""Turns the exception that user code raised into the end of its task: failed, or cancelled.

Ray: store_task_errors in python/ray/_raylet.pyx

This runs in the threads that run user code. The exception travels packed, with the place where it was raised. The owner
decides about another attempt, but whether an exception is one that ``retry_exceptions`` names is found out here, where its
class is. An exception may also come from the task's arguments or results; its text then begins with a line that says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from minray import cloudpickle
from minray.core_worker.execution.function_manager import FunctionManager
from minray.core_worker.execution.generator_executor import as_iterator
from minray.core_worker.execution.return_values import BrokenOff, ReturnValues
from minray.core_worker.records.received_task import Execution, Result
from minray.errors.packed_exception import pack_exception
from minray.errors.tracebacks import is_runtime
from minray.exceptions import RaySystemError, TaskCancelledError
from minray.platform.base import Platform
from minray.protocol.core_worker import CANCELLED, FAILED
from minray.values import serialization

if TYPE_CHECKING:
    from minray.core_worker.records.received_task import ReceivedTask

logger = logging.getLogger(__name__)


class TaskErrors:
    """Makes the ``Execution`` of each task of one process that has raised an exception."""

    def __init__(self, platform: Platform, returns: ReturnValues, node_id_hex: str, node_ip: str) -> None:
        self._platform = platform
        self._returns = returns
        self._node_id_hex = node_id_hex
        self._node_ip = node_ip

    def cancelled(self, task: ReceivedTask, error: BaseException, duration_us: int) -> Execution:
        """End a task whose cancellation has interrupted it with this exception."""
        cancelled = TaskCancelledError(task_name=task.header.template.name, task_id_hex=task.task_id.hex())
        packed = self._pack(task, cancelled.with_traceback(error.__traceback__), is_bodys=True)
        return Execution(CANCELLED, [], packed, duration_us, False)

    def failed(self, task: ReceivedTask, error: BaseException, duration_us: int, ends_actor: bool) -> Execution:
        """End a task that has failed; the call that ends its actor is not retried."""
        results: list[Result] = []
        if isinstance(error, BrokenOff):
            results, error = error.results, error.error
        at_fault = _values_at_fault(error)
        retryable = not ends_actor and self._is_retryable(task, error)
        if retryable and results:
            self._returns.discard(task, results)
            results = []
        packed = self._pack(task, error, at_fault=at_fault)
        return Execution(FAILED, results, packed, duration_us, retryable, ends_actor)

    def unserializable(self, task: ReceivedTask, problem: Exception, duration_us: int) -> Execution:
        """End a task whose exception could not be packed because of another one: it must be answered all the same."""
        problem.__context__ = None  # the logger would format the task's exception, which fails
        logger.error("the exception that a task has raised could not be serialized", exc_info=problem)
        broken = RaySystemError(reason=f"the task's exception could not be serialized: {type(problem).__name__}")
        return Execution(FAILED, [], self._pack(task, broken), duration_us, False)

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


_AT_FAULT = {
    FunctionManager.load.__code__: "Raised while its definition was unpickled:",
    serialization.deserialize.__code__: "Raised while its arguments were unpickled:",
    serialization.serialize.__code__: "Raised while what it returns was pickled:",
    ReturnValues.exactly.__code__: "",
    ReturnValues._fill.__code__: "",
    as_iterator.__code__: "",
}
"""Functions of ours in which a user's value may raise or be found wrong, and the line that then introduces the error.

The introduction is empty for errors that these functions raise themselves, which explain themselves."""


def _values_at_fault(error: BaseException) -> str:
    """Return the line that introduces an error caused by a task's arguments or result; empty if its body raised it.

    In the first case the traceback loses our own frames.
    """
    entry, found = error.__traceback__, None
    while entry is not None and is_runtime(entry.tb_frame.f_code.co_filename):
        found = _AT_FAULT.get(entry.tb_frame.f_code, found)
        entry = entry.tb_next
    if found is None or entry is not None and not found:
        return ""
    error.__traceback__ = entry
    return found
