"""The rows and summaries that the state functions return.

Ray: python/ray/util/state/common.py

Names and meanings of the fields are Ray's, so that programs can read both. Fields for which minray has no data are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from minray.common.shown import ShownInNotebooks

BYTES_PER_MB = 1 << 20
DISABLED = "disabled"


def detail(default: Any = None) -> Any:
    """Declare a field that tables show with ``--detail`` only."""
    return field(default=default, metadata={"detail": True})


class Row(ShownInNotebooks):
    """The common methods of all rows."""

    def asdict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name, for programs that use rows as dicts, which they once were in Ray."""
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    @classmethod
    def columns(cls, with_detail: bool) -> list[str]:
        """Return the names of the fields that a table shows."""
        return [one.name for one in fields(cls) if with_detail or not one.metadata.get("detail")]  # type: ignore[arg-type]


@dataclass
class ActorState(Row):
    """An actor."""

    actor_id: str
    class_name: str
    state: str
    """DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING or DEAD."""
    job_id: str
    name: str
    """The actor's name; empty if it has none."""
    node_id: str | None
    pid: int
    ray_namespace: str
    death_cause: dict[str, Any] | None = detail()
    """``kind`` and ``message`` of the actor's death, or of its last death while it is being restarted."""
    is_detached: bool = detail(False)
    num_restarts: int = detail(0)


@dataclass
class TaskState(Row):
    """A task, an actor's creation, or a call of an actor's method."""

    task_id: str
    attempt_number: int
    """0 for the first attempt."""
    name: str
    state: str
    """Until it is sent: PENDING_ARGS_AVAIL, PENDING_NODE_ASSIGNMENT. Then SUBMITTED_TO_WORKER, PENDING_ARGS_FETCH, RUNNING;
    for an actor's call also PENDING_ACTOR_TASK_ARGS_FETCH, PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY. In the end FINISHED
    or FAILED."""
    job_id: str
    actor_id: str | None
    type: str
    """NORMAL_TASK, ACTOR_CREATION_TASK or ACTOR_TASK."""
    func_or_class_name: str
    parent_task_id: str
    """The task that has submitted this one; empty if a driver has."""
    node_id: str | None
    """The node to which the task was sent; None before that, and for an ended task whose owner alone tells of it."""
    worker_id: str | None
    worker_pid: int | None
    required_resources: dict[str, float] = detail()
    error_type: str | None = detail()
    """The kind of error of a FAILED task, such as TASK_EXECUTION_EXCEPTION or WORKER_DIED; None if it is not known."""
    error_message: str | None = detail()
    """The error of a FAILED task; None if neither its owner nor the gcs knows it any more."""


@dataclass
class PlacementGroupState(Row):
    """A placement group."""

    placement_group_id: str
    name: str
    creator_job_id: str
    state: str
    """PENDING, PREPARED, CREATED, RESCHEDULING or REMOVED."""
    bundles: list[dict[str, Any]] = detail()
    """For each bundle a dict with ``bundle_index``, ``unit_resources`` and ``node_id``."""
    is_detached: bool = detail(False)


@dataclass
class NodeState(Row):
    """A node."""

    node_id: str
    node_ip: str
    is_head_node: bool
    state: str
    """ALIVE or DEAD."""
    state_message: str | None
    """Why a DEAD node is dead; for an ALIVE node that is draining, that and why; None otherwise."""
    node_name: str
    resources_total: dict[str, float]
    labels: dict[str, str]


@dataclass
class WorkerState(Row):
    """A worker or driver process."""

    worker_id: str
    is_alive: bool
    worker_type: str
    """WORKER or DRIVER."""
    exit_type: str | None
    """INTENDED_SYSTEM_EXIT (a worker with exit code 0), INTENDED_USER_EXIT (a driver that has left) or SYSTEM_ERROR; None
    while it lives."""
    node_id: str
    ip: str
    pid: int
    exit_detail: str | None = detail()


@dataclass
class JobState(Row):
    """A job: a driver program that uses the cluster."""

    job_id: str
    type: str
    """Always DRIVER: minray has no submitted jobs."""
    status: str
    """RUNNING or SUCCEEDED; SUCCEEDED for every ended driver, since its outcome is not known."""
    entrypoint: str
    driver_info: dict[str, str]
    """A dict with ``id``, ``node_ip_address`` and ``pid``."""
    start_time: int | None = detail()
    """When the job began, in milliseconds since 1970."""
    end_time: int | None = detail()


@dataclass
class ObjectState(Row):
    """One object, as one process refers to it."""

    object_id: str
    object_size: int
    """The size in bytes; -1 if the process does not know it yet."""
    task_status: str
    """The state of the task that makes the object: PENDING_ARGS_AVAIL, PENDING_NODE_ASSIGNMENT, SUBMITTED_TO_WORKER,
    FINISHED or FAILED. NIL for an object that was put, and from processes that do not own it."""
    attempt_number: int
    """Number of attempts of that task, the current one included."""
    reference_type: str
    """PINNED_IN_MEMORY (being read in shared memory), USED_BY_PENDING_TASK, LOCAL_REFERENCE, CAPTURED_IN_OBJECT, or
    UNKNOWN_STATUS (kept for borrowers)."""
    call_site: str
    """The line that made the reference; ``disabled`` unless ``RAY_record_ref_creation_sites`` is set."""
    type: str
    """The kind of process: DRIVER or WORKER."""
    pid: int
    ip: str


@dataclass
class ActorSummaryPerClass:
    """The actors of one class."""

    class_name: str
    state_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class ActorSummaries:
    """All actors of a cluster, by class."""

    summary: dict[str, ActorSummaryPerClass]
    total_actors: int
    summary_by: str = "class"

    @classmethod
    def to_summary(cls, *, actors: Iterable[ActorState]) -> ActorSummaries:
        by_class: dict[str, list[ActorState]] = {}
        for state in actors:
            by_class.setdefault(state.class_name, []).append(state)
        summary = {name: ActorSummaryPerClass(name, _count(one.state for one in some)) for name, some in by_class.items()}
        return cls(summary, sum(map(len, by_class.values())))


@dataclass
class TaskSummaryPerFuncOrClassName:
    """The tasks of one function, or calls of one method."""

    func_or_class_name: str
    type: str
    state_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class TaskSummaries:
    """All tasks of a cluster, by function, class or method."""

    summary: dict[str, TaskSummaryPerFuncOrClassName]
    total_tasks: int
    total_actor_tasks: int
    total_actor_scheduled: int
    summary_by: str = "func_name"

    @classmethod
    def to_summary(cls, *, tasks: Iterable[TaskState]) -> TaskSummaries:
        by_name: dict[str, list[TaskState]] = {}
        for state in tasks:
            by_name.setdefault(state.func_or_class_name, []).append(state)
        summary = {
            name: TaskSummaryPerFuncOrClassName(name, some[0].type, _count(one.state for one in some))
            for name, some in by_name.items()
        }
        kinds = _count(one.type for some in by_name.values() for one in some)
        return cls(summary, kinds.get("NORMAL_TASK", 0), kinds.get("ACTOR_TASK", 0), kinds.get("ACTOR_CREATION_TASK", 0))


@dataclass
class ObjectSummaryPerKey:
    """The references with one call site."""

    total_objects: int = 0
    total_size_mb: float = 0.0
    total_num_workers: int = 0
    total_num_nodes: int = 0
    task_state_counts: dict[str, int] = field(default_factory=dict)
    task_attempt_number_counts: dict[str, int] = field(default_factory=dict)
    ref_type_counts: dict[str, int] = field(default_factory=dict)


@dataclass
class ObjectSummaries:
    """All references of a cluster, by call site."""

    summary: dict[str, ObjectSummaryPerKey]
    total_objects: int
    total_size_mb: float
    callsite_enabled: bool
    summary_by: str = "callsite"

    @classmethod
    def to_summary(cls, *, objects: Iterable[ObjectState]) -> ObjectSummaries:
        """Summarize these rows."""
        by_site: dict[str, list[ObjectState]] = {}
        for state in objects:
            by_site.setdefault(state.call_site, []).append(state)
        summary = {site: _summary_of(states) for site, states in by_site.items()}
        total = sum(one.total_objects for one in summary.values())
        size_mb = sum(one.total_size_mb for one in summary.values())
        return cls(summary, total, size_mb, DISABLED not in summary)


def _summary_of(states: list[ObjectState]) -> ObjectSummaryPerKey:
    size = sum(max(state.object_size, 0) for state in states)
    return ObjectSummaryPerKey(
        total_objects=len(states),
        total_size_mb=size / BYTES_PER_MB,
        total_num_workers=len({(state.ip, state.pid) for state in states}),
        total_num_nodes=len({state.ip for state in states}),
        task_state_counts=_count(state.task_status for state in states),
        task_attempt_number_counts=_count(str(state.attempt_number) for state in states),
        ref_type_counts=_count(state.reference_type for state in states),
    )


def _count(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
