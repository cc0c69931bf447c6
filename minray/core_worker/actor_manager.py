"""The actors that this process has made or has handles of: told to the gcs, followed there, and called.

Ray: src/ray/core_worker/actor_management/actor_manager.h, actor_creator.h

The shell around ``ActorTaskSubmitter``: it follows the gcs's channel of a job as soon as an actor of that job is called
here, pushes calls, and is the creator's side of an actor's life. A handle holds a reference to an object that stands for the
actor and is never put anywhere; its owner is the creator. So handles are counted like any other references, wherever they
are, calls on their way included, and when the object is freed, nobody can call the actor any more (G24).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minray.common.ids import actor_of, job_of_actor, return_id
from minray.core_worker.actor_clients import ActorClients
from minray.core_worker.actor_task_submitter import ActorClient, ActorTaskSubmitter, Connection
from minray.core_worker.reference_counter import Effects
from minray.core_worker.task_manager import (
    FAILED,
    FINISHED,
    PUSHED,
    QUEUED,
    WAITING,
    PendingTask,
)
from minray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    ActorUnschedulableError,
    OutOfMemoryError,
    RayError,
    RaySystemError,
    RuntimeEnvSetupError,
)
from minray.packed_exception import describe_packed, text_alone, unpack_exception
from minray.platform.base import PlatformError, RecordTooLarge
from minray.protocol.actor import (
    ACTOR_UNSCHEDULABLE,
    ALIVE,
    CREATION_TASK_FAILED,
    DEAD,
    DEPENDENCIES_UNREADY,
    GROUP_REMOVED,
    JOB_FINISHED,
    OUT_OF_MEMORY,
    OUT_OF_SCOPE,
    RUNTIME_ENV_FAILED,
    ActorCreation,
    ActorInfo,
    ActorReply,
    CreateActor,
    DeathCause,
    EndActor,
    GetActor,
    GiveUpCalls,
    PushActorTask,
    RegisterActor,
    RegisterActorReply,
    actors_channel,
)
from minray.protocol.base import Address, Done, Request, decode
from minray.protocol.core_worker import NOT_STARTED, PushTaskReply
from minray.rpc.connection import ignore
from minray.rpc.pubsub import Subscription

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

ASK_AGAIN_S = 1.0
"""How long an actor that the gcs has not told of is waited for, before it is asked about."""
MAX_PATIENCE_S = 5.0


class _Creation:
    """An actor that this process has made and that is not dead."""

    __slots__ = ("task", "info", "placement", "registered", "ready")

    def __init__(self, task: PendingTask, info: ActorInfo, placement: list[tuple[str, int]], registered: bool) -> None:
        self.task = task
        """The constructor's call; it keeps its arguments as long as they may be needed."""
        self.info = info
        self.placement = placement
        self.registered = registered
        self.ready = False
        """The arguments exist."""


class ActorManager:
    """All actors that one process knows; the ``Actions`` of its submitter."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self.submitter = ActorTaskSubmitter(core.tasks, self)
        self.clients = ActorClients()
        """User threads make them."""
        self._infos: dict[bytes, dict[bytes, ActorInfo]] = {}
        """What the gcs has said, by job and actor."""
        self._subscriptions: dict[bytes, Subscription] = {}
        """By job."""
        self._creations: dict[bytes, _Creation] = {}
        """By actor."""
        self._handles: dict[bytes, bytes] = {}
        """The objects that stand for actors of ours which end with their handles, and those actors."""

    # --- creating

    def create(self, task: PendingTask, info: ActorInfo, placement: list[tuple[str, int]], registered: bool) -> None:
        """A user thread has called a constructor; ``registered``: the gcs knows it already, and its handle counts."""
        core = self._core
        handle_id = return_id(task.task_id, 1)
        if not registered:
            core.references.add_owned(handle_id)
        if not info.detached:
            self._handles[handle_id] = info.actor_id
        self._creations[info.actor_id] = _Creation(task, info, placement, registered)
        core.hold_arguments(task)
        self._follow_job(job_of_actor(info.actor_id))
        if core.is_exiting:
            core.tasks.move(task, WAITING)
            self._on_own_dead(info.actor_id, DeathCause(JOB_FINISHED, "the cluster is gone"))
            return
        if not registered:
            self._ask_gcs(RegisterActor(info), partial(self._on_registered, info.actor_id))
        core.wait_for_arguments(task)

    def abandon(self, actor_id: bytes) -> None:
        """A user thread did not wait until it was registered."""
        self._end(actor_id, DeathCause(OUT_OF_SCOPE, "its creator did not wait for it"))

    def _on_registered(self, actor_id: bytes, reply: RegisterActorReply) -> None:
        creation = self._creations.get(actor_id)
        if creation is None:
            return
        if reply.refused or reply.existing is not None:
            self._on_own_dead(actor_id, DeathCause(JOB_FINISHED, reply.refused or "its name is taken"))
            return
        creation.registered = True
        self._maybe_create(creation)

    def on_constructor_ready(self, task: PendingTask) -> None:
        """The constructor's arguments exist."""
        creation = self._creations.get(actor_of(task.task_id))
        if creation is not None:
            self._core.tasks.move(task, QUEUED)
            creation.ready = True
            self._maybe_create(creation)

    def _maybe_create(self, creation: _Creation) -> None:
        if not (creation.ready and creation.registered):
            return
        task = creation.task
        template = task.prepared.template
        record = ActorCreation(
            task.task_id,
            template.shape,
            creation.placement,
            task.prepared.header,
            task.args,
            task.arguments,
            task.nested,
            task.inline_buffers,
        )

        def on_answer(_reply: Done | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if isinstance(error, RecordTooLarge):
                self._give_up(creation.info.actor_id, DeathCause(CREATION_TASK_FAILED, f"its constructor: {error}"))

        self._core.patient.send_to_gcs(CreateActor(creation.info.actor_id, record), on_answer)

    def on_constructor_failed(self, task: PendingTask, error: bytes) -> None:
        """An argument of the constructor is an error: the actor will never be."""
        cause = DeathCause(CREATION_TASK_FAILED, "an argument of its constructor failed", text_alone(error))
        self._give_up(actor_of(task.task_id), cause)

    def _give_up(self, actor_id: bytes, cause: DeathCause) -> None:
        """It will never be."""
        if actor_id not in self._creations:
            return  # the cluster is gone, and with it what the constructor was given
        self._end(actor_id, cause)
        self._on_own_dead(actor_id, cause)

    def keep(self, task: PendingTask) -> None:
        """A call begins that keeps its actor alive."""
        client = task.prepared.client
        if not client.keeping:
            self._core.references.add_submitted([task.handle_id], [None])
        client.keeping += 1

    def let_go(self, task: PendingTask) -> None:
        """It has ended."""
        client = task.prepared.client
        client.keeping -= 1
        if not client.keeping:
            effects = Effects()
            self._core.references.remove_submitted([task.handle_id], effects)
            self._core.borrowing.apply(effects)

    def on_freed(self, object_ids: Iterable[bytes]) -> None:
        """Some of these objects stood for actors, perhaps: there are no handles of those any more."""
        if self._handles:
            for object_id in object_ids:
                actor_id = self._handles.pop(object_id, None)
                if actor_id is not None:
                    self._on_without_handles(actor_id)

    def _on_without_handles(self, actor_id: bytes) -> None:
        info = self.info_of(actor_id)
        if info is None or info.state != DEAD:
            self._end(actor_id, DeathCause(OUT_OF_SCOPE, "there is no handle of it any more"))
        if info is not None and info.state == ALIVE and actor_id in self._creations:
            # It will not begin anew. If it owns an argument of its own constructor, it waits for us to let go of that.
            self._core.outcomes.finish_constructor(self._creations.pop(actor_id).task, FINISHED)

    def forget_constructors(self) -> None:
        """The cluster is gone: they end as all tasks do, and whatever is heard of their actors changes nothing."""
        self._creations.clear()

    def constructors(self) -> list[bytes]:
        """Tasks that do not end as long as their actor may have to be made again."""
        return [creation.task.task_id for creation in self._creations.values()]

    def handed_over(self) -> set[bytes]:
        """Those of them that the gcs can have called again without this process."""
        return {
            creation.task.task_id
            for actor_id, creation in self._creations.items()
            if creation.info.detached
            and creation.task.carries_all()
            and (info := self.info_of(actor_id)) is not None
            and info.state != DEPENDENCIES_UNREADY
        }

    def owns_living(self) -> bool:
        """Whether actors end when this process does."""
        return any((info := self.info_of(actor_id)) is None or info.state != DEAD for actor_id in self._handles.values())

    def _on_own_dead(self, actor_id: bytes, cause: DeathCause) -> None:
        """What the gcs has not said, or will say later."""
        creation = self._creations[actor_id]
        info = creation.info
        self.on_info(ActorInfo(actor_id, DEAD, info.class_name, "", "", info.owner, False, 0, 0, b"", death=cause))

    def _end(self, actor_id: bytes, cause: DeathCause) -> None:
        self._core.patient.send_to_gcs(EndActor(actor_id, cause), ignore)

    def _ask_gcs(self, request: Request[Any], on_reply: Callable[[Any], None]) -> None:
        """What must arrive while there is a gcs."""

        def on_answer(reply: Any, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None:
                on_reply(reply)

        self._core.patient.send_to_gcs(request, on_answer)

    # --- following

    def client(self, actor_id: bytes, owner: Address, in_order: bool) -> ActorClient:
        """In any thread: this process's view of an actor; the same for all its handles."""
        client, is_new = self.clients.get_or_make(actor_id, owner, in_order)
        if is_new:
            self._core.platform.user_code.post(self._follow, client)
        return client

    def info_of(self, actor_id: bytes) -> ActorInfo | None:
        """What is known of an actor here."""
        return self._infos.get(job_of_actor(actor_id), {}).get(actor_id)

    def _follow(self, client: ActorClient) -> None:
        self._follow_job(job_of_actor(client.actor_id))
        info = self.info_of(client.actor_id)
        if info is not None:
            self.submitter.on_info(client, info)
        else:
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_about, weakref.ref(client))

    def _follow_job(self, job_id: bytes) -> None:
        if job_id not in self._subscriptions:
            self._infos[job_id] = {}
            subscription = Subscription(self._core.gcs, actors_channel(job_id), self._on_change)
            self._subscriptions[job_id] = subscription
            subscription.start()

    def _ask_about(self, reference: weakref.ref[ActorClient]) -> None:
        """The gcs does not tell of this actor: its owner may be dead and never have registered it, or it died long ago."""
        client = reference()
        if client is None or self._core.is_exiting or self.info_of(client.actor_id) is not None:
            return

        def on_reply(reply: ActorReply) -> None:
            if reply.actor is not None:
                self.on_info(reply.actor)
            else:
                asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_about, reference)

        self._ask_gcs(GetActor(client.actor_id, client.owner), on_reply)

    def _on_change(self, actor_id: bytes, value: bytes | None) -> None:
        if value is not None:
            self.on_info(decode(ActorInfo, value))
        else:
            self._infos[job_of_actor(actor_id)].pop(actor_id, None)
            client = self.clients.get(actor_id)
            if client is not None and client.state != DEAD:
                self._ask_about(weakref.ref(client))

    def on_info(self, info: ActorInfo) -> None:
        """The gcs has said this of an actor; perhaps of an earlier cluster's, which nobody here can call."""
        infos = self._infos.get(job_of_actor(info.actor_id))
        if infos is None:
            return
        infos[info.actor_id] = info
        creation = self._creations.get(info.actor_id)
        if creation is not None:
            self._on_own_info(creation, info)
        client = self.clients.get(info.actor_id)
        if client is not None:
            self.submitter.on_info(client, info)

    def on_node_death(self, node_id: bytes) -> None:
        """Its actors are dead, although the gcs has not said so of each: what is called from now on is not sent there."""
        for actor_id in self.clients:
            client = self.clients.get(actor_id)
            connection = client.connection if client is not None else None
            if connection is not None and connection.address.node_id == node_id:
                connection.is_lost = True

    def _on_own_info(self, creation: _Creation, info: ActorInfo) -> None:
        """The constructor's arguments are kept until it cannot be called again."""
        task = creation.task
        if info.state == DEAD:
            del self._creations[info.actor_id]
            self._core.outcomes.finish_constructor(task, FINISHED if task.state is PUSHED else FAILED)
        elif info.state == ALIVE and task.state is QUEUED:
            self._core.tasks.move(task, PUSHED)  # and so it stays, as long as it may be called again
            if info.max_restarts == 0:
                del self._creations[info.actor_id]
                self._core.outcomes.finish_constructor(task, FINISHED)

    # --- Actions

    def push(self, connection: Connection, task: PendingTask, in_order: bool) -> None:
        message = PushActorTask(
            task.task_id,
            task.prepared.client.actor_id,
            task.attempt,
            connection.stream,
            task.sequence,
            in_order,
            connection.acknowledged(),
            connection.take_answered(),
            task.prepared.header,
            task.depth,
            task.args,
            task.arguments,
            task.nested,
            task.inline_buffers,
            self._core.outcomes.rerun(task) if task.attempt else None,
        )
        self._core.peers.to(connection.address).send(message, partial(self._on_pushed, connection, task))

    def _on_pushed(
        self,
        connection: Connection,
        task: PendingTask,
        reply: PushTaskReply | None,
        error: PlatformError | None,
        buffers: Sequence[Any],
    ) -> None:
        if task.worker is not connection or task.state is not PUSHED:
            return
        if reply is not None:
            self.submitter.on_task_answered(connection, task)
            if reply.status == NOT_STARTED:
                self._core.outcomes.on_missing(reply.missing)
                self._core.outcomes.on_unstarted([task])
            else:
                self._core.outcomes.on_reply(task, reply, buffers)
        elif isinstance(error, RecordTooLarge):
            self.submitter.on_task_answered(connection, task)
            self._core.outcomes.finish_with_error(task, RaySystemError(reason=str(error)))
        else:
            self.submitter.on_unreachable(task.prepared.client, connection)

    def fail_dead(self, task: PendingTask, client: ActorClient) -> None:
        assert client.info is not None and client.info.death is not None
        self._core.outcomes.finish_with_error(task, error_of(client.actor_id, client.info.death, client.info.class_name))

    def fail_restarted(self, task: PendingTask, client: ActorClient, reason: str) -> None:
        death = client.info.death if client.info is not None else None
        self.fail_unavailable(task, client, f"{reason}: {death.message}" if death is not None else reason)

    def fail_unavailable(self, task: PendingTask, client: ActorClient, reason: str) -> None:
        info = client.info
        error = ActorUnavailableError(
            actor_id=client.actor_id.hex(),
            class_name=info.class_name if info is not None else "",
            reason=reason,
            preempted=info is not None and info.death is not None and info.death.preempted,
        )
        self._core.outcomes.finish_with_error(task, error)

    def discard(self, task: PendingTask, connection: Connection) -> None:
        if connection.raylet is not None:
            self._core.outcomes.discard_attempt(task, connection.raylet)

    def give_up(self, connection: Connection, sequences: list[int]) -> None:
        request = GiveUpCalls(self._core.address, connection.stream, sequences)
        self._core.patient.send(connection.address, request, ignore)

    def retry(self, task: PendingTask) -> None:
        self._core.outcomes.retry(task)

    def wait_for_verdict(self, client: ActorClient, connection: Connection) -> None:
        system = self._core.config.system_config
        patience_s = min(system.timeout_ms_task_wait_for_death_info / 1000 * 2**client.failures, MAX_PATIENCE_S)
        asyncio.get_running_loop().call_later(patience_s, self.submitter.on_no_verdict, client, connection)

    # --- account

    def known(self) -> list[bytes]:
        """Actors whose constructors have not ended, for tests."""
        return list(self._creations)

    def close(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()


def error_of(actor_id: bytes, death: DeathCause, class_name: str = "") -> RayError:
    """What a call of a dead actor raises."""
    if death.kind == ACTOR_UNSCHEDULABLE:
        return ActorUnschedulableError(actor_id=actor_id.hex(), reason=death.message)
    if death.kind == OUT_OF_MEMORY:
        return OutOfMemoryError(reason=death.message)
    if death.kind == GROUP_REMOVED:
        return ActorPlacementGroupRemoved(actor_id=actor_id.hex(), reason=death.message)
    if death.kind == RUNTIME_ENV_FAILED:
        return unpack_exception(death.error) if death.error else RuntimeEnvSetupError(reason=death.message)
    if death.kind == CREATION_TASK_FAILED:
        reason = f"{death.message}\n{describe_packed(death.error)}" if death.error else death.message
        return ActorDiedError(actor_id=actor_id.hex(), class_name=class_name, actor_init_failed=True, reason=reason)
    return ActorDiedError(
        actor_id=actor_id.hex(), class_name=class_name, reason=death.message, preempted=death.preempted
    )
