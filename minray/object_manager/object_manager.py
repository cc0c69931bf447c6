"""The object manager pulls objects from other nodes' stores into this node's, and pushes chunks to other nodes.

Ray: src/ray/object_manager/object_manager.h, ownership_object_directory.h

The owner knows where the copies are. ``Pull`` brings one object here; ``PullManager`` decides which pulls may begin;
``PushManager`` limits the bytes that leave.

Rules
  * There is one pull per object, however many requests wait for it.
  * A chunk is sent without a copy: its memory is pinned until the transport has released it. A chunk of an object that is
    only on disk is read from there; the object stays on disk.
  * Chunks of an object that is still being received are sent on, but only to nodes whose turn is later (``Pull``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from minray.common.config import RayletConfig
from minray.common.ids import short
from minray.common.task_set import TaskSet
from minray.object_manager.bulk import Bulk
from minray.object_manager.pull import Pull
from minray.object_manager.pull_manager import PullManager
from minray.object_manager.push_manager import PushManager
from minray.object_store.layout import lasting_view
from minray.object_store.object_entry import ObjectEntry
from minray.object_store.question import Order
from minray.object_store.store import ObjectStore
from minray.platform.base import Platform
from minray.policies.protocols import TransferPolicy
from minray.protocol.base import Address
from minray.protocol.core_worker import LocationChange, UpdateObjectLocations
from minray.protocol.object_store import ChunkReply, OpenLanes, OpenLanesReply, ReadChunk
from minray.rpc.batch import Batches
from minray.rpc.connection import OnAnswer, Peers
from minray.rpc.patient_caller import PatientCaller
from minray.rpc.service import Call, Dispatcher


class ObjectManager:
    """Serves the chunk requests of other nodes, and runs this node's pulls."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        peers: Peers,
        patient: PatientCaller,
        store: Callable[[], ObjectStore],
        address: Callable[[], Address],
        read_spilled: Callable[[ObjectEntry, int, int], Awaitable[memoryview | None]],
        transfer_policy: TransferPolicy | None = None,
    ) -> None:
        """``read_spilled`` returns some bytes of a copy on disk; None: the copy is lost, or there is no memory now."""
        self._post = platform.user_code.post
        self._bulk = Bulk(platform, config, peers)
        self._dispatcher = Dispatcher(self)
        """Dispatcher of requests that arrive on the lanes."""
        self.patient = patient
        self.transfer_policy = transfer_policy
        self._store_of = store
        self._address_of = address
        self.chunk_bytes = config.system_config.object_manager_default_chunk_size
        self.chunks_at_once = config.system_config.object_manager_chunks_at_once
        self.pulls = PullManager(lambda size: self.store.table.has_room(size))
        self._pulls: dict[bytes, tuple[Pull, asyncio.Task[None]]] = {}
        """Pulls and their tasks, by object id."""
        self.pushes = PushManager(config.system_config.object_manager_max_bytes_in_flight)
        self._read_spilled = read_spilled
        self._reading = TaskSet()
        """Tasks of pushes that read from disk."""
        self._reports: Batches[LocationChange] = Batches(
            patient.send, self._make_report, config.system_config.max_items_per_batch
        )
        self._report_count = 0
        self._push_count = 0
        self.pushed_bytes = 0
        """Bytes that were sent to other nodes from memory."""
        self.received_bytes = 0
        """Bytes of objects that have come from other nodes completely."""
        self._question_count = 0
        self._is_closed = False

    @property
    def store(self) -> ObjectStore:
        return self._store_of()

    @property
    def address(self) -> Address:
        return self._address_of()

    async def close(self) -> None:
        self._is_closed = True
        for task in [*(task for _, task in self._pulls.values()), *self._reading]:
            task.cancel()
        self._dispatcher.close()
        await self._bulk.close()

    def on_node_death(self, raylet_id: bytes, reason: str) -> None:
        self._bulk.on_node_death(raylet_id, reason)

    # --- pulling

    def fetch(self, object_id: bytes, owner: Address, order: Order) -> None:
        """Begin to pull an object, unless that has begun, and add it to the bundle ``order``."""
        if self._is_closed:
            return
        self.pulls.want(object_id, order)
        if object_id not in self._pulls:
            pull = Pull(self, object_id, owner)
            task = asyncio.get_running_loop().create_task(self._run(pull), name=f"pull({short(object_id)})")
            self._pulls[object_id] = pull, task

    async def _run(self, pull: Pull) -> None:
        try:
            await pull.run()
        finally:
            del self._pulls[pull.object_id]
            self.pulls.on_end(pull.object_id)

    def read(self, source: Address, chunk: ReadChunk, into: memoryview, on_answer: OnAnswer[ChunkReply]) -> None:
        """Ask another node for a chunk."""
        self._bulk.read(source, chunk, into, on_answer)

    def next_number(self) -> int:
        """Return a fresh number for a question to an owner."""
        self._question_count += 1
        return self._question_count

    def report(self, owner: Address, object_id: bytes, attempt: int, is_here: bool, number: int = 0) -> None:
        """Tell the owner whether there is a copy here, and that questions up to ``number`` are over."""
        if not self._is_closed:
            self._reports.add(owner, [LocationChange(object_id, attempt, is_here, number)])

    def _make_report(self, changes: list[LocationChange]) -> UpdateObjectLocations:
        self._report_count += 1
        return UpdateObjectLocations(self.address, self._report_count, changes)

    def on_evicted(self, entry: ObjectEntry) -> None:
        """Tell the owner that a copy was evicted."""
        self.report(entry.owner, entry.object_id, entry.attempt, False)

    # --- pushing

    async def handle_OpenLanes(self, request: OpenLanes, call: Call) -> OpenLanesReply:
        return OpenLanesReply(await self._bulk.open(self._dispatcher))

    def handle_ReadChunk(self, request: ReadChunk, call: Call) -> ChunkReply | None:
        entry = self._find(request)
        if entry is None:
            return ChunkReply(False)
        end = request.start + request.size
        if not 0 <= request.start < end <= entry.size:
            call.fail("bad-request", f"bytes {request.start} to {end} of an object of {entry.size}")
            return None
        if self.store.table.is_whole(entry):
            self._push_in_turn(request, call, True)
            return None
        pull = self._receiver_of(entry)
        if pull is None or pull.turn >= request.turn:
            return ChunkReply(False)
        pull.chunks.when_here(request.start, end, partial(self._push_in_turn, request, call))
        return None

    def _find(self, request: ReadChunk) -> ObjectEntry | None:
        entry = self.store.table.find(request.object_id)
        return entry if entry is not None and entry.attempt == request.attempt else None

    def _receiver_of(self, entry: ObjectEntry) -> Pull | None:
        """Return the pull that is filling a copy, if there is one."""
        pull, _ = self._pulls.get(entry.object_id, (None, None))
        return pull if pull is not None and pull.entry is entry else None

    def _is_here(self, entry: ObjectEntry, request: ReadChunk) -> bool:
        """Tell whether the requested bytes of a copy are here; the rest may still be missing."""
        if self.store.table.is_whole(entry):
            return True
        pull = self._receiver_of(entry)
        return pull is not None and pull.chunks.has(request.start, request.start + request.size)

    def _push_in_turn(self, request: ReadChunk, call: Call, is_here: bool) -> None:
        if is_here:
            self.pushes.add_push(request.size, partial(self._push, request, call))
        else:
            call.reply(ChunkReply(False))

    def _push(self, request: ReadChunk, call: Call) -> None:
        entry = self._find(request)
        if entry is None or not self._is_here(entry, request):  # Freed or evicted, and perhaps being pulled once more.
            call.reply(ChunkReply(False))
            asyncio.get_running_loop().call_soon(self.pushes.on_sent, request.size)
        elif entry.spilled is None or self.store.table.is_sealed(entry):
            call.reply(ChunkReply(True), [self._lasting_view(entry, request.start, request.size)])
        else:
            self._reading.begin(self._push_spilled(entry, request, call), f"push({short(entry.object_id)})")

    async def _push_spilled(self, entry: ObjectEntry, request: ReadChunk, call: Call) -> None:
        chunk = await self._read_spilled(entry, request.start, request.size)
        if chunk is None:
            call.reply(ChunkReply(False))
            self.pushes.on_sent(request.size)
        else:
            view = lasting_view(chunk, 0, request.size, self._post, self.pushes.on_sent, request.size)
            call.reply(ChunkReply(True), [view])

    def _lasting_view(self, entry: ObjectEntry, start: int, size: int) -> memoryview:
        """Return a view that keeps the copy pinned as long as it, or a view made of it, lives."""
        self._push_count += 1
        self.pushed_bytes += size
        pin = b"send" + self._push_count.to_bytes(8, "big")
        self.store.table.pin(entry, pin, b"")
        arena, place = self.store.place(entry)
        return lasting_view(arena, place + start, size, self._post, self._on_sent, pin, size)

    def _on_sent(self, pin: bytes, size: int) -> None:
        self.store.unpin([pin])
        self.pushes.on_sent(size)
