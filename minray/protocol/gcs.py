"""What the gcs understands.

Ray: src/ray/protobuf/gcs_service.proto, pubsub.proto

Registering, reporting and key-value writes are idempotent: the sender's incarnation or a version number decides.
``Poll`` is publish/subscribe: a long poll on a versioned snapshot, so that a subscriber that missed anything (a reset, a
restart of the gcs) is brought up to date by the same message that it waits with.
"""

from __future__ import annotations

from minray.protocol.base import Address, Done, Record, Request

NODES, RESOURCES, WORKER_DEATHS, JOBS = "nodes", "resources", "worker_deaths", "jobs"
"""The channels one can poll; keys and values per channel are named at the records below."""


IDLE_TERMINATION, PREEMPTION = 1, 2
"""Why a node is to leave: there is nothing for it to do; or its machine will be taken away (Ray's DrainNodeReason)."""

EXPECTED_TERMINATION, UNEXPECTED_TERMINATION, DRAINED_PREEMPTED, DRAINED_IDLE = range(1, 5)
"""How a dead node came to its end (Ray's NodeDeathInfo): it was asked to, it was lost, it has left as it was told to."""


class NodeDrain(Record, frozen=True):
    """A node is to leave (``DrainNode``)."""

    reason: int
    message: str
    """For people."""
    deadline: float = 0.0
    """Wall-clock time at which it leaves in any case; 0: when it has nothing left to do."""


class NodeInfo(Record, frozen=True):
    """A node, on channel NODES by its node id."""

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
    """It takes nothing new, and leaves as soon as it may; also of one that has left since."""
    death_reason: int = 0
    """0 while it lives."""

    def is_preempted(self) -> bool:
        """Whether what is lost with it is lost because of a preemption (G21)."""
        return self.drain is not None and self.drain.reason == PREEMPTION


class NodeResources(Record, frozen=True):
    """What a node has free, on channel RESOURCES by its node id."""

    node_id: bytes
    version: int
    """Grows with every report; an older one is ignored."""
    total: dict[str, int]
    available: dict[str, int]
    pending: list[tuple[dict[str, int], int]]
    """Shapes of the lease requests that wait there, with how many of each; also those no node can hold."""


DRIVER_LEFT = "the driver has left its cluster"
"""It has finished its job before it went."""


class WorkerDeath(Record, frozen=True):
    """The certificate of a dead worker, on channel WORKER_DEATHS by its worker id."""

    worker_id: bytes
    node_id: bytes
    pid: int
    cause: str
    """For people: ``exit code 3``, ``signal SIGKILL``, ``node died``, or DRIVER_LEFT."""
    last_words: list[str] = []
    """Of an actor: its last lines on standard error."""
    for_memory: bool = False
    """It was killed because its node had too little."""


class JobConfig(Record, frozen=True):
    """What a worker needs to know of its job."""

    sys_path: list[str]
    working_dir: str
    namespace: str
    entrypoint: str
    setup_hook: bytes = b""
    """What each of its workers calls before its first task: a function, or the name of one, pickled; empty: nothing."""


class JobInfo(Record, frozen=True):
    """A job, on channel JOBS by its job id."""

    job_id: bytes
    driver: Address
    driver_pid: int
    config: JobConfig
    start_time: float
    end_time: float = 0.0
    """0 while it runs."""
    kept: bool = False
    """Its driver has ended, but detached actors of it live on, with their workers and definitions."""

    def is_over(self) -> bool:
        """Whether nothing of it may begin any more; its setup hook is forgotten then."""
        return bool(self.end_time) and not self.kept


class RegisterNodeReply(Record, frozen=True):
    cluster_id: bytes
    refused: str = ""
    """Why this node may not join (its id was declared dead; another session); it must exit."""
    may_restart: bool = True
    """The gcs has durable tables: wait for it when it is gone. Without them its end is the cluster's (G110)."""


class RegisterNode(Request[RegisterNodeReply], frozen=True):
    node: NodeInfo
    cluster_id: bytes = b""
    """The cluster that the node has joined before; empty the first time. Another one's gcs refuses it."""


class UnregisterNode(Request[Done], frozen=True):
    """A node ends in an orderly way."""

    node_id: bytes
    cause: str
    drain: NodeDrain | None = None
    """It was told to leave, and has kept the rules of that."""


class DrainNodeReply(Record, frozen=True):
    is_accepted: bool
    """Also of a node that is dead or unknown: it is gone."""
    rejection: str = ""


class DrainNode(Request[DrainNodeReply], frozen=True):
    """Have a node leave: it takes nothing new, what runs there may end, then it unregisters. The last wish counts."""

    node_id: bytes
    reason: int
    message: str
    deadline: float = 0.0
    """Wall-clock time at which it leaves in any case, the same however often this is sent; 0: never."""


class ReportResources(Request[RegisterNodeReply], frozen=True):
    """Also the proof that a node lives; the reply repeats the refusal for a node that was declared dead."""

    resources: NodeResources


class RegisterJobReply(Record, frozen=True):
    job_id: bytes


class RegisterJob(Request[RegisterJobReply], frozen=True):
    """Idempotent by the driver's incarnation."""

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
    """The namespace of what lives as long as a job (its functions): the gcs drops it when the job finishes."""
    return f"job:{job_id.hex()}"


class KvPutReply(Record, frozen=True):
    added: bool
    """False: another value was there and was kept."""


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


class KvKeysReply(Record, frozen=True):
    keys: list[bytes]


class KvKeys(Request[KvKeysReply], frozen=True):
    namespace: str
    prefix: bytes


class ReportWorkerDeath(Request[Done], frozen=True):
    death: WorkerDeath


class GetWorkerDeathReply(Record, frozen=True):
    death: WorkerDeath | None
    """None: not known to be dead."""


class GetWorkerDeath(Request[GetWorkerDeathReply], frozen=True):
    """Is this process dead? True for a known certificate, and for any process of a dead node."""

    worker_id: bytes
    node_id: bytes


class PollReply(Record, frozen=True):
    epoch: bytes
    """The gcs's incarnation; a new one means: what follows is a full snapshot."""
    version: int
    """So far the entries reach: there may be more than fits into one reply, which the next poll answers at once."""
    full: bool
    """True: ``entries`` begins a snapshot of everything; False: it is what changed after the version asked about."""
    entries: list[tuple[bytes, bytes | None]]
    """Key and encoded record; None: removed."""
    begun: int = 0
    """The version at which the subscriber's last snapshot began. It is complete when that is reached: what it has not
    named by then is not there any more."""

    def is_complete(self) -> bool:
        return self.version >= self.begun


class Poll(Request[PollReply], frozen=True):
    """Answers as soon as the channel is newer than what the caller has; at the latest after ``timeout_s``, empty."""

    channel: str
    epoch: bytes
    version: int
    timeout_s: float
    begun: int = 0
    """That of the last reply, like epoch and version."""


class InternalConfig(Record, frozen=True):
    system_config: dict[str, bool | int | float | str]
    """The cluster's, by name; a node or driver that joins takes it over."""


class GetInternalConfig(Request[InternalConfig], frozen=True):
    pass


class CheckAlive(Request[Done], frozen=True):
    """Answers as soon as it is heard; understood by every process."""
