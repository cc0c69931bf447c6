"""Large buffers on their way out of one connection, in chunks: most of them straight to the kernel.

Ray: has no counterpart; gRPC does this for it

Python lets other threads run while ``os.writev`` copies; uvloop's transports keep the interpreter's lock. So with the lanes
of a node, which are threads of one process, only one would send at a time, and the loop beside them would stand still.

Rules
  * A write takes a piece of every buffer that waits, or as many as fit, and then others have a turn.
  * What the kernel has no room for stays here, but for a little of it, which the transport is given: so that it tells when
    there is room again, or that the connection has ended.
  * Nothing comes between the bytes of a chunk: what is said meanwhile leaves behind it.
  * A transport that encrypts is given everything.
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
"""So much of the head is counted as part of the frame."""
KNOCK_BYTES = 16 * 1024
"""So much of what the kernel has no room for is given to the transport."""
MOST_PIECES = 1024
"""More than these the kernel takes from nobody at once (IOV_MAX)."""


def descriptor_of(transport: asyncio.Transport) -> int:
    """Of the socket beneath; -1 when it has ended."""
    its_socket = None if transport.is_closing() else transport.get_extra_info("socket")
    return -1 if its_socket is None else int(its_socket.fileno())


class ChunkWriter:
    """That of one connection."""

    def __init__(self, transport: asyncio.Transport, write_bytes: int, counters: Counters) -> None:
        self.goes_straight = transport.get_extra_info("ssl_object") is None
        """Chunks need not pass through the transport, since it does not change them."""
        self.is_paused = False
        """The transport's buffer is not empty, or if it encrypts, full: no chunks now."""
        self._transport = transport
        self._write_bytes = write_bytes
        """How much is written at once."""
        self._counters = counters
        self._waiting: deque[tuple[int, int, memoryview]] = deque()
        """``(call id, buffer index, what is left)``."""
        self._begun: deque[Buffer] = deque()
        """Chunks that the kernel has not taken whole, and frames that came after them."""
        transport.set_write_buffer_limits(high=0 if self.goes_straight else write_bytes // 4)

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self._begun or self._waiting)

    def __len__(self) -> int:
        """So many bytes are left."""
        return sum(map(len, self._begun)) + sum(len(left) for _, _, left in self._waiting)

    def add(self, call_id: int, buffers: Sequence[memoryview]) -> None:
        """Their message has been written, or will be before ``write`` is called."""
        self._waiting.extend((call_id, i, each.cast("B")) for i, each in enumerate(buffers) if each.nbytes)

    def let_pass(self, frame: bytearray) -> None:
        """Write another frame, as soon as that may be."""
        if self._begun:
            self._begun.append(frame)
        else:
            self._transport.write(frame)

    def clear(self) -> None:
        self._waiting.clear()
        self._begun.clear()

    def write(self) -> bool:
        """Once, if anything is left and there is room: whether that is so again."""
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
            with suppress(OSError):  # There is no room; or the connection has ended, which the transport will tell.
                written = os.writev(descriptor_of(self._transport), list(islice(self._begun, MOST_PIECES)))
        while self._begun and written >= len(self._begun[0]):
            written -= len(self._begun.popleft())
        if self._begun:
            rest = memoryview(self._begun.popleft())[written:]
            if len(rest) > KNOCK_BYTES:
                self._begun.appendleft(rest[KNOCK_BYTES:])
            self._transport.write(rest[:KNOCK_BYTES])
