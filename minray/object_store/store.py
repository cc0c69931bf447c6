"""The object store of a node: the arena, who may write and read in it, and who waits for what.

Ray: src/ray/object_manager/plasma/store.h

The part of a raylet that its clients, the workers and drivers of the node, talk to; they map the arena themselves and read
and write without it. ``ObjectTable`` decides about copies, ``CreateRequestQueue`` about room. What a client wants to read
and is not here is fetched from elsewhere (``fetch``, the object manager's part), or from disk; the question waits until it
has come, and the copy is pinned for the client in the moment in which it is complete.

What there is no memory for goes to disk; ``Spilling`` is who carries it there and back (the raylet's part).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from minray.object_store.allocator import Allocator
from minray.object_store.create_request_queue import CreateRequestQueue, Creation, OnCreated, Restoration
from minray.object_store.inventory import objects_info
from minray.object_store.object_table import Entry, ObjectTable, SpillFile
from minray.platform.base import Arena, DiskFailed, DiskFull, MemoryFailed, Platform
from minray.protocol.base import DONE, Address, Done
from minray.protocol.object_store import (
    CHANGED,
    CREATED,
    FULL,
    LOST,
    NO_ROOM,
    NOT_HERE,
    OUT_OF_DISK,
    PINNED,
    TASK_ARGUMENTS,
    UNWANTED,
    AbortObject,
    CreateObject,
    CreateReply,
    EvictObjects,
    FreeObjects,
    GetObjectsInfo,
    ObjectsInfo,
    Pinned,
    PinObjects,
    PinReply,
    PromoteObjects,
    ReleasePins,
    SealObject,
    SpillStats,
    Wanted,
)
from minray.rpc.service import Call

TOP_HOLDERS = 5

logger = logging.getLogger(__name__)


class Order(NamedTuple):
    """Names what is wanted together, and says when it is its turn to be fetched."""

    purpose: int
    number: int


class Spilling(Protocol):
    """What carries copies to disk and back."""

    @property
    def is_progressing(self) -> bool:
        """Whether copies are being written."""

    @property
    def can_spill(self) -> bool:
        """Whether copies that may be written would be: not where that is switched off, or where all disks have failed."""

    trouble: DiskFailed | None
    """Why the last ones could not be."""
    def stats(self) -> SpillStats:
        """So much so far."""

    def maybe_spill(self, wanted_bytes: int) -> None:
        """So many bytes are waited for, and the table may have changed; ``ObjectStore.on_spilled`` may follow."""

    def restore(self, entry: Entry) -> None:
        """Fill the memory that this copy has been given; ``ObjectStore.on_restored`` follows."""

    def release(self, files: list[SpillFile]) -> None:
        """Each of these has one object less that anybody needs."""


class Question:
    """Objects that somebody wants together, and has not got yet."""

    def __init__(
        self,
        client: bytes,
        wanted: list[Wanted],
        order: Order,
        on_answer: Callable[[list[Pinned]], None],
        on_one: Callable[[], None] | None = None,
    ) -> None:
        self.client = client
        self.wanted = wanted
        self.order = order
        self.timer: asyncio.TimerHandle | None = None
        self._pinned: list[Pinned | None] = [None] * len(wanted)
        self._missing = len(wanted)
        self._on_answer = on_answer
        self._on_one = on_one

    def set(self, index: int, pinned: Pinned) -> None:
        self._pinned[index] = pinned
        self._missing -= 1
        if self._on_one is not None:
            self._on_one()
        if not self._missing:
            self.answer()

    def is_open(self) -> bool:
        return self._missing > 0

    def close(self) -> None:
        """Its time does not run out any more."""
        if self.timer is not None:
            self.timer.cancel()

    def answer(self) -> None:
        """With what is here by now."""
        self.close()
        self._on_answer([one or Pinned(NOT_HERE) for one in self._pinned])


class ObjectStore:
    """The service for one node's clients."""

    arena: Arena
    """Set by ``start``."""

    def __init__(
        self,
        platform: Platform,
        capacity: int,
        grace_s: float,
        address: Callable[[], Address],
        fetch: Callable[[bytes, Address, Order], None],
        on_evicted: Callable[[Entry], None],
        spilling: Callable[[], Spilling],
    ) -> None:
        """``fetch(object_id, owner, order)`` begins to bring an object here, unless it has begun; it seals or fails it."""
        self._platform = platform
        self._address = address
        self._fetch = fetch
        self._on_evicted = on_evicted
        self._spilling = spilling
        self.table = ObjectTable(Allocator(capacity), platform.record, on_evicted)
        self._queue = CreateRequestQueue(self.table, grace_s)
        self._waiting: dict[bytes, list[tuple[Question, int, Wanted]]] = {}
        """Who waits for an object that is not here, or not complete: the question, and which of its objects this is."""
        self._question_count = 0
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, endpoint: str) -> None:
        """Make the arena. Raises MemoryFailed."""
        self.arena = await self._platform.memory.create_arena(endpoint, self.table.allocator.capacity)

    async def start_fallback(self, endpoint: str, directory: str, capacity_threshold: float) -> None:
        """Make the one on disk; without it, a full store is an error sooner."""
        try:
            arena = await self._platform.memory.create_disk_arena(endpoint, directory, capacity_threshold)
        except MemoryFailed as error:
            logger.warning("no memory on disk for a full store: %s", error)
        else:
            self.table.fallback.open(arena)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for question in self._questions():
            question.close()
        if hasattr(self, "arena"):
            await self.arena.close()
        await self.table.fallback.close()

    def place(self, entry: Entry) -> tuple[memoryview, int]:
        """The arena in which a copy lies, and where in it."""
        fallback = self.table.fallback
        return fallback.place(entry.offset) if fallback.has(entry.offset) else (self.arena.view, entry.offset)

    def view(self, entry: Entry) -> memoryview:
        """The memory of a copy."""
        arena, start = self.place(entry)
        return arena[start : start + entry.size]

    # --- writing

    def handle_CreateObject(self, request: CreateObject, call: Call) -> None:
        creation = Creation(request.object_id, request.attempt, request.size, request.owner, request.creator, True)
        self.create(creation, partial(self._on_created, creation, call))

    def _on_created(self, creation: Creation, call: Call, entry: Entry | None, is_unwanted: bool) -> None:
        if entry is not None:
            call.reply(CreateReply(CREATED, self._address(), entry.offset))
        elif is_unwanted:
            call.reply(CreateReply(UNWANTED, self._address()))
        else:
            status = OUT_OF_DISK if isinstance(self._disk_trouble(), DiskFull) else FULL
            call.reply(CreateReply(status, self._address(), reason=self.why_full(creation.size)))

    def create(self, creation: Creation, on_created: OnCreated) -> None:
        """Room for a copy, now or later."""
        self._line_up(creation, on_created)

    def _line_up(self, creation: Creation | Restoration, on_created: OnCreated) -> None:
        now = asyncio.get_running_loop().time()
        spilling = self._spilling()
        self._queue.add(creation, on_created, now, spilling.is_progressing, spilling.can_spill)
        self._advance()

    def handle_SealObject(self, request: SealObject, call: Call) -> Done:
        entry = self.table.copy_of(request.object_id, request.attempt, call.peer)
        if entry is not None:
            self.seal(entry)
        return DONE

    def seal(self, entry: Entry) -> None:
        """It is complete: whoever waits for it gets it."""
        if self.table.seal(entry):
            self._serve(entry)
        self._advance()

    def _serve(self, entry: Entry) -> None:
        for question, index, wanted in self._waiting.pop(entry.object_id, ()):
            question.set(index, self._pin(entry, wanted, question.client))

    def handle_AbortObject(self, request: AbortObject, call: Call) -> Done:
        entry = self.table.copy_of(request.object_id, request.attempt, call.peer)
        self.table.free(request.object_id, request.attempt)  # the creation may wait for room, or come once more
        if entry is not None:
            self.table.abort(entry)
        self._look_elsewhere(request.object_id)
        self._advance()
        return DONE

    def abort(self, entry: Entry) -> None:
        """It will not be complete: who waits for it must look elsewhere."""
        self.table.abort(entry)
        self._look_elsewhere(entry.object_id)
        self._advance()

    def _look_elsewhere(self, object_id: bytes) -> None:
        waiting = self._waiting.get(object_id)
        if waiting and self.table.find(object_id) is None:
            for question, _, wanted in list(waiting):
                self._fetch(object_id, wanted.owner, question.order)

    # --- reading

    def handle_PinObjects(self, request: PinObjects, call: Call) -> None:
        def on_answer(pinned: list[Pinned]) -> None:
            call.reply(PinReply(pinned))

        question = self.pin_together(request.client, request.wanted, request.purpose, on_answer)
        if question.is_open() and request.timeout_s is not None:
            question.timer = asyncio.get_running_loop().call_later(request.timeout_s, self.give_up, question)

    def pin_together(
        self,
        client: bytes,
        wanted: list[Wanted],
        purpose: int,
        on_answer: Callable[[list[Pinned]], None],
        on_one: Callable[[], None] | None = None,
    ) -> Question:
        """Bring these here and pin them; answered, perhaps at once, when all are here or will not come.

        ``on_one()`` is called for each of them.
        """
        self._question_count += 1
        question = Question(client, wanted, Order(purpose, self._question_count), on_answer, on_one)
        for index, one in enumerate(wanted):
            entry = self.table.pinned_as(one.pin) or self._find(one)
            if entry is not None and (one.pin in entry.pins or self.table.is_sealed(entry)):
                question.set(index, self._pin(entry, one, client))
                continue
            waiting = self._waiting.setdefault(one.object_id, [])
            waiting.append((question, index, one))
            if entry is None:
                self._fetch(one.object_id, one.owner, question.order)
            elif self.table.is_spilled(entry) and len(waiting) == 1:
                self._restore(entry)
        return question

    def _find(self, wanted: Wanted) -> Entry | None:
        """The copy of that attempt or a later one: an earlier one is what was left when the object was lost."""
        entry = self.table.find(wanted.object_id)
        return entry if entry is not None and entry.attempt >= wanted.attempt else None

    def give_up(self, question: Question) -> None:
        """Its time is up: it is answered with what is here."""
        for object_id, waiting in list(self._waiting.items()):
            waiting[:] = [entry for entry in waiting if entry[0] is not question]
            if not waiting:
                del self._waiting[object_id]
        question.answer()

    def _questions(self) -> list[Question]:
        """Those that are open, each once."""
        return list(dict.fromkeys(question for waiting in self._waiting.values() for question, _, _ in waiting))

    def _pin(self, entry: Entry, wanted: Wanted, client: bytes) -> Pinned:
        if entry.attempt != wanted.attempt:
            return Pinned(CHANGED)
        if self.table.pin(entry, wanted.pin, client):
            return Pinned(PINNED, entry.offset, entry.size)
        return Pinned(LOST, reason="this use of it is over")

    def fail(self, object_id: bytes, pinned: Pinned) -> None:
        """It cannot be fetched."""
        for question, index, _ in self._waiting.pop(object_id, ()):
            question.set(index, pinned)

    def pass_over_arguments(self, object_id: bytes) -> None:
        """It is being made again, for which workers are needed: tasks do not keep theirs while they wait for that."""
        waiting = self._waiting.pop(object_id, [])
        rest = [entry for entry in waiting if entry[0].order.purpose != TASK_ARGUMENTS]
        if rest:
            self._waiting[object_id] = rest
        for question, index, _ in waiting:
            if question.order.purpose == TASK_ARGUMENTS:
                question.set(index, Pinned(NOT_HERE))

    def is_wanted(self, object_id: bytes) -> bool:
        """Whether somebody waits for it."""
        return object_id in self._waiting

    def handle_ReleasePins(self, request: ReleasePins, call: Call) -> Done:
        self.unpin(request.pins)
        return DONE

    def unpin(self, pins: list[bytes]) -> None:
        self.table.unpin(pins)
        self._advance()

    # --- on disk

    def _restore(self, entry: Entry) -> None:
        """Bring it back as soon as there is room; asked by the first who waits for it, for all (G84)."""
        self._line_up(Restoration(entry), partial(self._on_room_for, entry))

    def _on_room_for(self, entry: Entry, made: Entry | None, is_unwanted: bool) -> None:
        if made is not None:
            self._spilling().restore(entry)
        elif not is_unwanted:
            self.fail(entry.object_id, Pinned(NO_ROOM, size=entry.size, reason=self.why_full(entry.size)))

    def on_restored(self, entry: Entry) -> None:
        """It has been read from disk, or could not be and was lost."""
        if self.table.end_restore(entry):
            self._serve(entry)
        self._advance()

    def lose(self, entry: Entry) -> bool:
        """What is on disk is not this copy any more; False if nobody needs it."""
        is_needed = self.table.find(entry.object_id) is entry
        if is_needed:
            self._on_evicted(entry)
            self.abort(entry)
        return is_needed

    def on_spilled(self, has_spilled: bool) -> None:
        """A batch has ended: its copies are on disk, and their memory may go when it is needed; unless all have failed."""
        self._advance(has_spilled)

    # --- freeing

    def handle_FreeObjects(self, request: FreeObjects, call: Call) -> Done:
        for copy in request.copies:
            self.table.free(copy.object_id, copy.attempt)
            self._look_elsewhere(copy.object_id)
        self._advance()
        return DONE

    def handle_PromoteObjects(self, request: PromoteObjects, call: Call) -> Done:
        for copy in request.copies:
            self.table.promote(copy.object_id, copy.attempt)
        return DONE

    def handle_EvictObjects(self, request: EvictObjects, call: Call) -> Done:
        for object_id in request.object_ids:
            self.table.evict(object_id)
        self._advance()
        return DONE

    def handle_GetObjectsInfo(self, request: GetObjectsInfo, call: Call) -> ObjectsInfo:
        return objects_info(self._address().node_id, self.table, self._spilling().stats(), request)

    def _disk_trouble(self) -> DiskFailed | None:
        """Why there is no room on disk, or none that helps."""
        return self.table.fallback.trouble or self._spilling().trouble

    def on_death(self, worker_or_node_id: bytes) -> None:
        """A client, an owner, or a whole node of them is gone."""
        self.table.on_death(worker_or_node_id)
        for question in self._questions():
            if question.client == worker_or_node_id:
                self.give_up(question)
        for object_id in list(self._waiting):
            self._look_elsewhere(object_id)
        self._advance()

    def _advance(self, has_spilled: bool = False) -> None:
        """Memory may have become free, or short."""
        spilling = self._spilling()
        spilling.release(self.table.take_unneeded())
        if self._queue:
            loop = asyncio.get_running_loop()
            is_spilling = has_spilled or spilling.is_progressing
            again_at = self._queue.advance(loop.time(), is_spilling, spilling.can_spill)
            if self._timer is not None:  # perhaps since just now: who is told that he has room may ask for more
                self._timer.cancel()
                self._timer = None
            if again_at is not None:
                self._timer = loop.call_at(again_at, self._advance)
        spilling.maybe_spill(self._queue.waiting_bytes)

    def why_full(self, size: int) -> str:
        """For people who cannot have so many bytes: who has them."""
        allocator, entries = self.table.allocator, self.table.entries()
        largest = sorted(entries, key=lambda entry: entry.size, reverse=True)[:TOP_HOLDERS]
        held = ", ".join(f"{entry.object_id.hex()} ({entry.size} bytes, {_use_of(entry)})" for entry in largest)
        in_use = sum(entry.in_use() for entry in entries)
        trouble = self._disk_trouble()
        advice = "make room there, or choose another object_spilling_directory"
        failing = f" The disk does not help: {trouble}; {advice}." if trouble else ""
        on_disk = f", and {self.table.fallback.used} on disk" if self.table.fallback.used else ""
        return (
            f"{size} bytes are wanted; {allocator.used} of {allocator.capacity} are in use{on_disk}, by {len(entries)}"
            f" objects, of which {in_use} are being read or written; the largest hole has {allocator.largest_hole()}."
            f"{failing} The largest objects: {held or 'none'}"
        )


def _use_of(entry: Entry) -> str:
    """Why this copy takes memory, for people."""
    if not entry.is_written:
        return "being written"
    readers = dict.fromkeys(client.hex()[:8] or "its node" for client in entry.pins.values())
    return f"read by {', '.join(readers)}" if readers else f"owned by {entry.owner.worker_id.hex()[:8]}"
