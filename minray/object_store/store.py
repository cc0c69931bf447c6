"""The object store of a node: the service that grants its clients places in the arena, and pins what they read.

Ray: src/ray/object_manager/plasma/store.h

It is the part of a raylet that its clients, the workers and drivers of the node, talk to. They map the arena themselves, and
read and write it without the store. ``ObjectTable`` decides about copies, ``CreateRequestQueue`` about room. If an object
that a client wants to read is not here, it is pulled from another node (``fetch``, the object manager's part), or restored
from disk. The request waits meanwhile, and the copy is pinned for the client at the moment in which it is complete.

Objects without memory are spilled to disk. ``Spilling`` writes them there and reads them back (the raylet's part).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from minray.object_store.allocator import Allocator
from minray.object_store.create_request_queue import CreateRequestQueue, Creation, OnCreated, Restoration
from minray.object_store.inventory import describe_full, objects_info
from minray.object_store.object_entry import ObjectEntry, SpillFile
from minray.object_store.object_table import ObjectTable
from minray.object_store.question import Order, Question
from minray.platform.base import Arena, DiskFailed, DiskFull, MemoryFailed, Platform
from minray.policies.protocols import EvictionPolicy
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

LOOK_AGAIN_S = 0.5
"""Most seconds until waiting requests are looked at again: each time, processes may be asked to collect garbage."""
logger = logging.getLogger(__name__)


class Spilling(Protocol):
    """Port to the class that writes copies to disk and reads them back."""

    @property
    def is_progressing(self) -> bool:
        """Tell whether copies are being written to disk."""

    @property
    def can_spill(self) -> bool:
        """Tell whether spillable copies will be spilled: not if spilling is disabled, or all disks have failed."""

    trouble: DiskFailed | None
    """Error of the last attempt to spill; None if it succeeded."""

    def stats(self) -> SpillStats:
        """Return the amounts spilled and restored so far."""

    def maybe_spill(self, wanted_bytes: int) -> None:
        """Spill copies if need be: requests wait for ``wanted_bytes``. ``ObjectStore.on_spilled`` may follow."""

    def restore(self, entry: ObjectEntry) -> None:
        """Read a copy from disk into the memory that it was given; ``ObjectStore.on_restored`` follows."""

    def release(self, files: list[SpillFile]) -> None:
        """Note that each of these files holds one needed object less."""


class ObjectStore:
    """Serves the object store requests of one node's clients."""

    arena: Arena
    """Shared memory of the node; set by ``start``."""

    def __init__(
        self,
        platform: Platform,
        capacity: int,
        grace_s: float,
        address: Callable[[], Address],
        fetch: Callable[[bytes, Address, Order], None],
        on_evicted: Callable[[ObjectEntry], None],
        spilling: Callable[[], Spilling],
        give_way: Callable[[], bool],
        eviction_policy: EvictionPolicy | None = None,
    ) -> None:
        """``fetch(object_id, owner, order)`` begins to pull an object, unless it has begun; it then seals or fails it."""
        self._platform = platform
        self._address = address
        self._fetch = fetch
        self._on_evicted = on_evicted
        self._spilling = spilling
        self.table = ObjectTable(Allocator(capacity), platform.record, on_evicted, eviction_policy)
        self._queue = CreateRequestQueue(self.table, grace_s, give_way)
        self._waiting: dict[bytes, list[tuple[Question, int, Wanted]]] = {}
        """Requests that wait for an object that is not here or not complete, each with the object's index in it."""
        self._question_count = 0
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, endpoint: str) -> None:
        """Create the arena. Raises MemoryFailed."""
        self.arena = await self._platform.memory.create_arena(endpoint, self.table.allocator.capacity)

    async def start_fallback(self, endpoint: str, directory: str, capacity_threshold: float) -> None:
        """Create the fallback arena on disk; without it, a full store becomes an error sooner."""
        try:
            arena = await self._platform.memory.create_disk_arena(endpoint, directory, capacity_threshold)
        except MemoryFailed as error:
            logger.warning("fallback memory for a full store could not be created on disk: %s", error)
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

    def place(self, entry: ObjectEntry) -> tuple[memoryview, int]:
        """Return the arena in which a copy lies, and its position there."""
        fallback = self.table.fallback
        return fallback.place(entry.offset) if fallback.has(entry.offset) else (self.arena.view, entry.offset)

    def view(self, entry: ObjectEntry) -> memoryview:
        """Return the memory of a copy."""
        arena, start = self.place(entry)
        return arena[start : start + entry.size]

    # --- writing

    def handle_CreateObject(self, request: CreateObject, call: Call) -> None:
        creation = Creation(
            object_id=request.object_id,
            attempt=request.attempt,
            size=request.size,
            owner=request.owner,
            creator=request.creator,
            is_primary=True,
        )
        self.create(creation, partial(self._on_created, creation, call))

    def _on_created(self, creation: Creation, call: Call, entry: ObjectEntry | None, is_unwanted: bool) -> None:
        if entry is not None:
            call.reply(CreateReply(CREATED, self._address(), entry.offset))
        elif is_unwanted:
            call.reply(CreateReply(UNWANTED, self._address()))
        else:
            status = OUT_OF_DISK if isinstance(self._disk_trouble(), DiskFull) else FULL
            call.reply(CreateReply(status, self._address(), reason=self.why_full(creation.size)))

    def create(self, creation: Creation, on_created: OnCreated) -> None:
        """Ask for room for a copy; ``on_created`` is called now or later."""
        self._line_up(creation, on_created)

    def _line_up(self, creation: Creation | Restoration, on_created: OnCreated) -> None:
        now = asyncio.get_running_loop().time()
        spilling = self._spilling()
        self._queue.add_request(creation, on_created, now, spilling.is_progressing, spilling.can_spill)
        self._advance()

    def handle_SealObject(self, request: SealObject, call: Call) -> Done:
        entry = self.table.copy_of(request.object_id, request.attempt, call.peer)
        if entry is not None:
            self.seal(entry)
        return DONE

    def seal(self, entry: ObjectEntry) -> None:
        """Seal a complete copy, and pin it for all requests that wait for it."""
        if self.table.seal(entry):
            self._serve(entry)
        self._advance()

    def _serve(self, entry: ObjectEntry) -> None:
        for question, index, wanted in self._waiting.pop(entry.object_id, ()):
            question.set(index, self._pin(entry, wanted, question.client))

    def handle_AbortObject(self, request: AbortObject, call: Call) -> Done:
        entry = self.table.copy_of(request.object_id, request.attempt, call.peer)
        self.table.free_object(request.object_id, request.attempt)  # its CreateObject may wait for room, or be repeated
        if entry is not None:
            self.table.abort(entry)
        self._look_elsewhere(request.object_id)
        self._advance()
        return DONE

    def abort(self, entry: ObjectEntry) -> None:
        """Drop a copy that will never be complete, and pull the object from another node for the waiting requests."""
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
        """Pull objects and pin them; ``on_answer`` is called, perhaps at once, when each is here or will not come.

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

    def _find(self, wanted: Wanted) -> ObjectEntry | None:
        """Return the object's copy if it is of the wanted attempt or a later one; an earlier one is outdated."""
        entry = self.table.find(wanted.object_id)
        return entry if entry is not None and entry.attempt >= wanted.attempt else None

    def give_up(self, question: Question) -> None:
        """Answer a request with the objects that are here, because its time is up."""
        for object_id, waiting in list(self._waiting.items()):
            waiting[:] = [entry for entry in waiting if entry[0] is not question]
            if not waiting:
                del self._waiting[object_id]
        question.answer()

    def _questions(self) -> list[Question]:
        """Return the open requests, each once."""
        return list(dict.fromkeys(question for waiting in self._waiting.values() for question, _, _ in waiting))

    def _pin(self, entry: ObjectEntry, wanted: Wanted, client: bytes) -> Pinned:
        if entry.attempt != wanted.attempt:
            return Pinned(CHANGED)
        if self.table.pin(entry, wanted.pin, client):
            return Pinned(PINNED, entry.offset, entry.size)
        return Pinned(LOST, reason="its pin is not valid any more")

    def fail(self, object_id: bytes, pinned: Pinned) -> None:
        """Answer all requests for an object that cannot be pulled or restored."""
        for question, index, _ in self._waiting.pop(object_id, ()):
            question.set(index, pinned)

    def pass_over_arguments(self, object_id: bytes) -> None:
        """Answer NOT_HERE to tasks that wait for an argument that is being reconstructed.

        Reconstruction needs workers and resources, so these tasks must not hold theirs meanwhile."""
        waiting = self._waiting.pop(object_id, [])
        rest = [entry for entry in waiting if entry[0].order.purpose != TASK_ARGUMENTS]
        if rest:
            self._waiting[object_id] = rest
        for question, index, _ in waiting:
            if question.order.purpose == TASK_ARGUMENTS:
                question.set(index, Pinned(NOT_HERE))

    def is_wanted(self, object_id: bytes) -> bool:
        """Tell whether a request waits for an object."""
        return object_id in self._waiting

    def handle_ReleasePins(self, request: ReleasePins, call: Call) -> Done:
        self.unpin(request.pins)
        return DONE

    def unpin(self, pins: list[bytes]) -> None:
        self.table.unpin(pins)
        self._advance()

    # --- spilled copies

    def _restore(self, entry: ObjectEntry) -> None:
        """Restore a copy as soon as there is room. Only the first waiting request asks for it, for all (G84)."""
        self._line_up(Restoration(entry), partial(self._on_room_for, entry))

    def _on_room_for(self, entry: ObjectEntry, made: ObjectEntry | None, is_unwanted: bool) -> None:
        if made is not None:
            self._spilling().restore(entry)
        elif not is_unwanted:
            self.fail(entry.object_id, Pinned(NO_ROOM, size=entry.size, reason=self.why_full(entry.size)))

    def on_restored(self, entry: ObjectEntry) -> None:
        """Serve the requests for a copy that was read from disk; if the reading failed, the copy was aborted."""
        if self.table.end_restore(entry):
            self._serve(entry)
        self._advance()

    def lose(self, entry: ObjectEntry) -> bool:
        """Give up a copy that cannot be read from disk, or that another node has taken over, and tell its owner.

        Return False if the copy was not needed any more."""
        is_needed = self.table.find(entry.object_id) is entry
        if is_needed:
            self._on_evicted(entry)
            self.abort(entry)
        return is_needed

    def on_spilled(self, has_spilled: bool) -> None:
        """Serve waiting requests after a batch of spilling: the memory of its copies may be reused (unless all failed)."""
        self._advance(has_spilled)

    # --- freeing

    def handle_FreeObjects(self, request: FreeObjects, call: Call) -> Done:
        for copy in request.copies:
            self.table.free_object(copy.object_id, copy.attempt)
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
        """Return the error that keeps fallback memory or spilling from helping; None if there is none."""
        return self.table.fallback.trouble or self._spilling().trouble

    def on_death(self, worker_or_node_id: bytes) -> None:
        """Drop all that a dead process, or all processes of a dead node, used or owned."""
        self.table.on_death(worker_or_node_id)
        for question in self._questions():
            if question.client == worker_or_node_id:
                self.give_up(question)
        for object_id in list(self._waiting):
            self._look_elsewhere(object_id)
        self._advance()

    def _advance(self, has_spilled: bool = False) -> None:
        """Serve waiting requests and spill if need be, since memory may have become free or short."""
        spilling = self._spilling()
        spilling.release(self.table.take_unneeded())
        if self._queue:
            loop = asyncio.get_running_loop()
            is_spilling = has_spilled or spilling.is_progressing
            again_at = self._queue.advance(loop.time(), is_spilling, spilling.can_spill)
            if self._timer is not None:  # Callbacks of ``advance`` may have re-entered this method and set a timer.
                self._timer.cancel()
                self._timer = None
            if again_at is not None:
                self._timer = loop.call_at(min(again_at, loop.time() + LOOK_AGAIN_S), self._advance)
        spilling.maybe_spill(self._queue.waiting_bytes)

    def why_full(self, size: int) -> str:
        """Explain for users why ``size`` bytes are not available."""
        return describe_full(self.table, size, self._disk_trouble())
