"""What is said about actors: by their creators and callers to the gcs, and by callers to the actor's process.

Ray: src/ray/protobuf/gcs.proto (ActorTableData), gcs_service.proto (ActorInfoGcsService), core_worker.proto

Creating takes two messages: ``RegisterActor`` (it exists, and has its name) when the constructor is called, and
``CreateActor`` when the constructor's arguments are there. The gcs then leases a worker, pushes the constructor as a task,
and publishes where the actor lives, on a channel per job. Calls go from the caller to the actor's process and to nobody
else (``PushActorTask``); their sequence numbers count per caller and incarnation.
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
"""Why an actor died. EXITED: it wanted to (``exit_actor``, ``__ray_terminate__``, ``sys.exit()``). GROUP_REMOVED: it cannot
begin (again) without its placement group. OUT_OF_MEMORY: its worker was killed for its node's."""
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
"""Their names, for people."""


class DeathCause(Record, frozen=True):
    kind: int
    message: str
    """For people."""
    error: bytes = b""
    """CREATION_TASK_FAILED: the packed exception, of which only the text is left; RUNTIME_ENV_FAILED: all of it."""
    preempted: bool = False
    """It died with, or on, a node that was to be preempted."""


class ActorInfo(Record, frozen=True):
    """An actor as everybody sees it, on the channel of its job by its id."""

    actor_id: bytes
    state: str
    class_name: str
    name: str
    """Empty: it has none."""
    namespace: str
    owner: Address
    """Whoever called the constructor."""
    detached: bool
    """It outlives its owner and job (G26)."""
    max_restarts: int
    """-1: without end."""
    restarts: int
    """How often it was begun anew; with the actor's id this names an incarnation."""
    handle: bytes
    """What ``get_actor`` makes a handle of; opaque to the gcs."""
    address: Address | None = None
    """ALIVE: where its process is reached."""
    raylet: Address | None = None
    """ALIVE: that of its node, which has its large results."""
    pid: int = 0
    death: DeathCause | None = None
    """DEAD: why; RESTARTING: what happened to the last incarnation."""
    start_time: float = 0.0
    end_time: float = 0.0
    preemptions: int = 0
    """How many of the restarts were due to preemptions of nodes, and use up nothing of ``max_restarts``."""
    is_ending: bool = False
    """No handle is left, or it has called ``exit_actor``: it ends soon, does not begin anew, and its name is free."""

    def may_restart(self, preempted: bool = False) -> bool:
        """Whether it begins anew if it is lost now."""
        if preempted:
            return self.max_restarts != 0
        return self.max_restarts < 0 or self.restarts - self.preemptions < self.max_restarts


ACTORS = "actors:"
"""With a job's id behind it: the channel where the actors of that job are published."""


def actors_channel(job_id: bytes) -> str:
    return ACTORS + job_id.hex()


class ActorCreation(Record, frozen=True):
    """The constructor's call, which is made again for every incarnation (G35)."""

    task_id: bytes
    shape: LeaseShape
    placement: list[tuple[str, int]]
    """What a node must have free to be chosen, besides what the actor holds for life."""
    header: bytes
    """An encoded TaskHeader."""
    args: bytes
    arguments: tuple[Argument, ...] = ()
    nested: tuple[RefInfo, ...] = ()
    inline_buffers: tuple[bytes, ...] = ()


class RegisterActorReply(Record, frozen=True):
    existing: ActorInfo | None
    """Another actor that has the name; nothing was registered."""
    refused: str = ""
    """Why its creator may not have actors (its job has finished, or it is dead)."""


class RegisterActor(Request[RegisterActorReply], frozen=True):
    """Idempotent by the actor's id."""

    actor: ActorInfo
    instead_of: bytes = b""
    """The actor with this name that an earlier answer has told of, and whose owner has let go of it or is dead."""


class CreateActor(Request[Done], frozen=True):
    """The constructor's arguments exist: create it as soon as there is room."""

    actor_id: bytes
    creation: ActorCreation


class ActorReply(Record, frozen=True):
    actor: ActorInfo | None


class GetNamedActor(Request[ActorReply], frozen=True):
    """A living actor by its name. Whether it still has a handle, its owner knows."""

    name: str
    namespace: str


class GetActor(Request[ActorReply], frozen=True):
    """Whatever is known of an actor; one that was never registered, and whose owner is dead, is answered as dead."""

    actor_id: bytes
    owner: Address


class ActorsReply(Record, frozen=True):
    actors: list[ActorInfo]


class ListActors(Request[ActorsReply], frozen=True):
    """All that are known, dead ones too, but without what makes a handle of them, and without errors: they are many."""


class KillActor(Request[ActorReply], frozen=True):
    """End its process now, whatever it does (G29); the answer tells what is known of it; its process is being killed."""

    actor_id: bytes
    kill_id: bytes
    """Names this wish: its repetition does not kill the next incarnation."""
    no_restart: bool


class EndActor(Request[Done], frozen=True):
    """From its owner: there is no handle any more (G24), or an argument of the constructor failed."""

    actor_id: bytes
    cause: DeathCause


class ReportActorEnding(Request[Done], frozen=True):
    """From the actor's own process: it wants to end. The call that has ended it is answered after this, so nobody who
    knows of the end gets this actor by its name."""

    actor_id: bytes
    worker_id: bytes


class ReportActorExit(Request[Done], frozen=True):
    """From the actor's own process: it wants to end and will not be restarted. It goes when this is answered."""

    actor_id: bytes
    worker_id: bytes
    message: str


class GiveUpCalls(Request[Done], frozen=True):
    """To the actor's process: this stream is over for its caller, who has had no answers of these, and takes none (G39b)."""

    caller: Address
    stream: int
    sequences: list[int]


class ExitActor(Request[Done], frozen=True):
    """From the gcs to the actor's process: nobody can call you any more; end when you are through (G27, G28)."""

    actor_id: bytes


class ActorExplanation(Record, frozen=True):
    actor: ActorInfo | None
    text: str = ""
    """What its creation waits for, if the gcs knows,"""
    raylet: Address | None = None
    """or who knows more,"""
    lease_id: bytes = b""
    """of this lease."""
    group_id: bytes = b""
    """The placement group that it is to be in."""
    worker: Address | None = None
    """Who runs its constructor."""


class ExplainActor(Request[ActorExplanation], frozen=True):
    """To the gcs: what is known of an actor, and why is it not alive?"""

    actor_id: bytes
    owner: Address


class ExplainCall(Request[Explanation], frozen=True):
    """To the actor's process: what becomes of this call? Without a task: what is going on?"""

    actor_id: bytes
    task_id: bytes
    attempt: int
    depth: int
    """How many hops of the chain were already taken."""


class PushActorTask(Request[PushTaskReply], frozen=True):
    """Run one call. Repeating it (same caller, stream and sequence) runs it once and answers twice."""

    task_id: bytes
    actor_id: bytes
    attempt: int
    stream: int
    """The caller begins another when this incarnation could not be reached for a while; an older one is over."""
    sequence: int
    """The caller's number for this push within the stream, from 1, without holes."""
    in_order: bool
    """It is not begun before the calls with lower numbers have begun; False for retries (G52) and unordered actors."""
    acknowledged: int
    """All replies up to this sequence have come: the actor may forget them."""
    answered: tuple[tuple[int, int], ...]
    """Further ranges (first, last) of sequences whose replies have come."""
    header: bytes
    """An encoded TaskHeader."""
    depth: int
    args: bytes
    arguments: tuple[Argument, ...] = ()
    nested: tuple[RefInfo, ...] = ()
    inline_buffers: tuple[bytes, ...] = ()
    rerun: Rerun | None = None
    """As in ``PushTask``."""


class ParameterSpec(Record, frozen=True):
    """Of a function's or method's signature."""

    name: str
    kind: int
    """As in ``inspect.Parameter``."""
    has_default: bool = False


class MethodSpec(Record, frozen=True):
    """A method of an actor as its callers know it."""

    name: str
    num_returns: int = 1
    max_task_retries: int = -2
    """-2: the actor's own (G38)."""
    retry_exceptions: bool = False
    retry_exception_types: bytes = b""
    concurrency_group: str = ""
    is_streaming: bool = False
    """A generator, unless its ``num_returns`` is given."""
    most_unread: int = 0
    """Of a generator: back-pressure; 0: none."""
    parameters: tuple[ParameterSpec, ...] = ()
    """What it takes, apart from its object."""
    is_recorded: bool = True
    """See ``TaskTemplate``."""


class HandleSpec(Record, frozen=True):
    """What a handle of an actor has in it, apart from whose it is."""

    class_name: str
    methods: list[MethodSpec]
    max_task_retries: int
    max_pending_calls: int
    """Of one process's calls through its handles (G55); -1: no limit."""
    in_order: bool
    is_async: bool
    groups: list[str] = []
    """The names of its concurrency groups."""
