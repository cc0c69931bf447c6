"""The gcs's handlers of messages and events that change an actor.

Ray: src/ray/gcs/actor/gcs_actor_manager.cc (its Handle... methods, OnWorkerDead, OnNodeDead, OnJobFinished)

``GcsActorManager`` decides, ``ActorScheduler`` creates, ``ActorExits`` asks actors to end, ``ActorQueries`` answers
questions. This service stores a decision, enters it in the table and carries it out, in this order and one at a time for
each actor. All ways to end an incarnation lead through ``_change`` and ``_clean_up``.

Rules
  * An actor is killed through its lease, by its raylet. That works in every state, also while the worker is still being
    requested (Ray #17369). If the actor may be restarted after a kill, only its worker is killed, and the rest follows as
    after any death.
  * The name of an actor without handles is free before it has ended. Its owner tells the gcs that no handle is left, or
    tells a process that wants the name for another actor. The name of an actor that ends itself is free, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from minray.common.config import SystemConfig
from minray.common.ids import job_of_actor
from minray.gcs.actor_exits import ActorExits
from minray.gcs.actor_queries import ActorQueries
from minray.gcs.actor_scheduler import ActorScheduler, Nodes
from minray.gcs.durable import Changes, durable, until_stored
from minray.gcs.effects import Publication
from minray.gcs.gcs_actor_manager import ActorRow, GcsActorManager, describe, worker_died
from minray.gcs.storage import GcsStorage
from minray.platform.base import Platform
from minray.protocol import actor as protocol
from minray.protocol.actor import DEAD, DeathCause
from minray.protocol.base import DONE, Address, Done
from minray.protocol.gcs import NodeInfo, WorkerDeath
from minray.rpc.connection import Peers
from minray.rpc.service import Call

logger = logging.getLogger(__name__)


class Surroundings(Protocol):
    """Port to the gcs around the actor service."""

    def publish(self, publications: Iterable[Publication]) -> None: ...

    def worker_death(self, worker: Address) -> WorkerDeath | None:
        """Return the death certificate of a process, if it is known to be dead."""

    def job_is_over(self, job_id: bytes) -> bool: ...

    def on_detached_actor_dead(self, actor_id: bytes) -> None:
        """End the things that end with a detached actor."""

    async def on_last_detached_actor(self, job_id: bytes) -> None:
        """Release a job that was kept for its detached actors; the last one is dead."""


class ActorService:
    """Serves the messages that create or end actors, and carries out the decisions of ``GcsActorManager``."""

    _storage: GcsStorage
    """Tables on disk; set by ``load``."""

    def __init__(
        self, platform: Platform, config: SystemConfig, own: Callable[[], Address], nodes: Nodes, surroundings: Surroundings
    ) -> None:
        self._platform = platform
        self._nodes = nodes
        self._surroundings = surroundings
        self._peers = Peers(platform, b"", config.rpc_reconnect_timeout_s)
        self._actors = GcsActorManager(platform.record, config.maximum_gcs_destroyed_actor_cached_count)
        self._scheduler = ActorScheduler(platform, own, self._peers, nodes, self)
        self._exits = ActorExits(self._peers, config.actor_graceful_shutdown_timeout_ms / 1000, self._end)
        self.queries = ActorQueries(self._actors, self._scheduler, surroundings.worker_death)
        self._changes = Changes()

    # --- Start and end ---------------------------------------------------------------------------------------------------

    def load(self, storage: GcsStorage) -> None:
        """Load the actors that an earlier gcs has stored."""
        self._storage = storage
        self._publish(self._actors.load(storage.actors(), storage.forgotten_actors()))

    async def resume(self) -> None:
        """Continue where an earlier gcs stopped; called when the nodes are known."""
        for row in self._actors.rows():
            self._maybe_kill(row.info.actor_id)
            if row.info.state == DEAD:
                self._return_lease(row, "its actor is dead")
            elif (cause := self._missed_end(row)) is not None:
                await self._end(row.info.actor_id, cause)
            elif row.info.state in (protocol.PENDING_CREATION, protocol.RESTARTING):
                self._scheduler.create(row)
            elif row.info.address is not None and (loss := self._loss(row.info.address)) is not None:
                await self._lose(row, loss)

    def close(self) -> None:
        self._scheduler.close()
        self._exits.close()
        self._peers.close()

    # --- Messages from creators and callers ------------------------------------------------------------------------------

    @durable
    async def handle_RegisterActor(self, request: protocol.RegisterActor, call: Call) -> protocol.RegisterActorReply:
        info = request.actor
        name = f"{info.namespace}/{info.name}".encode() if info.name else b"nameless " + info.actor_id
        async with self._changes.of(name), self._changes.of(info.actor_id):
            refused = self._refusal(info)
            if request.instead_of and not refused:
                await self._until_stored(request.instead_of, self._actors.ending_row)
            existing = self._actors.namesake(info, request.instead_of)
            if existing is not None:
                return protocol.RegisterActorReply(existing)
            if refused:
                return protocol.RegisterActorReply(None, refused)
            row = self._actors.registered_row(info, self._platform.host.time())
            if row is not None:
                await self._commit(row)
        if row is not None and (cause := self._missed_end(row)) is not None:
            await self._end(info.actor_id, cause)
        return protocol.RegisterActorReply(None)

    def _refusal(self, info: protocol.ActorInfo) -> str:
        doom = self._actors.doom_of(info.actor_id)
        if doom is not None:
            return doom.message
        death = self._surroundings.worker_death(info.owner)
        if death is not None:
            return f"its owner is dead: {death.cause}"
        if self._surroundings.job_is_over(job_of_actor(info.actor_id)):
            return "its job has finished"
        return ""

    def _missed_end(self, row: ActorRow) -> DeathCause | None:
        """Return the event that ends an actor but came before the actor was in the table; None if there was none."""
        death = self._surroundings.worker_death(row.info.owner)
        if death is not None and row.needs_owner():
            return DeathCause(protocol.OWNER_DIED, f"its owner died: {death.cause}")
        if self._surroundings.job_is_over(_job(row)):
            return DeathCause(protocol.JOB_FINISHED, "its job has finished")
        return None

    @durable
    async def handle_CreateActor(self, request: protocol.CreateActor, call: Call) -> Done:
        async with self._changes.of(request.actor_id):
            row = self._actors.created_row(request.actor_id, request.creation)
            if row is not None:
                await self._commit(row)
                self._scheduler.create(row)
        return DONE

    @durable
    async def handle_KillActor(self, request: protocol.KillActor, call: Call) -> protocol.ActorReply:
        cause = DeathCause(protocol.KILLED, "it was killed by minray.kill")
        row = await until_stored(self._row_or_doom, request.actor_id, cause)
        if row is not None and not self._actors.is_known_kill(request.kill_id):
            info = row.info
            if not request.no_restart and info.may_restart():
                actor_id, kill_id = info.actor_id, request.kill_id
                if await self._until_stored(actor_id, lambda _now: self._actors.killed_row(actor_id, kill_id)):
                    self._maybe_kill(actor_id)
            else:
                await self._end(request.actor_id, cause)
            row = self._actors.get(request.actor_id)
        return protocol.ActorReply(None if row is None else row.info)

    def _maybe_kill(self, actor_id: bytes) -> None:
        """Kill an actor's present incarnation if that was requested. A restarted gcs repeats it until it is answered."""
        row = self._actors.get(actor_id)
        if row is not None and row.is_to_be_killed() and row.raylet is not None:
            self._scheduler.end_lease(row.lease_id, row.raylet, "killed by minray.kill")

    @durable
    async def handle_EndActor(self, request: protocol.EndActor, call: Call) -> Done:
        """End an actor, and answer when it has ended: if this gcs dies before, its successor is asked again."""
        row = await until_stored(self._row_or_doom, request.actor_id, request.cause)
        if row is not None and row.info.state == protocol.ALIVE:
            exiting = self._exits.ask_to_exit(row)
            await self._until_stored(request.actor_id, self._actors.ending_row)
            await asyncio.wait([exiting])
        elif row is not None:
            await self._end(request.actor_id, request.cause)
        return DONE

    async def _row_or_doom(self, actor_id: bytes, cause: DeathCause) -> ActorRow | None:
        """Return the row of an actor that must end; enter it as dead if it is not registered (yet)."""
        async with self._changes.of(actor_id):
            doomed = self._actors.doomed_row(actor_id, cause, self._platform.host.time())
            if doomed is not None:
                await self._commit(doomed)
            return self._actors.get(actor_id)

    @durable
    async def handle_ReportActorEnding(self, request: protocol.ReportActorEnding, call: Call) -> Done:
        await self._scheduler.settle(request.actor_id)

        def begin_to_end(now: ActorRow) -> ActorRow | None:
            is_present = now.info.address is not None and now.info.address.worker_id == request.worker_id
            return self._actors.ending_row(now) if is_present else None

        await self._until_stored(request.actor_id, begin_to_end)
        return DONE

    @durable
    async def handle_ReportActorExit(self, request: protocol.ReportActorExit, call: Call) -> Done:
        await self._scheduler.settle(request.actor_id)  # An actor may say so before its constructor's answer is here.
        row = self._actors.of_worker(request.worker_id)
        if row is not None and row.info.actor_id == request.actor_id:
            kind = protocol.OUT_OF_SCOPE if request.actor_id in self._exits else protocol.EXITED
            await self._change(request.actor_id, self._actors.ended_row, DeathCause(kind, request.message))
        return DONE

    # --- Deaths ----------------------------------------------------------------------------------------------------------

    async def on_worker_death(self, death: WorkerDeath) -> None:
        """Handle a process's death: the actor in it has died, and the actors that it owned end."""
        self._peers.on_death_of(death.worker_id, death.cause)
        row = self._actors.of_worker(death.worker_id)
        if row is not None:
            await self._lose(row, _loss_of(death))
        await self._end_owned(death.worker_id, death.cause)

    async def on_node_death(self, node: NodeInfo) -> None:
        self._peers.on_death_of(node.node_id, node.death_cause)
        for row in self._actors.on_node(node.node_id):
            await self._lose(row, DeathCause(protocol.NODE_DIED, f"its node died: {node.death_cause}"))
        await self._end_owned(node.node_id, node.death_cause)

    async def _end_owned(self, worker_or_node_id: bytes, reason: str) -> None:
        for row in self._actors.owned_by(worker_or_node_id):
            await self._end(row.info.actor_id, DeathCause(protocol.OWNER_DIED, f"its owner died: {reason}"))

    async def on_job_finished(self, job_id: bytes) -> None:
        """End all actors of a job of which nothing is kept.

        A detached actor among them was registered while the job's end was being stored."""
        for row in self._actors.of_job(job_id):
            await self._end(row.info.actor_id, DeathCause(protocol.JOB_FINISHED, "its job has finished"))

    def on_nodes_changed(self) -> None:
        self._scheduler.on_nodes_changed()

    def has_detached(self, job_id: bytes) -> bool:
        """Tell whether detached actors of this job live on when it finishes."""
        return any(row.info.detached for row in self._actors.of_job(job_id))

    def is_detached(self, actor_id: bytes) -> bool:
        """Tell whether this is a living detached actor."""
        row = self._actors.get(actor_id)
        return row is not None and row.info.detached and row.info.state != DEAD

    # --- Outcomes of the scheduler ---------------------------------------------------------------------------------------

    async def on_leasing(self, row: ActorRow, lease_id: bytes, raylet: Address) -> bool:
        actor_id, restarts = row.info.actor_id, row.info.restarts
        return await self._until_stored(actor_id, lambda _now: self._actors.leased_row(actor_id, restarts, lease_id, raylet))

    async def on_created(self, row: ActorRow, address: Address, pid: int) -> bool:
        actor_id, restarts = row.info.actor_id, row.info.restarts
        created = await self._until_stored(actor_id, lambda _now: self._actors.alive_row(actor_id, restarts, address, pid))
        now = self._actors.get(actor_id)
        if created and (loss := self._loss(address)) is not None and now is not None and now.info.address == address:
            await self._lose(now, loss)
        return created

    async def on_impossible(self, row: ActorRow, cause: DeathCause) -> None:
        if self._actors.pending(row.info.actor_id, row.info.restarts) is not None:
            await self._end(row.info.actor_id, cause)

    async def on_worker_lost(self, row: ActorRow, place: Address, cause: DeathCause) -> None:
        pending = self._actors.pending(row.info.actor_id, row.info.restarts)
        if pending is not None:
            await self._lose(pending, self._loss(place) or cause)

    def is_dead(self, worker: Address) -> bool:
        return self._surroundings.worker_death(worker) is not None

    # --- Storing changes -------------------------------------------------------------------------------------------------

    def _loss(self, place: Address) -> DeathCause | None:
        """Return the cause of death of an incarnation at ``place``, if that process or its node is known to be dead."""
        node_death, death = self._nodes.death_cause(place.node_id), self._surroundings.worker_death(place)
        if node_death is not None:
            return DeathCause(protocol.NODE_DIED, f"its node died: {node_death}")
        return None if death is None else _loss_of(death)

    async def _lose(self, row: ActorRow, cause: DeathCause) -> None:
        """Handle the death of the incarnation that ``row`` describes; do nothing if it is not the present one."""
        info = row.info

        def lose(now: ActorRow, cause: DeathCause, time: float) -> ActorRow | None:
            if now.info.restarts != info.restarts or now.info.address != info.address or now.info.state == DEAD:
                return None
            if info.actor_id in self._exits:
                out_of_scope = DeathCause(protocol.OUT_OF_SCOPE, "there was no handle of it any more")
                return self._actors.ended_row(now, out_of_scope, time)
            preempted = msgspec.structs.replace(cause, preempted=self._is_preempted(now))
            return self._actors.lost_row(now, preempted, time)

        await self._change(info.actor_id, lose, cause)

    def _is_preempted(self, row: ActorRow) -> bool:
        """Tell whether the present incarnation is, or was to be, on a preempted node."""
        place = row.info.address or row.raylet
        node = self._nodes.node(place.node_id) if place is not None else None
        return node is not None and node.is_preempted()

    async def _end(self, actor_id: bytes, cause: DeathCause) -> None:
        await self._change(actor_id, self._actors.ended_row, cause)

    async def _change(
        self, actor_id: bytes, decide: Callable[[ActorRow, DeathCause, float], ActorRow | None], cause: DeathCause
    ) -> None:
        """End an incarnation: store the decision, enter it in the table, and clean up."""

        async def change() -> None:
            async with self._changes.of(actor_id):
                old = self._actors.get(actor_id)
                row = None if old is None or old.info.state == DEAD else decide(old, cause, self._platform.host.time())
                if old is None or row is None:
                    return
                await self._commit(row)
                logger.info("%s is %s: %s", describe(row.info), row.info.state, cause.message)
                self._clean_up(old, row)
            if row.info.state == DEAD and row.info.detached:
                self._surroundings.on_detached_actor_dead(actor_id)
                if not self.has_detached(_job(row)):
                    await self._surroundings.on_last_detached_actor(_job(row))

        await until_stored(change)

    def _clean_up(self, old: ActorRow, row: ActorRow) -> None:
        actor_id = row.info.actor_id
        self._scheduler.cancel(actor_id)
        self._exits.on_ended(actor_id)
        if row.info.state == DEAD:
            self._return_lease(row, row.info.death.message if row.info.death is not None else "")
        else:
            if old.lease_id and old.raylet is not None:
                self._scheduler.end_lease(old.lease_id, old.raylet, "its actor begins anew")
            self._scheduler.create(row)

    def _return_lease(self, row: ActorRow, reason: str) -> None:
        if not row.lease_id or row.raylet is None:
            return
        actor_id, lease_id = row.info.actor_id, row.lease_id

        async def on_returned() -> None:
            await self._until_stored(actor_id, lambda _now: self._actors.returned_row(actor_id, lease_id))

        self._scheduler.end_lease(lease_id, row.raylet, reason, on_returned)

    async def _until_stored(self, actor_id: bytes, decide: Callable[[ActorRow], ActorRow | None]) -> bool:
        """Make a change that cannot be refused, and retry its write; return False if there is nothing to change any more."""
        return await until_stored(self._try_to_store, actor_id, decide)

    async def _try_to_store(self, actor_id: bytes, decide: Callable[[ActorRow], ActorRow | None]) -> bool:
        async with self._changes.of(actor_id):
            old = self._actors.get(actor_id)
            row = None if old is None else decide(old)
            if row is None:
                return False
            await self._commit(row)
            return True

    async def _commit(self, row: ActorRow) -> None:
        self._storage.put_actor(row)
        await self._storage.commit()
        self._publish(self._actors.on_committed(row))

    def _publish(self, publications: list[Publication]) -> None:
        for _, actor_id, record in publications:
            if record is None:
                self._storage.delete_actor(actor_id)
        self._surroundings.publish(publications)

    # --- Inspection ------------------------------------------------------------------------------------------------------

    def rows(self) -> list[ActorRow]:
        """Return all rows, for tests and explanations."""
        return self._actors.rows()


def _job(row: ActorRow) -> bytes:
    return job_of_actor(row.info.actor_id)


def _loss_of(death: WorkerDeath) -> DeathCause:
    return worker_died(death.pid, death.node_id, death.cause, death.last_words, death.for_memory)
