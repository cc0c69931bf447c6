"""The port through which those who push tasks say what has become of them.

Ray: TaskFinisherInterface (later TaskManagerInterface) in src/ray/core_worker/task_manager.h

``lease_client`` pushes tasks to leased workers, ``actor_manager`` pushes calls to actors. Each adds to this port the few
events that it alone knows. ``outcomes`` implements all of them, and knows neither of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from minray.core_worker.records.pending_task import PendingTask
from minray.exceptions import RayError
from minray.protocol.core_worker import PushTaskReply, Rerun


class PushOutcomes(Protocol):
    """The decisions about a task that was pushed to another process."""

    def rerun(self, task: PendingTask) -> Rerun:
        """A later attempt is about to be pushed: say which results and items it makes."""

    def on_reply(self, task: PendingTask, reply: PushTaskReply, buffers: Sequence[Any]) -> None:
        """The task has run, or could not."""

    def on_missing(self, object_ids: Sequence[bytes]) -> None:
        """Arguments that a task was pushed with are being made again."""

    def on_unstarted(self, tasks: list[PendingTask]) -> list[PendingTask]:
        """Tasks were pushed but never began. Returns those that may be pushed again at once."""

    def finish_with_error(self, task: PendingTask, error: RayError) -> None:
        """The task cannot be pushed to any process."""
