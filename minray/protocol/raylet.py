"""What a raylet understands.

Ray: src/ray/protobuf/node_manager.proto

The lease protocol: an owner asks for a worker (``RequestWorkerLease``), pushes tasks to it directly, and gives it back
(``ReturnWorkerLease``). All three messages name a lease id that the owner made fresh, never the worker: a late repetition
can then only ever mean its own lease.
"""

from __future__ import annotations

from minray.common.task_spec import LeaseShape
from minray.protocol.base import Address, Done, Record, Request
from minray.protocol.gcs import NodeDrain

GRANTED, SPILLBACK, REJECTED, CANCELLED, UNSCHEDULABLE, ENVIRONMENT_FAILED, GROUP_REMOVED = range(7)
"""Kinds of lease replies."""


class RegisterWorkerReply(Record, frozen=True):
    node_name: str
    address: Address
    """The raylet's own."""
    refused: str = ""


class RegisterWorker(Request[RegisterWorkerReply], frozen=True):
    """A forked worker is ready to be leased."""

    address: Address
    pid: int


class RegisterDriverReply(Record, frozen=True):
    node_id: bytes
    node_ip: str
    node_name: str
    gcs_endpoint: str
    socket_dir: str
    session_dir: str
    tcp_host: str
    """Empty: processes of this node listen on unix sockets only."""
    address: Address


class RegisterDriver(Request[RegisterDriverReply], frozen=True):
    """A driver asks where things are; sent before it listens, repeated with its address and job when it does."""

    address: Address | None
    pid: int
    job_id: bytes


class LeaseReply(Record, frozen=True):
    kind: int
    worker: Address | None = None
    """GRANTED: whom to push to."""
    pid: int = 0
    gpu_ids: tuple[int, ...] = ()
    contended: bool = False
    """GRANTED: others are waiting for this node, so that idle leases should not linger."""
    raylet: Address | None = None
    """SPILLBACK: ask there, with ``grant_or_reject``."""
    reason: str = ""


class Dependency(Record, frozen=True):
    """A large argument of the task that a lease is asked for: the raylet brings it to its node before it grants (G86)."""

    object_id: bytes
    owner: Address
    size: int
    """In bytes."""


class RequestWorkerLease(Request[LeaseReply], frozen=True):
    """Answered when a worker is granted, however long that takes. Repeating it with the same lease id grants once."""

    lease_id: bytes
    owner: Address
    shape: LeaseShape
    depth: int
    """How deeply nested the submitting task is; deeper work goes first when workers are blocked."""
    backlog: int
    """How many more tasks of this key wait at the owner."""
    grant_or_reject: bool
    actor_id: bytes = b""
    """Of the actor that will live in the worker; the owner is the gcs then."""
    retriable: bool = True
    """What will run may be run again if its worker is killed."""
    dependencies: list[Dependency] = []


MAX_CALLS = "max_calls"
"""The reason for giving back a worker that ends by itself, when nobody needs its objects any more (G23)."""


class ReturnWorkerLease(Request[Done], frozen=True):
    lease_id: bytes
    kill_worker: bool
    """True: the worker must not be used again (its channel broke, or it has used up ``max_calls``)."""
    reason: str


class CancelWorkerLease(Request[Done], frozen=True):
    """May arrive before its request: then it leaves a tombstone that cancels it on arrival."""

    lease_id: bytes


class NotifyWorkerBlocked(Request[Done], frozen=True):
    """A worker's task waits in ``get`` or ``wait`` (or goes on): its CPUs are lent out meanwhile (G101)."""

    worker_id: bytes
    sequence: int
    """Grows with each change; an older message is ignored."""
    blocked: bool


class LeaseFailure(Record, frozen=True):
    """What became of the worker of a lease."""

    known: bool
    """False: this raylet never granted the lease, or has forgotten it."""
    dead: bool
    started: int = -1
    """Sequence number (within the lease) of the last task that began to run; later ones never started."""
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: list[str] = []
    cause: str = ""
    """For people: how it ended."""
    memory_used: int = 0
    memory_total: int = 0
    """It was killed because the node had so many bytes in use of so many; else 0."""
    group_removed: bool = False
    """It was in a placement group that has been removed."""
    node_ended: str | None = None
    """Why its node ended, and it with the node; None: the node goes on."""
    preempted: bool = False
    """It was killed because its node had to leave (G21)."""
    doom: str = ""
    """For people: why its raylet has killed it, if it was that."""


class GetLeaseFailure(Request[LeaseFailure], frozen=True):
    """Answers when the worker of the lease is seen dead, at the latest after ``timeout_s`` with ``dead=False``."""

    lease_id: bytes
    timeout_s: float


class KillWorker(Request[Done], frozen=True):
    """Force-cancel: kill the worker of this lease, if the lease is still held."""

    lease_id: bytes
    reason: str


class WorkerStatus(Record, frozen=True):
    worker_id: bytes
    pid: int
    state: str
    job_id: bytes
    lease_id: bytes
    blocked: bool
    address: Address | None = None
    """None until it has registered."""


class NodeStats(Record, frozen=True):
    node_id: bytes
    pid: int
    total: dict[str, int]
    available: dict[str, int]
    workers: list[WorkerStatus]
    pending_leases: list[str]
    """A line for each waiting request: what it needs and what it waits for."""


class GetNodeStats(Request[NodeStats], frozen=True):
    pass


class LeaseExplanation(Record, frozen=True):
    text: str
    """Why this lease is not granted; empty if it is unknown or granted."""


class ExplainLease(Request[LeaseExplanation], frozen=True):
    lease_id: bytes


class FlushLogs(Request[Done], frozen=True):
    """Answers when everything that the job's workers had written by now was passed on to its driver."""

    job_id: bytes


class DrainRayletReply(Record, frozen=True):
    is_accepted: bool
    """False: it was to leave because it is idle, and it is not."""


class DrainRaylet(Request[DrainRayletReply], frozen=True):
    """From the gcs: take nothing new, and leave as soon as nothing runs here. The last wish counts."""

    drain: NodeDrain


class Shutdown(Request[Done], frozen=True):
    """End this node in an orderly way (``minray stop``, ``Cluster.remove_node``)."""

    reason: str
