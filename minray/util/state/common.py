"""What the state functions return.

Ray: python/ray/util/state/common.py

Names and meanings of the fields are Ray's; a reader of one finds them in the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

BYTES_PER_MB = 1 << 20
DISABLED = "disabled"


@dataclass
class ObjectState:
    """One object, as one process refers to it."""

    object_id: str
    object_size: int
    """In bytes; -1 if nobody knows it yet."""
    task_status: str
    """Of the task that makes it: PENDING_ARGS_AVAIL, PENDING_NODE_ASSIGNMENT, SUBMITTED_TO_WORKER, FINISHED, FAILED; NIL for
    what was put, and from processes that do not own it."""
    attempt_number: int
    """How many times the task was executed, this time included."""
    reference_type: str
    """PINNED_IN_MEMORY (being read in shared memory), USED_BY_PENDING_TASK, LOCAL_REFERENCE, CAPTURED_IN_OBJECT, or
    UNKNOWN_STATUS (kept for borrowers)."""
    call_site: str
    """The line that made the reference; ``disabled`` unless ``RAY_record_ref_creation_sites`` is set."""
    type: str
    """Of the process: DRIVER or WORKER."""
    pid: int
    ip: str

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


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
        """Sum these up."""
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
        len(states),
        size / BYTES_PER_MB,
        len({(state.ip, state.pid) for state in states}),
        len({state.ip for state in states}),
        _count(state.task_status for state in states),
        _count(str(state.attempt_number) for state in states),
        _count(state.reference_type for state in states),
    )


def _count(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
