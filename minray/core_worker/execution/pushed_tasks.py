"""The tasks that one sender has pushed to this process in one sequence; each of them is received once.

Ray: has no counterpart; Ray's receivers keep neither tasks that have begun nor replies

The sender is the owner of a lease, or a caller of an actor. It numbers its tasks from 1, and says with each push which
replies it has received. A task stays here until then. Hence a push that arrives twice runs once, and is answered twice.

All tasks of a function, or calls of a method, have a header in common, which arrives as the same bytes. ``TaskHeaders``
decodes the bytes once, and the tasks share the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.common.sequence_ranges import SequenceRanges
from minray.core_worker.records.received_task import ReceivedTask
from minray.protocol.actor import PushActorTask
from minray.protocol.base import decode
from minray.protocol.core_worker import CancelTask, PushTask, TaskHeader
from minray.rpc.service import Call


class PushedTasks:
    """The tasks of one sequence, until their sender acknowledges the replies."""

    __slots__ = ("tasks", "acknowledged", "done")

    def __init__(self) -> None:
        self.tasks: dict[int, ReceivedTask] = {}
        """Tasks by sequence number."""
        self.acknowledged = 0
        """Sequence number up to which the sender has received all replies."""
        self.done: SequenceRanges | None = None
        """Sequence numbers above ``acknowledged`` whose replies the sender has received; None until there is one."""

    def receive(self, request: PushTask | PushActorTask, call: Call, done: Sequence[tuple[int, int]] = ()) -> bool:
        """Receive a push; return whether its task arrives for the first time.

        If so, the tasks that the push acknowledges are dropped: all up to ``request.acknowledged``, and ranges above that
        (``done``). Otherwise the push is answered again, unless its reply was acknowledged.
        """
        known, sequence = self.tasks.get(request.sequence), request.sequence
        if known is not None:
            known.repeat(call)
            return False
        if sequence <= self.acknowledged or (self.done is not None and sequence in self.done):
            return False
        while self.acknowledged < request.acknowledged:
            self.acknowledged += 1
            self.tasks.pop(self.acknowledged, None)
        if done or self.done is not None:
            self._forget(done)
        return True

    def _forget(self, done: Sequence[tuple[int, int]]) -> None:
        if self.done is None:
            self.done = SequenceRanges()
        for first, last in done:
            self.done.add(first, last)
            for sequence in range(first, last + 1):
                self.tasks.pop(sequence, None)
        self.done.forget_up_to(self.acknowledged)

    def is_over(self, sequence: int) -> bool:
        """Whether the sender has received the reply to this task."""
        return sequence <= self.acknowledged or (self.done is not None and sequence in self.done)

    def unanswered(self) -> list[ReceivedTask]:
        """Return the tasks that wait or run, in the order of their arrival."""
        return [task for task in self.tasks.values() if task.reply is None]

    def find(self, request: CancelTask) -> ReceivedTask | None:
        """Return the task to cancel, if it is here and unanswered."""
        attempt = request.task_id, request.attempt
        return next((task for task in self.unanswered() if (task.task_id, task.attempt) == attempt), None)

    def remove_unbegun(self) -> list[ReceivedTask]:
        """Claim and remove the tasks that have not begun, so that they never will; return them."""
        unbegun = [task for task in self.tasks.values() if task.claim()]
        for task in unbegun:
            del self.tasks[task.sequence]
        return unbegun


class TaskHeaders(dict[bytes, TaskHeader]):
    """Headers by their encoded form; one that is missing is decoded when it is looked up.

    It is a dict because every received task looks its header up.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        """Number of headers kept, a bound on memory. Beyond it all are dropped, and decoded again as needed."""

    def __missing__(self, encoded: bytes) -> TaskHeader:
        if len(self) >= self.most:
            self.clear()
        header = self[encoded] = decode(TaskHeader, encoded)
        return header
