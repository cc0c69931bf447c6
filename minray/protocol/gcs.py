"""Messages that the gcs understands, and the records that it publishes.

Ray: src/ray/protobuf/gcs_service.proto, pubsub.proto

Registering, reporting and key-value writes are idempotent, by the sender's incarnation or a version number. ``Poll`` is
publish/subscribe: a long poll on a versioned snapshot. The message with which a subscriber waits also brings it up to date
if it missed anything (a reset, a restart of the gcs).
"""

from __future__ import annotations

from minray.protocol.base import Address, Done, Finite, Record, Request

NODES, RESOURCES, WORKER_DEATHS, JOBS = "nodes", "resources", "worker_deaths", "jobs"
"""Channels that can be polled; the records below say which are on which channel, and by which key."""


IDLE_TERMINATION, PREEMPTION = 1, 2
"""Reasons for draining a node: it is idle, or its machine will be taken away (Ray's DrainNodeReason)."""

EXPECTED_TERMINATION, UNEXPECTED_TERMINATION, DRAINED_PREEMPTED, DRAINED_IDLE = range(1, 5)
"""Reasons of a node's death (Ray's NodeDeathInfo): it was asked to end, it was lost, or it was drained."""


class NodeDrain(Record, frozen=True):
    """Says why and until when a node is drained (``DrainNode``)."""

    reason: int
    message: str
    """Explanation for users."""
    deadline: Finite = 0.0
    """Wall-clock time (seconds) at which the node leaves in any case; 0: only when it has nothing left to do."""


class NodeInfo(Record, frozen=True):
    """Describes a node; published on channel NODES by its node id."""

    node_id: bytes
    name: str
    ip: str
    hostname: str
    address: Address
    resources_total: dict[str, int]
    labels: dict[str, str]
    is_head: bool
    alive: bool = True
    death_cause: str = ""
    pid: int = 0
    session_dir: str = ""
    drain: NodeDrain | None = None
    """Set when the node is, or was, being drained: it takes nothing new and leaves as soon as it may."""
    death_reason: int = 0
    """Reason of the node's death; 0 while it lives."""

    def is_preempted(self) -> bool:
        """Tell whether losses with this node count as preempted (G21)."""
        return self.drain is not None and self.drain.reason == PREEMPTION


class NodeResources(Record, frozen=True):
    """A node's total and free resources; published on channel RESOURCES by its node id."""

    node_id: bytes
    version: int
    """Version that grows with every report; an older one is ignored."""
    total: dict[str, int]
    available: dict[str, int]
    pending: list[tuple[dict[str, int], int]]
    """Resources of the lease requests that wait there, and the number of each; also those that no node can hold."""
    shortages: int = 0
    """Number of times that requests for memory have waited there, so that all processes should collect garbage."""


DRIVER_LEFT = "the driver has left its cluster"
"""Cause of death of a driver that finished its job before it ended."""


class WorkerDeath(Record, frozen=True):
    """Certifies that a worker is dead; published on channel WORKER_DEATHS by its worker id."""

    worker_id: bytes
    node_id: bytes
    pid: int
    cause: str
    """Cause for users: ``exit code 3``, ``signal SIGKILL``, ``node died``, or DRIVER_LEFT."""
    last_words: list[str] = []
    """Actor only: its last lines on standard error."""
    for_memory: bool = False
    """Whether it was killed because its node ran short of memory."""


class JobConfig(Record, frozen=True):
    """Settings of a job that its workers need."""

    sys_path: list[str]
    working_dir: str
    namespace: str
    entrypoint: str
    setup_hook: bytes = b""
    """Pickled function, or name of one, that each worker of the job calls before its first task; empty: none."""
    logging_config: str = ""
    """Encoded ``LoggingConfig``, which each worker of the job applies before its first task; empty: none."""


class JobInfo(Record, frozen=True):
    """Describes a job; published on channel JOBS by its job id."""

    job_id: bytes
    driver: Address
    driver_pid: int
    config: JobConfig
    start_time: float
    end_time: float = 0.0
    """Wall-clock time at which the job finished; 0 while it runs."""
    kept: bool = False
    """Whether detached actors of the job live on after its driver ended, with their workers and definitions."""

    def is_over(self) -> bool:
        """Tell whether nothing of the job may begin any more; its setup hook is dropped then."""
        return bool(self.end_time) and not self.kept


class RegisterNodeReply(Record, frozen=True):
    cluster_id: bytes
    refused: str = ""
    """Reason why this node may not join and must exit (its id was declared dead, or it is of another session)."""
    may_restart: bool = True
    """Whether the gcs has durable tables, so that nodes wait for its restart. Without them its end ends them (G110)."""


class RegisterNode(Request[RegisterNodeReply], frozen=True):
    node: NodeInfo
    cluster_id: bytes = b""
    """Cluster that the node has joined before; empty the first time. The gcs of another cluster refuses the node."""


class UnregisterNode(Request[Done], frozen=True):
    """Says that a node ends in an orderly way."""

    node_id: bytes
    cause: str
    drain: NodeDrain | None = None
    """Set if the node ends because it was drained."""


class DrainNodeReply(Record, frozen=True):
    is_accepted: bool
    """Whether the node leaves; also True for one that is dead or unknown, since it is gone."""
    rejection: str = ""


class DrainNode(Request[DrainNodeReply], frozen=True):
    """Drains a node: it takes nothing new, its running tasks may end, then it unregisters. The last request counts."""

    node_id: bytes
    reason: int
    message: str
    deadline: Finite = 0.0
    """Wall-clock time (seconds) at which the node leaves in any case, the same in each repetition; 0: never."""


class ReportResources(Request[RegisterNodeReply], frozen=True):
    """Reports a node's resources and that it is alive; the reply refuses a node that was declared dead."""

    resources: NodeResources


class RegisterJobReply(Record, frozen=True):
    job_id: bytes


class RegisterJob(Request[RegisterJobReply], frozen=True):
    """Registers a job; idempotent by the driver's incarnation."""

    driver: Address
    driver_pid: int
    config: JobConfig


class FinishJob(Request[Done], frozen=True):
    job_id: bytes


class GetJobReply(Record, frozen=True):
    job: JobInfo | None


class GetJob(Request[GetJobReply], frozen=True):
    job_id: bytes


def job_namespace(job_id: bytes) -> str:
    """Return the key-value namespace of a job's exported functions, which the gcs drops when the job finishes."""
    return f"job:{job_id.hex()}"


class PackageInfo(Record, frozen=True):
    """Says where an uploaded package of a job is; stored by its URI in the job's key-value namespace."""

    archive: bytes = b""
    """The package itself, if it is small."""
    object_id: bytes = b""
    """Id of the object that is the package, if it is large; the driver owns this object."""
    owner: Address | None = None


class KvPutReply(Record, frozen=True):
    added: bool
    """Whether the value was stored; False: another value was there and was kept."""


class KvPut(Request[KvPutReply], frozen=True):
    namespace: str
    key: bytes
    value: bytes
    overwrite: bool


class KvGetReply(Record, frozen=True):
    value: bytes | None


class KvGet(Request[KvGetReply], frozen=True):
    namespace: str
    key: bytes


class KvDel(Request[Done], frozen=True):
    namespace: str
    key: bytes


DASHBOARD, DASHBOARD_ADDRESS = "dashboard", b"address"
"""Key-value namespace and key under which the head's dashboard writes the name of its session, a space, and its host and
port. A head that is started again on its tables, perhaps without a dashboard, is of another session."""


class KvKeysReply(Record, frozen=True):
    keys: list[bytes]


class KvKeys(Request[KvKeysReply], frozen=True):
    namespace: str
    prefix: bytes


class ReportWorkerDeath(Request[Done], frozen=True):
    death: WorkerDeath


class GetWorkerDeathReply(Record, frozen=True):
    death: WorkerDeath | None
    """Certificate of the death; None: the process is not known to be dead."""


class GetWorkerDeath(Request[GetWorkerDeathReply], frozen=True):
    """Asks whether a process is dead: it has a death certificate, or its node is dead."""

    worker_id: bytes
    node_id: bytes


class PollReply(Record, frozen=True):
    epoch: bytes
    """Incarnation of the gcs; after a new one a full snapshot follows."""
    version: int
    """Version that the entries reach. If more changes exist than fit into one reply, the next poll gets them at once."""
    full: bool
    """Whether ``entries`` begins a full snapshot; False: they are the changes after the version asked about."""
    entries: list[tuple[bytes, bytes | None]]
    """Keys and encoded records; None: the key was removed."""
    begun: int = 0
    """Version at which the subscriber's last snapshot began.

    The snapshot is complete when ``version`` reaches it. Keys that it has not named by then no longer exist."""

    def is_complete(self) -> bool:
        return self.version >= self.begun


class Poll(Request[PollReply], frozen=True):
    """Polls a channel: answered as soon as it is newer than ``version``, at the latest after ``timeout_s``, empty."""

    channel: str
    epoch: bytes
    version: int
    timeout_s: Finite
    begun: int = 0
    """Value of ``begun`` in the last reply, as with epoch and version."""


class InternalConfig(Record, frozen=True):
    system_config: dict[str, bool | int | float | str]
    """Entries of the cluster's SystemConfig by name; a node or driver that joins takes them over."""


class GetInternalConfig(Request[InternalConfig], frozen=True):
    pass


class CheckJoinReply(Record, frozen=True):
    """Facts about the gcs that decide whether a node can join."""

    time: float
    """Wall-clock time of the gcs, in seconds since the epoch."""
    python: str
    """Version of Python, such as ``3.11``."""
    version: str
    """Version of minray."""
    unreachable: str = ""
    """Reason why the gcs could not connect to ``CheckJoin.endpoint``; empty if it could."""


class CheckJoin(Request[CheckJoinReply], frozen=True):
    """Asks the gcs to connect to an endpoint of the asking machine, and about itself (``minray check``)."""

    endpoint: str
    """TCP endpoint at which the caller listens; empty: the gcs connects nowhere."""


class CheckAlive(Request[Done], frozen=True):
    """Asks for a sign of life; every process answers it at once."""
