"""A task that was pushed to this process, from its arrival to its answer, and how it ended.

Ray: TaskToExecute in src/ray/core_worker/task_execution/common.h

``execution.task_intake`` makes a ``ReceivedTask`` and answers it; a user thread runs it and leaves an ``Execution``, which
holds a ``Result`` for each return value.

A task is *claimed* exactly once: by the user thread, which then runs it, or by the loop, which then answers CANCELLED or
NOT_STARTED instead. ``bytearray.pop`` decides, which the GIL makes atomic.
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
    """References inside, alive until the owner has taken note of them."""
    inlined: int = 0
    """Bytes of it that travel inside the answer."""


class Execution(msgspec.Struct, eq=False):
    """How a task ended, on its way to the loop."""

    status: int
    values: list[Result]
    """One per return value, when OK; when FAILED those that a generator has yielded before."""
    error: bytes
    """A packed exception, when not."""
    duration_us: int
    retryable: bool
    ends_actor: bool = False
    """Whether the call has ended its actor."""


class ReceivedTask(msgspec.Struct, eq=False):
    """One push. A Struct because there are a hundred thousand a second.

    Many may wait here, and answers many more: what the collector has to look at, beside the task itself, is kept small.
    """

    task_id: bytes
    attempt: int
    actor_id: bytes
    """The actor that it creates, or is a call of; empty for a normal task."""
    lease_tag: int
    """0 for an actor's calls."""
    sequence: int
    header: TaskHeader
    depth: int
    gpu_ids: tuple[int, ...]
    rerun: Rerun
    """Which results and items this attempt is to make."""
    takes_arguments: bool
    calls: tuple[Call, ...]
    """The ways to answer, of all repetitions: the latest to arrive may have come late, from a channel that is broken.
    Empty once it is answered."""
    stored_args: StoredObject | None = None
    slots: Sequence[StoredObject] = ()
    """Values of top-level references, in their order, when all are here."""
    held: Sequence[bytes] = ()
    """Objects that this task keeps in the reference counter while it is here."""
    fetching: list[tuple[bytes, Address]] | None = None
    """Large arguments to be fetched; None: nothing is missing."""
    missing: tuple[bytes, ...] = ()
    """Arguments that are being made again, why the task is given back."""
    keeps_place: bool = False
    """Whether it waits for arguments that are being made again, with the calls of its caller behind it (G49)."""
    cancelled: bool = False
    execution: Execution | None = None
    """How it ended; set by the user thread."""
    is_over: bool = False
    """The user thread is through with it."""
    reply: PushTaskReply | None = None
    """Kept until the owner acknowledges it."""
    reply_buffers: Sequence[Buffer] = ()
    is_given_up: bool = False
    """Whether its caller takes no answer any more."""
    _unclaimed: bytearray = msgspec.field(default_factory=partial(bytearray, 1))
    """One byte until somebody claims it: popped by one thread alone, and unlike a list no work for the collector."""

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
        """Whether there are any in its answer, or may be in that to come."""
        return self.reply is None or any(value.nested for value in self.reply.values)

    def claim(self) -> bool:
        """True for the one caller who decides what becomes of this task."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def is_claimed(self) -> bool:
        return not self._unclaimed
