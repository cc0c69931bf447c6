"""Stores the values that this process has, and the waiters for those that it does not have yet.

Ray: src/ray/core_worker/store_provider/memory_store/memory_store.h

Pure: a table of objects by id, and one of waiters by id. Only the loop writes, except that a user thread puts its own new
values. User threads look an object up without asking the loop, since a dict lookup is atomic. Hence ``get`` of a value that
is here takes about a microsecond.

For a large value the table has only its ``Place``; the value itself is in the object store of some node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minray.common.ids import PUT_INDEX, short
from minray.core_worker.records.stored_object import StoredObject

AWAITED, HERE, ERROR, GONE = "AWAITED", "HERE", "ERROR", ""
"""States of an object for the recorder: it is awaited, it is here (as a value or an error), or neither."""
SWEEP_AT = 64
"""Number of waiters for one object from which on released waiters are removed now and then: few objects reach it."""


class Waiter:
    """Waits for some of several objects; ``release`` is called once, on the loop, when enough are here."""

    __slots__ = ("needed", "stop_at_error", "release", "released", "task_id")

    def __init__(self, needed: int, stop_at_error: bool, release: Callable[[], None], task_id: bytes = b"") -> None:
        self.needed = needed
        """Number of objects that must still come."""
        self.stop_at_error = stop_at_error
        """Whether the first error is enough, as for ``get`` (G5)."""
        self.release = release
        self.released = False
        self.task_id = task_id
        """Id of the task that waits; empty if no task does."""

    def on_object(self, stored: StoredObject) -> None:
        self.needed -= 1
        if self.needed <= 0 or (self.stop_at_error and stored.is_error):
            self.on_enough()

    def on_one(self) -> None:
        """Count an object that is known, but not here."""
        self.needed -= 1
        if self.needed <= 0:
            self.on_enough()

    def on_enough(self) -> None:
        if not self.released:
            self.released = True
            self.release()


class MemoryStore:
    """The table of one process's values and waiters."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None = None) -> None:
        self._record = record
        self.objects: dict[bytes, StoredObject] = {}
        """Values by object id; read by user threads, which also put their own new values."""
        self._waiters: dict[bytes, list[Waiter]] = {}
        """Waiters by the id of an object that is not here, until the object comes or its last waiter stops waiting."""

    def put(self, object_id: bytes, stored: StoredObject) -> None:
        """Store an object and release its waiters; a second arrival of the object changes nothing (G112)."""
        if object_id in self.objects:
            return
        self.objects[object_id] = stored
        if self._record is not None:
            self.note_here(object_id, stored)
        waiters = self._waiters.pop(object_id, None)
        if waiters is not None:
            for waiter in waiters:
                waiter.on_object(stored)

    def replace(self, object_id: bytes, stored: StoredObject) -> None:
        """Replace a value that is here; a user thread that looks meanwhile sees either the old or the new one."""
        old, self.objects[object_id] = self.objects[object_id], stored
        if self._record is not None:
            self._record("object", _name(object_id), ERROR if old.is_error else HERE, ERROR if stored.is_error else HERE)

    def note_here(self, object_id: bytes, stored: StoredObject) -> None:
        """Tell the recorder that an object is here, which a user thread may have put."""
        if self._record is not None:
            old = AWAITED if object_id in self._waiters else GONE
            self._record("object", _name(object_id), old, ERROR if stored.is_error else HERE)

    def delete(self, object_ids: Iterable[bytes]) -> list[StoredObject]:
        """Remove objects that this process does not hold any more, whether they are here or awaited.

        Return the errors among them that no user code has retrieved.
        """
        unseen: list[StoredObject] = []
        for object_id in object_ids:
            stored = self.objects.pop(object_id, None)
            if stored is not None and stored.unseen > 0:
                unseen.append(stored)
            if self._record is not None and (stored is not None or object_id in self._waiters):
                old = AWAITED if stored is None else ERROR if stored.is_error else HERE
                self._record("object", _name(object_id), old, GONE)
            if self._waiters:
                for waiter in self._waiters.pop(object_id, ()):
                    waiter.on_enough()
        return unseen

    def wait(self, object_ids: Iterable[bytes], waiter: Waiter) -> list[bytes]:
        """Begin to wait for objects; return those that are not here. This may release the waiter at once."""
        missing: list[bytes] = []
        for object_id in object_ids:
            stored = self.objects.get(object_id)
            if stored is not None:
                waiter.on_object(stored)
            else:
                self._add_waiter(object_id, waiter)
                missing.append(object_id)
        return missing

    def _add_waiter(self, object_id: bytes, waiter: Waiter) -> None:
        """Add a waiter. Released waiters stay until their object comes; if they pile up, they are removed now and then."""
        if self._record is not None and object_id not in self._waiters:
            self._record("object", _name(object_id), GONE, AWAITED)
        waiters = self._waiters.setdefault(object_id, [])
        if len(waiters) >= SWEEP_AT and len(waiters).bit_count() == 1:
            waiters[:] = [other for other in waiters if not other.released]
        waiters.append(waiter)

    def is_awaited(self, object_id: bytes) -> bool:
        """Whether an object is not here and has waiters."""
        return object_id in self._waiters

    def awaited(self) -> list[bytes]:
        """Return the ids of objects that are not here and have waiters."""
        return list(self._waiters)

    def awaited_by(self, task_id: bytes) -> list[bytes]:
        """Return the ids of objects that a task waits for."""
        return [
            object_id
            for object_id, waiters in self._waiters.items()
            if any(waiter.task_id == task_id and not waiter.released for waiter in waiters)
        ]

    def stop_waiting(self, object_ids: Iterable[bytes], waiter: Waiter) -> None:
        """Remove a waiter, because other objects have released it or its time is up."""
        waiter.released = True
        for object_id in object_ids:
            waiters = self._waiters.get(object_id)
            if waiters is not None and waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[object_id]
                    if self._record is not None:
                        self._record("object", _name(object_id), AWAITED, GONE)


def _name(object_id: bytes) -> str:
    """Name an object for the recorder: its task, and which of the task's objects it is."""
    index = object_id[-len(PUT_INDEX) :]
    return f"{short(object_id)}.{'put' if index == PUT_INDEX else int.from_bytes(index, 'big')}"
