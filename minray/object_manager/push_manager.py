"""Bounds on what a node sends: chunks leave in the order of the requests, with a limit on the bytes in flight.

Ray: src/ray/object_manager/push_manager.h

Pure. A requested chunk waits for its turn, is sent, and is over when the transport has released its memory. Only a chunk
that is here waits for a turn: one that has not arrived yet holds up no other (so nodes that pass objects on to each other
never wait in a circle). The copy is not pinned before its turn, so it may have been evicted by then.

No push is made twice (G88): a node asks one other node for each chunk, and asks again only for a chunk that did not come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from minray.common.bounds import BOUNDS


class PushManager:
    """Orders the chunks that one node sends, and limits the bytes in flight."""

    def __init__(self, limit_bytes: int = BOUNDS.object_manager_max_bytes_in_flight) -> None:
        self._limit_bytes = limit_bytes
        self.bytes_in_flight = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add_push(self, size: int, send: Callable[[], None]) -> None:
        """Call ``send`` at its turn, now or later. The caller must call ``on_sent`` once when the chunk is sent."""
        self._waiting.append((size, send))
        self._advance()

    def on_sent(self, size: int) -> None:
        self.bytes_in_flight -= size
        self._advance()

    def _advance(self) -> None:
        while self._waiting and (
            not self.bytes_in_flight or self.bytes_in_flight + self._waiting[0][0] <= self._limit_bytes
        ):
            size, send = self._waiting.popleft()
            self.bytes_in_flight += size
            send()
