"""The port through which the classes that push tasks report what became of them.

Ray: TaskFinisherInterface (later TaskManagerInterface) in src/ray/core_worker/task_manager.h

``lease_client`` pushes tasks to leased workers, ``actor_manager`` pushes calls to actors. Each extends this port by the few
events that it alone knows. ``outcomes`` implements both extensions, and imports neither of the two modules.
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
        """Return which results and items a later attempt makes, which is about to be pushed."""

    def on_reply(self, task: PendingTask, reply: PushTaskReply, buffers: Sequence[Any]) -> None:
        """Decide about a task that was answered: it has run, or could not."""

    def on_missing(self, object_ids: Sequence[bytes]) -> None:
        """Take note that arguments of a pushed task are being made again."""

    def on_unstarted(self, tasks: list[PendingTask]) -> list[PendingTask]:
        """Decide about pushed tasks that never began; return those that may be pushed again at once."""

    def finish_with_error(self, task: PendingTask, error: RayError) -> None:
        """Fail a task that cannot be pushed, or will not be answered."""
