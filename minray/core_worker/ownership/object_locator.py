"""Answers, as the owner, where objects are, and asks other owners for the user's program.

Ray: CoreWorker::HandleGetObjectLocationsOwner, CoreWorker::GetLocationFromOwner

An owner knows which nodes have copies of a large object. Only the node of the first copy knows whether it was spilled to
disk. And a node knows an item of a generator before the owner hears of it. If that node drains, it moves the item away, and
the owner is asked for what is still to come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from minray.common.ids import number_of_item, task_of
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import PendingTask
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import INLINED, KNOWN, LOST, NOT_MADE, UNKNOWN, GetObjectLocations, ObjectLocations
from minray.protocol.object_store import MOST_ENTRIES, GetObjectsInfo
from minray.rpc.batch import by_receiver, portions


class Location(NamedTuple):
    """Location and size of one object."""

    node_ids: list[bytes]
    """Ids of nodes that have copies, the first copy's first; empty for an object that is small, lost, or not made yet."""
    size: int | None
    """Size in bytes; None for an object that is lost, or not made yet."""
    did_spill: bool
    """Whether the first copy was spilled to disk."""


class ObjectLocator:
    """Answers for the objects of this process, and asks the owners of others."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        directory: ObjectDirectory,
        unfinished: Callable[[bytes], PendingTask | None],
    ) -> None:
        """``unfinished``: returns the unfinished task of this process with an id, if there is one."""
        self._own_id = process.config.worker_id
        self._peers = process.peers
        self._references = references
        self._store = store
        self._directory = directory
        self._unfinished = unfinished

    def answer(self, object_id: bytes, receiver: Address | None = None, number: int = 0) -> ObjectLocations:
        """Answer as the owner of an object. A receiver is a raylet that is about to get a copy; it numbers its questions."""
        if not self._references.is_in_scope(object_id):
            return ObjectLocations(NOT_MADE if self._is_item_to_come(object_id) else UNKNOWN)
        known = self._directory.locations(object_id, receiver, number)
        if known.status == KNOWN:
            return known
        stored = self._store.objects.get(object_id)
        if stored is None:
            return ObjectLocations(NOT_MADE)
        if stored.is_freed:
            return ObjectLocations(UNKNOWN)
        is_inlined = stored.place is None and not stored.is_error
        return ObjectLocations(INLINED, size=stored.size()) if is_inlined else ObjectLocations(LOST)

    def _is_item_to_come(self, object_id: bytes) -> bool:
        """Whether this is an item that a running generator has not reported to this process yet."""
        task, number = self._unfinished(task_of(object_id)), number_of_item(object_id)
        stream = None if task is None else task.stream
        return stream is not None and number > stream.arrived and number not in stream.beyond

    async def locate(self, objects: Sequence[tuple[bytes, Address]]) -> dict[bytes, Location]:
        """Find these objects; leave out those whose owners are dead, or have freed them."""
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
        if owner.worker_id == self._own_id:
            return self.answer(object_id)
        with contextlib.suppress(PlatformError):
            return await self._peers.to(owner).call(GetObjectLocations(object_id))
        return None

    async def _spilled(self, firsts: dict[bytes, Address]) -> set[bytes]:
        """Return the objects whose first copy is on disk; ``firsts`` has the raylet of each object's first copy."""
        found = await asyncio.gather(*(self._spilled_at(raylet, ids) for raylet, ids in by_receiver(firsts.items())))
        return set().union(*found)

    async def _spilled_at(self, raylet: Address, object_ids: list[bytes]) -> set[bytes]:
        spilled: set[bytes] = set()
        with contextlib.suppress(PlatformError):  # a dead node has no copies
            for portion in portions(object_ids, MOST_ENTRIES):
                info = await self._peers.to(raylet).call(GetObjectsInfo(object_ids=list(portion)))
                spilled |= {copy.object_id for copy in info.copies if copy.is_on_disk}
        return spilled
