"""Who waits for room in the arena, first come, first served.

Ray: src/ray/object_manager/plasma/create_request_queue.h

Pure. A request is tried when it comes and whenever memory may have become free. As long as copies are being written to disk,
memory will; so it will when more copies may be written than before, if a disk takes any. When nothing has become free for
a while, or at once if it is larger than the whole arena, a request gets memory that is on disk, as do those behind it; and
only if there is none, it is refused (G79).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from minray.object_store.object_table import Entry, ObjectTable, Unwanted
from minray.protocol.base import Address

OnCreated = Callable[[Entry | None, bool], None]
"""Receives the new entry; or None, and whether that is because nobody wants it (else there is no room)."""


class Creation(NamedTuple):
    """Room that somebody wants."""

    object_id: bytes
    attempt: int
    size: int
    owner: Address
    creator: bytes
    """Empty: this raylet, for a copy of what is elsewhere."""
    is_primary: bool


class Restoration(NamedTuple):
    """Memory that a copy needs again which is on disk alone."""

    entry: Entry

    @property
    def size(self) -> int:
        return self.entry.size


class CreateRequestQueue:
    """All who wait on one node."""

    def __init__(self, table: ObjectTable, grace_s: float) -> None:
        self._table = table
        self._grace_s = grace_s
        self._waiting: deque[tuple[Creation | Restoration, OnCreated]] = deque()
        self.waiting_bytes = 0
        """What they want together."""
        self._progress_at = 0.0
        """When the first in line became the first, or memory became free, or more of it could be made free."""
        self._free_bytes = self._spillable_bytes = 0
        self._is_stuck = False
        """The last one got memory on disk, and nothing has changed since: who comes now need not wait to get some, too."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self,
        creation: Creation | Restoration,
        on_created: OnCreated,
        now: float,
        is_spilling: bool = False,
        can_spill: bool = True,
    ) -> None:
        """Called back at once, or in a later ``advance``."""
        if not self._waiting:
            if self._try(creation, on_created, False):
                self._is_stuck = False
                return
            will_spill = is_spilling or (can_spill and self._table.spillable_count() > 0)
            self._is_stuck = self._is_stuck and not will_spill
            if self._is_stuck and self._try(creation, on_created, True):
                return
            self._progress_at = now
        self._waiting.append((creation, on_created))
        self.waiting_bytes += creation.size

    def advance(self, now: float, is_spilling: bool = False, can_spill: bool = True) -> float | None:
        """Something may have changed: serve who can be served; returns when to come again if nothing happens until then.

        ``is_spilling``: copies are being written. ``can_spill``: those that may be written would be.
        """
        free = self._table.allocator.capacity - self._table.allocator.used
        will_spill = is_spilling or (can_spill and self._table.spillable_bytes > self._spillable_bytes)
        if free > self._free_bytes or will_spill:
            self._progress_at = now
            self._is_stuck = False
        while self._waiting:
            creation, on_created = self._waiting.popleft()  # first: who is called back may give its room back, and come here
            self.waiting_bytes -= creation.size
            if not self._try(creation, on_created, False):
                if now < self._progress_at + self._grace_s:
                    self._waiting.appendleft((creation, on_created))
                    self.waiting_bytes += creation.size
                    break
                self._is_stuck = True
                if self._try(creation, on_created, True):
                    continue
                self._is_stuck = False
                on_created(None, False)
            self._progress_at = now
        self._free_bytes = self._table.allocator.capacity - self._table.allocator.used
        self._spillable_bytes = self._table.spillable_bytes
        return self._progress_at + self._grace_s if self._waiting else None

    def _try(self, creation: Creation | Restoration, on_created: OnCreated, in_fallback: bool) -> bool:
        """False: it has to wait."""
        is_too_large = creation.size > self._table.allocator.capacity
        try:
            entry = self._make(creation, in_fallback or is_too_large)
        except Unwanted:
            on_created(None, True)
            return True
        if entry is None and not is_too_large:
            return False
        on_created(entry, False)
        return True

    def _make(self, creation: Creation | Restoration, in_fallback: bool) -> Entry | None:
        if isinstance(creation, Restoration):
            return self._table.restore(creation.entry, in_fallback)
        return self._table.create(*creation, in_fallback)
