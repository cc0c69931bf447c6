"""What a node sends to others, in bounds: chunks leave in the order in which they were asked for, so many bytes at a time.

Ray: src/ray/object_manager/push_manager.h

Pure. A chunk that is asked for here takes its turn, is sent, and is over when the transport has let go of its memory.
Only what can be sent takes a turn: a chunk that has not arrived here yet holds up nobody (so nodes that pass many objects on
to each other never wait in a circle). Nothing keeps a copy in its place before its turn, so that it may be gone by then.

No push is made twice (G88): a node asks for a chunk once, from one other node, and asks again only what did not come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MAX_BYTES_IN_FLIGHT = 2 << 30
"""G88."""


class PushManager:
    """All that one node sends."""

    def __init__(self, limit_bytes: int = MAX_BYTES_IN_FLIGHT) -> None:
        self._limit_bytes = limit_bytes
        self.bytes_in_flight = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, size: int, send: Callable[[], None]) -> None:
        """Call ``send`` when it is its turn, now or later; whoever is called back calls ``on_sent`` once."""
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
