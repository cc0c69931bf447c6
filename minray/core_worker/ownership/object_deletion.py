"""Freeing by hand: the user says that a value is not needed, although there are references to it.

Ray: CoreWorker::Delete and HandleDeleteObjects

The owner does it, whoever asks. The value goes, wherever there are copies; an ``ObjectFreedError`` takes its place, which
every later ``get`` finds here or asks for. The count of references is not touched: what the value contained stays as long
as the reference does, and an object whose task has not ended yet is an error as well, whatever the task will make.

A small value that a borrower has fetched already stays with that borrower.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ObjectFreedError
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import DeleteObjects
from minray.protocol.object_store import EvictObjects
from minray.rpc.batch import by_receiver, portions
from minray.rpc.connection import Peer

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker


class ObjectDeletion:
    """The part of one core worker that frees what it is told to."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core

    async def delete(self, objects: Sequence[tuple[bytes, Address]]) -> None:
        """Free these objects, each with its owner; returns when all owners that live have done so."""
        self._forget([object_id for object_id, _ in objects])
        others = [(object_id, owner) for object_id, owner in objects if owner.worker_id != self._core.config.worker_id]
        await asyncio.gather(*(self._ask(self._core.peers.to(owner), ids) for owner, ids in by_receiver(others)))

    async def _ask(self, owner: Peer, object_ids: list[bytes]) -> None:
        with contextlib.suppress(PlatformError):  # what a dead process owned is gone anyway
            for portion in portions(object_ids):
                await owner.call(DeleteObjects(list(portion)))

    async def evict(self, object_ids: list[bytes]) -> None:
        """Only the copies on this node go, and only those that are not needed: others have the first ones."""
        with contextlib.suppress(PlatformError):  # and so are the copies of a node whose raylet is dead
            for portion in portions(object_ids):
                await self._core.raylet.call(EvictObjects(list(portion)))

    def delete_owned(self, object_ids: Sequence[bytes]) -> None:
        """This process owns these, or did: free their values."""
        references = self._core.references
        known = [(object_id, references.get(object_id)) for object_id in object_ids]
        self._forget([object_id for object_id, reference in known if reference is not None and reference.owner is None])

    def _forget(self, object_ids: Sequence[bytes]) -> None:
        """Put an error in the place of what this process has; if it is the owner, all copies go."""
        core = self._core
        known = [object_id for object_id in object_ids if core.references.get(object_id) is not None]
        error = self._error(known)
        for object_id in known:
            old = core.store.objects.get(object_id)
            put = core.store.put if old is None else core.store.replace
            put(object_id, error)
            core.directory.free([object_id])
            if old is not None and old.unseen > 0:
                core.objects.on_unseen(old)

    def _error(self, object_ids: Sequence[bytes]) -> StoredObject:
        """One for all of them, since errors are slow to make."""
        name = object_ids[0].hex() if len(object_ids) == 1 else ""
        stored = self._core.objects.as_error(ObjectFreedError(object_id_hex=name, reason="internal.free was called"))
        stored.is_freed = True
        return stored
