"""The driver process's side of a client's large values: it writes and reads the object store of its node.

Ray: python/ray/util/client/server/server.py (PutObject, GetObject in chunks)

The client has no shared memory. To put a value it asks for room, sends the pieces of the value in chunks, which are copied
into the store as they come, and seals it. To get a value it asks for it, and then reads the pieces in chunks. So neither
this process nor the server between them ever holds more of a value than the chunks that are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from minray.object_store import layout
from minray.object_store.client import StoreClient
from minray.platform.base import PlatformError
from minray.protocol.base import DONE, Done
from minray.protocol.client import (
    DropValue,
    EndPut,
    FindValues,
    FindValuesReply,
    FoundValue,
    PutPiece,
    PutValue,
    ReadPiece,
)
from minray.protocol.object_store import CREATED, GET, LOST, PINNED, CreateReply, Pinned
from minray.rpc.service import Call


@dataclass(slots=True)
class _Writing:
    """A value that the client is putting."""

    view: memoryview
    """Memory of the value in the store."""
    starts: list[int]
    """Where its pieces begin."""


class StoreService:
    """Handles the requests of one client about large values."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._writing: dict[tuple[bytes, int], _Writing] = {}
        """Values that are not sealed, by object id and attempt."""
        self._reading: dict[int, list[memoryview]] = {}
        """Pieces of the values that the client is reading, by their key; the views pin them in the store."""
        self._last_key = 0

    # --- putting

    async def handle_PutValue(self, request: PutValue, call: Call) -> CreateReply:
        size = layout.stored_size(request.sizes)
        created: asyncio.Future[CreateReply] = asyncio.get_running_loop().create_future()

        def on_created(reply: CreateReply | None, error: PlatformError | None) -> None:
            if created.done():
                return
            if reply is None:
                assert error is not None
                created.set_exception(error)
            else:
                created.set_result(reply)

        self._store.create(request.object_id, request.attempt, size, request.owner, on_created)
        reply = await created
        if reply.status == CREATED:
            view = self._store.view(reply.offset, size)
            starts = layout.begin(view, request.sizes)
            self._writing[request.object_id, request.attempt] = _Writing(view, starts)
        return reply

    def handle_PutPiece(self, request: PutPiece, call: Call) -> Done:
        writing = self._writing.get((request.object_id, request.attempt))
        if writing is not None:  # else the put was dropped meanwhile
            (data,) = call.buffers
            start = writing.starts[request.piece] + request.offset
            writing.view[start : start + len(data)] = data
        return DONE

    def handle_EndPut(self, request: EndPut, call: Call) -> Done | None:
        self._writing.pop((request.object_id, request.attempt), None)
        if not request.is_kept:
            self._store.abort(request.object_id, request.attempt, partial(call.reply, DONE))
            return None

        def on_sealed(error: PlatformError | None) -> None:
            if error is None:
                call.reply(DONE)
            else:
                call.fail("store", str(error))

        self._store.seal(request.object_id, request.attempt, on_sealed)
        return None

    # --- getting

    def handle_FindValues(self, request: FindValues, call: Call) -> None:
        def on_pinned(pinned: Sequence[memoryview | Pinned]) -> None:
            call.reply(FindValuesReply([self._found(one, request.purpose) for one in pinned]))

        self._store.pin(request.wanted, request.purpose, request.timeout_s, on_pinned)

    def _found(self, pinned: memoryview | Pinned, purpose: int) -> FoundValue:
        if isinstance(pinned, Pinned):
            return FoundValue(pinned)
        if purpose != GET:
            return FoundValue(Pinned(PINNED))
        try:
            pieces = layout.read(pinned)
        except ValueError as error:
            return FoundValue(Pinned(LOST, reason=str(error)))
        self._last_key += 1
        self._reading[self._last_key] = pieces
        return FoundValue(Pinned(PINNED), self._last_key, [piece.nbytes for piece in pieces])

    def handle_ReadPiece(self, request: ReadPiece, call: Call) -> None:
        pieces = self._reading.get(request.key)
        if pieces is None:
            call.fail("store", "this value was dropped")
            return
        call.reply(DONE, [pieces[request.piece][request.offset : request.offset + request.size]])

    def handle_DropValue(self, request: DropValue, call: Call) -> Done:
        self._reading.pop(request.key, None)
        return DONE
