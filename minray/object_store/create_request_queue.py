"""The queue of requests for room in the arena, first come, first served.

Ray: src/ray/object_manager/plasma/create_request_queue.h

Pure. A request is tried when it comes and whenever memory may have become free. Memory is about to become free as long as
copies are being spilled, or when more copies can be spilled than before. If no copy can be spilled, holders of pins are
asked to give way. When no memory has become free for ``grace_s``, a request gets fallback memory, which is on disk, as do
the requests behind it. A request larger than the whole arena gets it at once. A request is refused only if there is no
fallback memory either (G79).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from minray.object_store.object_entry import ObjectEntry
from minray.object_store.object_table import ObjectTable, Unwanted
from minray.protocol.base import Address

OnCreated = Callable[[ObjectEntry | None, bool], None]
"""Callback that receives the new entry; or None, and whether the copy is unwanted (else there is no room)."""


class Creation(NamedTuple):
    """A request for room for a new copy."""

    object_id: bytes
    attempt: int
    size: int
    owner: Address
    creator: bytes
    """Worker id of the client that writes the copy; empty: this raylet, which pulls it from another node."""
    is_primary: bool


class Restoration(NamedTuple):
    """A request for memory into which a spilled copy is restored."""

    entry: ObjectEntry

    @property
    def size(self) -> int:
        return self.entry.size


class CreateRequestQueue:
    """Queues the requests for room of one node, and serves them when there is some."""

    def __init__(self, table: ObjectTable, grace_s: float, give_way: Callable[[], bool]) -> None:
        """``give_way()`` unpins what is only kept for later, and returns whether it has done so."""
        self._table = table
        self._give_way = give_way
        self._grace_s = grace_s
        self._waiting: deque[tuple[Creation | Restoration, OnCreated]] = deque()
        self.waiting_bytes = 0
        """Bytes that the waiting requests want together."""
        self._progress_at = 0.0
        """Time of the last progress: the first request became the first, or memory became or can be made free."""
        self._free_bytes = self._spillable_bytes = 0
        self._is_stuck = False
        """Whether the last request got fallback memory and nothing has changed since; then the next gets it at once."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add_request(
        self,
        creation: Creation | Restoration,
        on_created: OnCreated,
        now: float,
        is_spilling: bool = False,
        can_spill: bool = True,
    ) -> None:
        """Add a request; ``on_created`` is called at once, or in a later ``advance``."""
        if not self._waiting:
            if self._try(creation, on_created, False):
                self._is_stuck = False
                return
            self._is_stuck &= not (is_spilling or (can_spill and self._table.spillable_count() > 0))
            if self._is_stuck and self._try(creation, on_created, True):
                return
            self._progress_at = now
        self._waiting.append((creation, on_created))
        self.waiting_bytes += creation.size

    def advance(self, now: float, is_spilling: bool = False, can_spill: bool = True) -> float | None:
        """Serve the requests that can be served; return when to call again if nothing changes before.

        ``is_spilling``: copies are being spilled. ``can_spill``: spillable copies will be spilled.
        """
        will_spill = is_spilling or (can_spill and self._table.spillable_bytes > self._spillable_bytes)
        if will_spill or self._table.allocator.capacity - self._table.allocator.used > self._free_bytes:
            self._progress_at = now
            self._is_stuck = False
        while self._waiting:
            creation, on_created = self._waiting.popleft()  # First, since a callback may free memory and re-enter here.
            self.waiting_bytes -= creation.size
            may_wait = is_spilling or (can_spill and self._table.spillable_count() > 0)
            if not self._try(creation, on_created, False) and (may_wait or not self._gains_room(creation, on_created, now)):
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

    def _gains_room(self, creation: Creation | Restoration, on_created: OnCreated, now: float) -> bool:
        """Have others give way, and try to serve a request once more. What can be spilled now is progress."""
        if (has_given_way := self._give_way()) and self._table.spillable_count() > 0:
            self._progress_at = now
        return has_given_way and self._try(creation, on_created, False)

    def _try(self, creation: Creation | Restoration, on_created: OnCreated, in_fallback: bool) -> bool:
        """Try to serve a request, and call it back if that is decided; return False if it has to wait."""
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

    def _make(self, creation: Creation | Restoration, in_fallback: bool) -> ObjectEntry | None:
        if isinstance(creation, Restoration):
            return self._table.restore(creation.entry, in_fallback)
        return self._table.create(*creation, in_fallback)
