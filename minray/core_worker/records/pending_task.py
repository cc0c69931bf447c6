"""Records of a task that this process has submitted, and of the actor whose method it may call.

Ray: TaskEntry in src/ray/core_worker/task_manager.h, ClientQueue in
src/ray/core_worker/task_submission/actor_task_submitter.h

``submission.task_manager`` has the table of these tasks and the transitions between their states. An actor call refers to
its ``ActorClient``, which has queues of such calls; hence both records are in this file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from minray.common.ids import item_id, return_id
from minray.common.sequence_ranges import SequenceRanges
from minray.common.task_spec import TaskTemplate
from minray.protocol.actor import ActorInfo
from minray.protocol.base import Address
from minray.protocol.core_worker import Argument, RefInfo
from minray.protocol.raylet import Dependency

if TYPE_CHECKING:
    from minray.core_worker.records.object_ref_streams import ObjectRefStream

NEW, WAITING, QUEUED, PUSHED, FINISHED, FAILED = (
    "",
    "PENDING_ARGS_AVAIL",
    "PENDING_NODE_ASSIGNMENT",
    "SUBMITTED_TO_WORKER",
    "FINISHED",
    "FAILED",
)
NOTHING: list[bytes] = []
"""Shared empty list of the tasks that hold no objects; never changed."""


class FunctionExport:
    """Whether the gcs has a function's definition; shared by all templates of that function."""

    __slots__ = ("function_id", "done")

    def __init__(self, function_id: bytes, done: bool) -> None:
        self.function_id = function_id
        self.done = done


class PreparedTemplate:
    """One remote function or method with one set of options, prepared for many calls."""

    __slots__ = ("template", "header", "export", "client", "mean_us", "key")

    def __init__(
        self, template: TaskTemplate, header: bytes, export: FunctionExport, client: ActorClient | None = None
    ) -> None:
        self.template = template
        self.header = header
        """The encoded TaskHeader, which every PushTask carries."""
        self.export = export
        self.client = client
        """The actor whose method this is; None for a function."""
        self.mean_us: float | None = None
        """Mean duration of recent calls on a worker, in microseconds; None before the first has ended."""
        self.key: object | None = None
        """The submitter's queue for this shape without dependencies, kept here because shapes are slow to hash."""

    def on_duration(self, duration_us: int) -> None:
        """Update the mean: quickly downwards, because first calls import modules, and slowly upwards."""
        if self.mean_us is None:
            self.mean_us = float(duration_us)
        else:
            self.mean_us += (duration_us - self.mean_us) * (0.5 if duration_us < self.mean_us else 0.2)


class PushTarget(Protocol):
    """The receiver of a pushed task: a leased worker, or an actor's stream of calls."""

    address: Address
    """The process that runs the task."""
    raylet: Address | None
    """The raylet of its node; None: the local one."""


class PendingTask(msgspec.Struct, eq=False, gc=False):
    """One submitted task. It is a Struct because there may be a million: quick to make, and not visited by the collector."""

    task_id: bytes
    prepared: PreparedTemplate
    args: bytes
    slots: tuple[tuple[bytes, Address], ...]
    """Top-level arguments that are references: id and owner."""
    nested: tuple[RefInfo, ...]
    """References inside the arguments."""
    inline_buffers: tuple[bytes, ...]
    parent_id: bytes
    """Id of the task that submitted this one; empty if a driver did."""
    depth: int
    """Nesting depth: 0 when a driver submits the task."""
    retries_left: int
    """Number of retries left; -1: unlimited."""
    handle_id: bytes = b""
    """Id of the object that stands for the actor, for a call by a handle that keeps the actor alive; else empty."""
    attempt: int = 0
    """Number of the current attempt, from 0."""
    state: str = NEW
    cancelled: bool = False
    """Whether the task was cancelled; never reset. Its outcome is then TaskCancelledError or the value of its worker."""
    waiting_for: set[bytes] | None = None
    """Ids of the arguments that did not exist when the task began to wait, while WAITING. Some may have come."""
    arguments: tuple[Argument, ...] = ()
    """Resolved arguments, once the task is not WAITING any more."""
    dependencies: tuple[Dependency, ...] = ()
    """Resolved arguments that are in the object store, once the task is not WAITING any more."""
    worker: PushTarget | None = None
    """The leased worker, or the stream of calls to the actor, while PUSHED."""
    sequence: int = 0
    """Sequence number of the last push, within its lease or stream; 0: the task was never pushed."""
    estimate_us: float = 0.0
    """Estimated duration by which the task was pipelined, in microseconds, while PUSHED."""
    stream: ObjectRefStream | None = None
    """The items of a streaming generator; None for another task."""
    items_lost: dict[int, None] | None = None
    """Numbers of a generator's items that were lost before the current attempt began, and have not arrived again."""
    has_lost_results: bool = False
    """Whether results were lost while this attempt runs, so that it may not make them again."""
    memory_kills: int = 0
    """Number of times that its worker was killed because the node had no memory."""
    needs: tuple[bytes, ...] | None = None
    """Ids of objects that the task takes, except the values that it carries; set when it has to run again."""
    preemptions: int = 0
    """Number of times that it was run again because its node was preempted."""
    unwanted: tuple[int, ...] = ()
    """Indices (from 1) of results that a task which runs again must not make: they exist, or are not needed."""

    def held_ids(self) -> Sequence[bytes]:
        """Return the ids of the objects that this task keeps alive as arguments."""
        if self.needs is not None:
            return self.needs
        if not self.slots and not self.nested:
            return NOTHING
        return [object_id for object_id, _ in self.slots] + [info.object_id for info in self.nested]

    def is_inlined(self, index: int) -> bool:
        """Whether the task carries the value of this slot."""
        return bool(self.arguments) and self.arguments[index].value is not None

    def carries_all(self) -> bool:
        """Whether the task carries all its arguments and refers to no object, once it is not WAITING any more."""
        values = [argument.value for argument in self.arguments]
        return not self.nested and all(value is not None and not value.nested for value in values)

    def item_ids(self) -> list[bytes]:
        """Return the ids of a generator's items that have arrived, whether they still exist or not."""
        return [] if self.stream is None else [item_id(self.task_id, number) for number in self.stream.numbers()]

    def result_ids(self) -> list[bytes]:
        return [return_id(self.task_id, index) for index in range(1, self.prepared.template.num_returns + 1)]


class CallStream:
    """One stream of calls to one incarnation of an actor.

    It does not refer to its client, which refers to it: that would be a reference cycle.
    """

    __slots__ = ("address", "raylet", "restarts", "number", "next_sequence", "in_flight", "answered", "is_lost")

    def __init__(self, address: Address, raylet: Address | None, restarts: int, number: int) -> None:
        self.address = address
        self.raylet = raylet
        self.restarts = restarts
        self.number = number
        """Number of the stream among those that this process has begun."""
        self.next_sequence = 1
        self.in_flight: dict[int, PendingTask] = {}
        """Calls that were pushed and not answered, by sequence number, oldest first."""
        self.answered = SequenceRanges()
        """Sequence numbers of answered calls behind the oldest unanswered one, which the actor has not been told about."""
        self.is_lost = False
        """Whether the actor's node is dead: answers may still arrive, but no more calls are sent."""

    def acknowledged(self) -> int:
        """Return the sequence number up to which all replies have come."""
        return next(iter(self.in_flight), self.next_sequence) - 1

    def take_answered(self) -> tuple[tuple[int, int], ...]:
        """Take the sequence numbers that the next push acknowledges.

        Once is enough: that push arrives, or the stream is over.
        """
        if not len(self.answered):
            return ()
        ranges, self.answered = self.answered.ranges(), SequenceRanges()
        return tuple(ranges)


class ActorClient:
    """One actor as this process sees it."""

    __slots__ = (
        "actor_id",
        "owner",
        "in_order",
        "info",
        "queue",
        "retries",
        "stream",
        "lost",
        "failures",
        "keeping",
        "submitted",
        "ended",
        "__weakref__",
    )

    def __init__(self, actor_id: bytes, owner: Address, in_order: bool) -> None:
        self.actor_id = actor_id
        self.owner = owner
        self.in_order = in_order
        self.info: ActorInfo | None = None
        """The newest record of the gcs; None: nothing is known yet."""
        self.queue: deque[PendingTask] = deque()
        """Calls that have not been pushed, in their order; if the actor promises none, only those that are ready."""
        self.retries: deque[PendingTask] = deque()
        """Calls to be pushed again, in no order."""
        self.stream: CallStream | None = None
        """The current stream of calls; None: no incarnation can be reached."""
        self.lost: dict[PendingTask, CallStream] = {}
        """Calls whose stream was lost and whose outcome is open, each with that stream."""
        self.failures = 0
        """Number of times in a row that the actor could not be reached although the gcs reported it alive."""
        self.keeping = 0
        """Number of unfinished calls that were made with a handle that keeps the actor alive."""
        self.submitted = 0
        """Number of calls made, for ``max_pending_calls``; written by user threads."""
        self.ended = 0
        """Number of calls that are over, without those that run again; written by the loop."""

    @property
    def state(self) -> str:
        return "" if self.info is None else self.info.state
