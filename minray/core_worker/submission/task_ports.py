"""Ports of the class that decides how tasks end: queues by kind of task, items of generators, and recovery.

Ray: TaskManager takes callbacks for these (retry_task_callback, push_error_callback, ...)

``CoreWorker`` connects each port with the parts that serve it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import RayError


class Routes(Protocol):
    """Routes a task by its kind: to a leased worker, to its actor, or to the gcs if it is a constructor."""

    def on_task_ready(self, task: PendingTask) -> None:
        """Queue a task whose arguments exist, for its first attempt or for another."""

    def on_ended_early(self, task: PendingTask) -> None:
        """React to the end of a task that was not pushed: the actor's calls behind it go on."""

    def remove_queued(self, task: PendingTask) -> None:
        """Take a cancelled task out of its queue."""

    def on_constructor_failed(self, task: PendingTask, error: bytes) -> None:
        """End an actor because an argument of its constructor is an error."""


class Streams(Protocol):
    """The items of streaming generators."""

    def begin(self, task: PendingTask) -> None: ...

    def contradiction(self, task: PendingTask) -> RayError | None:
        """Return the error of a task that reports success, although its stream contradicts that; None if it does not."""

    def lost_items(self, task: PendingTask) -> list[int]:
        """Return the numbers of the items that the next attempt makes again."""

    def unreported(self, task: PendingTask) -> list[bytes]:
        """Return the ids of items that a dead attempt may have put into its node's store without reporting them."""

    def is_wanted(self, task_id: bytes) -> bool:
        """Whether a user may still read items."""

    def on_ended(self, task: PendingTask, value: StoredObject | None) -> StoredObject | None:
        """End the stream; return the value that is still to be stored for the task itself."""


class Recovery(Protocol):
    """Remembers tasks whose results may have to be made again."""

    def unwanted(self, task: PendingTask) -> tuple[int, ...]:
        """Return the indices of the results that the next attempt must not make."""

    def remember(self, task: PendingTask, values: Sequence[StoredObject | None]) -> None:
        """Remember a task that has made these values, which are not stored yet."""

    def look_after(self, task: PendingTask) -> None:
        """Recover the results of an ended task that were lost while it ran."""
