"""The calls and messages of the gRPC transport, and how both sides check them.

Ray: src/ray/protobuf/ (there each service has methods of its own), src/ray/rpc/common.h

    /minray.Session/Open       stream    the handshake, a ticket, then silence; the channel lives as long as this stream
    /minray.Session/Prove      stream    the client's second word of that handshake, for the challenge that it names
    /minray.Rpc/<Method>       unary     ``[call_id, sequence, payload, buffer sizes]`` -> the answer, of the same shape
    /minray.Session/Exchange   stream    lists of ``[method, call_id, payload]`` one way, and of answers the other
    /minray.Session/Upload     client    ``[call_id, buffer sizes]``, then the bytes of a request's buffers, in pieces
    /minray.Session/Download   server    ``call_id`` -> the bytes of a reply's buffers, in pieces
    /minray.Session/Close      unary     ``number of messages sent`` -> an answer when all of them have arrived

What a client says in the handshake is metadata, which gRPC limits to a few kilobytes. A message could have 64 MiB, and many
could come at once, before anybody has proven anything.

An answer has the kind of its failure (empty for success) in the place of the call id. A ``call_id`` of 0 is a notification.
A channel may send its requests without buffers in one ``Exchange`` instead of a call for each. The answer to such a request
comes there too, as ``[call_id, failure, payload, buffer sizes]``. A remote client's channels do so, because a message of an
open stream costs both sides about half of what a call costs.

The ticket is the key of a session: 32 random bytes. Every call except ``Open`` and ``Prove`` carries it as metadata. The
cluster token itself is never sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated

import grpc
import grpc.aio
import msgspec

from minray.common import decoding
from minray.platform.base import CHUNK_BYTES, MAX_RECORD_BYTES, Buffer, Counters
from minray.platform.transport.destinations import DoesNotFit
from minray.platform.transport.handshake import HANDSHAKE_TIMEOUT_S

MAX_CALLS_IN_FLIGHT = 2000
MAX_MESSAGE_BYTES = MAX_RECORD_BYTES + 64 * 1024
"""The largest gRPC message in bytes: the largest record, and room for its call id, sequence and buffer sizes."""
BATCH_BYTES = 1024 * 1024
"""Payload bytes after which a message of an ``Exchange`` takes no further request or answer."""
MAX_TRANSFER_BYTES = 64 * 1024**3
"""The largest sum of buffers, in bytes, that one message may announce: a bound on the memory that a peer can demand."""

OPEN, PROVE, EXCHANGE, UPLOAD, DOWNLOAD, CLOSE = (
    f"/minray.Session/{name}" for name in ("Open", "Prove", "Exchange", "Upload", "Download", "Close")
)
OPERATION = "/minray.Rpc/"
TICKET = "minray-ticket-bin"
"""The metadata key of the ticket (the key of a session)."""
TICKET_BYTES = 32
SAID, CHALLENGE = "minray-said-bin", "minray-challenge-bin"
"""Metadata keys of the handshake: what the client says, and the challenge that this answers."""

_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    # By default the server begins to cancel calls when 1,000 of them wait for Python.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    # A peer that connects and opens no session is dropped: one limit holds before its first HTTP/2 settings, one after.
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
    ("grpc.max_connection_idle_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
]
CHANNEL_OPTIONS = [
    *_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # Channels share no connection, so that each one breaks on its own.
]
TCP_OPTIONS = [
    # Either side pings after 10 s of silence, and breaks the connection if nothing comes for 20 s more.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]
"""Options between machines: a peer whose machine or network has vanished silently must not be waited for for ever."""

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Sizes = tuple[_Natural, ...]
encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(tuple[_Natural, _Natural, bytes, _Sizes]).decode
decode_answer = msgspec.msgpack.Decoder(tuple[str, _Natural, bytes, _Sizes]).decode
decode_requests = msgspec.msgpack.Decoder(list[tuple[str, _Natural, bytes]]).decode
decode_answers = msgspec.msgpack.Decoder(list[tuple[_Natural, str, bytes, _Sizes]]).decode
decode_upload = msgspec.msgpack.Decoder(tuple[_Natural, _Sizes]).decode
decode_number = msgspec.msgpack.Decoder(_Natural).decode

Context = grpc.aio.ServicerContext[bytes, bytes]
Stream = grpc.aio.StreamStreamCall[bytes, bytes]


class Violation(Exception):
    """The peer has broken a rule of this file; its channel ends."""


MALFORMED = (Violation, DoesNotFit, *decoding.MALFORMED)


class InOrder:
    """Delivers messages that are numbered 1, 2, 3, ... in that order, however they arrive."""

    def __init__(self) -> None:
        self._next = 1
        self._early: dict[int, Callable[[], None]] = {}
        """Deliveries of messages that have arrived before their turn, by number."""

    def arrive(self, number: int, deliver: Callable[[], None]) -> None:
        if number < self._next or number in self._early:
            raise Violation(f"message {number} came twice")
        self._early[number] = deliver
        while self._next in self._early:
            self._next += 1
            self._early.pop(self._next - 1)()


class Assembly:
    """Puts together buffers of announced sizes from pieces that come in order. Its memory grows with what has come."""

    def __init__(self, sizes: Sequence[int]) -> None:
        if sum(sizes) > MAX_TRANSFER_BYTES:
            raise Violation(f"buffers of {sum(sizes)} bytes; at most {MAX_TRANSFER_BYTES} are accepted")
        self._sizes = sizes
        self._buffers = [bytearray() for _ in sizes]
        self._filling = 0
        """Index of the first buffer that is not complete."""

    def add(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            if self._filling == len(self._sizes):
                raise Violation("more bytes than the buffers have")
            buffer = self._buffers[self._filling]
            taken = view[: self._sizes[self._filling] - len(buffer)]
            buffer += taken
            view = view[len(taken) :]
            if len(buffer) == self._sizes[self._filling]:
                self._filling += 1

    def finish(self) -> list[memoryview]:
        if any(len(buffer) < size for buffer, size in zip(self._buffers, self._sizes, strict=True)):
            raise Violation("fewer bytes than the buffers have")
        return [memoryview(buffer).toreadonly() for buffer in self._buffers]


class BatchWriter:
    """Writes to one side of an ``Exchange``. Records that are added while a message is on its way
    leave together in the next."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], counters: Counters) -> None:
        self._write = write
        self._counters = counters
        self._waiting: deque[tuple[int, tuple[object, ...]]] = deque()
        """Records that are not written yet, each with the bytes of its payload."""
        self._writing: asyncio.Task[None] | None = None
        """Writes what waits; None while nothing does."""

    def add(self, record: tuple[object, ...], size_bytes: int) -> None:
        """Send a request or an answer, whose payload has this size."""
        self._waiting.append((size_bytes, record))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="write an exchange")

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                message = encode(self._take_batch())
                count_frame(self._counters, message)
                await self._write(message)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            pass  # the stream has ended, and its reader says why
        finally:
            self._waiting.clear()
            self._writing = None

    def _take_batch(self) -> list[tuple[object, ...]]:
        size_bytes, record = self._waiting.popleft()
        batch = [record]
        while self._waiting and size_bytes + self._waiting[0][0] <= BATCH_BYTES:
            more_bytes, record = self._waiting.popleft()
            size_bytes += more_bytes
            batch.append(record)
        return batch

    async def finish(self) -> None:
        """Return when everything that was added is written, or cannot be."""
        if self._writing is not None:
            await asyncio.wait([self._writing])


def sizes_of(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    return tuple([memoryview(buffer).nbytes for buffer in buffers]) if buffers else ()


def pieces(buffers: Sequence[Buffer], counters: Counters) -> Iterator[bytes]:
    for buffer in buffers:
        view = memoryview(buffer)
        flat = view.cast("B") if view.nbytes else view
        for start in range(0, view.nbytes, CHUNK_BYTES):
            piece = bytes(flat[start : start + CHUNK_BYTES])
            count_frame(counters, piece)
            yield piece


def count_frame(counters: Counters, message: bytes) -> None:
    counters.frames += 1
    counters.bytes += len(message)
