"""The pull of one object to this node.

Ray: src/ray/object_manager/pull_manager.h, object_buffer_pool.h

A pull asks the owner where copies are, and waits until it may begin (``PullManager``) and has memory. Then it reads the
object in chunks, several at once, straight into the arena. If a node has no copy after all, or is dead, the next node is
asked for the chunks that have not come; when none is left, the owner is asked again. If the owner says that the object is
being reconstructed, the pull waits. If there is an error or a small value instead, the readers must ask the owner for that.

A pull already serves the chunks that it has to other nodes (a *pipelined broadcast*). The owner gives each asking node a
turn, and names the nodes that asked earlier (``ObjectDirectory.locations``). The pull asks the latest of those first. So
when many nodes want an object at once, each reads it from the node before and sends it to the node after, and the primary
copy is sent once.

Rules
  * Memory that chunks are received into stays allocated until every call that may write there has ended, even if no
    request wants the object any more.
  * A pull waits for a chunk only at a node with an earlier turn, and only if that node has memory for the object. So nodes
    never wait in a circle.
  * Turns hold for one pull: it keeps the first that it was given.
  * A pull that has begun goes on to its end even if no request waits any more, and so does one that may begin as soon as it
    knows where copies are. Otherwise a program that polls with short timeouts, or with none, would begin anew each time.

What we do not like about it yet: a node whose predecessor is slow is as slow, though a faster copy may exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from minray.common.ids import short
from minray.object_manager.chunks import Chunks, chunk_bytes_of
from minray.object_manager.pull_manager import PullManager
from minray.object_store.create_request_queue import Creation
from minray.object_store.object_entry import ObjectEntry
from minray.object_store.store import ObjectStore
from minray.platform.base import Buffer, PlatformError
from minray.policies import asking, protocols
from minray.protocol.base import Address
from minray.protocol.core_worker import KNOWN, NOT_MADE, UNKNOWN, GetObjectLocations, ObjectLocations
from minray.protocol.object_store import CHANGED, FREED, NO_ROOM, OWNER_DIED, ChunkReply, Pinned, ReadChunk
from minray.rpc.connection import OnAnswer
from minray.rpc.patient_caller import PatientCaller

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 0.1
"""Seconds before the owner is asked again, after all known copies were tried without success."""
MOST_PAUSE_S = 2.0
"""Longest pause, in seconds, between questions for an object that is being reconstructed."""


class Port(Protocol):
    """Port to the object manager that a pull belongs to."""

    patient: PatientCaller
    pulls: PullManager
    chunk_bytes: int
    """Chunk size in bytes of all but large objects."""
    chunks_at_once: int
    """Most chunks of one object that are on their way at a time."""
    received_bytes: int
    """Bytes of objects that have come from other nodes completely."""
    transfer_policy: protocols.TransferPolicy | None
    """Policy of a program, which sorts the sources of each pull; None: there is none."""

    @property
    def store(self) -> ObjectStore: ...

    @property
    def address(self) -> Address: ...

    def read(self, source: Address, chunk: ReadChunk, into: memoryview, on_answer: OnAnswer[ChunkReply]) -> None:
        """Ask another node for a chunk."""

    def next_number(self) -> int:
        """Return a fresh number for a question to an owner."""

    def report(self, owner: Address, object_id: bytes, attempt: int, is_here: bool, number: int = 0) -> None:
        """Tell the owner whether there is a copy here, and that questions up to ``number`` are over."""


class Pull:
    """Brings one object to this node."""

    def __init__(self, manager: Port, object_id: bytes, owner: Address) -> None:
        self._manager = manager
        self.object_id = object_id
        self.owner = owner
        self.turn = 0
        """Turn among all receivers of this object; 0 before the owner has given one."""
        self.entry: ObjectEntry | None = None
        """Copy that is being received; None before there is memory for it, and when it is complete."""
        self.chunks = Chunks(0, manager.chunk_bytes)
        """Chunks of ``entry``."""
        self._announced = 0, 0
        """Attempt that this node receives according to the owner, and the question that told it so (0: none)."""
        self._sources: list[Address] = []
        """Raylets to ask; the last one is asked first."""
        self._in_flight = 0
        self._pause_s = ASK_AGAIN_S
        self._on_rest: asyncio.Future[None]
        """Future that is done when no chunk is on its way and there is no source or chunk left to ask for."""

    async def run(self) -> None:
        """Pull the object until it is here, or will never be, or no request wants it."""
        store = self._manager.store
        try:
            while store.is_wanted(self.object_id):
                failure = await self._try()
                if failure is not None:
                    store.fail(self.object_id, failure)
        finally:
            self._let_go()
            self._withdraw()

    async def _try(self) -> Pinned | None:
        """Try all copies once; return the reason if there will never be a copy here, else None."""
        manager = self._manager
        question = GetObjectLocations(self.object_id, manager.address, manager.next_number())
        try:
            known = await manager.patient.call(self.owner, question)
        except PlatformError as error:
            return Pinned(OWNER_DIED, reason=str(error))
        if known.status == UNKNOWN:
            return Pinned(FREED, reason=f"its owner does not know object {short(self.object_id)} any more")
        if known.status == NOT_MADE:
            await self._wait_until_made()
            return None
        if known.status != KNOWN:
            return Pinned(CHANGED)
        self._pause_s = ASK_AGAIN_S
        self.turn = self.turn or known.turn
        self._announced = known.attempt, question.number
        if self.entry is None or self.entry.attempt != known.attempt:
            self._let_go()
            if not await self._make_room(known):
                return Pinned(NO_ROOM, size=known.size, reason=manager.store.why_full(known.size))
        if self.entry is not None and await self._receive(known):
            self._complete()
            return None
        if not known.raylets:  # No copy is left. The owner waits for the reports of all receivers, so stop being one.
            self._let_go()
            self._withdraw()
        elif not self._is_needed():
            self._let_go()
        await asyncio.sleep(ASK_AGAIN_S)
        return None

    async def _wait_until_made(self) -> None:
        """Wait before the next question for an object that is being reconstructed; the pauses grow."""
        self._let_go()
        self._withdraw()
        self._manager.pulls.stall(self.object_id)
        self._manager.store.pass_over_arguments(self.object_id)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 1.2, MOST_PAUSE_S)

    async def _make_room(self, known: ObjectLocations) -> bool:
        """Wait for the pull's turn and for memory; return False if there is no memory.

        If ``entry`` is still None then, no copy is needed, or another one is being made on this node."""
        manager = self._manager
        turn = asyncio.Event()
        manager.pulls.request(self.object_id, known.size, turn.set)
        if not turn.is_set() and await turn.wait() and not manager.store.is_wanted(self.object_id):
            return True
        made: asyncio.Future[tuple[ObjectEntry | None, bool]] = asyncio.get_running_loop().create_future()

        def on_created(entry: ObjectEntry | None, is_unwanted: bool) -> None:
            if not made.done():
                made.set_result((entry, is_unwanted))
            elif entry is not None:
                manager.store.abort(entry)

        manager.store.create(
            Creation(
                object_id=self.object_id,
                attempt=known.attempt,
                size=known.size,
                owner=self.owner,
                creator=b"",
                is_primary=False,
            ),
            on_created,
        )
        entry, is_unwanted = await made
        if entry is not None and not entry.is_written:
            self.entry = entry
            self.chunks = Chunks(entry.size, chunk_bytes_of(entry.size, manager.chunk_bytes))
            manager.pulls.on_room(self.object_id)
        return entry is not None or is_unwanted

    def _is_needed(self) -> bool:
        """Tell whether the copy that is being received is still needed: it was not freed, and no later attempt is here."""
        return self.entry is not None and self._manager.store.table.find(self.object_id) is self.entry

    def _complete(self) -> None:
        assert self.entry is not None
        entry, self.entry = self.entry, None
        self._manager.received_bytes += entry.size
        # The report comes first: a request that waits for memory may evict the copy as soon as it is sealed.
        self._manager.report(self.owner, self.object_id, entry.attempt, True, self._announced[1])
        self._announced = 0, 0
        self._manager.store.seal(entry)

    def _let_go(self) -> None:
        """Drop the chunks received so far: the object is not wanted, or this copy is outdated."""
        if self.entry is not None:
            entry, self.entry = self.entry, None
            self.chunks.give_up()
            self._manager.store.abort(entry)

    def _withdraw(self) -> None:
        """Tell the owner that this node receives nothing; while it believes otherwise, it does not count the object as lost.

        There may be a copy nevertheless: the object may have been reconstructed on this node.
        """
        (attempt, number), self._announced = self._announced, (0, 0)
        if number:
            is_here = self._manager.store.table.has(self.object_id, attempt)
            self._manager.report(self.owner, self.object_id, attempt, is_here, number)

    # --- chunks

    async def _receive(self, known: ObjectLocations) -> bool:
        """Receive chunks until no more can arrive; return whether all are here."""
        policy, own_node = self._manager.transfer_policy, self._manager.address.node_id
        self._sources = asking.sorted_sources(policy, own_node, self.object_id, known.raylets, known.receivers)
        if any(raylet.node_id == own_node for raylet in known.raylets):  # The owner is mistaken.
            self._manager.report(self.owner, self.object_id, known.attempt, False)
        self._on_rest = asyncio.get_running_loop().create_future()
        self._read_more()
        await self._on_rest
        return self._is_needed() and self.chunks.is_complete()

    def _read_more(self) -> None:
        most = self._manager.chunks_at_once
        while self._in_flight < most and self._sources and self._is_needed() and not self.chunks.is_all_taken():
            self._read(self._sources[-1], *self.chunks.take())
        if not self._in_flight and not self._on_rest.done():
            self._on_rest.set_result(None)

    def _read(self, source: Address, start: int, end: int) -> None:
        assert self.entry is not None
        self._in_flight += 1
        into = self._manager.store.view(self.entry)[start:end]
        request = ReadChunk(
            object_id=self.object_id, attempt=self.entry.attempt, start=start, size=end - start, turn=self.turn
        )
        self._manager.read(source, request, into, partial(self._on_chunk, source, start))

    def _on_chunk(
        self, source: Address, start: int, reply: ChunkReply | None, error: PlatformError | None, _: Sequence[Buffer]
    ) -> None:
        self._in_flight -= 1
        if reply is not None and reply.is_here:
            self.chunks.arrive(start)
        else:
            logger.debug("a chunk of object %s does not come: %s", short(self.object_id), error or "it is not there")
            self.chunks.give_back(start)
            self._sources = [other for other in self._sources if other is not source]
        self._read_more()
