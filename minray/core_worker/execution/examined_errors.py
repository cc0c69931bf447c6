"""``TaskErrors`` that lets a debugger look at each failed task before it ends.

Ray: the post-mortem part of execute_task in python/ray/_raylet.pyx

The exception's frames are still alive then. In a process without a debugger this costs one call per failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minray.core_worker.execution.return_values import BrokenOff
from minray.core_worker.execution.task_errors import TaskErrors
from minray.core_worker.records.received_task import Execution

if TYPE_CHECKING:
    from minray.core_worker.records.received_task import ReceivedTask


def _leave(task: ReceivedTask, error: BaseException) -> None:
    """Examine nothing: this process has no debugger."""


class ExaminedErrors(TaskErrors):
    """Makes the ``Execution`` of each failed task after ``examine`` has returned."""

    examine: Callable[[ReceivedTask, BaseException], None] = staticmethod(_leave)
    """Function called in the thread of the task; set by the process."""

    def failed(self, task: ReceivedTask, error: BaseException, duration_us: int, ends_actor: bool) -> Execution:
        self.examine(task, error.error if isinstance(error, BrokenOff) else error)
        return super().failed(task, error, duration_us, ends_actor)
