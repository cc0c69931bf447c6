"""Tasks that this process has submitted and that have not ended: their states, attempts and outcomes.

Ray: src/ray/core_worker/task_manager.h

Pure. A task is ``PENDING_ARGS_AVAIL`` until its arguments exist, ``PENDING_NODE_ASSIGNMENT`` until a leased worker takes
it, ``SUBMITTED_TO_WORKER`` until a reply or a death decides, then ``FINISHED`` or ``FAILED`` and forgotten here. The
states' names are those of Ray's state API. A task whose results were lost begins again (``lineage`` remembers it).

Retries: a death of the worker or its node uses one of ``max_retries``; a user's exception does only if
``retry_exceptions`` covers it (G16, G18). A task whose node was preempted is made again for free (G21), one that had been
pushed but had not started is pushed again for free, and so, after a pause, is one whose worker was killed because its node
had no memory (G20). A cancelled task is never retried (G19). To make lost results again uses one of them, too (G70).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from minray.common.ids import item_id, return_id, short
from minray.common.state_table import InvalidTransition
from minray.common.task_spec import TaskTemplate
from minray.core_worker.records.object_ref_streams import ObjectRefStream
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
MOST_RECENT = 1000
"""So many tasks that have ended are remembered, for people."""
NOTHING: list[bytes] = []
"""Shared by all that have none; never changed."""
TRANSITIONS = {
    NEW: (WAITING, QUEUED),
    WAITING: (QUEUED, FAILED),
    QUEUED: (PUSHED, FAILED),
    PUSHED: (WAITING, QUEUED, FINISHED, FAILED),
    FINISHED: (WAITING,),
    FAILED: (WAITING,),
}


class FunctionExport:
    """Whether the gcs has a function's definition; shared by all templates of that function."""

    __slots__ = ("function_id", "done")

    def __init__(self, function_id: bytes, done: bool) -> None:
        self.function_id = function_id
        self.done = done


class PreparedTemplate:
    """One function with one set of options, made ready to be called many times."""

    __slots__ = ("template", "header", "export", "client", "mean_us", "key")

    def __init__(self, template: TaskTemplate, header: bytes, export: FunctionExport, client: Any = None) -> None:
        self.template = template
        self.header = header
        """The encoded TaskHeader, which every PushTask carries."""
        self.export = export
        self.client = client
        """Of an actor's method: the ActorClient through which it is called."""
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
    """Of an actor's call: the object that stands for the actor; empty if this handle does not keep it alive."""
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
    worker: object | None = None
    """While PUSHED: the leased worker."""
    sequence: int = 0
    """While PUSHED: its position within the lease."""
    estimate_us: float = 0.0
    """While PUSHED: how much work it was taken for."""
    stream: ObjectRefStream | None = None
    """Of a streaming generator: its items."""
    items_lost: dict[int, None] | None = None
    """Of a streaming generator, while an attempt runs: items that were lost before it began, and have not come again."""
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
        """Of a streaming generator: the items that have come, in order, whether they still exist or not."""
        return [] if self.stream is None else [item_id(self.task_id, number) for number in self.stream.numbers()]

    def result_ids(self) -> list[bytes]:
        return [return_id(self.task_id, index) for index in range(1, self.prepared.template.num_returns + 1)]


class TaskManager:
    """The table of one process."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None) -> None:
        self._record = record
        self.tasks: dict[bytes, PendingTask] = {}
        """All that have not ended, by task id, oldest first."""
        self.submitted_count = 0
        self.finished_count = 0
        self.recent: deque[tuple[bytes, TaskTemplate, bytes, int, str, bytes]] = deque(maxlen=MOST_RECENT)
        """Of the last that have ended: id, template, of an actor's call the actor, attempt, FINISHED or FAILED, parent."""

    def add(self, task: PendingTask) -> None:
        self.tasks[task.task_id] = task
        self.submitted_count += 1

    def move(self, task: PendingTask, new: str) -> None:
        """A step of the state table; what is FINISHED or FAILED is not in the table any more."""
        old = task.state
        if new not in TRANSITIONS[old]:
            raise InvalidTransition(f"task {short(task.task_id)}: {old or 'new'} -> {new}")
        task.state = new
        if self._record is not None:
            self._record("task", short(task.task_id), old, new)
        if new is FINISHED or new is FAILED:
            del self.tasks[task.task_id]
            self.finished_count += 1
            client = task.prepared.client
            actor_id = b"" if client is None else client.actor_id
            self.recent.append((task.task_id, task.prepared.template, actor_id, task.attempt, new, task.parent_id))

    def begin_again(self, task: PendingTask, needs: tuple[bytes, ...]) -> None:
        """Results of a task that has ended are lost, and it has used up a retry: it takes these arguments once more."""
        task.needs = needs
        self.add(task)
        self.move(task, WAITING)

    def may_retry(self, task: PendingTask, preempted: bool = False) -> bool:
        """Use up one retry, if there is one: True, and the next attempt has begun. A preemption uses none (G21)."""
        if preempted and task.prepared.template.max_retries != 0 and not task.cancelled:
            task.attempt += 1
            task.preemptions += 1
            return True
        if task.cancelled or task.retries_left == 0:
            return False
        if task.retries_left > 0:
            task.retries_left -= 1
        task.attempt += 1
        return True

    def retry_after_memory(self, task: PendingTask) -> float | None:
        """It was killed for its node's memory (G20): how many base delays later the next attempt may begin; None: never."""
        if task.cancelled or task.prepared.template.max_retries == 0:
            return None
        task.attempt += 1
        task.memory_kills += 1
        return float(2 ** (task.memory_kills - 1))

    def children_of(self, parent_id: bytes) -> list[PendingTask]:
        return [task for task in self.tasks.values() if task.parent_id == parent_id]
