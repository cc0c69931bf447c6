"""Ports of the class that decides how tasks end, and the port through which it learns what became of a pushed task.

Ray: TaskFinisherInterface in src/ray/core_worker/task_manager.h, and the callbacks that TaskManager takes

``TaskSubmission`` connects each port with the part that serves it. ``lease_client`` pushes tasks to leased workers, and
``actor_manager`` pushes calls to actors. Each extends ``PushOutcomes`` by the few events that it alone knows. ``outcomes``
implements both extensions, and imports neither of the two modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.records.stored_object import StoredObject
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

    def begin_stream(self, task: PendingTask) -> None: ...

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
