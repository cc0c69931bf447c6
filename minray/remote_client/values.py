"""A client's large values: they are sent to the object store of the driver process's node in chunks, and read from there.

Ray: python/ray/util/client/worker.py (Worker._put_pickled, Worker._get), chunk_put in python/ray/util/client/dataclient.py

It implements ``LargeValues``. The memory of the client's program is read, and that for a value that comes is written, in its
place: beside the value itself only ``WINDOW`` chunks take memory here. The driver process holds no more of them
(``store_service``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from minray.common.task_set import TaskSet
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.fetching.store_provider import (
    Fetched,
    LargeValues,
    OnFetched,
    check_created,
    why_not_pinned,
)
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import LocalRayletDiedError, ObjectLostError
from minray.object_store import layout
from minray.platform.base import Platform, PlatformError
from minray.protocol.base import Address, Record, Request
from minray.protocol.client import DropValue, EndPut, FindValues, FoundValue, PutPiece, PutValue, ReadPiece
from minray.protocol.object_store import CREATED, GET, PINNED, Place
from minray.remote_client.relay import OWN
from minray.rpc.connection import OnAnswer, Peer, answer_of, ignore
from minray.values.alignment import aligned_memory
from minray.values.serialization import Serialized

R = TypeVar("R", bound=Record)

CHUNK_BYTES = 1024 * 1024
"""Most bytes of one chunk; with what stands around it, it fits into one frame."""
WINDOW = 16
"""Number of chunks of one value that are under way: the bytes of a session's window."""


class RelayedValues:
    """Writes and reads the large values of one client."""

    def __init__(self, platform: Platform, driver: Peer) -> None:
        """``driver`` is the client's driver process."""
        self._user_code = platform.user_code
        self._driver = driver
        self._tasks = TaskSet()

    # --- in user threads

    def put(self, object_id: bytes, attempt: int, value: Serialized, owner: Address) -> Place:
        """Send a value to the store; return when the store has it.

        Raises ObjectStoreFullError, OutOfDiskError or LocalRayletDiedError.
        """
        pieces = [memoryview(value.data), *(memoryview(buffer).cast("B") for buffer in value.buffers)]
        parker = self._user_code.parker()
        outcome: list[Place | BaseException] = []
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                outcome.append(await self._put(object_id, attempt, pieces, owner))
            except BaseException as error:
                outcome.append(error.with_traceback(None))
                raise
            finally:
                parker.release()

        def begin() -> None:
            tasks.append(self._tasks.begin(_quietly(run()), "put_value"))

        def stop() -> None:
            tasks[0].cancel()

        self._user_code.post(begin)
        try:
            parker.wait(None)
        except BaseException:
            self._user_code.post(stop)
            raise
        (place,) = outcome
        if isinstance(place, PlatformError):
            raise LocalRayletDiedError(reason=str(place))
        if isinstance(place, BaseException):
            raise place
        return place

    async def _put(self, object_id: bytes, attempt: int, pieces: Sequence[memoryview], owner: Address) -> Place:
        sizes = [piece.nbytes for piece in pieces]
        reply = await self._driver.call(PutValue(object_id, attempt, owner, sizes))
        size = layout.stored_size(sizes)
        check_created(reply, size)
        if reply.status == CREATED:
            try:
                await self._send_pieces(object_id, attempt, pieces)
                await self._driver.call(EndPut(object_id, attempt, True))
            except BaseException:
                self._drop(object_id, attempt, _do_nothing)
                raise
        return Place(attempt, size, reply.raylet)

    async def _send_pieces(self, object_id: bytes, attempt: int, pieces: Sequence[memoryview]) -> None:
        async def send(index: int, start: int) -> None:
            chunk = pieces[index][start : start + CHUNK_BYTES]
            request = PutPiece(object_id=object_id, attempt=attempt, piece=index, offset=start)
            await self._ask(request, buffers=[chunk])

        await _in_window(partial(send, index, start) for index, start in _chunks([piece.nbytes for piece in pieces]))

    async def _ask(self, request: Request[R], buffers: Sequence[memoryview] = (), into: Sequence[memoryview] = ()) -> None:
        def send(on_answer: OnAnswer[R]) -> None:
            self._driver.send(request, on_answer, buffers, into)

        await answer_of(send)

    def discard_value(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        """Drop a value that was put for an attempt that ends otherwise."""
        self._user_code.post(self._drop, object_id, attempt, on_discarded)

    def _drop(self, object_id: bytes, attempt: int, on_dropped: Callable[[], None]) -> None:
        self._driver.send(EndPut(object_id, attempt, False), lambda _reply, _error, _buffers: on_dropped())

    # --- on the loop

    def fetch(
        self, objects: Sequence[LargeObject], on_fetched: OnFetched, timeout_s: float | None = None, purpose: int = GET
    ) -> None:
        """Bring objects to the driver process's node, and (to ``GET`` them) their bytes to this process."""
        self._tasks.begin(_quietly(self._fetch(objects, on_fetched, timeout_s, purpose)), "fetch_values")

    async def _fetch(
        self, objects: Sequence[LargeObject], on_fetched: OnFetched, timeout_s: float | None, purpose: int
    ) -> None:
        values: list[Fetched] = []
        wanted = [(known.object_id, known.owner, known.attempt) for known in objects]
        try:
            reply = await self._driver.call(FindValues(wanted, timeout_s, purpose))
            for known, found in zip(objects, reply.found, strict=True):
                values.append(await self._read(known, found))
        except PlatformError as error:
            lost = [
                ObjectLostError(object_id_hex=known.object_id.hex(), reason=f"the cluster cannot be reached: {error}")
                for known in objects[len(values) :]
            ]
            values += lost
        on_fetched(values)

    async def _read(self, known: LargeObject, found: FoundValue) -> Fetched:
        if found.pinned.status != PINNED:
            return why_not_pinned(known, found.pinned)
        pieces = [aligned_memory(size) for size in found.sizes]

        async def read(index: int, start: int) -> None:
            place = pieces[index][start : start + CHUNK_BYTES]
            request = ReadPiece(key=found.key, piece=index, offset=start, size=place.nbytes)
            await self._ask(request, into=[place])

        try:
            await _in_window(partial(read, index, start) for index, start in _chunks(found.sizes))
        finally:
            if found.key:
                self._driver.send(DropValue(found.key), ignore)
        data, *buffers = [piece.toreadonly() for piece in pieces] or [memoryview(b"")]
        return StoredObject(data, buffers, False, known.nested)

    def close(self) -> None:
        self._tasks.cancel()


class ClientCoreWorker(CoreWorker):
    """The core worker of a remote client, which owns its objects and submits its tasks as that of any driver."""

    def _make_provider(self) -> LargeValues:
        """Make the part that reaches the object store through the driver process."""
        reconnect_timeout_s = self.config.system_config.rpc_reconnect_timeout_s
        driver = self.peers.at(OWN, reconnect_timeout_s=reconnect_timeout_s, may_restart=False)
        values = RelayedValues(self.platform, driver)
        self._closes.append(values.close)
        return values


def _do_nothing() -> None:
    """Let a dropped value go: nobody waits for that."""


def _chunks(sizes: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Return the piece and the offset of each chunk of pieces of these sizes."""
    return [(index, start) for index, size in enumerate(sizes) for start in range(0, size, CHUNK_BYTES)]


async def _in_window(works: Iterator[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run these coroutine functions, at most ``WINDOW`` at a time. Raises the first error, and then runs no more."""

    async def run() -> None:
        for work in works:
            await work()

    running = [asyncio.ensure_future(run()) for _ in range(WINDOW)]
    try:
        await asyncio.gather(*running)
    finally:
        for one in running:
            one.cancel()


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine whose errors are reported elsewhere."""
    with suppress(Exception):
        await work
