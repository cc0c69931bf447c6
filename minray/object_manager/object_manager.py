"""Brings objects from other nodes' stores into this one's, and sends them from here.

Ray: src/ray/object_manager/object_manager.h, ownership_object_directory.h, object_buffer_pool.h

The owner knows where the copies are. A pull asks it, makes room, reads the copy in chunks, several at once, which are
received straight into the arena, and tells the owner that there is one more. Where a node has no copy after all, or is
gone, the next is tried; when none is left the owner is asked again: it says when an object is lost for good.

Rules
  * One pull per object, however many wait for it.
  * Memory that chunks are being received into stays taken until every call that may write there has ended, also when
    nobody wants the object any more.
  * A chunk is sent without a copy: the memory is pinned until the transport has let go of it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable

from minray.common.ids import short
from minray.object_store.create_request_queue import Creation
from minray.object_store.object_table import Entry
from minray.object_store.store import ObjectStore
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import KNOWN, UNKNOWN, GetObjectLocations, LocationChange, UpdateObjectLocations
from minray.protocol.object_store import FREED, LOST, OWNER_DIED, ChunkReply, Pinned, ReadChunk
from minray.rpc.batch import Batches
from minray.rpc.connection import Peers
from minray.rpc.patient_caller import PatientCaller
from minray.rpc.service import Call

logger = logging.getLogger(__name__)

CHUNKS_AT_ONCE = 4
"""So many chunks of one object are on their way."""
ASK_AGAIN_S = 0.1
"""After all known copies were tried in vain."""


class ObjectManager:
    """The service for other nodes, and the pulls of this one."""

    def __init__(
        self,
        peers: Peers,
        patient: PatientCaller,
        store: Callable[[], ObjectStore],
        address: Callable[[], Address],
        chunk_bytes: int,
    ) -> None:
        self._peers = peers
        self._patient = patient
        self._store_of = store
        self._address = address
        self._chunk_bytes = chunk_bytes
        self._pulls: dict[bytes, asyncio.Task[None]] = {}
        """By object id."""
        self._reports: Batches[LocationChange] = Batches(
            patient.send, lambda changes: UpdateObjectLocations(self._address(), changes)
        )
        self._send_count = 0
        self._is_closed = False

    @property
    def _store(self) -> ObjectStore:
        return self._store_of()

    def close(self) -> None:
        self._is_closed = True
        for pull in list(self._pulls.values()):
            pull.cancel()

    # --- fetching

    def fetch(self, object_id: bytes, owner: Address) -> None:
        """Begin to bring an object here, unless that has begun."""
        if object_id not in self._pulls and not self._is_closed:
            name = f"pull({short(object_id)})"
            pull = asyncio.get_running_loop().create_task(self._pull(object_id, owner), name=name)
            self._pulls[object_id] = pull

    async def _pull(self, object_id: bytes, owner: Address) -> None:
        try:
            while self._store.is_wanted(object_id):
                failure = await self._try_to_pull(object_id, owner)
                if failure is not None:
                    self._store.fail(object_id, failure)
        finally:
            del self._pulls[object_id]

    async def _try_to_pull(self, object_id: bytes, owner: Address) -> Pinned | None:
        """Once through all copies; returns why there will never be one here."""
        try:
            known = await self._patient.call(owner, GetObjectLocations(object_id))
        except PlatformError as error:
            return Pinned(OWNER_DIED, reason=str(error))
        if known.status == UNKNOWN:
            return Pinned(FREED, reason=f"its owner does not know object {short(object_id)} any more")
        if known.status != KNOWN:
            return Pinned(LOST, reason="all nodes that had a copy are dead")
        creation = Creation(object_id, known.attempt, known.size, owner, b"", False)
        entry, is_unwanted = await self._make_room(creation)
        if entry is None and not is_unwanted:
            return Pinned(LOST, reason=f"there is no room for its {known.size} bytes in the object store of this node")
        if entry is not None and not entry.is_written:
            for raylet in known.raylets:
                if raylet.node_id == self._address().node_id:  # its owner is mistaken
                    self._reports.add(owner, [LocationChange(object_id, entry.attempt, False)])
                elif await self._read(entry, raylet):
                    self._store.seal(entry)
                    self._reports.add(owner, [LocationChange(object_id, entry.attempt, True)])
                    return None
            self._store.abort(entry)
        await asyncio.sleep(ASK_AGAIN_S)
        return None

    async def _make_room(self, creation: Creation) -> tuple[Entry | None, bool]:
        made: asyncio.Future[tuple[Entry | None, bool]] = asyncio.get_running_loop().create_future()

        def on_created(entry: Entry | None, is_unwanted: bool) -> None:
            if not made.done():
                made.set_result((entry, is_unwanted))
            elif entry is not None:
                self._store.abort(entry)

        self._store.create(creation, on_created)
        return await made

    async def _read(self, entry: Entry, raylet: Address) -> bool:
        """All chunks from one node; False if one of them did not come. Returns when nothing more can arrive."""
        target = self._store.view(entry)
        peer = self._peers.to(raylet)
        starts = iter(range(0, entry.size, self._chunk_bytes))
        is_complete = True

        async def read_next() -> None:
            nonlocal is_complete
            for start in starts:
                into = target[start : start + self._chunk_bytes]
                request = ReadChunk(entry.object_id, entry.attempt, start, len(into))
                try:
                    reply, _ = await peer.call_with_buffers(request, [into])
                except PlatformError as error:
                    logger.debug("object %s does not come: %s", short(entry.object_id), error)
                    is_complete = False
                else:
                    is_complete = is_complete and reply.is_here
                if not is_complete:
                    return

        await asyncio.gather(*(read_next() for _ in range(CHUNKS_AT_ONCE)))
        return is_complete

    def on_evicted(self, entry: Entry) -> None:
        """A copy has made room for others."""
        self._reports.add(entry.owner, [LocationChange(entry.object_id, entry.attempt, False)])

    # --- sending

    def handle_ReadChunk(self, request: ReadChunk, call: Call) -> ChunkReply | None:
        table = self._store.table
        entry = table.find(request.object_id)
        end = request.start + request.size
        if entry is None or entry.attempt != request.attempt or not table.is_sealed(entry):
            return ChunkReply(False)
        if not 0 <= request.start < end <= entry.size:
            call.fail("bad-request", f"bytes {request.start} to {end} of an object of {entry.size}")
            return None
        call.reply(ChunkReply(True), [self._lasting_view(entry, request.start, request.size)])
        return None

    def _lasting_view(self, entry: Entry, start: int, size: int) -> memoryview:
        """A view that keeps the copy where it is, as long as the view or one made of it lives."""
        import numpy as np

        self._send_count += 1
        pin = b"send" + self._send_count.to_bytes(8, "big")
        self._store.table.pin(entry, pin, b"")
        array = np.frombuffer(self._store.arena.view, np.uint8, size, entry.offset + start)
        weakref.finalize(array, self._on_sent, asyncio.get_running_loop(), pin).atexit = False
        return array.data

    def _on_sent(self, loop: asyncio.AbstractEventLoop, pin: bytes) -> None:
        if not loop.is_closed():
            loop.call_soon(self._store.unpin, [pin])
