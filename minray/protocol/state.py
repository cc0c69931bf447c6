"""Messages of the state API: tasks that exist or have run, stacks of what runs right now, and metrics.

Ray: src/ray/protobuf/gcs.proto (TaskEvents), which Ray's processes send to the gcs all the time; here they are asked

The owner of a task knows the task's state until it has sent the task; after that, the executing process knows it. Both
answer the same question, and the reader combines their answers.
"""

from __future__ import annotations

from typing import Protocol

from minray.common.task_rows import ROW, TaskRow, rows_of
from minray.common.task_spec import ACTOR_CREATION_TASK
from minray.protocol.base import Count, Done, Record, Request
from minray.protocol.core_worker import CANCELLED, FAILED, OK, CoreWorkerStats, GetCoreWorkerStats

MOST_TASKS = 10_000
"""Most tasks described in one answer, so that it fits into one message."""

RUNNING = "RUNNING"
ARGS_FETCH, ACTOR_ARGS_FETCH = "PENDING_ARGS_FETCH", "PENDING_ACTOR_TASK_ARGS_FETCH"
ACTOR_ORDERING = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
"""Ray's names for the states of a task in the process that it was sent to."""
ENDS = {OK: "FINISHED", FAILED: "FAILED", CANCELLED: "CANCELLED"}
"""State of a task that a worker has run, by the status of the worker's answer."""


class TaskInfo(Record, frozen=True):
    """Describes a task from its owner's view."""

    task_id: bytes
    attempt: int
    name: str
    kind: str
    state: str
    parent_id: bytes
    """Task that submitted it; empty: a driver did."""
    actor_id: bytes = b""
    node_id: bytes = b""
    """Node that an unfinished task was sent to; empty: none."""
    worker_id: bytes = b""
    pid: int = 0
    resources: dict[str, int] = {}
    error: str = ""
    """FAILED: the error, as long as a reference to the task's result exists, or the gcs keeps the task."""
    function_name: str = ""
    """Name of the function if ``name`` is one that the user chose; else empty."""
    error_type: str = ""
    """FAILED: Ray's name for the kind of ``error``, such as TASK_EXECUTION_EXCEPTION; empty if the error is not known."""


class ReceivedInfo(Record, frozen=True):
    """A task that was sent to this process and has not been answered."""

    task_id: bytes
    attempt: int
    state: str


class TasksInfo(Record, frozen=True):
    """One process's knowledge of tasks, as their owner and as their executor."""

    node_id: bytes
    worker_id: bytes
    pid: int
    is_driver: bool
    total: int
    """Number of its own tasks that are unfinished or remembered; ``tasks`` has the newest."""
    tasks: list[TaskInfo]
    received: list[ReceivedInfo]


class ProfileEvent(Record, frozen=True):
    """Records one task or actor call that a worker has run."""

    task_id: bytes
    attempt: int
    name: str
    kind: str
    actor_id: bytes
    """Actor that the task created or was a call of; else empty."""
    start_us: int
    """Start in microseconds since the epoch, by the wall clock of the node."""
    duration_us: int
    state: str
    """FINISHED, FAILED, or CANCELLED."""
    function_name: str = ""
    """See ``TaskInfo``."""
    phase_ends_us: list[int] = []
    """Microseconds after the start at which the task had its arguments, and at which its function had returned.

    Empty unless the cluster records phases; the second is missing if the function has raised."""


def profile_event(row: TaskRow, zero_us: int, phase_ends_us: list[int]) -> ProfileEvent:
    """Describe a row of a worker's journal; ``zero_us`` is the wall clock's time in microseconds at the clock's zero."""
    return ProfileEvent(
        task_id=row.task_id,
        attempt=row.attempt,
        name=row.name,
        kind=row.kind,
        actor_id=row.actor_id,
        start_us=zero_us + row.started_ns // 1000,
        duration_us=row.duration_us,
        state=ENDS.get(row.status, "FAILED"),
        function_name=row.function_name,
        phase_ends_us=phase_ends_us,
    )


def func_or_class_name(task: TaskInfo | ProfileEvent) -> str:
    """Return Ray's ``func_or_class_name``: the function's name, or for a constructor the class."""
    return task.name.partition(".")[0] if task.kind == ACTOR_CREATION_TASK else task.function_name or task.name


class ProfileEvents(Record, frozen=True):
    """The tasks that a worker has run lately."""

    node_id: bytes
    node_ip: str
    worker_id: bytes
    pid: int
    total: int
    """Number of tasks that the worker remembers; ``events`` has those that ended last."""
    events: list[ProfileEvent]
    """Events in the order in which the tasks began."""


class GetProfileEvents(Request[ProfileEvents], frozen=True):
    """Asks a worker for the tasks that it has run."""

    limit: Count = MOST_TASKS


class StackFrame(Record, frozen=True):
    """One frame of a stack: a function and the line that it executes."""

    filename: str
    line: int
    function: str
    source: str
    """Source text of the line; empty if the file cannot be read."""


class Stack(Record, frozen=True):
    """The stack of a thread that runs, or of a coroutine that waits."""

    name: str
    is_coroutine: bool
    count: int
    """Number of threads or coroutines with the same name and stack."""
    frames: list[StackFrame]
    """Frames, the newest call last. No frames: a thread waits for work, or a thread is running the coroutine."""
    left_out: int = 0
    """Number of frames that are left out in the middle."""


class ProcessStacks(Record, frozen=True):
    """The stacks of a driver or worker right now."""

    node_id: bytes
    worker_id: bytes
    pid: int
    is_driver: bool
    running: list[str]
    """Names of the tasks and calls that run here."""
    stacks: list[Stack]
    left_out: int = 0
    """Number of coroutines that are not described, because there are too many."""


class GetStacks(Request[ProcessStacks], frozen=True):
    """Asks a driver or worker for its stacks."""


class Breakpoint(Record, frozen=True):
    """A thread of user code that waits in a debugger for a command."""

    id: str
    """Id for people, unique in the cluster: ``1f3c2a4b-1``."""
    task_name: str
    """Name of the task or actor call; empty: a thread that user code has started."""
    task_id: bytes
    actor_id: bytes
    """Actor that the task creates or calls; empty for a normal task."""
    function: str
    filename: str
    line: int
    error: str
    """Exception because of which the debugger was entered, in one line; empty for ``breakpoint()``."""
    since: float
    """Wall-clock time of the node, in seconds since the epoch."""
    endpoint: str
    """Unix endpoint at which a terminal attaches, on the worker's machine."""
    is_attached: bool
    """Whether a terminal is attached."""


class ProcessBreakpoints(Record, frozen=True):
    """The breakpoints at which a worker waits."""

    node_id: bytes
    worker_id: bytes
    pid: int
    breakpoints: list[Breakpoint]


class GetBreakpoints(Request[ProcessBreakpoints], frozen=True):
    """Asks a worker for its breakpoints."""


COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
"""Prometheus's names for the kinds of metrics."""


class MetricSample(Record, frozen=True):
    """One value of a metric, for one set of tags."""

    tags: dict[str, str]
    value: float
    """Value of the counter or gauge; for a histogram the sum of all observed values."""
    counts: list[int]
    """Histogram only: number of values in each single bucket; there is one bucket more than boundaries."""


class MetricFamily(Record, frozen=True):
    """All values of the metric with one name."""

    name: str
    kind: str
    description: str
    boundaries: list[float]
    samples: list[MetricSample]


class SystemValue(Record, frozen=True):
    """One figure of a process about the system itself."""

    name: str
    """Ray's name of the metric, without ``ray_``."""
    value: float
    labels: dict[str, str] = {}
    suffix: str = ""
    """Ending of the name of a histogram's series."""


class ProcessMetrics(Record, frozen=True):
    """All metrics of a driver or worker: what its programs have recorded, and its figures about the system."""

    node_ip: str
    worker_id: bytes
    job_id: bytes
    families: list[MetricFamily]
    left_out: int = 0
    """Number of values that are left out, because there are too many."""
    system: list[SystemValue] = []


class GetMetrics(Request[ProcessMetrics], frozen=True):
    """Asks a driver or worker for its metrics."""


class WorkerTaskEvents(Record, frozen=True):
    """The rows of a dead worker's journal: the tasks that it has run lately."""

    node_id: bytes
    node_ip: str
    worker_id: bytes
    pid: int
    zero_us: int
    """Wall-clock time in microseconds when the worker's clock was 0."""
    rows: bytes
    """Rows as in ``common/task_rows``, the oldest first. The gcs does not unpack them."""
    lost: int = 0
    """Number of older tasks whose rows were overwritten."""

    def events(self, limit: int = MOST_TASKS) -> ProfileEvents:
        """Unpack the newest rows, at most ``limit``."""
        total = len(self.rows) // ROW.size
        newest = self.rows[max(0, total - limit) * ROW.size :]
        events = [profile_event(row, self.zero_us, []) for row in rows_of(newest)]
        events.sort(key=lambda event: event.start_us)
        return ProfileEvents(
            node_id=self.node_id,
            node_ip=self.node_ip,
            worker_id=self.worker_id,
            pid=self.pid,
            total=total,
            events=events,
        )


class AddTaskEventData(Request[Done], frozen=True):
    """Tells the gcs what it shall keep: failed tasks from their owner, or what a dead worker has run from its raylet."""

    failed: list[TaskInfo] = []
    workers: list[WorkerTaskEvents] = []
    job_id: bytes = b""
    """Job of the failed tasks, and of those that are left out."""
    left_out: int = 0
    """Number of failed tasks that the owner could not describe, because there were too many at a time."""


class TaskEvents(Record, frozen=True):
    """A part of what the gcs keeps of tasks."""

    failed: list[TaskInfo]
    workers: list[WorkerTaskEvents]
    last: int
    """Number of the newest entry in this part."""
    is_complete: bool
    """Whether no entry is newer."""
    dropped: int
    """Number of tasks that the gcs has dropped or never received, because there were too many."""


class GetTaskEvents(Request[TaskEvents], frozen=True):
    """Asks the gcs for the tasks of ended processes, and the failed ones of living owners."""

    after: int = 0
    """Number of the newest entry that the reader has; 0: none."""


class GetTasksInfo(Request[TasksInfo], frozen=True):
    """Asks a driver or worker for the tasks that it knows: all of them, or those of ``task_ids``."""

    limit: Count = MOST_TASKS
    task_ids: list[bytes] | None = None


class StateAnswers(Protocol):
    """The answers of a driver or worker to the questions about its state."""

    def stats(self, request: GetCoreWorkerStats) -> CoreWorkerStats: ...

    def tasks(self, request: GetTasksInfo) -> TasksInfo: ...

    def profile(self, request: GetProfileEvents) -> ProfileEvents: ...

    def stacks(self) -> ProcessStacks: ...

    def metrics(self) -> ProcessMetrics: ...

    def breakpoints(self) -> ProcessBreakpoints: ...
