"""Follows the actors that this process knows at the gcs, and pushes calls to them.

Ray: src/ray/core_worker/actor_management/actor_manager.h

This is the shell around ``ActorTaskSubmitter``. It follows the gcs's channel of a job as soon as an actor of that job is
called or created here, and pushes calls. The ``ActorCreator`` is made here, and hears of each record first.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from minray.common.ids import job_of_actor
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import PUSHED, ActorClient, CallStream, PendingTask
from minray.core_worker.submission.actor_clients import ActorClients
from minray.core_worker.submission.actor_creator import ActorCreator, ConstructorOutcomes, Preparation
from minray.core_worker.submission.actor_task_submitter import ActorTaskSubmitter
from minray.core_worker.submission.death_certificates import error_of_actor
from minray.core_worker.submission.task_manager import TaskManager
from minray.core_worker.submission.task_ports import PushOutcomes
from minray.exceptions import ActorUnavailableError, RaySystemError
from minray.platform.base import PlatformError, RecordTooLarge
from minray.protocol.actor import DEAD, ActorInfo, ActorReply, GetActor, GiveUpCalls, PushActorTask, actors_channel
from minray.protocol.base import Address, decode
from minray.protocol.core_worker import NOT_STARTED, PushTaskReply
from minray.rpc.connection import ignore
from minray.rpc.pubsub import Subscription

ASK_AGAIN_S = 1.0
"""Seconds to wait for the gcs to publish an actor before it is asked about the actor; the news usually comes earlier."""
MAX_PATIENCE_S = 5.0
"""Maximum seconds to wait, after a stream of calls to an actor was lost, for the gcs to report the actor's death. The wait
starts at ``timeout_ms_task_wait_for_death_info`` and doubles with each failure in a row."""


class CallOutcomes(PushOutcomes, ConstructorOutcomes, Protocol):
    """The decisions about an actor's call, or its constructor."""

    def retry(self, task: PendingTask) -> None:
        """Begin the next attempt of a call; ``on_task_ready`` follows."""

    def discard_attempt(self, task: PendingTask, raylet: Address) -> None:
        """Free the objects that an attempt has put into the store of this raylet's node, or will put there."""


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
        self._outcomes = outcomes
        self.creator = ActorCreator(process, tasks, references, outcomes, preparation, self)
        self.submitter = ActorTaskSubmitter(tasks, self)
        self.clients = clients
        """The clients of actors; user threads make them."""
        self._infos: dict[bytes, dict[bytes, ActorInfo]] = {}
        """The gcs's newest records of actors, by job id and actor id."""
        self._subscriptions: dict[bytes, Subscription] = {}
        """Subscriptions to the channels of actors, by job id."""

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
        self.follow_job(job_of_actor(client.actor_id))
        info = self.info_of(client.actor_id)
        if info is not None:
            self.submitter.on_info(client, info)
        else:
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_about, weakref.ref(client))

    def follow_job(self, job_id: bytes) -> None:
        """Follow the gcs's channel of a job's actors from now on."""
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
            if reply.actor is None:
                asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_about, reference)
            else:
                self.on_answer(reply.actor)

        self._process.patient.ask_gcs(GetActor(client.actor_id, client.owner), on_reply)

    def _on_change(self, actor_id: bytes, value: bytes | None) -> None:
        if value is not None:
            self.on_info(decode(ActorInfo, value))
        else:
            self.creator.on_forgotten(actor_id)
            self._infos[job_of_actor(actor_id)].pop(actor_id, None)
            client = self.clients.client_of(actor_id)
            if client is not None and client.state != DEAD:
                self._ask_about(weakref.ref(client))

    def on_info(self, info: ActorInfo) -> None:
        """Take note of the gcs's record of an actor, unless its job is not followed here, such as an earlier cluster's."""
        infos = self._infos.get(job_of_actor(info.actor_id))
        if infos is None:
            return
        infos[info.actor_id] = info
        self._tell(info)

    def on_answer(self, info: ActorInfo) -> None:
        """Take note of a record that the gcs was asked for. It may not publish a dead actor any more, so nothing would ever
        remove that record here."""
        note = self._tell if info.state == DEAD else self.on_info
        note(info)

    def _tell(self, info: ActorInfo) -> None:
        """Tell a record to the actor's creator and to its client here."""
        self.creator.on_info(info)
        client = self.clients.client_of(info.actor_id)
        if client is not None:
            self.submitter.on_info(client, info)

    def on_node_death(self, node_id: bytes) -> None:
        """Send no more calls to the actors of a dead node, although the gcs has not reported each of them dead."""
        for actor_id in self.clients:
            client = self.clients.client_of(actor_id)
            stream = client.stream if client is not None else None
            if stream is not None and stream.address.node_id == node_id:
                stream.is_lost = True

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

    def discard_attempt(self, task: PendingTask, stream: CallStream) -> None:
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

    def close(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()
