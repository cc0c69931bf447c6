"""What processes tell people: which tasks there are, which have run, what runs right now, and what was measured.

Ray: src/ray/protobuf/gcs.proto (TaskEvents), which Ray's processes send to the gcs all the time; here they are asked

The owner of a task knows its state until it has been sent; the process that it was sent to knows what it does with it. Both
answer the same question, and the reader puts their answers together.
"""

from __future__ import annotations

from typing import Protocol

from minray.common.task_spec import ACTOR_CREATION_TASK
from minray.protocol.base import Record, Request
from minray.protocol.core_worker import CoreWorkerStats, GetCoreWorkerStats

MOST_TASKS = 10_000
"""So many are described in one answer."""

RUNNING = "RUNNING"
ARGS_FETCH, ACTOR_ARGS_FETCH = "PENDING_ARGS_FETCH", "PENDING_ACTOR_TASK_ARGS_FETCH"
ACTOR_ORDERING = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
"""Ray's names of what a process does with a task that was sent to it."""


class TaskInfo(Record, frozen=True):
    """A task as its owner knows it."""

    task_id: bytes
    attempt: int
    name: str
    kind: str
    state: str
    parent_id: bytes
    """The task that submitted it; empty: a driver."""
    actor_id: bytes = b""
    node_id: bytes = b""
    """Where it was sent to, if it has not ended; empty: nowhere."""
    worker_id: bytes = b""
    pid: int = 0
    resources: dict[str, int] = {}
    error: str = ""
    """FAILED: what happened, as long as a reference to its result exists."""
    function_name: str = ""
    """What runs, if ``name`` does not say so."""


class ReceivedInfo(Record, frozen=True):
    """A task that was sent here and has not been answered."""

    task_id: bytes
    attempt: int
    state: str


class TasksInfo(Record, frozen=True):
    """All that one process knows of tasks."""

    node_id: bytes
    worker_id: bytes
    pid: int
    is_driver: bool
    total: int
    """How many of its tasks have not ended, or are remembered; ``tasks`` has the newest."""
    tasks: list[TaskInfo]
    received: list[ReceivedInfo]


class ProfileEvent(Record, frozen=True):
    """A task or call that a worker has run."""

    task_id: bytes
    attempt: int
    name: str
    kind: str
    actor_id: bytes
    """Of the actor that it made, or was a call of; else empty."""
    start_us: int
    """Microseconds since the epoch, by the wall clock of its node."""
    duration_us: int
    state: str
    """FINISHED, FAILED, or CANCELLED."""
    function_name: str = ""
    """As in ``TaskInfo``."""


def func_or_class_name(task: TaskInfo | ProfileEvent) -> str:
    """What runs, in Ray's words: of a constructor, the class."""
    return task.name.partition(".")[0] if task.kind == ACTOR_CREATION_TASK else task.function_name or task.name


class ProfileEvents(Record, frozen=True):
    """What a worker has run lately."""

    node_id: bytes
    node_ip: str
    worker_id: bytes
    pid: int
    events: list[ProfileEvent]
    """In the order in which they began."""


class GetProfileEvents(Request[ProfileEvents], frozen=True):
    """What have you run?"""


class StackFrame(Record, frozen=True):
    """A line of a program that has been reached and not been left."""

    filename: str
    line: int
    function: str
    source: str
    """What is written there; empty if the file cannot be read."""


class Stack(Record, frozen=True):
    """What a thread does right now, or what a coroutine waits for."""

    name: str
    is_coroutine: bool
    count: int
    """So many do the same, under the same name."""
    frames: list[StackFrame]
    """The newest call is the last one. None: a thread that waits for work, a coroutine that a thread runs."""
    left_out: int = 0
    """So many frames are missing in the middle."""


class ProcessStacks(Record, frozen=True):
    """What a driver or worker does right now."""

    node_id: bytes
    worker_id: bytes
    pid: int
    is_driver: bool
    running: list[str]
    """The names of the tasks and calls that have begun here and not ended."""
    stacks: list[Stack]
    left_out: int = 0
    """So many coroutines are not described, because there are so many of them."""


class GetStacks(Request[ProcessStacks], frozen=True):
    """What do you do?"""


COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
"""Prometheus's names of what a metric may be."""


class MetricSample(Record, frozen=True):
    """The values of a metric with the same tags."""

    tags: dict[str, str]
    value: float
    """Of a histogram: the sum of all that was observed."""
    counts: list[int]
    """Of a histogram: how many values are in each bucket alone; one more than there are boundaries."""


class MetricFamily(Record, frozen=True):
    """All values of one name."""

    name: str
    kind: str
    description: str
    boundaries: list[float]
    samples: list[MetricSample]


class ProcessMetrics(Record, frozen=True):
    """What a driver or worker has counted, set and observed."""

    node_ip: str
    worker_id: bytes
    job_id: bytes
    families: list[MetricFamily]
    left_out: int = 0
    """So many values are not told, because there are so many."""


class GetMetrics(Request[ProcessMetrics], frozen=True):
    """What have you measured?"""


class GetTasksInfo(Request[TasksInfo], frozen=True):
    """Which tasks do you know, of all, or of these?"""

    limit: int = MOST_TASKS
    task_ids: list[bytes] | None = None


class StateAnswers(Protocol):
    """The answers of a driver or worker to the questions about its state."""

    def stats(self, request: GetCoreWorkerStats) -> CoreWorkerStats: ...

    def tasks(self, request: GetTasksInfo) -> TasksInfo: ...

    def profile(self) -> ProfileEvents: ...

    def stacks(self) -> ProcessStacks: ...

    def metrics(self) -> ProcessMetrics: ...
