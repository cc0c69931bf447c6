"""A session: records in both directions between a client and its driver process, each delivered once and in order.

Ray: python/ray/util/client/dataclient.py (its request ids and acknowledgements), python/ray/util/client/common.py
(ResponseCache, OrderedResponseCache)

Pure: each side has one ``ClientSession`` and tells it what arrives; the session says what to send. Nothing here knows a
clock or a connection.

Rules
  * Records that wait are encoded together, as a batch. A batch is cut into frames of at most ``FRAME_BYTES``, because a
    message of the transport may not be much larger.
  * Frames are numbered from 1. A frame is kept until the other side has acknowledged it. After a lost connection all frames
    that are kept are sent again (``rewind``), and the receiver drops those that it has: so no record is lost or comes twice.
  * At most ``WINDOW_BYTES`` are kept; more records wait, unencoded.
  * Small frames may overtake large ones on the way. A frame that comes early waits here for its turn. A sender keeps no more
    than its window, so more than that cannot wait.
  * Each message acknowledges what has arrived. A side that has heard ``REPORT_BYTES`` since its last message sends one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from minray.common.decoding import MALFORMED
from minray.platform.base import Buffer
from minray.protocol.client import AnyRelayed, Carry, Parcel, Relayed

FRAME_BYTES = 1024 * 1024 + 16 * 1024
"""Most bytes of one frame: a chunk of a value, and room for what stands around it."""
WINDOW_BYTES = 16 * 1024 * 1024
"""Most bytes of frames that are sent and not acknowledged: enough for 100 MB/s over a way of 150 ms."""
INLINE_BYTES = 64 * 1024
"""Most bytes of a frame that travels inside its message: below this, a copy costs less than a buffer of its own."""
REPORT_BYTES = 4 * 1024 * 1024
"""Bytes of frames after which the sender must hear of their arrival: a quarter of its window, so that it need not stop."""
MAX_BATCH_BYTES = 1024 * 1024 * 1024
"""Most bytes of one batch that is accepted: a bound on the memory that the other side can demand."""
RECORD_BYTES = 64
"""Bytes that a record counts beside its payload and buffers, and a frame beside its data."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AnyRelayed]).decode


class SessionBroken(Exception):
    """The other side has broken a rule of the session, which ends."""


class SessionFrame(NamedTuple):
    number: int
    is_end: bool
    """Whether the frame ends its batch."""
    data: bytes | memoryview


NO_FRAME = SessionFrame(0, False, b"")
"""Stands in messages that bring no frame."""


def apart(frame: SessionFrame) -> tuple[bytes, Sequence[Buffer]]:
    """Return the data of a frame as its message brings it: in the record, or as a buffer, which is not copied, if it is
    large."""
    if len(frame.data) > INLINE_BYTES:
        return b"", (frame.data,)
    return bytes(frame.data), ()


def frame_in(message: Carry | Parcel, buffers: Sequence[Buffer]) -> SessionFrame:
    """Return the frame that a message brings, perhaps ``NO_FRAME``; large ones are its buffer."""
    return SessionFrame(message.number, message.is_end, memoryview(buffers[0]) if buffers else message.frame)


class ClientSession:
    """One side of a session."""

    def __init__(self, frame_bytes: int = FRAME_BYTES, window_bytes: int = WINDOW_BYTES) -> None:
        self._frame_bytes = frame_bytes
        self._window_bytes = window_bytes
        self._waiting: deque[tuple[Relayed, int]] = deque()
        """Records that are in no batch yet, with their sizes."""
        self._rest = memoryview(b"")
        """The part of the current batch that is in no frame yet."""
        self._kept: deque[SessionFrame] = deque()
        """Frames that are not acknowledged, oldest first."""
        self._kept_bytes = 0
        self._sent = 0
        """Number of the kept frames that were sent over the current connection."""
        self._last = 0
        """Number of the last frame."""
        self._unfinished = bytearray()
        """The beginning of a batch whose last frame has not arrived."""
        self._early: dict[int, SessionFrame] = {}
        """Frames that have overtaken others, by number."""
        self._early_bytes = 0
        self._unreported_bytes = 0
        """Bytes of frames that have arrived since ``report``."""
        self.received = 0
        """Number of the last frame that has arrived in its turn: what this side acknowledges."""
        self.waiting_bytes = 0
        """Bytes of records that are in no batch yet."""

    # --- sending

    def add(self, record: Relayed, size: int = 0) -> None:
        """Send a record; ``size`` counts the bytes of its payload and buffers. The buffers stay as they are until the batch
        is encoded."""
        self._waiting.append((record, size + RECORD_BYTES))
        self.waiting_bytes += size + RECORD_BYTES

    def take(self) -> SessionFrame | None:
        """Return the next frame to send; None if there is none, or if too many bytes are not acknowledged."""
        if self._sent == len(self._kept) and not self._make_frame():
            return None
        self._sent += 1
        return self._kept[self._sent - 1]

    def _make_frame(self) -> bool:
        if self._kept_bytes >= self._window_bytes:
            return False
        if not self._rest:
            if not self._waiting:
                return False
            batch = self._make_batch()
            if len(batch) <= self._frame_bytes:
                self._keep(True, batch)
                return True
            self._rest = memoryview(batch)
        piece, self._rest = self._rest[: self._frame_bytes], self._rest[self._frame_bytes :]
        self._keep(not self._rest, bytes(piece))
        return True

    def _keep(self, is_end: bool, data: bytes) -> None:
        self._last += 1
        self._kept.append(SessionFrame(self._last, is_end, data))
        self._kept_bytes += len(data) + RECORD_BYTES

    def _make_batch(self) -> bytes:
        records: list[Relayed] = []
        size = 0
        while self._waiting and (not records or size + self._waiting[0][1] <= self._frame_bytes):
            record, record_size = self._waiting.popleft()
            records.append(record)
            size += record_size
        self.waiting_bytes -= size
        return _encode(records)

    def acknowledge(self, number: int) -> None:
        """Forget the frames that the other side has received. Raises SessionBroken for a frame that was never sent."""
        if number > self._last:
            raise SessionBroken(f"frame {number} was acknowledged, but the last one is {self._last}")
        while self._kept and self._kept[0].number <= number:
            self._kept_bytes -= len(self._kept.popleft().data) + RECORD_BYTES
            self._sent = max(0, self._sent - 1)

    def rewind(self) -> None:
        """Begin again with the oldest frame that is kept, because the connection is a new one."""
        self._sent = 0

    def is_through(self) -> bool:
        """Whether the other side has received everything."""
        return not (self._kept or self._rest or self._waiting)

    # --- receiving

    def report(self) -> int:
        """Return the number that a message acknowledges."""
        self._unreported_bytes = 0
        return self.received

    def owes_report(self) -> bool:
        """Return whether the other side must hear of what has arrived."""
        return self._unreported_bytes >= REPORT_BYTES

    def receive(self, frame: SessionFrame) -> list[AnyRelayed]:
        """Take a frame; return the records of the batches that it ends, none for a frame that has come before.

        Raises SessionBroken for a frame beyond the window, and for bytes that are no records.
        """
        if frame.number <= self.received or frame.number in self._early:
            return []
        size = len(frame.data) + RECORD_BYTES
        self._unreported_bytes += size
        if frame.number == self.received + 1 and not self._early:
            return self._take_in(frame)
        self._early[frame.number] = frame
        self._early_bytes += size
        if self._early_bytes > 2 * self._window_bytes:
            text = f"frame {frame.number} and others of {self._early_bytes} bytes came before frame {self.received + 1}"
            raise SessionBroken(text)
        records: list[AnyRelayed] = []
        while self.received + 1 in self._early:
            following = self._early.pop(self.received + 1)
            self._early_bytes -= len(following.data) + RECORD_BYTES
            records += self._take_in(following)
        return records

    def _take_in(self, frame: SessionFrame) -> list[AnyRelayed]:
        """Take the next frame in turn; return the records of the batch that it ends."""
        if len(self._unfinished) + len(frame.data) > MAX_BATCH_BYTES:
            raise SessionBroken(f"a batch of more than {MAX_BATCH_BYTES} bytes")
        self.received += 1
        if not frame.is_end:
            self._unfinished += frame.data
            return []
        data = frame.data
        if self._unfinished:
            self._unfinished += frame.data
            data, self._unfinished = memoryview(self._unfinished).toreadonly(), bytearray()
        try:
            return _decode(data)
        except MALFORMED as error:
            raise SessionBroken(f"a malformed batch: {error}") from None
