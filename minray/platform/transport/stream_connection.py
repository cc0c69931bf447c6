"""Frames: the life of one connection after its handshake, on either side.

Ray: src/ray/raylet_ipc_client/client_connection.cc (framed messages on unix sockets; between machines Ray has gRPC only)

    frame    u32 length, then a batch or a chunk
    batch    MessagePack: an array of messages ``[call_id, word, payload, buffer sizes]``; an empty array is a goodbye
    chunk    0xC1 (the byte that MessagePack never uses), u64 call_id, u32 buffer index, then raw bytes of that buffer

``word`` is the method of a request, and in a reply the kind of its failure (empty for success). ``call_id`` is 0 in a
notification. Only the side that connected sends requests, so the direction tells requests from replies.

Rules
  * Messages that are sent during one turn of the loop leave as one frame. Messages that callbacks send while a frame is
    being read leave as soon as it has been read. Those of posted callbacks leave as soon as the callbacks have been called.
  * Buffers follow the message that announces them, in chunks (``ChunkWriter``), so that a small message overtakes the rest
    of a gigabyte. A message is delivered when its buffers are complete. So **the order of messages holds among those without
    buffers**.
  * The kernel should hold much of a large chunk before it wakes the loop: Python is slow after copying has emptied caches.
  * A buffer's memory is allocated in one piece when its first chunk begins, unless the caller of ``call`` has given memory.
    The rest of a chunk is received straight into its place if it is large enough to be worth a call of its own.
  * After a connection has ended, nothing is written into any buffer: bytes that still come are dropped.
  * A peer that breaks a rule is cut off, and logged at most once a minute. None of its bytes are ever unpickled here.
  * Exceptions of callbacks are our bugs: they are logged, and the connection goes on.

Left out: a limit on the bytes that wait to be written to a slow peer. The sender must limit what it sends.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec

from minray.common.decoding import MALFORMED
from minray.common.peer_log import KNOWN_PEERS, PeerLog
from minray.platform.base import (
    CHUNK_BYTES,
    MAX_RECORD_BYTES,
    Buffer,
    ChannelBroken,
    Counters,
    OnIncoming,
    OnReply,
    RecordTooLarge,
    RemoteFailure,
)
from minray.platform.transport.chunk_writer import CHUNK_HEAD, CHUNK_MARK, CHUNK_START, ChunkWriter, descriptor_of
from minray.platform.transport.destinations import DoesNotFit, cut

logger = logging.getLogger("minray.platform.transport.sockets")

BATCH_BYTES = 1024 * 1024
"""A batch is closed when it reaches this size, so that the peer can begin with it."""
WRITE_BYTES = 1024 * 1024
"""Default bytes of waiting buffers that are written at once; a small message may have to wait for them."""
MAX_FRAME_BYTES = MAX_RECORD_BYTES + 64 * 1024
"""The largest frame in bytes: a record of the largest size, and room for its method and ids."""
MAX_TRANSFER_BYTES = 64 * 1024**3
"""The largest sum of buffers, in bytes, that one message may announce: a bound on the memory that a peer can demand."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds after which a closed channel is cut off, if the peer neither reads nor sends anything during them."""

_LENGTH = struct.Struct("<I")
_GOODBYE = b"\x01\0\0\0\x90"
"""A frame with an empty batch: the last one of a side that has closed. The other side then ends the connection."""
_MESSAGE_OVERHEAD_BYTES = 64
"""Estimated bytes of a message beside its payload; used only to close batches in time."""

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Message = tuple[int, str, bytes, tuple[int, ...]]
_encode_into = msgspec.msgpack.Encoder().encode_into
_decode_batch: Callable[[memoryview], list[_Message]] = msgspec.msgpack.Decoder(
    list[tuple[_Natural, str, bytes, tuple[_Natural, ...]]]
).decode


RECEIVE_BYTES = 256 * 1024
"""Bytes that are read at once, unless they are received straight into their place."""
STRAIGHT_BYTES = 64 * 1024
"""Smallest number of missing bytes of a chunk that are received straight into their place."""
WAKE_BYTES = 1024 * 1024
"""Bytes of a large chunk that must have arrived before the kernel wakes the loop for it."""
_NOWHERE = memoryview(b"")


class Outbox:
    """The shared state of a network's connections: which of them must write at the end of this turn, and the receive
    buffer."""

    def __init__(self, max_transfer_bytes: int = MAX_TRANSFER_BYTES, write_bytes: int | None = None) -> None:
        self.counters = Counters()
        self.max_transfer_bytes = max_transfer_bytes
        """The largest sum of buffers, in bytes, that a message of a peer may announce."""
        self.write_bytes = write_bytes or WRITE_BYTES
        """Bytes of waiting buffers that are written at once."""
        self.receive_buffer = memoryview(mmap.mmap(-1, RECEIVE_BYTES))
        """One receive buffer for all connections, since each piece is handled before the next one arrives. Only pages that
        were used take memory."""
        self.peer_log = PeerLog(logger)
        """Logs which connections were refused, and which peers have broken the protocol."""
        self._due: list[_Connection] = []
        self._held = False

    def hold(self) -> None:
        """Stop scheduling writes: the caller will send much and then call ``flush``."""
        self._held = True

    def add(self, connection: _Connection) -> None:
        self._due.append(connection)
        if not self._held and len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._held = False
        due, self._due = self._due, []
        for connection in due:
            connection.flush()


class _Violation(Exception):
    """The peer has broken a rule of this protocol; its connection ends."""


class _Arrival:
    """A message whose buffers are still on their way."""

    __slots__ = ("buffers", "call_id", "filled", "left", "payload", "sizes", "word")

    def __init__(self, message: _Message) -> None:
        self.call_id, self.word, self.payload, self.sizes = message
        self.buffers: dict[int, memoryview] = {}
        """Buffers whose memory is known, in their full length, by index."""
        self.filled: dict[int, int] = {}
        """Bytes of each buffer that have arrived, including all of the chunk that is being read, by index."""
        self.left = sum(self.sizes)
        """Bytes that have not arrived. At zero the message is delivered."""


class _Connection(asyncio.BufferedProtocol):
    """The common part of both sides of an open connection: frames, batches, chunks and the end."""

    def __init__(self, transport: asyncio.Transport, peer: bytes, name: str, outbox: Outbox) -> None:
        self.peer = peer
        self.closed = False
        """Whether nothing is delivered or accepted for sending any more. Then only a goodbye still counts. Set by
        ``_end``."""
        self._name = name
        """The connection's name in log lines and errors."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._outbox = outbox
        self._counters = outbox.counters
        self._outgoing: list[_Message] = []
        """The messages of the batch of this turn of the loop."""
        self._outgoing_bytes = 0
        """The estimated size of ``_outgoing`` in bytes."""
        self._flush_is_due = False
        """Whether ``flush`` will be called soon."""
        self._chunks = ChunkWriter(transport, outbox.write_bytes, outbox.counters)
        """The unsent rest of buffers; their messages are written, or in ``_outgoing``."""
        self._closing = False
        """Whether our side has closed the connection and the goodbye is not written yet."""
        self._cut_off: asyncio.TimerHandle | None = None
        """The timer of ``_maybe_cut_off``, which ends a closed connection whose peer does not react."""
        self._heard = False
        """Whether the peer has sent something since the last ``_maybe_cut_off``."""
        self._partial = bytearray()
        """The beginning of a frame whose rest has not arrived."""
        self._needed = 0
        """Length that ``_partial`` must reach before it is parsed again."""
        self._arriving: dict[int, _Arrival] = {}
        self._chunk_of: _Arrival | None = None
        """The message whose chunk is being read; None between chunks."""
        self._chunk_left = 0
        """Bytes of this chunk that have not arrived."""
        self._chunk_rest = _NOWHERE
        """The place of the missing bytes; empty once the connection has ended."""
        self._wakes_at = 1
        """Bytes that must have arrived before the kernel reports the socket as readable (SO_RCVLOWAT)."""

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 when the connection has ended."""
        return descriptor_of(self._transport)

    def abort(self) -> None:
        """End the connection at once, without a goodbye."""
        self._transport.abort()

    # Sending

    def _send(self, call_id: int, word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        size = len(payload) + 9 * len(buffers)
        if size > MAX_RECORD_BYTES:
            raise RecordTooLarge(
                f"{word or 'a reply'} of {size} bytes is larger than {MAX_RECORD_BYTES}; send buffers beside it"
            )
        if self._outgoing_bytes + size > BATCH_BYTES and self._outgoing:
            self._write_batch()
        sizes: tuple[int, ...] = ()
        if buffers:
            views = [memoryview(buffer) for buffer in buffers]
            sizes = tuple([view.nbytes for view in views])
            self._chunks.add(call_id, views)
        self._outgoing.append((call_id, word, payload, sizes))
        self._outgoing_bytes += size + _MESSAGE_OVERHEAD_BYTES
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._outbox.add(self)

    def flush(self) -> None:
        """Write the messages and buffers that wait, as far as there is room."""
        self._flush_is_due = False
        if self._transport.is_closing():
            self._outgoing.clear()
            self._chunks.clear()
            return
        if self._outgoing:
            self._write_batch()
        if self._chunks.write():
            self._flush_soon()
        if self._closing and not self._chunks:
            self._write_goodbye()

    def _write_batch(self) -> None:
        frame = bytearray(_LENGTH.size)
        _encode_into(self._outgoing, frame, _LENGTH.size)
        _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._counters.frames += 1
        self._counters.bytes += len(frame)
        self._chunks.let_pass(frame)

    def pause_writing(self) -> None:
        self._chunks.is_paused = True

    def resume_writing(self) -> None:
        self._chunks.is_paused = False
        if self._chunks:
            self._flush_soon()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._chunk_rest if self._receives_straight() else self._outbox.receive_buffer

    def _receives_straight(self) -> bool:
        return len(self._chunk_rest) >= STRAIGHT_BYTES

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._flush_is_due = True
        try:
            if self._receives_straight():
                self._pass_on(nbytes)
            else:
                self._receive(self._outbox.receive_buffer[:nbytes])
        except (_Violation, DoesNotFit, *MALFORMED) as error:
            self._refuse(str(error))
        self.flush()

    def _receive(self, data: memoryview | bytearray) -> None:
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data, self._partial = self._partial, bytearray()
        view = memoryview(data)
        offset, end = 0, len(data)
        while offset < end:
            if self._chunk_left:
                offset += self._receive_chunk(view[offset:])
                continue
            start = offset + _LENGTH.size
            if start >= end:
                return self._keep(view[offset:], _LENGTH.size + 1)
            (length,) = _LENGTH.unpack_from(data, offset)
            if not 0 < length <= MAX_FRAME_BYTES:
                raise _Violation(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are accepted")
            if data[start] == CHUNK_MARK:
                if end - offset < CHUNK_HEAD.size:
                    return self._keep(view[offset:], CHUNK_HEAD.size)
                self._begin_chunk(*CHUNK_HEAD.unpack_from(data, offset))
                offset += CHUNK_HEAD.size
                continue
            if start + length > end:
                return self._keep(view[offset:], _LENGTH.size + length)
            batch = _decode_batch(view[start : start + length])
            if not batch:
                if not self.closed:
                    self._end("the peer closed it")
                self._transport.close()
                return None
            for message in batch:
                if message[3]:
                    self._announce(message)
                else:
                    self._deliver(message[0], message[1], message[2], ())
            offset = start + length

    def _keep(self, rest: memoryview, needed: int) -> None:
        self._partial = bytearray(rest)
        self._needed = needed

    def _announce(self, message: _Message) -> None:
        arrival = _Arrival(message)
        if arrival.left > self._outbox.max_transfer_bytes:
            raise _Violation(f"buffers of {arrival.left} bytes; at most {self._outbox.max_transfer_bytes} are accepted")
        if arrival.call_id in self._arriving:
            raise _Violation(f"message {arrival.call_id} was announced twice")
        self._place(arrival)
        self._arriving[arrival.call_id] = arrival
        self._maybe_deliver(arrival)

    def _place(self, arrival: _Arrival) -> None:
        """Set the memory for a message's buffers, where the caller has given some; here: nothing."""

    def _begin_chunk(self, length: int, mark: int, call_id: int, index: int) -> None:
        arrival = self._arriving.get(call_id)
        size = length - CHUNK_START
        if arrival is None or index >= len(arrival.sizes):
            raise _Violation(f"a chunk of buffer {index} of message {call_id}, which was not announced")
        filled = arrival.filled.get(index, 0)
        if not 0 < size <= min(CHUNK_BYTES, arrival.sizes[index] - filled):
            raise _Violation(f"a chunk of {size} bytes, which is more than the chunk or its buffer may have")
        arrival.filled[index] = filled + size
        self._chunk_of, self._chunk_left = arrival, size
        if self.closed:
            return
        if index not in arrival.buffers:
            try:
                arrival.buffers[index] = memoryview(bytearray(arrival.sizes[index]))
            except MemoryError:
                raise _Violation(f"a buffer of {arrival.sizes[index]} bytes, for which there is no memory") from None
        self._chunk_rest = arrival.buffers[index][filled : filled + size]
        if size > 2 * WAKE_BYTES:
            self._wake_at(WAKE_BYTES)

    def _receive_chunk(self, data: memoryview) -> int:
        """Take the bytes that belong to the current chunk; return how many they are."""
        piece = data[: self._chunk_left]
        if self._chunk_rest:
            self._chunk_rest[: len(piece)] = piece
        self._pass_on(len(piece))
        return len(piece)

    def _pass_on(self, size: int) -> None:
        """Account for ``size`` bytes of the current chunk that have arrived in their place."""
        assert self._chunk_of is not None
        self._chunk_rest = self._chunk_rest[size:]
        self._chunk_left -= size
        self._chunk_of.left -= size
        if self._chunk_left < self._wakes_at:
            self._wake_at(1)
        if not self._chunk_left:
            arrival, self._chunk_of, self._chunk_rest = self._chunk_of, None, _NOWHERE
            self._maybe_deliver(arrival)

    def _wake_at(self, nbytes: int) -> None:
        """Have the kernel wake the loop at ``nbytes``. These never exceed the rest of the chunk, which the peer will
        send."""
        if nbytes != self._wakes_at and self._chunks.goes_straight and not self._transport.is_closing():
            self._wakes_at = nbytes
            with suppress(OSError):  # The connection has ended, or the system lacks this option.
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)

    def _maybe_deliver(self, arrival: _Arrival) -> None:
        if not arrival.left:
            del self._arriving[arrival.call_id]
            buffers = [arrival.buffers.get(i, _NOWHERE).toreadonly() for i in range(len(arrival.sizes))]
            self._deliver(arrival.call_id, arrival.word, arrival.payload, buffers)

    def _deliver(self, call_id: int, word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        raise NotImplementedError

    # Ending

    def _refuse(self, reason: str) -> None:
        if not self.closed:
            self._outbox.peer_log.warn(KNOWN_PEERS, f"closing {self._name}: {reason}")
            self._end(f"it broke the protocol: {reason}")
        self._transport.abort()

    def _end(self, reason: str) -> None:
        """Do what has to happen once when the connection can no longer be used."""
        self.closed = True
        self._chunk_rest = _NOWHERE
        self._wake_at(1)
        for arrival in self._arriving.values():
            arrival.buffers.clear()

    def _close(self) -> None:
        """Write what is left, then end. That may take as long as the peer keeps reading or sending."""
        if not self.closed:
            self._end("this process closed it")
            self._closing = True
            self.flush()
            self._maybe_cut_off()

    def _write_goodbye(self) -> None:
        # The peer ends the connection. Until then its data is read and dropped. Closing a TCP socket with unread data
        # would reset the connection, and lose what is still on its way to the peer.
        self._closing = False
        self._transport.write(_GOODBYE)

    def _maybe_cut_off(self, left_before: int | None = None) -> None:
        """Cut off a peer that neither reads nor sends anything; called every ``CLOSE_TIMEOUT_S`` after our close."""
        left = self._transport.get_write_buffer_size() + len(self._chunks)
        if left == left_before and not self._heard:
            self._transport.abort()
        else:
            self._heard = False
            self._cut_off = self._loop.call_later(CLOSE_TIMEOUT_S, self._maybe_cut_off, left)

    def connection_lost(self, error: Exception | None) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._chunks.clear()
        if not self.closed:
            if self._partial or self._chunk_left:
                self._outbox.peer_log.warn(KNOWN_PEERS, f"{self._name} ended in the middle of a frame")
            self._end(str(error) if error else "the peer closed it")


class StreamChannel(_Connection):
    """The side that connected: a ``Channel``."""

    def __init__(self, transport: asyncio.Transport, peer: bytes, name: str, outbox: Outbox) -> None:
        super().__init__(transport, peer, name, outbox)
        self.on_close: Callable[[], None] | None = None
        """Set once ``connect`` returns this channel; dropped by our own ``close``."""
        self._calls: dict[int, OnReply] = {}
        """Open calls by id; each ends with exactly one reply or with the channel."""
        self._into: dict[int, Sequence[memoryview]] = {}
        """The memory that open calls have given for the buffers of their replies, by call id."""
        self._last_call_id = 0

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        if self.closed:
            self._loop.call_soon(on_reply, ChannelBroken(f"{self._name} is closed"), b"", ())
            return
        call_id = self._last_call_id + 1
        self._send(call_id, method, payload, buffers)
        self._last_call_id = call_id
        self._calls[call_id] = on_reply
        if into:
            self._into[call_id] = into
        self._counters.requests += 1

    def notify(self, method: str, payload: bytes) -> None:
        if not self.closed:
            self._send(0, method, payload, ())
            self._counters.requests += 1

    def close(self) -> None:
        self.on_close = None
        self._close()

    def _place(self, arrival: _Arrival) -> None:
        into = self._into.get(arrival.call_id)
        if into is not None and not arrival.word:
            arrival.buffers.update(enumerate(cut(into, arrival.sizes)))

    def _deliver(self, call_id: int, word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if self.closed:
            return
        on_reply = None if call_id in self._arriving else self._calls.pop(call_id, None)
        if on_reply is None:
            raise _Violation(f"a reply to call {call_id}, which is not open")
        if self._into:
            self._into.pop(call_id, None)
        try:
            if word:
                on_reply(RemoteFailure(word, payload.decode(errors="replace")), b"", ())
            else:
                on_reply(None, payload, buffers)
        except Exception:
            logger.exception("on_reply raised; %s goes on", self._name)

    def _end(self, reason: str) -> None:
        super()._end(reason)
        self._into.clear()
        calls, self._calls = self._calls, {}
        for on_reply in calls.values():
            self._loop.call_soon(on_reply, ChannelBroken(f"{self._name} ended: {reason}"), b"", ())
        if self.on_close is not None:
            self._loop.call_soon(self.on_close)


class StreamIncoming(msgspec.Struct, eq=False):
    """One arrived message: an ``Incoming``. It is a Struct because it is made a hundred thousand times a second."""

    method: str
    payload: bytes
    buffers: Sequence[Buffer]
    peer: bytes
    connection: ServerConnection
    call_id: int
    """0 for a notification, and once the request is answered."""

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        if self.call_id:
            self.connection.reply(self.call_id, "", payload, buffers)
            self.call_id = 0

    def fail(self, failure: RemoteFailure) -> None:
        if self.call_id:
            self.connection.reply(self.call_id, failure.kind, failure.message.encode(), ())
            self.call_id = 0


class ServerConnection(_Connection):
    """The side that listened."""

    def __init__(
        self,
        transport: asyncio.Transport,
        peer: bytes,
        name: str,
        outbox: Outbox,
        on_incoming: OnIncoming,
        on_gone: Callable[[ServerConnection], None],
    ) -> None:
        super().__init__(transport, peer, name, outbox)
        self._on_incoming = on_incoming
        self._on_gone = on_gone
        """Called once, when the connection has ended completely."""

    def reply(self, call_id: int, failure: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if not self.closed:
            self._send(call_id, failure, payload, buffers)
            self._counters.replies += 1

    def close(self) -> None:
        self._close()

    def _deliver(self, call_id: int, word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if self.closed:
            return
        try:
            self._on_incoming(StreamIncoming(word, payload, buffers, self.peer, self, call_id))
        except Exception:
            logger.exception("on_incoming raised for %s; %s goes on", word[:100], self._name)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._on_gone(self)
