"""Messages about actors: from creators and callers to the gcs, and from callers to the actor's process.

Ray: src/ray/protobuf/gcs.proto (ActorTableData), gcs_service.proto (ActorInfoGcsService), core_worker.proto

Creating takes two messages: ``RegisterActor`` when the constructor is called (from then on the actor exists and has its
name), and ``CreateActor`` when the constructor's arguments are there. The gcs then leases a worker, pushes the constructor
as a task, and publishes where the actor lives, on a channel per job. Calls (``PushActorTask``) go directly from the caller
to the actor's process; their sequence numbers count per caller and incarnation.
"""

from __future__ import annotations

from minray.common.task_spec import LeaseShape
from minray.protocol.base import Address, Done, Record, Request
from minray.protocol.core_worker import Argument, Explanation, PushTaskReply, RefInfo, Rerun

DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING, DEAD = (
    "DEPENDENCIES_UNREADY",
    "PENDING_CREATION",
    "ALIVE",
    "RESTARTING",
    "DEAD",
)
"""Ray's names of the states of an actor."""

CREATION_TASK_FAILED, ACTOR_UNSCHEDULABLE, RUNTIME_ENV_FAILED, KILLED, OUT_OF_SCOPE = range(5)
OWNER_DIED, JOB_FINISHED, WORKER_DIED, NODE_DIED, EXITED, GROUP_REMOVED, OUT_OF_MEMORY = range(5, 12)
"""Kinds of an actor's death.

EXITED: it ended itself (``exit_actor``, ``__ray_terminate__``, ``sys.exit()``). GROUP_REMOVED: it cannot begin (again)
without its placement group. OUT_OF_MEMORY: its worker was killed because its node ran short of memory."""
KINDS_OF_DEATH = (
    "CREATION_TASK_FAILED",
    "ACTOR_UNSCHEDULABLE",
    "RUNTIME_ENV_FAILED",
    "KILLED",
    "OUT_OF_SCOPE",
    "OWNER_DIED",
    "JOB_FINISHED",
    "WORKER_DIED",
    "NODE_DIED",
    "EXITED",
    "GROUP_REMOVED",
    "OUT_OF_MEMORY",
)
"""Names of the kinds of death, by number, for users."""

CALL_METHOD, READY_METHOD, TERMINATE_METHOD = "__ray_call__", "__ray_ready__", "__ray_terminate__"
"""Methods that every actor has: run a function on it, wait until it exists, end it after all calls made before."""


class DeathCause(Record, frozen=True):
    kind: int
    message: str
    """Explanation for users."""
    error: bytes = b""
    """CREATION_TASK_FAILED: the packed exception, of which only the text is left; RUNTIME_ENV_FAILED: all of it."""
    preempted: bool = False
    """Whether the actor died with, or on, a node that was to be preempted."""


class ActorInfo(Record, frozen=True):
    """The public state of an actor, published on the channel of its job under its id."""

    actor_id: bytes
    state: str
    class_name: str
    name: str
    """Name for ``get_actor``; empty: the actor has none."""
    namespace: str
    owner: Address
    """The process that called the constructor."""
    detached: bool = False
    """Whether the actor outlives its owner and job (G26)."""
    max_restarts: int = 0
    """Most restarts; -1: any number."""
    restarts: int = 0
    """Number of restarts so far; with the actor's id this names an incarnation."""
    handle: bytes = b""
    """Encoded data from which ``get_actor`` makes a handle; opaque to the gcs."""
    address: Address | None = None
    """ALIVE: address of the actor's process; DEAD: that of its last one, if it had any."""
    raylet: Address | None = None
    """ALIVE: raylet of the actor's node, whose store has its large results."""
    pid: int = 0
    death: DeathCause | None = None
    """DEAD: the cause; RESTARTING and after it: the cause of the last incarnation's death."""
    start_time: float = 0.0
    end_time: float = 0.0
    preemptions: int = 0
    """Number of restarts due to preemptions of nodes, which do not count against ``max_restarts``."""
    is_ending: bool = False
    """Whether no handle is left or the actor ends itself: it ends soon, is not restarted, and its name is free."""

    @staticmethod
    def of_dead(
        actor_id: bytes, owner: Address, death: DeathCause, class_name: str = "", end_time: float = 0.0
    ) -> ActorInfo:
        """Describe an actor of which nothing else is known, or counts any more."""
        return ActorInfo(
            actor_id=actor_id,
            state=DEAD,
            class_name=class_name,
            name="",
            namespace="",
            owner=owner,
            death=death,
            end_time=end_time,
        )

    def may_restart(self, preempted: bool = False) -> bool:
        """Tell whether the actor is restarted if it dies now."""
        if preempted:
            return self.max_restarts != 0
        return self.max_restarts < 0 or self.restarts - self.preemptions < self.max_restarts


ACTORS = "actors:"
"""Prefix of a channel; with a job's id behind it, the channel on which that job's actors are published."""


def actors_channel(job_id: bytes) -> str:
    return ACTORS + job_id.hex()


class ActorCreation(Record, frozen=True):
    """The call of the constructor, which runs again for every incarnation (G35)."""

    task_id: bytes
    shape: LeaseShape
    placement: list[tuple[str, int]]
    """Resources that a node must have free to be chosen, besides those that the actor holds for life."""
    header: bytes
    """Encoded TaskHeader."""
    args: bytes
    arguments: tuple[Argument, ...] = ()
    nested: tuple[RefInfo, ...] = ()
    inline_buffers: tuple[bytes, ...] = ()


class RegisterActorReply(Record, frozen=True):
    existing: ActorInfo | None
    """Another actor that has the name already; then nothing was registered."""
    refused: str = ""
    """Reason why the creator may not have actors: its job has finished, or it is dead."""


class RegisterActor(Request[RegisterActorReply], frozen=True):
    """Registers an actor and its name; idempotent by the actor's id."""

    actor: ActorInfo
    instead_of: bytes = b""
    """Actor with this name that an earlier reply named; its owner has since let go of it, or is dead."""


class CreateActor(Request[Done], frozen=True):
    """Creates an actor as soon as there is room; its constructor's arguments exist."""

    actor_id: bytes
    creation: ActorCreation


class ActorReply(Record, frozen=True):
    actor: ActorInfo | None


class GetNamedActor(Request[ActorReply], frozen=True):
    """Asks for a living actor by its name. Only the actor's owner knows whether it still has a handle."""

    name: str
    namespace: str


class GetActor(Request[ActorReply], frozen=True):
    """Asks for an actor by its id; the reply for an unregistered actor whose owner is dead says that it is dead."""

    actor_id: bytes
    owner: Address


class ActorsReply(Record, frozen=True):
    actors: list[ActorInfo]


class ListActors(Request[ActorsReply], frozen=True):
    """Lists all known actors, dead ones too; to save bytes they come without handles and errors."""


class KillActor(Request[ActorReply], frozen=True):
    """Kills an actor's process, whatever it does (G29). The reply describes the actor; the kill is under way then."""

    actor_id: bytes
    kill_id: bytes
    """Fresh id of this request, so that a repetition does not kill the next incarnation."""
    no_restart: bool


class EndActor(Request[Done], frozen=True):
    """From the owner: ends an actor that has no handle any more (G24), or whose constructor lacks an argument."""

    actor_id: bytes
    cause: DeathCause


class ReportActorEnding(Request[Done], frozen=True):
    """From the actor's own process: says that it is about to end.

    The call that ends it is answered after this. So a process that knows of the end never gets this actor by its name."""

    actor_id: bytes
    worker_id: bytes


class ReportActorExit(Request[Done], frozen=True):
    """From the actor's own process: says that it ends by itself and must not be restarted; it ends after the reply."""

    actor_id: bytes
    worker_id: bytes
    message: str


class GiveUpCalls(Request[Done], frozen=True):
    """To the actor's process: ends a stream. The caller has no replies to these calls and will accept none (G39b)."""

    caller: Address
    stream: int
    sequences: list[int]


class ExitActor(Request[Done], frozen=True):
    """From the gcs to the actor's process: end when all calls are done, since no handle is left (G27, G28)."""

    actor_id: bytes


class ActorExplanation(Record, frozen=True):
    actor: ActorInfo | None
    text: str = ""
    """Thing that the actor's creation waits for, if the gcs knows it."""
    raylet: Address | None = None
    """Raylet that knows more about the lease below."""
    lease_id: bytes = b""
    """Lease of the actor."""
    group_id: bytes = b""
    """Placement group of the actor; empty: none."""
    worker: Address | None = None
    """Worker that runs the constructor."""


class ExplainActor(Request[ActorExplanation], frozen=True):
    """To the gcs: asks for an actor's state and why it is not alive."""

    actor_id: bytes
    owner: Address


class ExplainCall(Request[Explanation], frozen=True):
    """To the actor's process: asks what a call waits for; without a task id, what the process does."""

    actor_id: bytes
    task_id: bytes
    attempt: int
    depth: int
    """Number of hops that this chain of explanations has taken already."""


class PushActorTask(Request[PushTaskReply], frozen=True):
    """Runs one call. A repetition (same caller, stream and sequence) gets the same reply; the call runs once."""

    task_id: bytes
    actor_id: bytes
    attempt: int
    stream: int
    """Number of the caller's stream. It begins a new one after it could not reach the incarnation; older ones are over."""
    sequence: int
    """Number of this push within the stream, from 1, without gaps."""
    in_order: bool
    """Whether calls with lower numbers must begin first; False for retries (G52) and unordered actors."""
    acknowledged: int
    """Sequence up to which the caller has all replies, so that the actor may forget them."""
    answered: tuple[tuple[int, int], ...]
    """Further ranges (first, last) of sequences whose replies the caller has."""
    header: bytes
    """Encoded TaskHeader."""
    depth: int
    args: bytes
    arguments: tuple[Argument, ...] = ()
    nested: tuple[RefInfo, ...] = ()
    inline_buffers: tuple[bytes, ...] = ()
    rerun: Rerun | None = None
    """See ``PushTask``."""


class ParameterSpec(Record, frozen=True):
    """One parameter of a function's or method's signature."""

    name: str
    kind: int
    """Kind of the parameter, as in ``inspect.Parameter``."""
    has_default: bool = False


class MethodSpec(Record, frozen=True):
    """Describes a method of an actor for its callers."""

    name: str
    num_returns: int = 1
    max_task_retries: int = -2
    """Most retries of a call; -2: the actor's own setting (G38)."""
    retry_exceptions: bool = False
    retry_exception_types: bytes = b""
    concurrency_group: str = ""
    is_streaming: bool = False
    """Whether the method is a generator, so that calls stream their items unless ``num_returns`` is given."""
    most_unread: int = 0
    """Generator: most unread items before back-pressure holds it up; 0: any number."""
    parameters: tuple[ParameterSpec, ...] = ()
    """Parameters of the method, without ``self``."""
    is_recorded: bool = True
    """See ``TaskTemplate``."""
    is_dynamic: bool = False
    """See ``TaskTemplate``."""


class HandleSpec(Record, frozen=True):
    """The content of an actor's handle, apart from its owner and id."""

    class_name: str
    methods: list[MethodSpec]
    max_task_retries: int
    max_pending_calls: int
    """Most pending calls of one process through its handles (G55); -1: no limit."""
    in_order: bool
    is_async: bool
    groups: list[str] = []
    """Names of the actor's concurrency groups."""
