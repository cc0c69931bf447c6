"""A process's hand in the arena of its node.

Ray: src/ray/object_manager/plasma/client.h

A client maps the arena once, when it first needs it, and the one on disk (``Fallback``), where offsets go on. It asks the
store where it may write, writes, and seals; or it asks where an object is, which pins it, and reads there. The pin is given
back when the last view of that memory has gone, however long the user keeps an array that lies in it (G61): every view is
made of one numpy array, whose finalizer says so. A pin that was refused is given back, too: the question may come to the
store twice, and late (G112), and then nobody here waits for what it gets.

Everything here runs on the loop, but for ``view`` and what the finalizers do.
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
from minray.rpc.connection import Peer, ignore

OnCreated = Callable[[CreateReply | None, PlatformError | None], None]
OnPinned = Callable[[list[memoryview | Pinned]], None]
"""For each object its memory, or why it cannot be read."""


class StoreClient:
    """The client of one process."""

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
        """Told on the loop that the arena cannot be mapped, before anybody else hears of that."""
        self._pin_count = 0
        self._released: Batch[bytes] = Batch(raylet.send, ReleasePins)

    def is_own(self, owner: Address) -> bool:
        """Whether that is the client's process."""
        return owner.worker_id == self._worker_id

    # --- writing

    def create(self, object_id: bytes, attempt: int, size: int, owner: Address, on_created: OnCreated) -> None:
        """Room for an object: where in the arena this process may write."""

        def on_answer(reply: CreateReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            on_created(reply, error)

        self._raylet.send(CreateObject(object_id, attempt, size, owner, self._worker_id), on_answer)

    def seal(self, object_id: bytes, attempt: int, on_sealed: Callable[[PlatformError | None], None]) -> None:
        """It is written. ``on_sealed`` hears when the store knows, or that there is no store any more."""

        def on_answer(_reply: Done | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            on_sealed(error)

        self._raylet.send(SealObject(object_id, attempt), on_answer)

    def abort(self, object_id: bytes, attempt: int) -> None:
        """It will not be written, or was written in vain."""
        self._raylet.send(AbortObject(object_id, attempt), ignore)

    def view(self, offset: int, size: int) -> memoryview:
        """Memory that this process was given to write in; any thread. Raises MemoryFailed."""
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
        """Bring these objects to this node and pin them; those that come in time, if there is one.

        Each comes with its owner and the attempt that is known.
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
        """Read-only; the object stays where it is as long as this view lives, or one made of it."""
        try:
            arena, start = self._place(pinned.offset)
        except MemoryFailed as error:
            self._on_unreachable(str(error))
            self._release(pin)
            return Pinned(LOST, reason=str(error))
        post = self._platform.user_code.post_later
        return lasting_view(arena.toreadonly(), start, pinned.size, post, self._release, pin)

    def _place(self, offset: int) -> tuple[memoryview, int]:
        """The arena in which this is, and where in it. Raises MemoryFailed."""
        arena = self._platform.memory.attach(self._endpoint)
        if offset < len(arena):
            return arena, offset
        return self._platform.memory.attach(self._fallback_endpoint), offset - len(arena)

    def _release(self, pin: bytes) -> None:
        self._released.add([pin])
