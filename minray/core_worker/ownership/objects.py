"""Distributes events of values and references to the tables of this package.

Ray: CoreWorker::Put, AllocateReturnObject, AddLocalReference in src/ray/core_worker/core_worker.cc

Each table has a file of its own: the holders of an object (``reference_counter``), its value (``memory_store``), its copies
(``object_directory``), and its borrowers (``borrowing``). An event that concerns several tables comes here, and each table
is told in the right order. A value is kept only if it is wanted. References inside a value are held before the tickets with
which they came (the owners' notes of this borrower) are given back. ``core_worker.py`` tells other packages of such events.

The error of a task may never be retrieved, by ``get`` or as an argument. It is logged when it cannot be retrieved any more.
Hence a task that was submitted and forgotten does not fail silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.call_sites import CallSites
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.errors.packed_exception import describe_packed, pack_exception
from minray.exceptions import OwnerDiedError, RayError, ReferenceCountingAssertionError
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo
from minray.values.object_ref import ObjectRef

logger = logging.getLogger(__name__)

UNSEEN = "unhandled error of a task (MINRAY_IGNORE_UNHANDLED_ERRORS=1 hides such messages)"


class Objects:
    """Distributes the events of one process's objects to its tables."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        directory: ObjectDirectory,
        call_sites: CallSites | None,
        on_first_copy: Callable[[], None],
    ) -> None:
        self._process = process
        self._own_id = process.config.worker_id
        self._post = process.platform.user_code.post
        self._drop_ref = process.platform.user_code.drop
        """Function that ``ObjectRef.__del__`` calls, in any thread."""
        self._references = references
        self._store = store
        self._borrowing = borrowing
        self._directory = directory
        self._call_sites = call_sites
        """Records where references are made; None unless ``record_ref_creation_sites`` is set."""
        self._on_first_copy = on_first_copy
        """Function called for each large object of this process, before the directory knows of its first copy."""

    # --- values

    def on_put(self, object_id: bytes, stored: StoredObject) -> None:
        """Take over a value that a user thread has put; it is in the memory store already."""
        self._references.add_owned(object_id)
        self._store.note_here(object_id, stored)
        self.on_result(object_id, stored)

    def on_result(self, object_id: bytes, stored: StoredObject) -> None:
        """Take over a value that this process owns: a user thread has put it, or a task of this process has made it."""
        self.on_value(object_id, stored)
        place = stored.place
        if place is not None and self._store.objects.get(object_id) is stored:
            self._on_first_copy()
            self._directory.add_location(object_id, place)
        elif place is not None:
            self._directory.discard_copies([object_id], place.attempt, place.raylet)

    def on_value(self, object_id: bytes, stored: StoredObject) -> None:
        """Store a value that has arrived, from the process that has made it or from its owner, if it is wanted."""
        if stored.nested:
            effects = Effects()
            wanted = self._references.on_value(object_id, stored.nested, self._own_id, effects)
            stored.nested = [RefInfo(info.object_id, info.owner, b"") for info in stored.nested]
            self._borrowing.apply(effects)
        else:
            wanted = self._references.is_in_scope(object_id)
        if wanted:
            self._store.put(object_id, stored)
        elif stored.unseen > 0:
            self.on_unseen(stored)

    def on_unseen(self, error: StoredObject) -> None:
        """Count down the objects that have an unseen error of a task, since one was dropped; log the error with the last."""
        error.unseen -= 1
        if error.unseen == 0 and error.is_news() and self._process.config.system_config.report_unseen_errors:
            logger.error("%s:\n%s", UNSEEN, describe_packed(bytes(error.data)))

    def put_error(self, object_id: bytes, error: RayError) -> None:
        """Store an error as the value of an object."""
        self.on_value(object_id, self.as_error(error))

    def as_error(self, error: RayError, name: str = "") -> StoredObject:
        """Pack an error to be stored as a value; for any thread. ``name`` is the name of the failed task."""
        config = self._process.config
        pid, node_id = self._process.platform.processes.pid, config.node_id.hex()
        packed = pack_exception(error, task_name=name, pid=pid, node_id=node_id, ip=config.node_ip)
        return StoredObject(packed, (), True, ())

    def as_lost(self, object_id: bytes, owner: Address, reason: str) -> StoredObject:
        """Make the error to be stored as the value of an object whose owner is gone."""
        return self.as_error(OwnerDiedError(object_id_hex=object_id.hex(), owner=owner.endpoint, reason=reason))

    # --- references

    def make_refs(self, stored: StoredObject) -> list[ObjectRef[Any]]:
        """Make the references inside a value that is about to be unpickled; for user threads."""
        infos, drop_ref = stored.nested, self._drop_ref
        if self._call_sites is not None:
            self._call_sites.note_unpickled([info.object_id for info in infos])
        self._post(self._on_refs_made, infos)
        return [ObjectRef(info.object_id, info.owner, drop_ref) for info in infos]

    def _on_refs_made(self, infos: Sequence[RefInfo]) -> None:
        add_local, other = self._references.add_local, self._other
        for info in infos:
            add_local(info.object_id, other(info.owner))

    def on_ref_unpickled(self, object_id: bytes, owner: Address) -> None:
        """Count an ObjectRef that a user thread has unpickled from bytes of its own."""
        references, other = self._references, self._other(owner)
        is_gone = other is None and references.reference_of(object_id) is None
        references.add_local(object_id, other)
        if is_gone:
            reason = "a pickled reference does not keep its object alive, and all other references were gone"
            self.put_error(object_id, ReferenceCountingAssertionError(object_id_hex=object_id.hex(), reason=reason))
        elif references.needs_ticket(object_id):
            self._borrowing.keep_soon(object_id, owner)

    def _other(self, owner: Address) -> Address | None:
        """Return the owner as the reference counter stores it: None if it is this process."""
        return None if owner.worker_id == self._own_id else owner

    def on_refs_dropped(self, object_ids: Sequence[bytes]) -> None:
        effects = Effects()
        self._references.remove_local(object_ids, effects)
        self._borrowing.apply(effects)
