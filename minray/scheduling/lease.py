"""A lease request, what may become of it, and the records in which the scheduling machines say so.

Ray: src/ray/raylet/scheduling/internal.h (internal::Work), src/ray/common/lease/lease.h

Rules
  * A request is named by the lease id that its owner made fresh; there is at most one life per id.
  * The states of a life are one table, shared by the two machines that move it: ``ClusterLeaseManager`` (which node?)
    and ``LocalLeaseManager`` (when?).
  * Machines return what is to be done as an ``Assignment``; the raylet does it.

The states: WAITING (no node chosen, usually because none can ever hold it), FETCHING (here, for the large arguments of its
task), QUEUED (here, for resources), ALLOCATED (has resources, waits for a worker), GRANTED (has a worker, maybe a blocked
one), ENDING (its worker is being killed; resources stay taken until it is dead, so that no killed task runs beside its
successor).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minray.common.resources import ResourceSet
from minray.common.state_table import NEW
from minray.common.task_spec import LeaseShape

WAITING, FETCHING, QUEUED, ALLOCATED, GRANTED, ENDING = (
    "WAITING",
    "FETCHING",
    "QUEUED",
    "ALLOCATED",
    "GRANTED",
    "ENDING",
)

LEASE_STATES: Mapping[str, tuple[str, ...]] = {
    NEW: (WAITING,),
    WAITING: (FETCHING, QUEUED, NEW),
    FETCHING: (QUEUED, NEW),
    QUEUED: (ALLOCATED, FETCHING, NEW),
    ALLOCATED: (GRANTED, NEW),
    GRANTED: (ENDING, NEW),
    ENDING: (NEW,),
}

SPILLBACK, REJECT, UNSCHEDULABLE = "SPILLBACK", "REJECT", "UNSCHEDULABLE"
"""The ways in which a request ends without a lease here."""


@dataclass(slots=True, eq=False)
class LeaseRequest:
    """What an owner asked for; unchanged for the whole life of the lease."""

    lease_id: bytes
    owner_id: bytes
    """The incarnation that asked: leases are shared out fairly between owners."""
    shape: LeaseShape
    depth: int
    """How deeply nested the submitting task is."""
    backlog: int = 0
    """How many more tasks of this shape wait at the owner."""
    grant_or_reject: bool = False
    """It was spilled here by another node: one hop only."""
    for_actor: bool = False
    """It will last as long as an actor lives; there may be many of one shape, and none is ever idle."""
    dependency_ids: tuple[bytes, ...] = ()
    """The large arguments of its task, which must be where it runs."""
    resources: ResourceSet = field(init=False)
    """``shape.resources`` as a set."""
    level: float = field(init=False)
    """Leases wait for those of higher levels only: its depth, and for a generator that may be held up half a level less, for
    its reader may need tasks of the same depth before it reads on."""

    def __post_init__(self) -> None:
        self.resources = dict(self.shape.resources)
        self.level = self.depth - 0.5 if self.shape.may_be_held_up else self.depth


@dataclass(frozen=True, slots=True)
class Placement:
    """A request that is not served by this node."""

    request: LeaseRequest
    kind: str
    """SPILLBACK, REJECT or UNSCHEDULABLE."""
    node_id: bytes = b""
    """SPILLBACK: who has room."""
    reason: str = ""
    """UNSCHEDULABLE: why, for people."""


@dataclass(slots=True)
class Assignment:
    """What is to be done after a change."""

    allocated: list[LeaseRequest] = field(default_factory=list)
    """These hold their resources now and need a worker."""
    fetching: list[LeaseRequest] = field(default_factory=list)
    """These are to run here, and wait for their arguments."""
    placed: list[Placement] = field(default_factory=list)
    """These are over here and need an answer."""
    infeasible: list[LeaseRequest] = field(default_factory=list)
    """No node can ever hold these: they wait for one that can, and somebody should be told."""
    wake_at: float | None = None
    """Call ``assign`` again at this time, even if nothing changes."""

    def wake_no_later_than(self, when: float) -> None:
        self.wake_at = when if self.wake_at is None else min(self.wake_at, when)
