"""Writes large values into the object store of this node, and reads them from there.

Ray: src/ray/core_worker/store_provider/plasma_store_provider.h

``put`` is for user threads, which park meanwhile; ``fetch`` is for the loop. The ``Place`` of a stored value travels in its
stead. A fetched value is a ``StoredObject`` whose pieces lie in the arena. It stays pinned there as long as one of the
pieces is in use. An object that was made again after its place was sent here is ``CHANGED``: the references inside may have
other names now (``ValueFetcher`` asks for them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from minray.common.ids import short
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import call_for
from minray.exceptions import (
    LocalRayletDiedError,
    ObjectFreedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OwnerDiedError,
    RayError,
)
from minray.object_store import layout
from minray.object_store.client import StoreClient
from minray.platform.base import MemoryFailed, Parker, Platform, PlatformError
from minray.protocol.base import Address
from minray.protocol.object_store import (
    CHANGED,
    CREATED,
    FREED,
    FULL,
    GET,
    NO_ROOM,
    NOT_HERE,
    OUT_OF_DISK,
    OWNER_DIED,
    CreateReply,
    Pinned,
    Place,
)
from minray.values.serialization import Serialized

T = TypeVar("T")


class Changed:
    """Stands for a value about which this process's knowledge is out of date."""


CHANGED_VALUE = Changed()
Fetched = StoredObject | RayError | Changed | None
"""A value, or the reason why there is none; None: the value has not come in time."""


class _Answer(Generic[T]):
    """An answer that a user thread waits for."""

    def __init__(self, parker: Parker) -> None:
        self.parker = parker
        self._answer: tuple[T | None, PlatformError | None] | None = None

    def set(self, reply: T | None, error: PlatformError | None) -> None:
        self._answer = reply, error
        self.parker.release()

    def wait(self) -> tuple[T | None, PlatformError | None]:
        self.parker.wait(None)
        assert self._answer is not None
        return self._answer


OnFetched = Callable[[list[Fetched]], None]


class LargeValues(Protocol):
    """Writes and reads the large values of one process, which are in the object store of its node.

    ``StoreProvider`` shares the memory of that store. A remote client reaches it through its driver process.
    """

    def put(self, object_id: bytes, attempt: int, value: Serialized, owner: Address) -> Place:
        """Write a value into the store; for user threads, which park meanwhile."""

    def discard_value(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        """Delete a value that this process has put for an attempt that ends otherwise; for any thread.

        ``on_discarded`` is called on the loop when the store knows it, or is gone.
        """

    def fetch(
        self, objects: Sequence[LargeObject], on_fetched: OnFetched, timeout_s: float | None = None, purpose: int = GET
    ) -> None:
        """Bring objects to this node; on the loop."""


class StoreProvider:
    """Writes and reads the large values of one process."""

    def __init__(self, platform: Platform, client: StoreClient) -> None:
        self._user_code = platform.user_code
        self._client = client
        self._memory = platform.memory

    # --- in user threads

    def put(self, object_id: bytes, attempt: int, value: Serialized, owner: Address) -> Place:
        """Write a value into the store; each byte is copied once.

        Raises ObjectStoreFullError, OutOfDiskError or LocalRayletDiedError. A value of another owner stays in the store even
        if this process dies right after the put, so that the owner finds it. Hence the thread waits until the store knows
        that the value is complete, or after an error that it is dropped. A value of this process ends with it anyway, so the
        thread does not wait for that; a reader waits at the store.
        """
        pieces = [memoryview(value.data), *(memoryview(buffer) for buffer in value.buffers)]
        size = layout.stored_size([piece.nbytes for piece in pieces])
        user_code = self._user_code
        created = _Answer[CreateReply](user_code.parker())
        sealed = _Answer[None](user_code.parker())
        try:
            user_code.post(call_for, created.parker, self._client.create, object_id, attempt, size, owner, created.set)
            place = self._write(size, attempt, pieces, *created.wait())
            if self._client.is_own(owner):
                user_code.post(self._client.seal, object_id, attempt, _do_nothing)
                return place
            user_code.post(call_for, sealed.parker, self._client.seal, object_id, attempt, partial(sealed.set, None))
            _, error = sealed.wait()
            if error is not None:
                raise LocalRayletDiedError(reason=str(error))
        except BaseException:
            dropped = user_code.parker()
            self.discard_value(object_id, attempt, dropped.release)
            if not self._client.is_own(owner):
                dropped.wait(None)
            raise
        return place

    def _write(
        self, size: int, attempt: int, pieces: Sequence[memoryview], reply: CreateReply | None, error: PlatformError | None
    ) -> Place:
        if reply is None:
            raise LocalRayletDiedError(reason=str(error))
        check_created(reply, size)
        if reply.status == CREATED:
            try:
                layout.write(self._client.view(reply.offset, size), pieces, self._memory.copy)
            except MemoryFailed as failure:
                raise LocalRayletDiedError(reason=str(failure)) from None
        return Place(attempt, size, reply.raylet)

    def discard_value(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        """Delete a value that this process has put for an attempt that ends otherwise; for any thread."""
        self._user_code.post(self._client.abort, object_id, attempt, on_discarded)

    # --- on the loop

    def fetch(
        self,
        objects: Sequence[LargeObject],
        on_fetched: OnFetched,
        timeout_s: float | None = None,
        purpose: int = GET,
    ) -> None:
        """Bring objects to this node with one request to its raylet, which also watches the timeout."""

        def on_pinned(pinned: list[memoryview | Pinned]) -> None:
            on_fetched([read_value(known, one) for known, one in zip(objects, pinned, strict=True)])

        wanted = [(known.object_id, known.owner, known.attempt) for known in objects]
        self._client.pin(wanted, purpose, timeout_s, on_pinned)


def _do_nothing(_error: PlatformError | None) -> None:
    """Ignore the error: a process that has lost its raylet has lost its cluster, and learns of that in another way."""


def check_created(reply: CreateReply, size: int) -> None:
    """Raise ObjectStoreFullError or OutOfDiskError if the store has no room for an object of this size."""
    if reply.status == FULL:
        raise ObjectStoreFullError(needed_bytes=size, reason=reply.reason)
    if reply.status == OUT_OF_DISK:
        raise OutOfDiskError(reason=reply.reason)


def read_value(known: LargeObject, pinned: memoryview | Pinned) -> Fetched:
    """Return the value in this memory, or why there is none."""
    if isinstance(pinned, Pinned):
        return why_not_pinned(known, pinned)
    try:
        data, *buffers = layout.read(pinned)
    except ValueError as error:
        return ObjectLostError(object_id_hex=known.object_id.hex(), reason=f"object {short(known.object_id)}: {error}")
    return StoredObject(data, buffers, False, known.nested)


def why_not_pinned(known: LargeObject, pinned: Pinned) -> RayError | Changed | None:
    """Return why an object cannot be read; None: it has not come in time."""
    if pinned.status == NOT_HERE:
        return None
    if pinned.status == CHANGED:
        return CHANGED_VALUE
    owner, name = known.owner.endpoint, known.object_id.hex()
    if pinned.status == OWNER_DIED:
        return OwnerDiedError(object_id_hex=name, owner=owner, reason=pinned.reason)
    if pinned.status == FREED:
        return ObjectFreedError(object_id_hex=name, owner=owner, reason=pinned.reason)
    if pinned.status == NO_ROOM:
        return ObjectStoreFullError(needed_bytes=pinned.size, reason=pinned.reason)
    return ObjectLostError(object_id_hex=name, owner=owner, reason=pinned.reason)
