"""Actors by their names: find one, or register another one under a name, and hold what has been found.

Ray: CoreWorker::GetNamedActorHandle, whose handles do not count

The gcs knows which actor has a name, and the owner of that actor knows whether anybody has a handle of it. A process that
has learnt an actor from the gcs therefore asks the owner for a ticket of the handle's object, as any borrower does, and has
a handle only when the owner has noted that. So either the new handle counts before the last of the others has gone, or the
owner says that it has let go of the actor: then its name counts as free, although the gcs may not know that yet.

Rules
  * The owner alone decides that no handle is left, and it decides once: an actor that it has let go of never has one again.
  * An actor counts as held by its creator before it is registered, because others may find it before the creator hears that.
  * An actor whose owner is dead ends with it (G25), so its name counts as free.
  * A detached actor needs no handle, and its owner is not asked.

What we do not like about it: a lookup costs a second round trip, and if the owner can neither be reached nor is declared
dead, the lookup waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from minray.common.ids import creation_task_of, return_id
from minray.object_ref import ObjectRef
from minray.protocol.actor import ActorInfo, GetNamedActor, RegisterActor
from minray.rpc.connection import PeerUnreachable

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker


class HeldActor(NamedTuple):
    """An actor that this process may make a handle of."""

    info: ActorInfo
    ref: ObjectRef[Any] | None
    """Keeps it alive; None: it is detached."""
    refused: str = ""
    """Why it was not registered, although no other actor has its name."""


class NamedActors:
    """The names that one process asks for; on its loop."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core

    async def find(self, name: str, namespace: str) -> HeldActor | None:
        """The living actor that has a name; None if the name is free."""
        reply = await self._core.gcs.call(GetNamedActor(name, namespace))
        return None if reply.actor is None else await self._hold(reply.actor)

    async def register(self, info: ActorInfo) -> HeldActor:
        """Make a new actor known under its name; returns it, or another one that has the name and is held."""
        core, instead_of = self._core, b""
        handle_id = _handle_id(info)
        core.references.add_owned(handle_id)
        own = ObjectRef[Any](handle_id, core.address, core.drop_ref)
        while True:
            reply = await core.gcs.call(RegisterActor(info, instead_of))
            if reply.existing is None:
                return HeldActor(info, own, reply.refused)
            existing = await self._hold(reply.existing)
            if existing is not None:
                return existing
            instead_of = reply.existing.actor_id

    async def _hold(self, info: ActorInfo) -> HeldActor | None:
        """An actor that the gcs has told of; None if its owner has let go of it, or is dead."""
        if info.detached:
            return HeldActor(info, None)
        handle_id = _handle_id(info)
        try:
            is_held = await self._core.borrowing.hold(handle_id, info.owner)
        except PeerUnreachable:
            return None
        return HeldActor(info, ObjectRef(handle_id, info.owner, self._core.drop_ref)) if is_held else None


def _handle_id(info: ActorInfo) -> bytes:
    """The object that stands for an actor."""
    return return_id(creation_task_of(info.actor_id, info.owner.worker_id), 1)
