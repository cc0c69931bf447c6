"""Where objects are: what an owner answers, and how the curious ask.

Ray: CoreWorker::HandleGetObjectLocationsOwner, CoreWorker::GetLocationFromOwner

An owner knows which nodes have copies of a large object. Whether the first copy was moved to a disk only its node knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import INLINED, KNOWN, LOST, NOT_MADE, UNKNOWN, GetObjectLocations, ObjectLocations
from minray.protocol.object_store import MOST_ENTRIES, GetObjectsInfo
from minray.rpc.batch import by_receiver, portions

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker


class Location(NamedTuple):
    """Where one object is."""

    node_ids: list[bytes]
    """Of the nodes that have copies, the first one's first; none of an object that is small, lost, or not made yet."""
    size: int | None
    """In bytes; None for an object that is lost, or not made yet."""
    did_spill: bool


class ObjectLocator:
    """The part of one core worker that knows, or asks."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core

    def answer(self, object_id: bytes, receiver: Address | None = None, number: int = 0) -> ObjectLocations:
        """As owner; a receiver is one that is going to have a copy, too, and numbers its questions."""
        if not self._core.references.is_in_scope(object_id):
            return ObjectLocations(UNKNOWN)
        known = self._core.directory.locations(object_id, receiver, number)
        if known.status == KNOWN:
            return known
        stored = self._core.store.objects.get(object_id)
        if stored is None:
            return ObjectLocations(NOT_MADE)
        if stored.is_freed:
            return ObjectLocations(UNKNOWN)
        is_inlined = stored.place is None and not stored.is_error
        return ObjectLocations(INLINED, size=stored.size()) if is_inlined else ObjectLocations(LOST)

    async def locate(self, objects: Sequence[tuple[bytes, Address]]) -> dict[bytes, Location]:
        """Without those whose owners are dead, or have freed them."""
        answers = await asyncio.gather(*(self._ask(object_id, owner) for object_id, owner in objects))
        known = {
            object_id: answer
            for (object_id, _), answer in zip(objects, answers, strict=True)
            if answer is not None and answer.status != UNKNOWN
        }
        firsts = {object_id: answer.raylets[0] for object_id, answer in known.items() if answer.raylets}
        spilled = await self._spilled(firsts)
        return {
            object_id: Location(
                [raylet.node_id for raylet in answer.raylets],
                answer.size if answer.status in (KNOWN, INLINED) else None,
                object_id in spilled,
            )
            for object_id, answer in known.items()
        }

    async def _ask(self, object_id: bytes, owner: Address) -> ObjectLocations | None:
        if owner.worker_id == self._core.config.worker_id:
            return self.answer(object_id)
        with contextlib.suppress(PlatformError):
            return await self._core.peers.to(owner).call(GetObjectLocations(object_id))
        return None

    async def _spilled(self, firsts: dict[bytes, Address]) -> set[bytes]:
        """Those of these objects, each with the raylet of its first copy, that are on a disk."""
        found = await asyncio.gather(*(self._spilled_at(raylet, ids) for raylet, ids in by_receiver(firsts.items())))
        return set().union(*found)

    async def _spilled_at(self, raylet: Address, object_ids: list[bytes]) -> set[bytes]:
        spilled: set[bytes] = set()
        with contextlib.suppress(PlatformError):  # a node that is dead has nothing
            for portion in portions(object_ids, MOST_ENTRIES):
                info = await self._core.peers.to(raylet).call(GetObjectsInfo(object_ids=list(portion)))
                spilled |= {copy.object_id for copy in info.copies if copy.is_on_disk}
        return spilled
