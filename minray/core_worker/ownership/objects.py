"""The objects that this process knows, in all its tables at once: values that come, references that come and go.

Ray: CoreWorker::Put, AllocateReturnObject, AddLocalReference in src/ray/core_worker/core_worker.cc

What each table is for stands in its own room: who holds an object (``reference_counter``), its value (``memory_store``),
its copies (``object_directory``), who has borrowed it (``borrowing``). An event that concerns several of them is taken
apart here, in the order in which they may hear of it: a value is kept only if anybody wants it, and what is inside it is
held before the ticket with which that came goes back.

The error of a task that nobody has looked at, by ``get`` or as an argument, is logged when nobody can any more: a task that
was submitted and forgotten does not fail in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minray.core_worker.ownership.reference_counter import Effects
from minray.core_worker.records.stored_object import StoredObject
from minray.errors.packed_exception import describe_packed, pack_exception
from minray.exceptions import OwnerDiedError, RayError, ReferenceCountingAssertionError
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo
from minray.values.object_ref import ObjectRef

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

logger = logging.getLogger(__name__)

UNSEEN = "nobody has looked at this error of a task (RAY_IGNORE_UNHANDLED_ERRORS=1 hides such)"


class Objects:
    """Those of one core worker."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self._own_id = core.config.worker_id

    # --- values

    def on_put(self, object_id: bytes, stored: StoredObject) -> None:
        """A user thread has put a value (it is in the store already)."""
        self._core.references.add_owned(object_id)
        self._core.store.note_here(object_id, stored)
        self.on_result(object_id, stored)

    def on_result(self, object_id: bytes, stored: StoredObject) -> None:
        """This process owns a value: it has put it, or a task of its own has made it."""
        self.on_value(object_id, stored)
        place = stored.place
        if place is not None and self._core.store.objects.get(object_id) is stored:
            self._core.death_watch.begin()
            self._core.directory.add(object_id, place)
        elif place is not None:
            self._core.directory.discard([object_id], place.attempt, place.raylet)

    def on_value(self, object_id: bytes, stored: StoredObject) -> None:
        """A value is here: it has arrived from wherever it was made, or from its owner."""
        core = self._core
        if stored.nested:
            effects = Effects()
            wanted = core.references.on_value(object_id, stored.nested, self._own_id, effects)
            stored.nested = [RefInfo(info.object_id, info.owner, b"") for info in stored.nested]
            core.borrowing.apply(effects)
        else:
            wanted = core.references.is_in_scope(object_id)
        if wanted:
            core.store.put(object_id, stored)
        elif stored.unseen > 0:
            self.on_unseen(stored)

    def on_unseen(self, error: StoredObject) -> None:
        """An object has gone that was an error of a task, and nobody has looked at it; perhaps at the task's others."""
        error.unseen -= 1
        if error.unseen == 0 and error.is_news() and self._core.config.system_config.report_unseen_errors:
            logger.error("%s:\n%s", UNSEEN, describe_packed(bytes(error.data)))

    def put_error(self, object_id: bytes, error: RayError) -> None:
        """This object will never be anything but an error."""
        self.on_value(object_id, self.as_error(error))

    def as_error(self, error: RayError, name: str = "") -> StoredObject:
        """In the place of a value, safe in any thread; ``name`` is that of the task which has failed so."""
        config = self._core.config
        pid, node_id = self._core.platform.processes.pid, config.node_id.hex()
        packed = pack_exception(error, task_name=name, pid=pid, node_id=node_id, ip=config.node_ip)
        return StoredObject(packed, (), True, ())

    def as_lost(self, object_id: bytes, owner: Address, reason: str) -> StoredObject:
        """In the place of the value of an object whose owner is gone."""
        return self.as_error(OwnerDiedError(object_id_hex=object_id.hex(), owner=owner.endpoint, reason=reason))

    def copies_of(self, object_id: bytes) -> tuple[int, Sequence[Address]]:
        """How large an object is, and which nodes have it; of a borrowed one, where it was seen."""
        size, raylets = self._core.directory.copies_of(object_id)
        place = self._core.resolver.place_of(object_id)
        return (size, raylets) if raylets or place is None else (place.size, [place.raylet])

    def on_freed(self, effects: Effects) -> None:
        """Nobody needs these values any more; what follows from that joins the effects."""
        core = self._core
        core.recovery.on_freed(effects)
        freed = effects.freed
        for error in core.store.delete(freed):
            self.on_unseen(error)
        core.directory.free(freed)
        core.resolver.forget(freed)
        core.actors.on_freed(freed)
        core.placement_groups.forget(freed)
        if core.call_sites is not None:
            core.call_sites.forget(freed)

    # --- references

    def make_refs(self, stored: StoredObject) -> list[ObjectRef[Any]]:
        """In a user thread: the references inside a value, about to be unpickled."""
        core = self._core
        infos, drop_ref = stored.nested, core.drop_ref
        if core.call_sites is not None:
            task = core.executor.current
            what = "deserialize" if task is None else f"deserialize in task {task.header.template.name}"
            core.call_sites.note([info.object_id for info in infos], what)
        core.platform.user_code.post(self._on_refs_made, infos)
        return [ObjectRef(info.object_id, info.owner, drop_ref) for info in infos]

    def _on_refs_made(self, infos: Sequence[RefInfo]) -> None:
        add_local, other = self._core.references.add_local, self._other
        for info in infos:
            add_local(info.object_id, other(info.owner))

    def on_ref_unpickled(self, object_id: bytes, owner: Address) -> None:
        """A user thread has made an ObjectRef from bytes of the user's own."""
        references, other = self._core.references, self._other(owner)
        is_gone = other is None and references.get(object_id) is None
        references.add_local(object_id, other)
        if is_gone:
            reason = "these bytes kept nothing alive, and all references were gone"
            self.put_error(object_id, ReferenceCountingAssertionError(object_id_hex=object_id.hex(), reason=reason))
        elif references.needs_ticket(object_id):
            self._core.borrowing.keep_soon(object_id, owner)

    def _other(self, owner: Address) -> Address | None:
        """What the reference counter wants to know: the owner, None if that is this process."""
        return None if owner.worker_id == self._own_id else owner

    def on_refs_dropped(self, object_ids: Sequence[bytes]) -> None:
        effects = Effects()
        self._core.references.remove_local(object_ids, effects)
        self._core.borrowing.apply(effects)
