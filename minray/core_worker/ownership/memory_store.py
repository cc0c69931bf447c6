"""Values that this process has, and the waiters for those that it does not have yet.

Ray: src/ray/core_worker/store_provider/memory_store/memory_store.h

A pure table: objects by id, waiters by id. The loop alone writes; user threads may look an object up without asking the
loop (a dict lookup is atomic), which makes ``get`` of a value that is here a matter of a microsecond.

Of a large value only its ``Place`` is here; the value itself is in the object store of some node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minray.common.ids import PUT_INDEX, short
from minray.core_worker.records.stored_object import StoredObject

AWAITED, HERE, ERROR, GONE = "AWAITED", "HERE", "ERROR", ""
"""States of an object for the recorder: it is awaited, it has come (as a value or an error), or neither."""
SWEEP_AT = 64
"""Number of waiters for one object at which those that are released already are swept out: few objects reach it."""


class Waiter:
    """Waits for some of several objects; ``release`` is called once, on the loop, when enough are here."""

    __slots__ = ("needed", "stop_at_error", "release", "released", "task_id")

    def __init__(self, needed: int, stop_at_error: bool, release: Callable[[], None], task_id: bytes = b"") -> None:
        self.needed = needed
        """How many more objects must come."""
        self.stop_at_error = stop_at_error
        """True for ``get``: the first error is enough (G5)."""
        self.release = release
        self.released = False
        self.task_id = task_id
        """The task that waits; empty if no task does."""

    def on_object(self, stored: StoredObject) -> None:
        if self.released:
            return
        self.needed -= 1
        if self.needed <= 0 or (self.stop_at_error and stored.is_error):
            self.on_enough()

    def on_enough(self) -> None:
        if not self.released:
            self.released = True
            self.release()


class MemoryStore:
    """The table of one process."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None = None) -> None:
        self._record = record
        self.objects: dict[bytes, StoredObject] = {}
        """Read by user threads; written here only."""
        self._waiters: dict[bytes, list[Waiter]] = {}
        """By object that is not here; an entry is removed when its object comes or its last waiter goes."""

    def put(self, object_id: bytes, stored: StoredObject) -> None:
        """An object is here; a second arrival of the same object changes nothing (G112)."""
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
        """Put another value in the place of one that is here; a user thread that looks meanwhile sees either."""
        old, self.objects[object_id] = self.objects[object_id], stored
        if self._record is not None:
            self._record("object", _name(object_id), ERROR if old.is_error else HERE, ERROR if stored.is_error else HERE)

    def note_here(self, object_id: bytes, stored: StoredObject) -> None:
        """For the recorder: an object that a user thread has put in is here, too."""
        if self._record is not None:
            old = AWAITED if object_id in self._waiters else GONE
            self._record("object", _name(object_id), old, ERROR if stored.is_error else HERE)

    def delete(self, object_ids: Iterable[bytes]) -> list[StoredObject]:
        """Remove objects that this process does not hold any more, whether they have come or not.

        Returns the errors among them that no user has looked at.
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
        """Begin to wait; returns the objects that are not here. May release the waiter at once."""
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
        """Released waiters stay until their object comes; where they pile up, they are swept out now and then."""
        if self._record is not None and object_id not in self._waiters:
            self._record("object", _name(object_id), GONE, AWAITED)
        waiters = self._waiters.setdefault(object_id, [])
        if len(waiters) >= SWEEP_AT and len(waiters).bit_count() == 1:
            waiters[:] = [other for other in waiters if not other.released]
        waiters.append(waiter)

    def awaited(self) -> list[bytes]:
        """Objects that are not here and that somebody waits for."""
        return list(self._waiters)

    def awaited_by(self, task_id: bytes) -> list[bytes]:
        """Those of them that a task waits for."""
        return [
            object_id
            for object_id, waiters in self._waiters.items()
            if any(waiter.task_id == task_id and not waiter.released for waiter in waiters)
        ]

    def stop_waiting(self, object_ids: Iterable[bytes], waiter: Waiter) -> None:
        """The waiter has lost interest (it was released by others, or its time is up)."""
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
    """The task's name, and which of its objects this is."""
    index = object_id[-len(PUT_INDEX) :]
    return f"{short(object_id)}.{'put' if index == PUT_INDEX else int.from_bytes(index, 'big')}"
