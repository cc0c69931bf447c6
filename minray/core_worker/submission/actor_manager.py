"""Registers this process's actors with the gcs, follows the state of actors there, and pushes their calls.

Ray: src/ray/core_worker/actor_management/actor_manager.h, actor_creator.h

This is the shell around ``ActorTaskSubmitter``. It follows the gcs's channel of a job as soon as an actor of that job is
called here, pushes calls, and is the creator's side of an actor's life. A handle holds a reference to an object that stands
for the actor. The object has no value; its owner is the creator. Hence handles are counted like other references, in all
processes and in calls on their way. When the object is freed, no handle is left to call the actor with (G24).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from minray.common.ids import actor_of, job_of_actor, return_id
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import (
    FAILED,
    FINISHED,
    PUSHED,
    QUEUED,
    WAITING,
    ActorClient,
    CallStream,
    PendingTask,
)
from minray.core_worker.submission.actor_clients import ActorClients
from minray.core_worker.submission.actor_task_submitter import ActorTaskSubmitter
from minray.core_worker.submission.death_certificates import error_of_actor
from minray.core_worker.submission.push_outcomes import PushOutcomes
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import text_alone
from minray.exceptions import (
    ActorUnavailableError,
    RaySystemError,
)
from minray.platform.base import PlatformError, RecordTooLarge
from minray.protocol.actor import (
    ALIVE,
    CREATION_TASK_FAILED,
    DEAD,
    DEPENDENCIES_UNREADY,
    JOB_FINISHED,
    OUT_OF_SCOPE,
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

ASK_AGAIN_S = 1.0
"""Seconds to wait for the gcs to publish an actor before it is asked about the actor; the news usually comes earlier."""
MAX_PATIENCE_S = 5.0
"""Maximum seconds to wait, after a stream of calls to an actor was lost, for the gcs to report the actor's death. The wait
starts at ``timeout_ms_task_wait_for_death_info`` and doubles with each failure in a row."""


class _Creation:
    """An actor that this process has created, until its constructor cannot be called again."""

    __slots__ = ("task", "info", "placement", "registered", "ready")

    def __init__(self, task: PendingTask, info: ActorInfo, placement: list[tuple[str, int]], registered: bool) -> None:
        self.task = task
        """The constructor's task; it keeps its arguments as long as the constructor may be called again."""
        self.info = info
        self.placement = placement
        self.registered = registered
        """Whether the gcs knows the actor."""
        self.ready = False
        """Whether the constructor's arguments exist."""


class CallOutcomes(PushOutcomes, Protocol):
    """The decisions about an actor's call, or its constructor."""

    def retry(self, task: PendingTask) -> None:
        """Begin the next attempt of a call; ``on_task_ready`` follows."""

    def discard_attempt(self, task: PendingTask, raylet: Address) -> None:
        """Free the objects that an attempt has put into the store of this raylet's node, or will put there."""

    def finish_constructor(self, task: PendingTask, state: str) -> None:
        """End the task of a constructor that will not be called again."""


class Preparation(Protocol):
    """Prepares a constructor's task until its arguments exist."""

    def hold_arguments(self, task: PendingTask) -> None:
        """Hold the objects that a new task refers to, and enter the task in the table of tasks."""

    def wait_for_arguments(self, task: PendingTask) -> None:
        """Wait for a constructor's arguments; ``on_constructor_ready`` or ``on_constructor_failed`` follows."""


class ActorManager:
    """Manages the actors that one process knows. It makes their submitter and implements its ``CallActions``."""

    def __init__(
        self,
        process: Process,
        tasks: TaskManager,
        references: ReferenceCounter,
        clients: ActorClients,
        outcomes: CallOutcomes,
        preparation: Preparation,
    ) -> None:
        self._process = process
        self._tasks = tasks
        self._references = references
        self._outcomes = outcomes
        self._preparation = preparation
        self.submitter = ActorTaskSubmitter(tasks, self)
        self.clients = clients
        """The clients of actors; user threads make them."""
        self._infos: dict[bytes, dict[bytes, ActorInfo]] = {}
        """The gcs's newest records of actors, by job id and actor id."""
        self._subscriptions: dict[bytes, Subscription] = {}
        """Subscriptions to the channels of actors, by job id."""
        self._creations: dict[bytes, _Creation] = {}
        """Actors of this process whose constructors may still be called, by actor id."""
        self._handles: dict[bytes, bytes] = {}
        """Ids of own actors that end with their last handle, by the id of the object that stands for the actor."""

    # --- creating

    def create(self, task: PendingTask, info: ActorInfo, placement: list[tuple[str, int]], registered: bool) -> None:
        """Create an actor whose constructor a user thread has called.

        ``registered``: the gcs knows the actor already, and its handle is counted.
        """
        handle_id = return_id(task.task_id, 1)
        if not registered:
            self._references.add_owned(handle_id)
        if not info.detached:
            self._handles[handle_id] = info.actor_id
        self._creations[info.actor_id] = _Creation(task, info, placement, registered)
        self._preparation.hold_arguments(task)
        self._follow_job(job_of_actor(info.actor_id))
        if self._process.is_exiting:
            self._tasks.move(task, WAITING)
            self._on_own_dead(info.actor_id, DeathCause(JOB_FINISHED, "the cluster is gone"))
            return
        if not registered:
            self._ask_gcs(RegisterActor(info), partial(self._on_registered, info.actor_id))
        self._preparation.wait_for_arguments(task)

    def abandon(self, actor_id: bytes) -> None:
        """End an actor whose creator did not wait until it was registered, and so has no handle of it."""
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
        """Create the actor, whose constructor's arguments exist now, unless its registration is still awaited."""
        creation = self._creations.get(actor_of(task.task_id))
        if creation is not None:
            self._tasks.move(task, QUEUED)
            creation.ready = True
            self._maybe_create(creation)

    def _maybe_create(self, creation: _Creation) -> None:
        if not (creation.ready and creation.registered):
            return
        task = creation.task
        template = task.prepared.template
        record = ActorCreation(
            task_id=task.task_id,
            shape=template.shape,
            placement=creation.placement,
            header=task.prepared.header,
            args=task.args,
            arguments=task.arguments,
            nested=task.nested,
            inline_buffers=task.inline_buffers,
        )

        def on_answer(_reply: Done | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if isinstance(error, RecordTooLarge):
                self._give_up(creation.info.actor_id, DeathCause(CREATION_TASK_FAILED, f"its constructor: {error}"))

        self._process.patient.send_to_gcs(CreateActor(creation.info.actor_id, record), on_answer)

    def on_constructor_failed(self, task: PendingTask, error: bytes) -> None:
        """End an actor that cannot be created because an argument of its constructor is an error."""
        cause = DeathCause(CREATION_TASK_FAILED, "an argument of its constructor failed", text_alone(error))
        self._give_up(actor_of(task.task_id), cause)

    def _give_up(self, actor_id: bytes, cause: DeathCause) -> None:
        """End an actor that will never exist."""
        if actor_id not in self._creations:
            return  # the cluster is gone, and the constructors were forgotten
        self._end(actor_id, cause)
        self._on_own_dead(actor_id, cause)

    def on_freed(self, object_ids: Iterable[bytes]) -> None:
        """End the actors for which these freed objects stood, if any: no handles of them are left."""
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
            # The actor is not restarted. If it owns an argument of its own constructor, its end waits until we release that.
            self._outcomes.finish_constructor(self._creations.pop(actor_id).task, FINISHED)

    def forget_constructors(self) -> None:
        """Forget all constructors because the cluster is gone: they end like other tasks, whatever becomes of the actors."""
        self._creations.clear()

    def constructors(self) -> list[bytes]:
        """Return the ids of constructor tasks that have not ended because their actor may have to be created again."""
        return [creation.task.task_id for creation in self._creations.values()]

    def handed_over(self) -> set[bytes]:
        """Return the ids of constructor tasks that the gcs can have run again without this process."""
        return {
            creation.task.task_id
            for actor_id, creation in self._creations.items()
            if creation.info.detached
            and creation.task.carries_all()
            and (info := self.info_of(actor_id)) is not None
            and info.state != DEPENDENCIES_UNREADY
        }

    def owns_living(self) -> bool:
        """Whether living actors end when this process does."""
        return any((info := self.info_of(actor_id)) is None or info.state != DEAD for actor_id in self._handles.values())

    def _on_own_dead(self, actor_id: bytes, cause: DeathCause) -> None:
        """Take note of a death that the gcs has not reported yet."""
        creation = self._creations[actor_id]
        info = creation.info
        self.on_info(
            ActorInfo(
                actor_id=actor_id,
                state=DEAD,
                class_name=info.class_name,
                name="",
                namespace="",
                owner=info.owner,
                detached=False,
                max_restarts=0,
                restarts=0,
                handle=b"",
                death=cause,
            )
        )

    def _end(self, actor_id: bytes, cause: DeathCause) -> None:
        self._process.patient.send_to_gcs(EndActor(actor_id, cause), ignore)

    def _ask_gcs(self, request: Request[Any], on_reply: Callable[[Any], None]) -> None:
        """Send a request that must arrive while there is a gcs."""

        def on_answer(reply: Any, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None:
                on_reply(reply)

        self._process.patient.send_to_gcs(request, on_answer)

    # --- following

    def client(self, actor_id: bytes, owner: Address, in_order: bool) -> ActorClient:
        """Return this process's view of an actor, the same for all its handles; for any thread."""
        client, is_new = self.clients.get_or_make(actor_id, owner, in_order)
        if is_new:
            self._process.platform.user_code.post(self._follow, client)
        return client

    def info_of(self, actor_id: bytes) -> ActorInfo | None:
        """Return the newest record of an actor; None if nothing is known here."""
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
            subscription = Subscription(self._process.gcs, actors_channel(job_id), self._on_change)
            self._subscriptions[job_id] = subscription
            subscription.start()

    def _ask_about(self, reference: weakref.ref[ActorClient]) -> None:
        """Ask the gcs about an actor that it has not published.

        The owner may have died without registering it, or the actor may have died long ago.
        """
        client = reference()
        if client is None or self._process.is_exiting or self.info_of(client.actor_id) is not None:
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
        """Take note of the gcs's record of an actor, unless its job is not followed here, such as an earlier cluster's."""
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
        """Send no more calls to the actors of a dead node, although the gcs has not reported each of them dead."""
        for actor_id in self.clients:
            client = self.clients.get(actor_id)
            stream = client.stream if client is not None else None
            if stream is not None and stream.address.node_id == node_id:
                stream.is_lost = True

    def _on_own_info(self, creation: _Creation, info: ActorInfo) -> None:
        """Take note of a record of an actor of ours; end the constructor's task once it cannot be called again."""
        task = creation.task
        if info.state == DEAD:
            del self._creations[info.actor_id]
            self._outcomes.finish_constructor(task, FINISHED if task.state is PUSHED else FAILED)
        elif info.state == ALIVE and task.state is QUEUED:
            self._tasks.move(task, PUSHED)  # the task stays PUSHED as long as the constructor may be called again
            if info.max_restarts == 0:
                del self._creations[info.actor_id]
                self._outcomes.finish_constructor(task, FINISHED)

    # --- Actions

    def push(self, stream: CallStream, task: PendingTask, in_order: bool) -> None:
        client = task.prepared.client
        assert client is not None
        message = PushActorTask(
            task.task_id,
            client.actor_id,
            task.attempt,
            stream.number,
            task.sequence,
            in_order,
            stream.acknowledged(),
            stream.take_answered(),
            task.prepared.header,
            task.depth,
            task.args,
            task.arguments,
            task.nested,
            task.inline_buffers,
            self._outcomes.rerun(task) if task.attempt else None,
        )
        self._process.peers.to(stream.address).send(message, partial(self._on_pushed, stream, task))

    def _on_pushed(
        self,
        stream: CallStream,
        task: PendingTask,
        reply: PushTaskReply | None,
        error: PlatformError | None,
        buffers: Sequence[Any],
    ) -> None:
        client = task.prepared.client
        if task.worker is not stream or task.state is not PUSHED or client is None:
            return
        if reply is not None:
            self.submitter.on_task_answered(stream, task)
            if reply.status == NOT_STARTED:
                self._outcomes.on_missing(reply.missing)
                for again in self._outcomes.on_unstarted([task]):
                    self.submitter.on_task_ready(client, again)
            else:
                self._outcomes.on_reply(task, reply, buffers)
        elif isinstance(error, RecordTooLarge):
            self.submitter.on_task_answered(stream, task)
            self._outcomes.finish_with_error(task, RaySystemError(reason=str(error)))
        else:
            self.submitter.on_unreachable(client, stream)

    def fail_dead(self, task: PendingTask, client: ActorClient) -> None:
        assert client.info is not None and client.info.death is not None
        self._outcomes.finish_with_error(task, error_of_actor(client.actor_id, client.info.death, client.info.class_name))

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
        self._outcomes.finish_with_error(task, error)

    def discard(self, task: PendingTask, stream: CallStream) -> None:
        if stream.raylet is not None:
            self._outcomes.discard_attempt(task, stream.raylet)

    def give_up(self, stream: CallStream, sequences: list[int]) -> None:
        request = GiveUpCalls(self._process.address, stream.number, sequences)
        self._process.patient.send(stream.address, request, ignore)

    def retry(self, task: PendingTask) -> None:
        self._outcomes.retry(task)

    def wait_for_verdict(self, client: ActorClient, stream: CallStream) -> None:
        system = self._process.config.system_config
        patience_s = min(system.timeout_ms_task_wait_for_death_info / 1000 * 2**client.failures, MAX_PATIENCE_S)
        asyncio.get_running_loop().call_later(patience_s, self.submitter.on_no_verdict, client, stream)

    # --- account

    def known(self) -> list[bytes]:
        """Return the ids of actors whose constructors have not ended; for tests."""
        return list(self._creations)

    def close(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()
