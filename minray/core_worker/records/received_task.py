"""A task that was pushed to this process, from its arrival to its answer, and how it ended.

Ray: TaskToExecute in src/ray/core_worker/task_execution/common.h

``execution.task_receiver`` and ``actor_task_receiver`` make a ``ReceivedTask``, and ``task_intake`` answers it. In between
a user thread runs it and leaves an ``Execution`` on it, which holds a ``Result`` for each return value.

A task is *claimed* exactly once: by the user thread, which then runs it, or by the core worker's loop, which then answers
CANCELLED or NOT_STARTED instead. ``bytearray.pop`` decides, which the GIL makes atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from minray.core_worker.records.stored_object import StoredObject
from minray.platform.base import Buffer
from minray.protocol.actor import PushActorTask
from minray.protocol.base import Address
from minray.protocol.core_worker import FIRST_RUN, PushTask, PushTaskReply, Rerun, TaskHeader
from minray.rpc.service import Call
from minray.values.object_ref import ObjectRef


class Result(NamedTuple):
    """One return value, or one item of a generator."""

    stored: StoredObject
    refs: list[ObjectRef[Any]]
    """References inside the value, kept alive until their owners have noted the new borrower."""
    inlined: int = 0
    """Number of the value's bytes that travel inside the answer."""


class Execution(msgspec.Struct, eq=False):
    """Outcome of a task, on its way from a user thread to the core worker's loop."""

    status: int
    values: list[Result]
    """The results: one per return value when OK; those that a generator had yielded before when FAILED."""
    error: bytes
    """The packed exception; empty when OK."""
    duration_us: int
    retryable: bool
    ends_actor: bool = False
    """Whether the call has ended its actor."""


class ReceivedTask(msgspec.Struct, eq=False):
    """One pushed task or actor call. It is a Struct because a process receives up to a hundred thousand a second.

    Many tasks may wait here, and many more answered ones may await acknowledgement. Hence a task refers to few objects that
    the garbage collector must visit.
    """

    task_id: bytes
    attempt: int
    actor_id: bytes
    """Id of the actor that the task creates or calls; empty for a normal task."""
    lease_tag: int
    """Tag of the task's lease, for ``Processes.marks``; 0 for an actor's calls."""
    sequence: int
    header: TaskHeader
    depth: int
    gpu_ids: tuple[int, ...]
    rerun: Rerun
    """Which results and items this attempt is to make."""
    takes_arguments: bool
    calls: tuple[Call, ...]
    """The requests to answer, repeated pushes included; empty once they are answered.

    All are kept, because the latest one to arrive may have been delayed on a connection that is broken."""
    stored_args: StoredObject | None = None
    slots: Sequence[StoredObject] = ()
    """Values of the arguments that are references, in their order, once all are here."""
    held: Sequence[bytes] = ()
    """Ids of objects that this task keeps in the reference counter until it is answered."""
    fetching: list[tuple[bytes, Address]] | None = None
    """Arguments that are being fetched, with their owners; None: nothing is missing."""
    missing: tuple[bytes, ...] = ()
    """Ids of arguments that are being made again, because of which the task is given back."""
    keeps_place: bool = False
    """Whether the task waits for arguments that are being made again, with its caller's later calls behind it (G49)."""
    cancelled: bool = False
    """Whether a cancellation of this task was received."""
    execution: Execution | None = None
    """Outcome of the task; set by the user thread, taken by the core worker's loop."""
    is_over: bool = False
    """Whether the user thread has run or skipped the task."""
    reply: PushTaskReply | None = None
    """The reply, kept until the owner acknowledges it; None until the task is answered."""
    reply_buffers: Sequence[Buffer] = ()
    """Buffers that are sent beside the reply."""
    is_given_up: bool = False
    """Whether the caller will never receive the answer."""
    _unclaimed: bytearray = msgspec.field(default_factory=partial(bytearray, 1))
    """One byte until the task is claimed: only one thread can pop it. Unlike a list, the collector need not visit it."""

    @staticmethod
    def of(
        request: PushTask | PushActorTask, header: TaskHeader, call: Call, lease_tag: int, gpu_ids: tuple[int, ...]
    ) -> ReceivedTask:
        return ReceivedTask(
            request.task_id,
            request.attempt,
            request.actor_id,
            lease_tag,
            request.sequence,
            header,
            request.depth,
            gpu_ids,
            request.rerun or FIRST_RUN,
            bool(request.args),
            (call,),
        )

    def repeat(self, call: Call) -> None:
        """Answer a repeated push of this task, too."""
        if self.reply is None:
            self.calls += (call,)
        else:
            call.reply(self.reply, self.reply_buffers)

    def has_references(self) -> bool:
        """Whether the answer contains references, or may contain some if it is still to come."""
        return self.reply is None or any(value.nested for value in self.reply.values)

    def claim(self) -> bool:
        """Claim this task; True for the one caller that decides what becomes of it."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def is_claimed(self) -> bool:
        return not self._unclaimed
