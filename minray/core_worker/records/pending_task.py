"""A task that this process has submitted, from the call to its end, and the actor whose method it may be.

Ray: TaskEntry in src/ray/core_worker/task_manager.h, ClientQueue in
src/ray/core_worker/task_submission/actor_task_submitter.h

``submission.task_manager`` has the table of these tasks and the transitions between their states. A call of an actor's
method knows its ``ActorClient``, which has queues of such calls; so both are here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from minray.common.ids import item_id, return_id
from minray.common.sequence_ranges import SequenceRanges
from minray.common.task_spec import TaskTemplate
from minray.core_worker.records.object_ref_streams import ObjectRefStream
from minray.protocol.actor import ActorInfo
from minray.protocol.base import Address
from minray.protocol.core_worker import Argument, RefInfo
from minray.protocol.raylet import Dependency

NEW, WAITING, QUEUED, PUSHED, FINISHED, FAILED = (
    "",
    "PENDING_ARGS_AVAIL",
    "PENDING_NODE_ASSIGNMENT",
    "SUBMITTED_TO_WORKER",
    "FINISHED",
    "FAILED",
)
NOTHING: list[bytes] = []
"""Shared by all that have none; never changed."""


class FunctionExport:
    """Whether the gcs has a function's definition; shared by all templates of that function."""

    __slots__ = ("function_id", "done")

    def __init__(self, function_id: bytes, done: bool) -> None:
        self.function_id = function_id
        self.done = done


class PreparedTemplate:
    """One function with one set of options, made ready to be called many times."""

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
        """How long a call takes on a worker, by recent calls; None before the first has ended."""
        self.key: object | None = None
        """The submitter's queue for this shape without dependencies, remembered because shapes are slow to hash."""

    def on_duration(self, duration_us: int) -> None:
        """Learn: fast downwards, because first calls import things; slowly upwards."""
        if self.mean_us is None:
            self.mean_us = float(duration_us)
        else:
            self.mean_us += (duration_us - self.mean_us) * (0.5 if duration_us < self.mean_us else 0.2)


class PushTarget(Protocol):
    """The receiver of a pushed task: a leased worker, or a connection to an actor."""

    address: Address
    """The process that runs the task."""
    raylet: Address | None
    """The raylet of its node; None: the local one."""


class PendingTask(msgspec.Struct, eq=False, gc=False):
    """One submitted task. A Struct because there may be a million of them: quick to make, and no work for the collector."""

    task_id: bytes
    prepared: PreparedTemplate
    args: bytes
    slots: tuple[tuple[bytes, Address], ...]
    """Top-level arguments that are references: id and owner."""
    nested: tuple[RefInfo, ...]
    """References inside the arguments."""
    inline_buffers: tuple[bytes, ...]
    parent_id: bytes
    """The task that submitted this one; empty for a driver's."""
    depth: int
    retries_left: int
    """-1: without end."""
    handle_id: bytes = b""
    """The object that stands for the actor, for a call by a handle that keeps the actor alive; else empty."""
    attempt: int = 0
    state: str = NEW
    cancelled: bool = False
    """Once True, never False; whatever its worker answers is then TaskCancelledError or its value."""
    waiting_for: set[bytes] | None = None
    """While WAITING: the arguments that do not exist yet."""
    arguments: tuple[Argument, ...] = ()
    """Resolved arguments, once not WAITING."""
    dependencies: tuple[Dependency, ...] = ()
    """Those of them that are in the object store, once not WAITING."""
    worker: PushTarget | None = None
    """While PUSHED: the leased worker, or the connection to the actor."""
    sequence: int = 0
    """While PUSHED: its position within the lease."""
    estimate_us: float = 0.0
    """While PUSHED: how much work it was taken for."""
    stream: ObjectRefStream | None = None
    """The items of a streaming generator; None for another task."""
    items_lost: dict[int, None] | None = None
    """Items of a streaming generator that were lost before the present attempt began, and have not come again."""
    has_lost_results: bool = False
    """While it runs: results of an earlier attempt, which this one may not make, were lost meanwhile."""
    memory_kills: int = 0
    """How often its worker was killed because the node had no memory."""
    needs: tuple[bytes, ...] | None = None
    """Set when it has to run again: what it takes beside the values that it carries along."""
    preemptions: int = 0
    """How often it was made again because its node was preempted."""
    unwanted: tuple[int, ...] = ()
    """While it runs again: results (from 1) that are not to be made, because they exist, or because nobody needs them."""

    def held_ids(self) -> Sequence[bytes]:
        """The objects that this task keeps alive as arguments."""
        if self.needs is not None:
            return self.needs
        if not self.slots and not self.nested:
            return NOTHING
        return [object_id for object_id, _ in self.slots] + [info.object_id for info in self.nested]

    def is_inlined(self, index: int) -> bool:
        """Whether it carries the value of this slot along."""
        return bool(self.arguments) and self.arguments[index].value is not None

    def carries_all(self) -> bool:
        """Whether it takes nothing but what it carries along, once not WAITING."""
        values = [argument.value for argument in self.arguments]
        return not self.nested and all(value is not None and not value.nested for value in values)

    def item_ids(self) -> list[bytes]:
        """List the items of a generator that have come, whether they still exist or not."""
        return [] if self.stream is None else [item_id(self.task_id, number) for number in self.stream.numbers()]

    def result_ids(self) -> list[bytes]:
        return [return_id(self.task_id, index) for index in range(1, self.prepared.template.num_returns + 1)]


class Connection:
    """One stream of calls to one incarnation. Does not know its client, who knows it: they would be a cycle."""

    __slots__ = ("address", "raylet", "restarts", "stream", "next_sequence", "in_flight", "answered", "is_lost")

    def __init__(self, address: Address, raylet: Address | None, restarts: int, stream: int) -> None:
        self.address = address
        self.raylet = raylet
        self.restarts = restarts
        self.stream = stream
        self.next_sequence = 1
        self.in_flight: dict[int, PendingTask] = {}
        """Pushed and not answered, by sequence, oldest first."""
        self.answered = SequenceRanges()
        """Answered ones behind the oldest that is not, which the actor has not been told about."""
        self.is_lost = False
        """Whether the actor's node is dead: answers may still come, but nothing more is sent."""

    def acknowledged(self) -> int:
        """All replies up to this sequence have come."""
        return next(iter(self.in_flight), self.next_sequence) - 1

    def take_answered(self) -> tuple[tuple[int, int], ...]:
        """Take the sequences that the next push acknowledges; once is enough, for it arrives or the stream is over."""
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
        "connection",
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
        """The newest that is known; None: nothing yet."""
        self.queue: deque[PendingTask] = deque()
        """Calls that have not been pushed, in their order; if the actor promises none, only those that are ready."""
        self.retries: deque[PendingTask] = deque()
        """Calls to be made again, which keep no order."""
        self.connection: Connection | None = None
        """None: there is no incarnation that can be reached."""
        self.lost: dict[PendingTask, Connection] = {}
        """Calls of gone connections, whose fate is open, with that which they had been pushed to."""
        self.failures = 0
        """How often in a row it could not be reached although the gcs believes that it lives."""
        self.keeping = 0
        """Calls that are not over and were made with a handle that keeps the actor alive."""
        self.submitted = 0
        """Calls that were made, for ``max_pending_calls``; counted by user threads."""
        self.ended = 0
        """Calls that are over; counted by the loop."""

    @property
    def state(self) -> str:
        return "" if self.info is None else self.info.state
