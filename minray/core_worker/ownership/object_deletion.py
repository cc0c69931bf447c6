"""Frees objects on request of the user, who says that a value is not needed although references to it exist.

Ray: CoreWorker::Delete and HandleDeleteObjects

The owner frees an object, also when a borrower asks for it. All copies of the value are dropped. An ``ObjectFreedError``
replaces the value, and every later ``get`` raises it. Reference counts do not change. Hence objects inside the value stay as
long as the reference does. An object whose task has not ended becomes an error, too.

A borrower keeps a small value that it has already fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ObjectFreedError
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import DeleteObjects
from minray.protocol.object_store import EvictObjects
from minray.rpc.batch import by_receiver, portions
from minray.rpc.connection import Peer


class ObjectDeletion:
    """Frees objects for this process and for borrowers that ask it."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        directory: ObjectDirectory,
        objects: Objects,
    ) -> None:
        self._own_id = process.config.worker_id
        self._peers = process.peers
        self._raylet = process.raylet
        self._references = references
        self._store = store
        self._directory = directory
        self._objects = objects

    async def delete(self, objects: Sequence[tuple[bytes, Address]]) -> None:
        """Free these objects at their owners; return when all living owners have done so."""
        self._forget([object_id for object_id, _ in objects])
        others = [(object_id, owner) for object_id, owner in objects if owner.worker_id != self._own_id]
        await asyncio.gather(*(self._ask(self._peers.to(owner), ids) for owner, ids in by_receiver(others)))

    async def _ask(self, owner: Peer, object_ids: list[bytes]) -> None:
        with contextlib.suppress(PlatformError):  # the objects of a dead owner are gone anyway
            for portion in portions(object_ids):
                await owner.call(DeleteObjects(list(portion)))

    async def evict(self, object_ids: list[bytes]) -> None:
        """Evict those copies on this node that are not first copies."""
        with contextlib.suppress(PlatformError):  # the copies of a node whose raylet is dead are gone anyway
            for portion in portions(object_ids):
                await self._raylet.call(EvictObjects(list(portion)))

    def delete_owned(self, object_ids: Sequence[bytes]) -> None:
        """Free the values of objects that this process owns; ignore those that it does not own any more."""
        known = [(object_id, self._references.reference_of(object_id)) for object_id in object_ids]
        self._forget([object_id for object_id, reference in known if reference is not None and reference.owner is None])

    def _forget(self, object_ids: Sequence[bytes]) -> None:
        """Replace the values of objects that this process knows by an error; drop all copies if it is the owner."""
        known = [object_id for object_id in object_ids if self._references.reference_of(object_id) is not None]
        error = self._error(known)
        for object_id in known:
            old = self._store.objects.get(object_id)
            put = self._store.put if old is None else self._store.replace
            put(object_id, error)
            self._directory.free([object_id])
            if old is not None and old.unseen > 0:
                self._objects.on_unseen(old)

    def _error(self, object_ids: Sequence[bytes]) -> StoredObject:
        """Make one error for all these objects, since errors are slow to make."""
        name = object_ids[0].hex() if len(object_ids) == 1 else ""
        stored = self._objects.as_error(ObjectFreedError(object_id_hex=name, reason="internal.free was called"))
        stored.is_freed = True
        return stored
