"""Large buffers on their way out of one connection, in chunks: most of them straight to the kernel.

Ray: has no counterpart; gRPC does this for it

Python lets other threads run while ``os.writev`` copies; uvloop's transports keep the interpreter's lock. The lanes of a
node are threads of one process. With uvloop's writes only one of them could send at a time, and the process's loop would
stop meanwhile.

Rules
  * A write takes a piece of every waiting buffer, or of as many as fit; then other connections have a turn.
  * Bytes that the kernel has no room for stay here. Only a few of them go to the transport, so that it reports when there
    is room again, or that the connection has ended.
  * Nothing comes between the bytes of a chunk: a frame that is sent meanwhile leaves after it.
  * A transport that encrypts is given all bytes.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from minray.platform.base import CHUNK_BYTES, Buffer, Counters

CHUNK_MARK = 0xC1
CHUNK_HEAD = struct.Struct("<IBQI")
"""Length of the frame, mark, call id, buffer index."""
CHUNK_START = CHUNK_HEAD.size - 4
"""Bytes of the head that count as part of the frame: all but the length itself."""
KNOCK_BYTES = 16 * 1024
"""Number of unsent bytes given to the transport, so that it watches for room; the rest stays here."""
MOST_PIECES = 1024
"""The largest number of buffers in one ``os.writev``: the kernel's limit (IOV_MAX)."""


def descriptor_of(transport: asyncio.Transport) -> int:
    """Return the descriptor of the transport's socket; -1 when the connection has ended."""
    its_socket = None if transport.is_closing() else transport.get_extra_info("socket")
    return -1 if its_socket is None else int(its_socket.fileno())


class ChunkWriter:
    """Writes the large buffers of one connection in chunks."""

    def __init__(self, transport: asyncio.Transport, write_bytes: int, counters: Counters) -> None:
        self.goes_straight = transport.get_extra_info("ssl_object") is None
        """Whether chunks go straight to the kernel, because the transport does not encrypt them."""
        self.is_paused = False
        """Whether no chunks may be written now: the transport's buffer is not empty (if it encrypts: is full)."""
        self._transport = transport
        self._write_bytes = write_bytes
        """How many bytes of waiting buffers one write takes."""
        self._counters = counters
        self._waiting: deque[tuple[int, int, memoryview]] = deque()
        """Buffers that wait, as ``(call id, buffer index, what is left)``."""
        self._begun: deque[Buffer] = deque()
        """Chunks that the kernel has not taken completely, and frames that were sent after them."""
        transport.set_write_buffer_limits(high=0 if self.goes_straight else write_bytes // 4)

    def __bool__(self) -> bool:
        """Whether any bytes are left to write."""
        return bool(self._begun or self._waiting)

    def __len__(self) -> int:
        """Return the number of bytes left to write."""
        return sum(map(len, self._begun)) + sum(len(left) for _, _, left in self._waiting)

    def add(self, call_id: int, buffers: Sequence[memoryview]) -> None:
        """Queue the buffers of a message. The message itself is written before the next call of ``write``."""
        self._waiting.extend((call_id, i, each.cast("B")) for i, each in enumerate(buffers) if each.nbytes)

    def let_pass(self, frame: bytearray) -> None:
        """Write another frame: now, or after the chunks that have begun."""
        if self._begun:
            self._begun.append(frame)
        else:
            self._transport.write(frame)

    def clear(self) -> None:
        self._waiting.clear()
        self._begun.clear()

    def write(self) -> bool:
        """Write once, if anything is left and there is room. Return whether the caller should call again."""
        if self.is_paused or not self:
            return False
        if not self._begun:
            self._begin()
        if self.goes_straight:
            self._write_straight()
        else:
            self._transport.writelines(self._begun)
            self._begun.clear()
        return bool(self) and not self.is_paused

    def _begin(self) -> None:
        room = self._write_bytes
        while room > 0 and self._waiting:
            call_id, index, left = self._waiting.popleft()
            piece = left[: min(room, CHUNK_BYTES)]
            if len(piece) < len(left):
                self._waiting.append((call_id, index, left[len(piece) :]))
            self._begun.append(CHUNK_HEAD.pack(CHUNK_START + len(piece), CHUNK_MARK, call_id, index))
            self._begun.append(piece)
            room -= len(piece)
            self._counters.frames += 1
            self._counters.bytes += CHUNK_HEAD.size + len(piece)

    def _write_straight(self) -> None:
        written = 0
        if not self._transport.get_write_buffer_size():
            with suppress(OSError):  # There is no room; or the connection has ended, which the transport will report.
                written = os.writev(descriptor_of(self._transport), list(islice(self._begun, MOST_PIECES)))
        while self._begun and written >= len(self._begun[0]):
            written -= len(self._begun.popleft())
        if self._begun:
            rest = memoryview(self._begun.popleft())[written:]
            if len(rest) > KNOCK_BYTES:
                self._begun.appendleft(rest[KNOCK_BYTES:])
            self._transport.write(rest[:KNOCK_BYTES])
