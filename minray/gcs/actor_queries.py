"""The gcs's answers to questions about actors: who they are, how they died, and what their creation waits for.

Ray: src/ray/gcs/actor/gcs_actor_manager.cc (HandleGetActorInfo, HandleGetNamedActorInfo, HandleGetAllActorInfo)

Everything here only reads. The gcs has no row of an actor that died long ago, or whose owner died before it registered the
actor. The answer about such an actor says so, so that its callers do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from minray.errors.packed_exception import with_last_line
from minray.gcs.actor_scheduler import ActorScheduler
from minray.gcs.gcs_actor_manager import GcsActorManager
from minray.protocol import actor as protocol
from minray.protocol.actor import DeathCause
from minray.protocol.base import Address
from minray.protocol.gcs import WorkerDeath
from minray.rpc.service import Call


class ActorQueries:
    """Serves the messages about actors that change nothing."""

    def __init__(
        self, actors: GcsActorManager, scheduler: ActorScheduler, worker_death: Callable[[Address], WorkerDeath | None]
    ) -> None:
        """``worker_death`` returns the death certificate of a process, if it is known to be dead."""
        self._actors = actors
        self._scheduler = scheduler
        self._worker_death = worker_death

    def handle_GetNamedActor(self, request: protocol.GetNamedActor, call: Call) -> protocol.ActorReply:
        row = self._actors.named(request.name, request.namespace)
        return protocol.ActorReply(None if row is None else row.info)

    def handle_GetActor(self, request: protocol.GetActor, call: Call) -> protocol.ActorReply:
        row = self._actors.get(request.actor_id)
        if row is not None:
            return protocol.ActorReply(row.info)
        death = self._worker_death(request.owner)
        if self._actors.is_forgotten(request.actor_id):
            cause = DeathCause(protocol.KILLED, "it died long ago")
        elif death is not None:
            cause = DeathCause(protocol.OWNER_DIED, f"its owner died before it was created: {death.cause}")
        else:
            return protocol.ActorReply(None)
        return protocol.ActorReply(protocol.ActorInfo.of_dead(request.actor_id, request.owner, cause))

    def handle_ExplainActor(self, request: protocol.ExplainActor, call: Call) -> protocol.ActorExplanation:
        known = self.handle_GetActor(protocol.GetActor(request.actor_id, request.owner), call)
        row = self._actors.get(request.actor_id)
        if row is None or row.creation is None or row.info.state not in (protocol.PENDING_CREATION, protocol.RESTARTING):
            return protocol.ActorExplanation(known.actor)
        text = self._scheduler.why(row)
        if text or row.raylet is None:
            return protocol.ActorExplanation(known.actor, text, worker=self._scheduler.constructing_on(row))
        return protocol.ActorExplanation(
            actor=known.actor,
            text="",
            raylet=row.raylet,
            lease_id=row.lease_id,
            group_id=row.creation.shape.strategy.group_id,
        )

    def handle_ListActors(self, request: protocol.ListActors, call: Call) -> protocol.ActorsReply:
        return protocol.ActorsReply([_listed(row.info) for row in self._actors.rows()])


def _listed(info: protocol.ActorInfo) -> protocol.ActorInfo:
    death = info.death
    if death is not None:
        death = msgspec.structs.replace(death, message=with_last_line(death.message, death.error), error=b"")
    return msgspec.structs.replace(info, handle=b"", death=death)
