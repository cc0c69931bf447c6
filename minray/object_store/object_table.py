"""Which objects this node has, in its arena or on disk, for whom, and until when.

Ray: src/ray/object_manager/plasma/obj_lifecycle_mgr.h, object_store.h, eviction_policy.h

Pure: events in, state out. An entry is one *copy*: an object as one attempt of its task has made it.

    CREATED    somebody writes it: the process that made it, or this raylet, which fetches it from another node
    SEALED     complete, and immutable from now on (S5)
    SPILLED    complete, but on disk alone: it has no memory
    RESTORING  it has memory again, into which it is being read
    DOOMED     nobody will ask for it any more, but somebody still writes or reads its memory

Rules
  * A *primary* copy, the first one of its object, stays until its owner frees it or dies. Other copies may go whenever
    nobody reads them, and do so, the least recently used first, when room is needed (G77). So may the memory of a primary
    copy that is on disk too: its place there stays until the copy is forgotten, so that it need not be written again.
  * Memory goes back to the allocator when the copy is not wanted **and** nobody has it in use: its creator until it seals
    or aborts, readers until they give back their pins, a disk while it is written or read. A process that dies has nothing
    in use any more.
  * The *fallback* (``Fallback``) is memory on a disk. What lies there is not spilled, and what may go from there goes when
    the fallback itself is short of room.
  * A later attempt's copy takes the place of an earlier one, never the other way round.
  * Freed copies, spent pins and dead processes leave tombstones, since whatever is asked may be late (G112).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from minray.common.ids import short
from minray.common.state_table import NEW, StateMachine
from minray.common.tombstones import remember
from minray.object_store.allocator import Allocator
from minray.object_store.fallback import Fallback
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
"""The offset of a copy without memory."""


class Unwanted(Exception):
    """Nobody needs this copy: it was freed already, its owner or creator is dead, or a later attempt's is here."""


class SpillFile(NamedTuple):
    """One file of spilled copies."""

    directory: int
    """Which of the node's directories."""
    name: str


class Spilled(NamedTuple):
    """Where on disk a copy is."""

    file: SpillFile
    start: int
    checksums: list[int]
    """Of its pieces."""


class Entry(msgspec.Struct, eq=False):
    """One copy."""

    object_id: bytes
    attempt: int
    offset: int
    size: int
    owner: Address
    creator: bytes
    """Who writes, or wrote, it: a client's worker id, or empty for this raylet."""
    is_primary: bool
    pins: dict[bytes, bytes]
    """Uses, each with its client's worker id (empty: this raylet itself)."""
    number: int
    """Counts the copies of this table: one object may have several here, of which one may be asked for."""
    is_written: bool = False
    """The creator is through with it."""
    is_moving: bool = False
    """It is being written to disk, or read from there."""
    spilled: Spilled | None = None
    """Set when it is on disk, whether it has memory or not."""

    @property
    def key(self) -> bytes:
        return self.object_id + self.number.to_bytes(8, "big")

    def in_use(self) -> bool:
        return not self.is_written or self.is_moving or bool(self.pins)


class ObjectTable:
    """All copies of one node."""

    def __init__(
        self, allocator: Allocator, record: Callable[[str, str, str, str], None] | None, on_evicted: Callable[[Entry], None]
    ) -> None:
        self.allocator = allocator
        self.fallback = Fallback(allocator.capacity)
        self.states = StateMachine("copy", COPY_STATES, record, _name)
        self._on_evicted = on_evicted
        """Told of copies that went to make room: their owners think that they are here."""
        self._entries: dict[bytes, Entry] = {}
        """Those that may be asked for, by object id."""
        self._doomed: dict[int, Entry] = {}
        """The others, by number."""
        self._count = 0
        self._by_pin: dict[bytes, Entry] = {}
        self._spare: OrderedDict[bytes, None] = OrderedDict()
        """Objects whose copy, or its memory, may go, the least recently used first."""
        self._spare_in_fallback: OrderedDict[bytes, None] = OrderedDict()
        """The same, of those that are in the fallback."""
        self._spillable: OrderedDict[bytes, None] = OrderedDict()
        """Objects whose copy must stay and that nobody reads (G80), the least recently used first."""
        self.spillable_bytes = 0
        """Their sizes."""
        self.unspilled_bytes = 0
        """The sizes of primary copies that may be asked for and are in no way on disk."""
        self.spilled_bytes = 0
        """The sizes of copies that are on disk."""
        self._unneeded: list[SpillFile] = []
        """For each copy that was forgotten, its file."""
        self._freed: OrderedDict[bytes, int] = OrderedDict()
        """Objects that their owners have freed: up to which attempt."""
        self._aborted: OrderedDict[tuple[bytes, int, bytes], None] = OrderedDict()
        """Creations by clients that are over: object, attempt, creator."""
        self._spent: OrderedDict[bytes, None] = OrderedDict()
        """Pins that were given back."""
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        """Processes and nodes that are dead."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._doomed)

    def entries(self) -> list[Entry]:
        """All that take memory."""
        return [entry for entry in self.copies() if entry.offset != NOWHERE]

    def copies(self) -> list[Entry]:
        """All that are not forgotten, on disk alone or not."""
        return [*self._entries.values(), *self._doomed.values()]

    def primaries(self) -> list[Entry]:
        """Those that must stay, written or not."""
        return [entry for entry in self._entries.values() if entry.is_primary]

    def find(self, object_id: bytes) -> Entry | None:
        """The copy of this object that may be asked for, sealed or not."""
        return self._entries.get(object_id)

    def has(self, object_id: bytes, attempt: int) -> bool:
        """Whether what this attempt has made is here whole."""
        entry = self.find(object_id)
        return entry is not None and entry.attempt == attempt and self.is_whole(entry)

    def is_whole(self, entry: Entry) -> bool:
        """In memory or on disk."""
        return self.is_sealed(entry) or entry.spilled is not None

    def is_sealed(self, entry: Entry) -> bool:
        return self.states.get(entry.key) == SEALED

    def has_room(self, size: int) -> bool:
        """Whether so many bytes are free, or could be at once; perhaps not in one piece."""
        room = self.allocator.capacity - self.allocator.used
        for object_id in self._spare:
            if room >= size:
                break
            room += self._entries[object_id].size
        return room >= size

    def is_spilled(self, entry: Entry) -> bool:
        """Whether it is on disk alone."""
        return self.states.get(entry.key) == SPILLED

    # --- making

    def create(
        self,
        object_id: bytes,
        attempt: int,
        size: int,
        owner: Address,
        creator: bytes,
        is_primary: bool,
        in_fallback: bool = False,
    ) -> Entry | None:
        """Room for a copy, made by evicting others if need be; None if there is not enough now. Raises Unwanted."""
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
        entry = Entry(object_id, attempt, offset, size, owner, creator, is_primary, {}, self._count)
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
            object_id, _ = spare.popitem(last=False)
            self._reclaim(self._entries[object_id])
            offset = allocate(size)
        return offset

    def _reclaim(self, entry: Entry) -> None:
        """Take the memory of a copy that may go, or may be on disk alone."""
        if entry.spilled is not None:
            self._free(entry)
            entry.offset = NOWHERE
            self.states.set(entry.key, SPILLED)
        else:
            self._doom(entry)
            self._on_evicted(entry)

    def _free(self, entry: Entry) -> None:
        if self.fallback.has(entry.offset):
            self.fallback.free(entry.offset)
        else:
            self.allocator.free(entry.offset)

    def _needs_memory(self, entry: Entry) -> bool:
        """Whether it must stay, and is nowhere but in the arena."""
        return entry.is_primary and entry.spilled is None and not self.fallback.has(entry.offset)

    def seal(self, entry: Entry) -> bool:
        """It is written; True if anybody may read it. Said once more it changes nothing."""
        if entry.is_written:
            return self.is_sealed(entry)
        entry.is_written = True
        return self._complete(entry, CREATED)

    def abort(self, entry: Entry) -> None:
        """It is not wanted, written or not; nor when the process that has created it asks for that once more."""
        if entry.creator:
            remember(self._aborted, (entry.object_id, entry.attempt, entry.creator), None)
        entry.is_written = True
        self._doom(entry)

    def copy_of(self, object_id: bytes, attempt: int, creator: bytes) -> Entry | None:
        """What this process has created, if it still takes memory."""
        known = self._entries.get(object_id)
        if known is not None and known.attempt == attempt and known.creator == creator:
            return known
        for entry in self._doomed.values():
            if not entry.is_written and (entry.object_id, entry.attempt, entry.creator) == (object_id, attempt, creator):
                return entry
        return None

    # --- using

    def pinned_as(self, pin: bytes) -> Entry | None:
        """What this use has got already, if the question comes again."""
        return self._by_pin.get(pin)

    def pin(self, entry: Entry, pin: bytes, client: bytes) -> bool:
        """Keep a sealed copy where it is; False if this use is over already, or is one of another copy."""
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
        """The first copy is lost: this one must stay."""
        entry = self._entries.get(object_id)
        if entry is not None and entry.attempt == attempt and not entry.is_primary:
            entry.is_primary = True
            self.unspilled_bytes += entry.size if self._needs_memory(entry) else 0
            self._set_busy(entry)
            self._maybe_forget(entry)

    # --- spilling

    def spillable(self) -> Iterator[Entry]:
        """Primary copies that nobody uses and that are not on disk, the least recently used first."""
        return (self._entries[object_id] for object_id in self._spillable)

    def spillable_count(self) -> int:
        return len(self._spillable)

    def begin_spill(self, entry: Entry) -> None:
        """It is being written to disk: until that ends, its memory stays; it may be read."""
        self._set_busy(entry)
        entry.is_moving = True

    def end_spill(self, entry: Entry, spilled: Spilled | None) -> bool:
        """It is on disk, or could not be written; True if its place there is needed."""
        entry.is_moving = False
        is_wanted = self._entries.get(entry.object_id) is entry
        if spilled is not None and is_wanted:
            entry.spilled = spilled
            self.unspilled_bytes -= entry.size
            self.spilled_bytes += entry.size
        self._maybe_forget(entry)
        return entry.spilled is not None

    def restore(self, entry: Entry, in_fallback: bool = False) -> Entry | None:
        """Memory for a copy that is on disk alone; None if there is not enough now. Raises Unwanted, also if it has some."""
        if self.states.get(entry.key) != SPILLED:
            raise Unwanted
        offset = self._allocate(entry.size, in_fallback)
        if offset is None:
            return None
        entry.offset = offset
        entry.is_moving = True
        self.states.set(entry.key, RESTORING)
        return entry

    def end_restore(self, entry: Entry) -> bool:
        """It has been read, or that has failed, and it was aborted; True if anybody may read it."""
        entry.is_moving = False
        return self._complete(entry, RESTORING)

    def _complete(self, entry: Entry, before: str) -> bool:
        """It is whole, unless it was doomed meanwhile; True if anybody may read it."""
        if self.states.get(entry.key) == before:
            self.states.set(entry.key, SEALED)
        self._maybe_forget(entry)
        return self.is_sealed(entry)

    def take_unneeded(self) -> list[SpillFile]:
        """For each spilled copy that was forgotten since the last time, its file."""
        unneeded, self._unneeded = self._unneeded, []
        return unneeded

    # --- ending

    def free(self, object_id: bytes, attempt: int) -> None:
        """Its owner does not need it any more, in this attempt or an earlier one."""
        remember(self._freed, object_id, max(attempt, self._freed.pop(object_id, -1)))
        entry = self._entries.get(object_id)
        if entry is not None and entry.attempt <= attempt:
            self._doom(entry)

    def evict(self, object_id: bytes) -> None:
        """Its copy here may go now, if it may go at all."""
        entry = self._entries.get(object_id)
        is_spare = object_id in self._spare or object_id in self._spare_in_fallback
        if entry is not None and is_spare and not entry.is_primary:
            self._doom(entry)
            self._on_evicted(entry)

    def on_death(self, worker_or_node_id: bytes) -> None:
        """A process or a node is gone: what it owned is not needed, what it wrote or read is not in use any more."""
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

    def _doom(self, entry: Entry) -> None:
        if self._entries.get(entry.object_id) is entry:
            del self._entries[entry.object_id]
            self._set_busy(entry)
            self.unspilled_bytes -= entry.size if self._needs_memory(entry) else 0
            self._doomed[entry.number] = entry
            self.states.set(entry.key, DOOMED)
        self._maybe_forget(entry)

    def _maybe_forget(self, entry: Entry) -> None:
        """Forget a doomed copy when nobody uses it; another may be spare or spillable now."""
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

    def _set_idle(self, entry: Entry) -> None:
        """Nobody uses it, and it was the last to be used."""
        self._set_busy(entry)
        if self._needs_memory(entry):
            self._spillable[entry.object_id] = None
            self.spillable_bytes += entry.size
        elif not self.fallback.has(entry.offset):
            self._spare[entry.object_id] = None
        elif not entry.is_primary or entry.spilled is not None:
            self._spare_in_fallback[entry.object_id] = None

    def _set_busy(self, entry: Entry) -> None:
        self._spare.pop(entry.object_id, None)
        self._spare_in_fallback.pop(entry.object_id, None)
        if entry.object_id in self._spillable:
            del self._spillable[entry.object_id]
            self.spillable_bytes -= entry.size


def _name(key: bytes) -> str:
    """The task's name, which of its objects it is, and the how many-th copy of this node."""
    index = int.from_bytes(key[-12:-8], "big")
    return f"{short(key[:-8])}.{index or 'put'}#{int.from_bytes(key[-8:], 'big')}"
