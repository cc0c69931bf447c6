"""Finds actors by their names, and registers new ones under a name; the actors found are held by a reference.

Ray: CoreWorker::GetNamedActorHandle, whose handles do not count

The gcs knows which actor has a name. The owner of that actor knows whether any handle of it is left. A process that gets an
actor from the gcs therefore asks the owner for a ticket (the owner's note of a borrower) of the handle's object. It makes a
handle only after the owner has noted that. Either the new handle counts before the last other handle is gone, or the owner
answers that it has released the actor. Then the name counts as free, although the gcs may not know that yet.

``get_actor`` calls ``find``. ``get_if_exists`` (``ActorClass._make``) calls ``find`` first and then ``register``, which also
settles a race: of two creators, the later one is given the other's actor (``GcsActorManager.namesake``).

Rules
  * The owner alone decides that no handle is left, and it decides once: a released actor never has a handle again.
  * The creator holds an actor before it is registered, because others may find it before the creator hears of that.
  * An actor whose owner is dead ends with it (G25), so its name counts as free.
  * A detached actor needs no handle, and its owner is not asked.

What we do not like about it: a lookup costs a second round trip, and if the owner can neither be reached nor is declared
dead, the lookup waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from minray.common.ids import creation_task_of, return_id
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.protocol.actor import ActorInfo, GetNamedActor, RegisterActor
from minray.rpc.connection import PeerUnreachable
from minray.values.object_ref import ObjectRef


class HeldActor(NamedTuple):
    """An actor that this process may make a handle of."""

    info: ActorInfo
    ref: ObjectRef[Any] | None
    """Reference that keeps the actor alive; None: the actor is detached."""
    refused: str = ""
    """Why the actor was not registered, although no other actor has its name; empty if it was."""


class NamedActors:
    """Finds and registers named actors for one process, on its loop."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        borrowing: Borrowing,
        drop_ref: Callable[[bytes], None],
    ) -> None:
        """Serve one process; ``drop_ref`` is called by the destructors of the references that are made here."""
        self._process = process
        self._references = references
        self._borrowing = borrowing
        self._drop_ref = drop_ref

    async def find(self, name: str, namespace: str) -> HeldActor | None:
        """Find the living actor that has a name; None if the name is free."""
        reply = await self._process.gcs.call(GetNamedActor(name, namespace))
        return None if reply.actor is None else await self._hold(reply.actor)

    async def register(self, info: ActorInfo) -> HeldActor:
        """Register a new actor under its name; return it, or the other actor that has the name, held by a reference."""
        instead_of = b""
        handle_id = _handle_id(info)
        self._references.add_owned(handle_id)
        own = ObjectRef[Any](handle_id, self._process.address, self._drop_ref)
        while True:
            reply = await self._process.gcs.call(RegisterActor(info, instead_of))
            if reply.existing is None:
                return HeldActor(info, own, reply.refused)
            existing = await self._hold(reply.existing)
            if existing is not None:
                return existing
            instead_of = reply.existing.actor_id

    async def _hold(self, info: ActorInfo) -> HeldActor | None:
        """Hold an actor that the gcs has found; None if its owner has released it, or is dead."""
        if info.detached:
            return HeldActor(info, None)
        handle_id = _handle_id(info)
        try:
            is_held = await self._borrowing.hold(handle_id, info.owner)
        except PeerUnreachable:
            return None
        return HeldActor(info, ObjectRef(handle_id, info.owner, self._drop_ref)) if is_held else None


def _handle_id(info: ActorInfo) -> bytes:
    """Return the id of the object that stands for an actor."""
    return return_id(creation_task_of(info.actor_id, info.owner.worker_id), 1)
