"""The lease request, its states, and the records that the scheduling classes return.

Ray: src/ray/raylet/scheduling/internal.h (internal::Work), src/ray/common/lease/lease.h

Rules
  * A request is named by a fresh lease id that its owner made; an id never begins a second lease.
  * The states of a lease are one table, shared by the two classes that change them: ``ClusterLeaseManager`` (which node?)
    and ``LocalLeaseManager`` (when?).
  * Both return the work to do as an ``Assignment``; the raylet does it.

The states

  * WAITING: no node is chosen, usually because none can ever hold it.
  * FETCHING: it waits on this node for the large arguments of its task.
  * QUEUED: it waits on this node for resources.
  * ALLOCATED: it has resources and waits for a worker.
  * GRANTED: it has a worker, which may be blocked.
  * ENDING: its worker is being killed. The resources stay taken until it is dead, so that no killed task runs beside its
    successor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

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
"""Ways in which a request ends on this node without a lease."""


@dataclass(slots=True, eq=False)
class LeaseRequest:
    """An owner's request; it stays unchanged for the whole life of the lease."""

    lease_id: bytes
    owner_id: bytes
    """Incarnation that asked; leases are shared fairly between owners."""
    shape: LeaseShape
    depth: int
    """Nesting depth of the submitting task."""
    backlog: int = 0
    """Number of further tasks of this shape that wait at the owner."""
    grant_or_reject: bool = False
    """Whether another node has spilled the request here; it is not spilled back again."""
    for_actor: bool = False
    """Whether the lease is for an actor: it lasts as long as the actor lives, is never idle, and has no worker cap."""
    dependency_ids: tuple[bytes, ...] = ()
    """Ids of the task's large arguments, which must be on the node where it runs."""
    resources: ResourceSet = field(init=False)
    """``shape.resources`` as a set."""
    level: float = field(init=False)
    """Priority while workers are blocked: the depth, or half less for a generator that back-pressure may hold up.

    A lease waits only for leases of higher levels. The generator counts less, since its reader may need tasks of the same
    depth before it reads on."""

    def __post_init__(self) -> None:
        self.resources = dict(self.shape.resources)
        self.level = self.depth - 0.5 if self.shape.may_be_held_up else self.depth

    @property
    def job_id(self) -> bytes:
        return self.shape.job_id


class Placement(msgspec.Struct, frozen=True):
    """Says how a request ends that this node does not serve."""

    request: LeaseRequest
    kind: str
    """SPILLBACK, REJECT or UNSCHEDULABLE."""
    node_id: bytes = b""
    """SPILLBACK: the node to ask instead."""
    reason: str = ""
    """UNSCHEDULABLE: the reason, for users."""


class Assignment(msgspec.Struct):
    """The work that the raylet has to do after a change."""

    allocated: list[LeaseRequest] = msgspec.field(default_factory=list)
    """Requests that hold their resources now and need a worker."""
    fetching: list[LeaseRequest] = msgspec.field(default_factory=list)
    """Requests that are to run here and wait for their arguments."""
    placed: list[Placement] = msgspec.field(default_factory=list)
    """Requests that end on this node and need an answer."""
    infeasible: list[LeaseRequest] = msgspec.field(default_factory=list)
    """Requests that no node can ever hold: they wait for one that can, and the user should be warned."""
    wake_at: float | None = None
    """Time at which ``assign`` must be called again even if nothing changes."""

    def wake_no_later_than(self, when: float) -> None:
        self.wake_at = when if self.wake_at is None else min(self.wake_at, when)
