"""Messages that a raylet understands.

Ray: src/ray/protobuf/node_manager.proto

The lease protocol: an owner asks for a worker (``RequestWorkerLease``), pushes tasks to it directly, and gives it back
(``ReturnWorkerLease``). All three messages name a fresh lease id that the owner made, never the worker. So a late repetition
can never refer to another lease.
"""

from __future__ import annotations

from minray.common.task_spec import LeaseShape
from minray.protocol.base import Address, Done, Finite, Record, Request
from minray.protocol.gcs import NodeDrain

GRANTED, SPILLBACK, REJECTED, CANCELLED, UNSCHEDULABLE, ENVIRONMENT_FAILED, GROUP_REMOVED = range(7)
"""Kinds of replies to a lease request."""


class RegisterWorkerReply(Record, frozen=True):
    node_name: str
    address: Address
    """Address of the raylet itself."""
    refused: str = ""


class RegisterWorker(Request[RegisterWorkerReply], frozen=True):
    """Registers a forked worker that is ready to be leased."""

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
    """Host for TCP listeners; empty: processes of this node listen on unix sockets only."""
    address: Address


class RegisterDriver(Request[RegisterDriverReply], frozen=True):
    """Registers a driver, and tells it where things are.

    The driver sends it before it listens, and again with its address and job when it does."""

    address: Address | None
    pid: int
    job_id: bytes


class LeaseReply(Record, frozen=True):
    kind: int
    worker: Address | None = None
    """GRANTED: the worker to push tasks to."""
    pid: int = 0
    gpu_ids: tuple[int, ...] = ()
    contended: bool = False
    """GRANTED: whether other requests wait on this node, so that idle leases should be returned at once."""
    raylet: Address | None = None
    """SPILLBACK: the raylet to ask instead, with ``grant_or_reject``."""
    reason: str = ""


class Dependency(Record, frozen=True):
    """A large argument of the task that needs the lease; the raylet pulls it to its node before it grants (G86)."""

    object_id: bytes
    owner: Address
    size: int
    """Size in bytes."""


class RequestWorkerLease(Request[LeaseReply], frozen=True):
    """Asks for a worker; answered when one is granted, however long that takes. A repeated lease id is granted once."""

    lease_id: bytes
    owner: Address
    shape: LeaseShape
    depth: int
    """Nesting depth of the submitting task; deeper tasks go first when workers are blocked."""
    backlog: int
    """Number of further tasks of this scheduling key that wait at the owner."""
    grant_or_reject: bool
    actor_id: bytes = b""
    """Actor that will live in the worker, whose lease the gcs owns; empty: the lease is for tasks."""
    retriable: bool = True
    """Whether the task may be retried if its worker is killed."""
    dependencies: list[Dependency] = []


MAX_CALLS = "max_calls"
"""Reason for returning a worker that ends by itself when no process needs its objects any more (G23)."""


class ReturnWorkerLease(Request[Done], frozen=True):
    lease_id: bytes
    kill_worker: bool
    """Whether the worker must not be used again (its channel broke, or it has used up ``max_calls``)."""
    reason: str


class CancelWorkerLease(Request[Done], frozen=True):
    """Cancels a lease request. If it arrives before the request, it leaves a tombstone that cancels that on arrival."""

    lease_id: bytes


class NotifyWorkerBlocked(Request[Done], frozen=True):
    """Says that a worker's task waits in ``get`` or ``wait``, or goes on; its CPUs are lent out meanwhile (G101)."""

    worker_id: bytes
    sequence: int
    """Number that grows with each change; an older message is ignored."""
    blocked: bool


class LeaseFailure(Record, frozen=True):
    """Describes the death of the worker of a lease."""

    known: bool
    """Whether the raylet knows the lease; False: it never granted it, or has dropped it."""
    dead: bool
    started: int = -1
    """Sequence number within the lease of the last task that began to run; later ones never started. -1: not known."""
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: list[str] = []
    cause: str = ""
    """Cause of the worker's death, for users."""
    memory_used: int = 0
    memory_total: int = 0
    """Bytes in use on the node and its total, if the worker was killed because memory ran short; else both are 0."""
    group_removed: bool = False
    """Whether the worker was in a placement group that has been removed."""
    node_ended: str | None = None
    """Reason why the worker's node ended, and the worker with it; None: the node goes on."""
    preempted: bool = False
    """Whether the worker was killed because its node had to leave (G21)."""
    doom: str = ""
    """Reason why the raylet killed the worker, for users; empty if it did not."""


class GetLeaseFailure(Request[LeaseFailure], frozen=True):
    """Asks how the worker of a lease died; answered when it is dead, or after ``timeout_s`` with ``dead=False``."""

    lease_id: bytes
    timeout_s: Finite


class KillWorker(Request[Done], frozen=True):
    """Kills the worker of a lease (``cancel(force=True)``), if the lease is still held."""

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
    """Address of the worker; None until it has registered."""


class NodeStats(Record, frozen=True):
    node_id: bytes
    pid: int
    total: dict[str, int]
    available: dict[str, int]
    workers: list[WorkerStatus]
    pending_leases: list[str]
    """One line for each waiting request: its needs, and what it waits for."""


class GetNodeStats(Request[NodeStats], frozen=True):
    pass


class LeaseExplanation(Record, frozen=True):
    text: str
    """Reason why the lease is not granted; empty if it is unknown or granted."""


class ExplainLease(Request[LeaseExplanation], frozen=True):
    lease_id: bytes


class FlushLogs(Request[Done], frozen=True):
    """Asks for pending output; answered when all that the job's workers had written was passed on to its driver."""

    job_id: bytes


class DrainRayletReply(Record, frozen=True):
    is_accepted: bool
    """Whether the node leaves; False: it was to leave because it is idle, and it is not idle."""


class DrainRaylet(Request[DrainRayletReply], frozen=True):
    """From the gcs: drains a node, which takes nothing new and leaves when nothing runs on it. The last request counts."""

    drain: NodeDrain


class Shutdown(Request[Done], frozen=True):
    """Ends a node in an orderly way (``minray stop``, ``Cluster.remove_node``)."""

    reason: str
