"""The object store's client in a worker or driver: it writes and reads the arena of its node.

Ray: src/ray/object_manager/plasma/client.h

A client maps the arena once, when it first needs it, and likewise the fallback arena on disk, whose offsets continue the
first. To write, it asks the store for a place, writes there, and seals. To read, it asks where an object is, which pins it,
and reads there. The pin is given back when the last view of that memory is gone, however long the user keeps an array in it
(G61). Every view derives from one numpy array, whose finalizer gives the pin back. A refused pin is given back, too. The
request may reach the store again later (G112), and would then pin an object that no process here reads.

Everything here runs on the loop, except ``view`` and the finalizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minray.object_store.layout import lasting_view
from minray.platform.base import MemoryFailed, Platform, PlatformError
from minray.protocol.base import Address, Done
from minray.protocol.object_store import (
    LOST,
    PINNED,
    AbortObject,
    CreateObject,
    CreateReply,
    Pinned,
    PinObjects,
    PinReply,
    ReleasePins,
    SealObject,
    Wanted,
)
from minray.rpc.batch import Batch
from minray.rpc.connection import Peer

OnCreated = Callable[[CreateReply | None, PlatformError | None], None]
OnPinned = Callable[[list[memoryview | Pinned]], None]
"""Callback that receives, for each object, its memory or the reason why it cannot be read."""


class StoreClient:
    """Writes objects into the arena and reads them, for one process."""

    def __init__(
        self,
        platform: Platform,
        raylet: Peer,
        worker_id: bytes,
        endpoint: str,
        fallback_endpoint: str,
        on_unreachable: Callable[[str], None],
    ) -> None:
        self._platform = platform
        self._raylet = raylet
        self._worker_id = worker_id
        self._endpoint = endpoint
        self._fallback_endpoint = fallback_endpoint
        self._on_unreachable = on_unreachable
        """Called on the loop when the arena cannot be mapped, before any caller gets the error."""
        self._pin_count = 0
        self._released: Batch[bytes] = Batch(raylet.send, ReleasePins)

    def is_own(self, owner: Address) -> bool:
        """Tell whether an owner is this client's process."""
        return owner.worker_id == self._worker_id

    # --- writing

    def create(self, object_id: bytes, attempt: int, size: int, owner: Address, on_created: OnCreated) -> None:
        """Ask the store for room for an object, that is, for an offset where this process may write."""

        def on_answer(reply: CreateReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            on_created(reply, error)

        self._raylet.send(
            CreateObject(object_id=object_id, attempt=attempt, size=size, owner=owner, creator=self._worker_id), on_answer
        )

    def seal(self, object_id: bytes, attempt: int, on_sealed: Callable[[PlatformError | None], None]) -> None:
        """Seal a written object. ``on_sealed`` is called when the store knows it, or with the error if the store is gone."""

        def on_answer(_reply: Done | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            on_sealed(error)

        self._raylet.send(SealObject(object_id, attempt), on_answer)

    def abort(self, object_id: bytes, attempt: int, on_aborted: Callable[[], None]) -> None:
        """Drop an object that will not be written, or whose value is not needed after all.

        ``on_aborted`` is called when the store knows it, or is gone.
        """
        self._raylet.send(AbortObject(object_id, attempt), lambda _reply, _error, _buffers: on_aborted())

    def view(self, offset: int, size: int) -> memoryview:
        """Return the memory that this process was given to write to; any thread may ask. Raises MemoryFailed."""
        try:
            arena, start = self._place(offset)
            return arena[start : start + size]
        except MemoryFailed as error:
            self._platform.user_code.post(self._on_unreachable, str(error))
            raise

    # --- reading

    def pin(
        self, objects: Sequence[tuple[bytes, Address, int]], purpose: int, timeout_s: float | None, on_pinned: OnPinned
    ) -> None:
        """Pull objects to this node and pin those that arrive within ``timeout_s`` (None: no limit).

        ``objects`` holds, for each, its id, its owner and the attempt that the client knows.
        """
        wanted: list[Wanted] = []
        for object_id, owner, attempt in objects:
            self._pin_count += 1
            pin = self._worker_id[:12] + self._pin_count.to_bytes(8, "big")
            wanted.append(Wanted(object_id, owner, pin, attempt))

        def on_answer(reply: PinReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is None:
                on_pinned([Pinned(LOST, reason=f"the object store of this node is gone: {error}")] * len(wanted))
                return
            views: list[memoryview | Pinned] = []
            for asked, pinned in zip(wanted, reply.pinned, strict=True):
                if pinned.status == PINNED:
                    views.append(self._lasting_view(asked.pin, pinned))
                else:
                    views.append(pinned)
                    self._release(asked.pin)
            on_pinned(views)

        self._raylet.send(PinObjects(self._worker_id, wanted, purpose, timeout_s), on_answer)

    def _lasting_view(self, pin: bytes, pinned: Pinned) -> memoryview | Pinned:
        """Return a read-only view; the object stays pinned as long as this view, or one made of it, lives."""
        try:
            arena, start = self._place(pinned.offset)
        except MemoryFailed as error:
            self._on_unreachable(str(error))
            self._release(pin)
            return Pinned(LOST, reason=str(error))
        post = self._platform.user_code.post_later
        return lasting_view(arena.toreadonly(), start, pinned.size, post, self._release, pin)

    def _place(self, offset: int) -> tuple[memoryview, int]:
        """Return the arena that contains an offset, and the position in it. Raises MemoryFailed."""
        arena = self._platform.memory.attach(self._endpoint)
        if offset < len(arena):
            return arena, offset
        return self._platform.memory.attach(self._fallback_endpoint), offset - len(arena)

    def _release(self, pin: bytes) -> None:
        self._released.add([pin])
