"""Large values: from this process into the object store of its node, and back.

Ray: src/ray/core_worker/store_provider/plasma_store_provider.h

``put`` and ``get`` are for user threads, which park meanwhile; ``fetch`` is the same as ``get`` for the loop. What was put
is described by its ``Place``, which travels in its stead; what was fetched is a ``StoredObject`` whose pieces lie in the
arena, and stays there for as long as one of them is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minray.common.ids import short
from minray.core_worker.memory_store import StoredObject
from minray.exceptions import LocalRayletDiedError, ObjectLostError, ObjectStoreFullError, OwnerDiedError, RayError
from minray.object_store import layout
from minray.object_store.client import StoreClient
from minray.platform.base import MemoryFailed, Platform, PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo
from minray.protocol.object_store import CREATED, FULL, OWNER_DIED, CreateReply, Pinned, Place
from minray.serialization import Serialized


class LargeObject(NamedTuple):
    """What is known of a large object before its value is here."""

    object_id: bytes
    owner: Address
    nested: Sequence[RefInfo]


OnFetched = Callable[[list[StoredObject | RayError]], None]


class StoreProvider:
    """The provider of one process."""

    def __init__(self, platform: Platform, client: StoreClient) -> None:
        self._user_code = platform.user_code
        self._client = client

    # --- in user threads

    def put(self, object_id: bytes, attempt: int, value: Serialized, owner: Address) -> Place:
        """Write a value into the store; each byte is copied once. Raises ObjectStoreFullError, LocalRayletDiedError."""
        pieces = [memoryview(value.data), *(memoryview(buffer) for buffer in value.buffers)]
        size = layout.stored_size([piece.nbytes for piece in pieces])
        user_code = self._user_code
        if user_code.is_loop_thread():
            raise RuntimeError("a large value cannot be put in minray's own thread, which must not block")
        parker = user_code.parker()
        answer: list[tuple[CreateReply | None, PlatformError | None]] = []

        def on_created(reply: CreateReply | None, error: PlatformError | None) -> None:
            answer.append((reply, error))
            parker.release()

        user_code.post(self._client.create, object_id, attempt, size, owner, on_created)
        try:
            parker.wait(None)
            place = self._write(size, attempt, pieces, *answer[0])
        except BaseException:
            user_code.post(self._client.abort, object_id, attempt)
            raise
        user_code.post(self._client.seal, object_id, attempt)
        return place

    def _write(
        self, size: int, attempt: int, pieces: Sequence[memoryview], reply: CreateReply | None, error: PlatformError | None
    ) -> Place:
        if reply is None:
            raise LocalRayletDiedError(reason=str(error))
        if reply.status == FULL:
            raise ObjectStoreFullError(needed_bytes=size, reason=reply.reason)
        if reply.status == CREATED:
            try:
                layout.write(self._client.view(reply.offset, size), pieces)
            except MemoryFailed as failure:
                raise LocalRayletDiedError(reason=str(failure)) from None
        return Place(attempt, size, reply.raylet)

    def discard(self, object_ids: Sequence[bytes], attempt: int) -> None:
        """Take back what this process has put for an attempt that ends otherwise."""
        for object_id in object_ids:
            self._user_code.post(self._client.abort, object_id, attempt)

    def get(self, objects: Sequence[LargeObject], timeout_s: float | None) -> list[StoredObject | RayError] | None:
        """The values, or why there are none; None if the time is up."""
        parker = self._user_code.parker()
        fetched: list[list[StoredObject | RayError]] = []

        def on_fetched(values: list[StoredObject | RayError]) -> None:
            fetched.append(values)
            parker.release()

        self._user_code.post(self.fetch, objects, on_fetched)
        parker.wait(timeout_s)
        return fetched[0] if fetched else None

    # --- on the loop

    def fetch(self, objects: Sequence[LargeObject], on_fetched: OnFetched) -> None:
        """Bring them to this node, all in one question to its raylet."""

        def on_pinned(pinned: list[memoryview | Pinned]) -> None:
            on_fetched([_value(known, one) for known, one in zip(objects, pinned, strict=True)])

        self._client.pin([(known.object_id, known.owner) for known in objects], on_pinned)


def _value(known: LargeObject, pinned: memoryview | Pinned) -> StoredObject | RayError:
    if isinstance(pinned, Pinned):
        owner, name = known.owner.endpoint, known.object_id.hex()
        if pinned.status == OWNER_DIED:
            return OwnerDiedError(object_id_hex=name, owner=owner, reason=pinned.reason)
        return ObjectLostError(object_id_hex=name, owner=owner, reason=pinned.reason)
    try:
        data, *buffers = layout.read(pinned)
    except ValueError as error:
        return ObjectLostError(object_id_hex=known.object_id.hex(), reason=f"object {short(known.object_id)}: {error}")
    return StoredObject(data, buffers, False, known.nested)
