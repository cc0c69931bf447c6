"""The table of the objects that a node has, in its arena or on disk: their states, users and lifetimes.

Ray: src/ray/object_manager/plasma/obj_lifecycle_mgr.h, object_store.h, eviction_policy.h

Pure: events in, state out. An entry is one *copy*: an object as one attempt of its task has made it.

    CREATED    being written: by the process that made it, or by this raylet, which pulls it from another node
    SEALED     complete, and immutable from now on (S5)
    SPILLED    complete, but on disk only: it has no memory
    RESTORING  being read from disk into memory that it was given again
    DOOMED     not available to requests any more, but its memory is still being written or read

Rules
  * A *primary* copy, the first one of its object, stays until its owner frees it or dies. Other copies are evicted when
    room is needed and no process reads them, the least recently used first (G77). The memory of a primary copy that is
    also on disk may go, too. Its place on disk stays until the copy is forgotten, so that it is never written twice.
  * Memory goes back to the allocator when the copy is unwanted **and** not in use. Its creator uses it until it seals or
    aborts, a reader until it gives back its pin, a disk while the copy is written or read. A dead process uses nothing.
  * The *fallback* (``Fallback``) is memory on a disk. Copies there are not spilled. Those that may go are evicted when the
    fallback itself is short of room.
  * A later attempt's copy replaces an earlier one's, never the other way round.
  * Freed copies, spent pins and dead processes leave tombstones, since any request may be late (G112).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from minray.common.ids import short
from minray.common.state_table import NEW, StateMachine
from minray.common.tombstones import remember
from minray.object_store.allocator import Allocator
from minray.object_store.fallback import Fallback
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.policies import asking, protocols
from minray.protocol.base import Address

CREATED, SEALED, SPILLED, RESTORING, DOOMED = "CREATED", "SEALED", "SPILLED", "RESTORING", "DOOMED"
COPY_STATES = {
    NEW: (CREATED,),
    CREATED: (SEALED, DOOMED),
    SEALED: (SPILLED, DOOMED),
    SPILLED: (RESTORING, DOOMED),
    RESTORING: (SEALED, DOOMED),
    DOOMED: (NEW,),
}
NOWHERE = -1
"""Offset of a copy without memory."""


class Unwanted(Exception):
    """The copy is not needed: it was freed already, its owner or creator is dead, or a later attempt's is here."""


class ObjectTable:
    """Holds all copies of one node, and decides when each may be evicted, spilled and forgotten."""

    def __init__(
        self,
        allocator: Allocator,
        record: Callable[[str, str, str, str], None] | None,
        on_evicted: Callable[[ObjectEntry], None],
        own_policy: protocols.EvictionPolicy | None = None,
    ) -> None:
        """``own_policy`` is a program's; it chooses the copies to evict, unless it answers None."""
        self.allocator = allocator
        self.fallback = Fallback(allocator.capacity)
        self.states = StateMachine("copy", COPY_STATES, record, _name)
        self._on_evicted = on_evicted
        """Called for each evicted copy, because its owner must learn that it is gone."""
        self._own_policy = own_policy
        self._entries: dict[bytes, ObjectEntry] = {}
        """Copies that are available to requests, by object id."""
        self._doomed: dict[int, ObjectEntry] = {}
        """DOOMED copies, by number."""
        self._count = 0
        self._by_pin: dict[bytes, ObjectEntry] = {}
        self._spare: OrderedDict[bytes, None] = OrderedDict()
        """Objects whose copy, or its memory, may be evicted from the arena, the least recently used first."""
        self._spare_in_fallback: OrderedDict[bytes, None] = OrderedDict()
        """Objects whose copy, or its memory, may be evicted from the fallback, the least recently used first."""
        self._spillable: OrderedDict[bytes, None] = OrderedDict()
        """Objects whose copy must stay and is not being read (G80), the least recently used first."""
        self.spillable_bytes = 0
        """Total size of the ``_spillable`` copies."""
        self.unspilled_bytes = 0
        """Total size of the available primary copies that are only in the arena, not on disk."""
        self.spilled_bytes = 0
        """Total size of the copies that are on disk."""
        self._unneeded: list[SpillFile] = []
        """Spill file of each copy that was forgotten since ``take_unneeded``."""
        self._freed: OrderedDict[bytes, int] = OrderedDict()
        """Tombstones of objects that their owners have freed, with the last freed attempt."""
        self._aborted: OrderedDict[tuple[bytes, int, bytes], None] = OrderedDict()
        """Tombstones of aborted creations by clients: object, attempt, creator."""
        self._spent: OrderedDict[bytes, None] = OrderedDict()
        """Tombstones of pins that were given back."""
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        """Tombstones of dead processes and nodes."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._doomed)

    def entries(self) -> list[ObjectEntry]:
        """Return all copies that take memory."""
        return [entry for entry in self.copies() if entry.offset != NOWHERE]

    def copies(self) -> list[ObjectEntry]:
        """Return all copies that are not forgotten, in memory or on disk."""
        return [*self._entries.values(), *self._doomed.values()]

    def primaries(self) -> list[ObjectEntry]:
        """Return the primary copies, sealed or not."""
        return [entry for entry in self._entries.values() if entry.is_primary]

    def find(self, object_id: bytes) -> ObjectEntry | None:
        """Return the copy of an object that is available to requests, sealed or not."""
        return self._entries.get(object_id)

    def has(self, object_id: bytes, attempt: int) -> bool:
        """Tell whether this attempt's copy is complete here."""
        entry = self.find(object_id)
        return entry is not None and entry.attempt == attempt and self.is_whole(entry)

    def is_whole(self, entry: ObjectEntry) -> bool:
        """Tell whether a copy is complete, in memory or on disk."""
        return self.is_sealed(entry) or entry.spilled is not None

    def is_sealed(self, entry: ObjectEntry) -> bool:
        return self.states.get(entry.key) == SEALED

    def has_room(self, size: int) -> bool:
        """Tell whether ``size`` bytes are free or can be freed at once, though perhaps not in one piece."""
        room = self.allocator.capacity - self.allocator.used
        for object_id in self._spare:
            if room >= size:
                break
            room += self._entries[object_id].size
        return room >= size

    def is_spilled(self, entry: ObjectEntry) -> bool:
        """Tell whether a copy is on disk only."""
        return self.states.get(entry.key) == SPILLED

    # --- creating

    def create(
        self,
        object_id: bytes,
        attempt: int,
        size: int,
        owner: Address,
        creator: bytes,
        is_primary: bool,
        in_fallback: bool = False,
    ) -> ObjectEntry | None:
        """Create a copy, and evict others if need be; return None if there is no room now. Raises Unwanted."""
        is_over = self._freed.get(object_id, -1) >= attempt or (object_id, attempt, creator) in self._aborted
        if is_over or self._is_dead(owner) or creator in self._dead:
            raise Unwanted
        known = self._entries.get(object_id)
        if known is not None:
            if known.attempt == attempt and known.creator == creator:
                return known
            if known.attempt >= attempt:
                raise Unwanted
            self._doom(known)
        offset = self._allocate(size, in_fallback)
        if offset is None:
            return None
        self._count += 1
        entry = ObjectEntry(
            object_id=object_id,
            attempt=attempt,
            offset=offset,
            size=size,
            owner=owner,
            creator=creator,
            is_primary=is_primary,
            pins={},
            number=self._count,
        )
        self._entries[object_id] = entry
        self.states.set(entry.key, CREATED)
        self.unspilled_bytes += size if self._needs_memory(entry) else 0
        return entry

    def _allocate(self, size: int, in_fallback: bool) -> int | None:
        if in_fallback:
            allocate, spare = self.fallback.allocate, self._spare_in_fallback
        elif size <= self.allocator.capacity:
            allocate, spare = self.allocator.allocate, self._spare
        else:
            return None
        offset = allocate(size)
        while offset is None and spare:
            object_id = asking.evicted_copy(self._own_policy, map(self._entries.__getitem__, spare)) or next(iter(spare))
            del spare[object_id]
            self._reclaim(self._entries[object_id])
            offset = allocate(size)
        return offset

    def _reclaim(self, entry: ObjectEntry) -> None:
        """Take the memory of a spare copy. If it is on disk, it stays there alone; else it is evicted."""
        if entry.spilled is not None:
            self._free(entry)
            entry.offset = NOWHERE
            self.states.set(entry.key, SPILLED)
        else:
            self._doom(entry)
            self._on_evicted(entry)

    def _free(self, entry: ObjectEntry) -> None:
        if self.fallback.has(entry.offset):
            self.fallback.free(entry.offset)
        else:
            self.allocator.free(entry.offset)

    def _needs_memory(self, entry: ObjectEntry) -> bool:
        """Tell whether a copy must stay and is only in the arena."""
        return entry.is_primary and entry.spilled is None and not self.fallback.has(entry.offset)

    def seal(self, entry: ObjectEntry) -> bool:
        """Seal a written copy; return True if it may be read. A repetition changes nothing."""
        if entry.is_written:
            return self.is_sealed(entry)
        entry.is_written = True
        return self._complete(entry, CREATED)

    def abort(self, entry: ObjectEntry) -> None:
        """Drop a copy, written or not, and refuse a repetition of its client's CreateObject."""
        if entry.creator:
            remember(self._aborted, (entry.object_id, entry.attempt, entry.creator), None)
        entry.is_written = True
        self._doom(entry)

    def copy_of(self, object_id: bytes, attempt: int, creator: bytes) -> ObjectEntry | None:
        """Return the copy that a process has created, if it still takes memory."""
        known = self._entries.get(object_id)
        if known is not None and known.attempt == attempt and known.creator == creator:
            return known
        for entry in self._doomed.values():
            if not entry.is_written and (entry.object_id, entry.attempt, entry.creator) == (object_id, attempt, creator):
                return entry
        return None

    # --- pinning

    def pinned_as(self, pin: bytes) -> ObjectEntry | None:
        """Return the copy that a pin holds already, if its PinObjects is a repetition."""
        return self._by_pin.get(pin)

    def pin(self, entry: ObjectEntry, pin: bytes, client: bytes) -> bool:
        """Pin a sealed copy; return False if the pin was given back already, or holds another copy."""
        if pin in self._spent or client in self._dead or self._by_pin.get(pin, entry) is not entry:
            return False
        entry.pins[pin] = client
        self._by_pin[pin] = entry
        self._set_busy(entry)
        return True

    def unpin(self, pins: Iterable[bytes]) -> None:
        for pin in pins:
            remember(self._spent, pin, None)
            entry = self._by_pin.pop(pin, None)
            if entry is not None:
                del entry.pins[pin]
                self._maybe_forget(entry)

    def promote(self, object_id: bytes, attempt: int) -> None:
        """Make a copy the primary one, which must stay, because the primary one is lost."""
        entry = self._entries.get(object_id)
        if entry is not None and entry.attempt == attempt and not entry.is_primary:
            entry.is_primary = True
            self.unspilled_bytes += entry.size if self._needs_memory(entry) else 0
            self._set_busy(entry)
            self._maybe_forget(entry)

    # --- spilling

    def spillable(self) -> Iterator[ObjectEntry]:
        """Return the unused primary copies that are not on disk, the least recently used first."""
        return (self._entries[object_id] for object_id in self._spillable)

    def spillable_count(self) -> int:
        return len(self._spillable)

    def begin_spill(self, entry: ObjectEntry) -> None:
        """Mark a copy as being written to disk. Until that ends its memory stays, and it may be read."""
        self._set_busy(entry)
        entry.is_moving = True

    def end_spill(self, entry: ObjectEntry, spilled: Spilled | None) -> bool:
        """End the writing of a copy (``spilled`` is None if it failed); return True if its place on disk is needed."""
        entry.is_moving = False
        is_wanted = self._entries.get(entry.object_id) is entry
        if spilled is not None and is_wanted:
            entry.spilled = spilled
            self.unspilled_bytes -= entry.size
            self.spilled_bytes += entry.size
        self._maybe_forget(entry)
        return entry.spilled is not None

    def restore(self, entry: ObjectEntry, in_fallback: bool = False) -> ObjectEntry | None:
        """Give a spilled copy memory; return None if there is not enough now. Raises Unwanted if it is not SPILLED."""
        if self.states.get(entry.key) != SPILLED:
            raise Unwanted
        offset = self._allocate(entry.size, in_fallback)
        if offset is None:
            return None
        entry.offset = offset
        entry.is_moving = True
        self.states.set(entry.key, RESTORING)
        return entry

    def end_restore(self, entry: ObjectEntry) -> bool:
        """End the restoring of a copy, which was aborted if that failed; return True if it may be read."""
        entry.is_moving = False
        return self._complete(entry, RESTORING)

    def _complete(self, entry: ObjectEntry, before: str) -> bool:
        """Set a copy to SEALED unless it was doomed meanwhile; return True if it may be read."""
        if self.states.get(entry.key) == before:
            self.states.set(entry.key, SEALED)
        self._maybe_forget(entry)
        return self.is_sealed(entry)

    def take_unneeded(self) -> list[SpillFile]:
        """Return the file of each spilled copy that was forgotten since the last call."""
        unneeded, self._unneeded = self._unneeded, []
        return unneeded

    # --- ending

    def free_object(self, object_id: bytes, attempt: int) -> None:
        """Free an object's copies of this attempt and earlier ones, because its owner does not need them."""
        remember(self._freed, object_id, max(attempt, self._freed.pop(object_id, -1)))
        entry = self._entries.get(object_id)
        if entry is not None and entry.attempt <= attempt:
            self._doom(entry)

    def evict(self, object_id: bytes) -> None:
        """Evict an object's copy, if it is spare and not primary."""
        entry = self._entries.get(object_id)
        is_spare = object_id in self._spare or object_id in self._spare_in_fallback
        if entry is not None and is_spare and not entry.is_primary:
            self._doom(entry)
            self._on_evicted(entry)

    def on_death(self, worker_or_node_id: bytes) -> None:
        """Doom the copies that a dead process or node owned or was writing, and drop its pins."""
        remember(self._dead, worker_or_node_id, None)
        for entry in self.copies():
            over = [pin for pin, client in entry.pins.items() if client == worker_or_node_id]
            for pin in over:
                del entry.pins[pin]
                del self._by_pin[pin]
            is_left = entry.creator == worker_or_node_id and not entry.is_written
            if is_left:
                entry.is_written = True
            if is_left or worker_or_node_id in (entry.owner.worker_id, entry.owner.node_id):
                self._doom(entry)
            elif over:
                self._maybe_forget(entry)

    def _is_dead(self, owner: Address) -> bool:
        return owner.worker_id in self._dead or owner.node_id in self._dead

    def _doom(self, entry: ObjectEntry) -> None:
        if self._entries.get(entry.object_id) is entry:
            del self._entries[entry.object_id]
            self._set_busy(entry)
            self.unspilled_bytes -= entry.size if self._needs_memory(entry) else 0
            self._doomed[entry.number] = entry
            self.states.set(entry.key, DOOMED)
        self._maybe_forget(entry)

    def _maybe_forget(self, entry: ObjectEntry) -> None:
        """Forget a doomed copy that is not in use; an available one becomes spare or spillable instead."""
        if self._entries.get(entry.object_id) is entry:
            if not entry.in_use() and self.is_sealed(entry):
                self._set_idle(entry)
        elif not entry.in_use() and self._doomed.pop(entry.number, None) is not None:
            self.states.set(entry.key, NEW)
            if entry.offset != NOWHERE:
                self._free(entry)
            if entry.spilled is not None:
                self.spilled_bytes -= entry.size
                self._unneeded.append(entry.spilled.file)

    def _set_idle(self, entry: ObjectEntry) -> None:
        """Mark an unused copy as spare or spillable, the most recently used of its list."""
        self._set_busy(entry)
        if self._needs_memory(entry):
            self._spillable[entry.object_id] = None
            self.spillable_bytes += entry.size
        elif not self.fallback.has(entry.offset):
            self._spare[entry.object_id] = None
        elif not entry.is_primary or entry.spilled is not None:
            self._spare_in_fallback[entry.object_id] = None

    def _set_busy(self, entry: ObjectEntry) -> None:
        self._spare.pop(entry.object_id, None)
        self._spare_in_fallback.pop(entry.object_id, None)
        if entry.object_id in self._spillable:
            del self._spillable[entry.object_id]
            self.spillable_bytes -= entry.size


def _name(key: bytes) -> str:
    """Return a copy's name for traces: its task, its index among the task's objects, and its number on this node."""
    index = int.from_bytes(key[-12:-8], "big")
    return f"{short(key[:-8])}.{index or 'put'}#{int.from_bytes(key[-8:], 'big')}"
