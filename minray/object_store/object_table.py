"""Which objects this node's arena holds, for whom, and until when.

Ray: src/ray/object_manager/plasma/obj_lifecycle_mgr.h, object_store.h, eviction_policy.h

Pure: events in, state out. An entry is one *copy*: an object as one attempt of its task has made it.

    CREATED    somebody writes it: the process that made it, or this raylet, which fetches it from another node
    SEALED     complete, and immutable from now on (S5)
    DOOMED     nobody will ask for it any more, but somebody still writes or reads its memory

Rules
  * A *primary* copy, the first one of its object, stays until its owner frees it or dies. Other copies may go whenever
    nobody reads them, and do so, the least recently used first, when room is needed (G77).
  * Memory goes back to the allocator when the copy is not wanted **and** nobody has it in use: its creator until it seals
    or aborts, readers until they give back their pins. A process that dies has nothing in use any more.
  * A later attempt's copy takes the place of an earlier one, never the other way round.
  * Freed copies, spent pins and dead processes leave tombstones, since whatever is asked may be late (G112).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from minray.common.ids import short
from minray.common.state_table import NEW, StateMachine
from minray.object_store.allocator import Allocator
from minray.protocol.base import Address

CREATED, SEALED, DOOMED = "CREATED", "SEALED", "DOOMED"
COPY_STATES = {NEW: (CREATED,), CREATED: (SEALED, DOOMED, NEW), SEALED: (DOOMED, NEW), DOOMED: (NEW,)}
MAX_TOMBSTONES = 100_000


class Unwanted(Exception):
    """Nobody needs this copy: it was freed already, its owner or creator is dead, or a later attempt's is here."""


class Entry(msgspec.Struct, eq=False):
    """One copy in the arena."""

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

    @property
    def key(self) -> bytes:
        return self.object_id + self.number.to_bytes(8, "big")

    def in_use(self) -> bool:
        return not self.is_written or bool(self.pins)


class ObjectTable:
    """All copies of one node."""

    def __init__(
        self, allocator: Allocator, record: Callable[[str, str, str, str], None] | None, on_evicted: Callable[[Entry], None]
    ) -> None:
        self.allocator = allocator
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
        """Objects whose copy here may go, the least recently used first."""
        self._freed: OrderedDict[bytes, int] = OrderedDict()
        """Objects that their owners have freed: up to which attempt."""
        self._spent: OrderedDict[bytes, int] = OrderedDict()
        """Pins that were given back."""
        self._dead: OrderedDict[bytes, int] = OrderedDict()
        """Processes and nodes that are dead."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._doomed)

    def entries(self) -> list[Entry]:
        """All that take memory."""
        return [*self._entries.values(), *self._doomed.values()]

    def find(self, object_id: bytes) -> Entry | None:
        """The copy of this object that may be asked for, sealed or not."""
        return self._entries.get(object_id)

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

    # --- making

    def create(
        self, object_id: bytes, attempt: int, size: int, owner: Address, creator: bytes, is_primary: bool
    ) -> Entry | None:
        """Room for a copy, made by evicting others if need be; None if there is not enough now. Raises Unwanted."""
        if self._freed.get(object_id, -1) >= attempt or self._is_dead(owner) or creator in self._dead:
            raise Unwanted
        known = self._entries.get(object_id)
        if known is not None:
            if known.attempt == attempt and known.creator == creator:
                return known
            if known.attempt >= attempt:
                raise Unwanted
            self._doom(known)
        offset = self._allocate(size)
        if offset is None:
            return None
        self._count += 1
        entry = Entry(object_id, attempt, offset, size, owner, creator, is_primary, {}, self._count)
        self._entries[object_id] = entry
        self.states.set(entry.key, CREATED)
        return entry

    def _allocate(self, size: int) -> int | None:
        offset = self.allocator.allocate(size)
        while offset is None and self._spare and size <= self.allocator.capacity:
            object_id, _ = self._spare.popitem(last=False)
            entry = self._entries[object_id]
            self._doom(entry)
            self._on_evicted(entry)
            offset = self.allocator.allocate(size)
        return offset

    def seal(self, entry: Entry) -> bool:
        """It is written; True if anybody may ask for it."""
        entry.is_written = True
        if self.states.get(entry.key) == CREATED:
            self.states.set(entry.key, SEALED)
        return not self._maybe_forget(entry)

    def abort(self, entry: Entry) -> None:
        """Its creator does not want it any more, written or not."""
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
        self._spare.pop(entry.object_id, None)
        return True

    def unpin(self, pins: Iterable[bytes]) -> None:
        for pin in pins:
            _remember(self._spent, pin, 0)
            entry = self._by_pin.pop(pin, None)
            if entry is not None:
                del entry.pins[pin]
                self._maybe_forget(entry)

    def promote(self, object_id: bytes, attempt: int) -> None:
        """The first copy is lost: this one must stay."""
        entry = self._entries.get(object_id)
        if entry is not None and entry.attempt == attempt:
            entry.is_primary = True
            self._spare.pop(object_id, None)

    # --- ending

    def free(self, object_id: bytes, attempt: int) -> None:
        """Its owner does not need it any more, in this attempt or an earlier one."""
        _remember(self._freed, object_id, max(attempt, self._freed.pop(object_id, -1)))
        entry = self._entries.get(object_id)
        if entry is not None and entry.attempt <= attempt:
            self._doom(entry)

    def evict(self, object_id: bytes) -> None:
        """Its copy here may go now, if it may go at all."""
        entry = self._entries.get(object_id)
        if entry is not None and object_id in self._spare and not entry.is_primary:
            self._doom(entry)
            self._on_evicted(entry)

    def on_death(self, worker_or_node_id: bytes) -> None:
        """A process or a node is gone: what it owned is not needed, what it wrote or read is not in use any more."""
        _remember(self._dead, worker_or_node_id, 0)
        for entry in self.entries():
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
            self._spare.pop(entry.object_id, None)
            self._doomed[entry.number] = entry
            self.states.set(entry.key, DOOMED)
        self._maybe_forget(entry)

    def _maybe_forget(self, entry: Entry) -> bool:
        """Give the memory of a doomed copy back when nobody uses it; True if the copy is doomed. Others may be spare now."""
        if self._entries.get(entry.object_id) is entry:
            if not entry.is_primary and not entry.in_use():
                self._spare[entry.object_id] = None
                self._spare.move_to_end(entry.object_id)
            return False
        if not entry.in_use() and self._doomed.pop(entry.number, None) is not None:
            self.states.set(entry.key, NEW)
            self.allocator.free(entry.offset)
        return True


def _remember(tombstones: OrderedDict[bytes, int], key: bytes, value: int) -> None:
    tombstones[key] = value
    if len(tombstones) > MAX_TOMBSTONES:
        tombstones.popitem(last=False)


def _name(key: bytes) -> str:
    """The task's name, which of its objects it is, and the how many-th copy of this node."""
    index = int.from_bytes(key[-12:-8], "big")
    return f"{short(key[:-8])}.{index or 'put'}#{int.from_bytes(key[-8:], 'big')}"
