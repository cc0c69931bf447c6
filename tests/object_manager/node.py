"""One node's object store and object manager; its clients, the owners, and the other nodes are the test.

``@story`` makes a test of a coroutine that is given a ``Node``, in virtual time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from minray.object_manager.object_manager import ObjectManager
from minray.object_store.allocator import ALIGNMENT
from minray.object_store.object_entry import ObjectEntry
from minray.object_store.store import ObjectStore
from minray.platform.base import PlatformError
from minray.protocol.base import DONE, Address
from minray.protocol.core_worker import KNOWN, GetObjectLocations, LocationChange, ObjectLocations
from minray.protocol.object_store import GET, ChunkReply, OpenLanes, OpenLanesReply, Pinned, ReadChunk, Wanted
from tests.object_store.copies import OWNERS, WORKERS, FakeSpilling, object_id
from tests.parameters import without_first
from tests.platform_record import platform_record, raylet_config
from tests.rpc.fake_network import pass_time, run
from tests.rpc.recording_call import RecordingCall

CHUNK_BYTES = ALIGNMENT
BLOCKS = 16
OWNER = OWNERS[1]
A = object_id("a")


def raylet(name: str) -> Address:
    node_id = name.encode().ljust(16, b"-")
    return Address(node_id, node_id, f"sim:{name}")


HERE = raylet("here")


class Asked(NamedTuple):
    """A chunk that another node was asked for, and how it answers."""

    to: Address
    chunk: ReadChunk
    into: memoryview
    on_answer: Callable[..., None]

    def answer(self, value: int | None) -> None:
        """With bytes of this value, or None: it has no copy."""
        if value is not None:
            self.into[:] = bytes([value]) * len(self.into)
        self.on_answer(ChunkReply(value is not None), None, ())

    def fail(self) -> None:
        self.on_answer(None, PlatformError("gone"), ())


class Served(RecordingCall):
    """A chunk that another node has asked for here: its replies are the bytes, or None if no such copy is here."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[Any] = []
        """Buffers that the transport still holds."""

    def reply(self, record: ChunkReply, buffers: Sequence[memoryview] = ()) -> None:
        self.views += buffers
        self.replies.append(bytes(buffers[0]) if record.is_here else None)

    def let_go(self) -> None:
        self.views.clear()
        gc.collect(0)


class OneWay(NamedTuple):
    """Play ``Peer`` for a part that only sends: each message goes to this function."""

    send: Callable[..., None]


class Node:
    """See the head of this file."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.asked: list[Asked] = []
        """Chunks that other nodes were asked for, unless the test has taken them."""
        self.questions: asyncio.Queue[tuple[GetObjectLocations, asyncio.Future[Any]]] = asyncio.Queue()
        self.reports: list[LocationChange] = []
        """Changes of places that owners were told."""
        self.disk: asyncio.Queue[asyncio.Future[memoryview | None]] = asyncio.Queue()
        """Reads from it."""
        self._wishes = 0
        platform = platform_record(user_code=self)
        config = raylet_config(HERE.node_id, object_manager_default_chunk_size=chunk_bytes)
        spiller: Any = FakeSpilling()
        others: Any = self
        self.manager = ObjectManager(platform, config, others, others, lambda: self.store, lambda: HERE, self._read_spilled)
        self.store = ObjectStore(
            platform,
            BLOCKS * ALIGNMENT,
            2.0,
            lambda: HERE,
            self.manager.fetch,
            self.manager.on_evicted,
            lambda: spiller,
            bool,
        )
        self.store.arena = others
        self.view = memoryview(bytearray(BLOCKS * ALIGNMENT))
        """Memory of the arena."""

    # --- what is around it

    def post(self, callback: Callable[..., None], *arguments: Any) -> None:
        callback(*arguments)

    def to(self, address: Address) -> Any:
        """A peer; what owners are told is sent with ``send`` of this node."""

        def send(request: Any, on_answer: Callable[..., None], buffers: Any = (), into: Any = ()) -> None:
            if isinstance(request, OpenLanes):
                on_answer(OpenLanesReply([]), None, ())
            else:
                self.asked.append(Asked(address, request, into[0], on_answer))

        return OneWay(send)

    def send(self, to: Address, report: Any, on_answer: Callable[..., None]) -> None:
        self.reports += report.changes
        on_answer(DONE, None, ())

    async def call(self, owner: Address, question: GetObjectLocations) -> ObjectLocations:
        answer: asyncio.Future[ObjectLocations] = asyncio.get_running_loop().create_future()
        self.questions.put_nowait((question, answer))
        return await answer

    async def _read_spilled(self, entry: ObjectEntry, start: int, size: int) -> memoryview | None:
        read: asyncio.Future[memoryview | None] = asyncio.get_running_loop().create_future()
        self.disk.put_nowait(read)
        return await read

    # --- what the test says

    def want(self, key: bytes = A, attempt: int = 0, purpose: int = GET) -> list[Pinned]:
        """A client wants to read it; what it was answered."""
        answers: list[Pinned] = []
        self._wishes += 1
        pin = f"pin {self._wishes}".encode()
        self.store.pin_together(WORKERS[1], [Wanted(key, OWNER, pin, attempt)], purpose, answers.extend)
        return answers

    async def owner_says(self, *raylets: str, blocks: int = 1, **fields: Any) -> GetObjectLocations:
        """The answer to the next question of where it is: on these nodes, unless ``fields`` say otherwise."""
        question, answer = await self.questions.get()
        values = {"attempt": 0, "size": blocks * ALIGNMENT, "raylets": [*map(raylet, raylets)], "turn": 1, **fields}
        answer.set_result(ObjectLocations(values.pop("status", KNOWN), **values))
        await pass_time(0)
        await pass_time(0)
        return question

    async def owner_is_dead(self) -> None:
        _, answer = await self.questions.get()
        answer.set_exception(PlatformError("dead"))
        await pass_time(0)

    def take(self) -> list[Asked]:
        """Chunks that were asked for since the last time."""
        taken, self.asked = self.asked, []
        return taken

    def put(self, key: bytes = A, blocks: int = 1, value: int = 1, is_primary: bool = True, attempt: int = 0) -> ObjectEntry:
        """A copy that a worker here has made."""
        creator = WORKERS[0] if is_primary else b""
        entry = self.store.table.create(key, attempt, blocks * ALIGNMENT, OWNER, creator, is_primary)
        assert entry is not None
        self.store.view(entry)[:] = bytes([value]) * entry.size
        self.store.seal(entry)
        return entry

    def serve(self, start: int = 0, blocks: int = 1, key: bytes = A, attempt: int = 0, turn: int = 99) -> Served:
        """Another node asks for these blocks."""
        served: Any = Served()
        chunk = ReadChunk(key, attempt, start * ALIGNMENT, blocks * ALIGNMENT, turn)
        reply = self.manager.handle_ReadChunk(chunk, served)
        if reply is not None:
            served.reply(reply)
        return served

    def holds(self, key: bytes = A) -> bytes:
        """Bytes of an object that are here, one byte for each block."""
        entry = self.store.table.find(key)
        return b"" if entry is None else bytes(self.store.view(entry)[::ALIGNMENT])


def story(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of it, whose parameters are those that it has beside the node."""

    def told(**parameters: Any) -> None:
        async def tell() -> None:
            node = Node()
            try:
                await test(node, **parameters)
            finally:
                await node.manager.close()

        run(tell)

    return without_first(test, told)
