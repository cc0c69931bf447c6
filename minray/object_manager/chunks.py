"""The pieces in which one object arrives.

Ray: src/ray/object_manager/object_buffer_pool.h

Pure. Every chunk is missing, on its way, or here; those that are missing are asked for from the first to the last, by every
node in the same order. So what a node has of an object is about its beginning, and another node that follows it finds
there what it needs next. Who needs a chunk that is not here yet is told when it is, or that it will not come.

A large object has larger chunks: each costs a request, and four changes of thread with caches that the copying has emptied.
They are still so many that nodes which follow each other are hardly behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

OnHere = Callable[[bool], None]
"""Told whether all of some bytes are here, or will not come."""

MOST_CHUNKS = 32
"""Of one object, about, unless these would be larger than ``MOST_CHUNK_BYTES``."""
MOST_CHUNK_BYTES = 64 * 1024 * 1024
"""The largest that a large object has; they are larger only if the smallest ones are to be."""


def chunk_bytes_of(size: int, least: int) -> int:
    """How long the chunks of an object are: a multiple of ``least``, which is that of all but large ones."""
    return least * max(1, min(size // MOST_CHUNKS, MOST_CHUNK_BYTES) // least)


class Chunks:
    """Those of one copy."""

    def __init__(self, size: int, chunk_bytes: int) -> None:
        self.size = size
        self._chunk_bytes = chunk_bytes
        self._missing = list(range(0, size, chunk_bytes))
        """A heap of where they begin."""
        self._not_here = set(self._missing)
        """Those, and the ones on their way."""
        self._waiting: list[tuple[int, int, OnHere]] = []
        """Who waits for which bytes."""

    def is_complete(self) -> bool:
        return not self._not_here

    def is_all_taken(self) -> bool:
        """Whether none is missing, though some may be on their way."""
        return not self._missing

    def take(self) -> tuple[int, int]:
        """The first one that is missing is on its way now: where it begins and ends."""
        start = heapq.heappop(self._missing)
        return start, min(start + self._chunk_bytes, self.size)

    def give_back(self, start: int) -> None:
        """It did not come."""
        heapq.heappush(self._missing, start)

    def arrive(self, start: int) -> None:
        self._not_here.remove(start)
        waiting, self._waiting = self._waiting, []
        for first, end, on_here in waiting:
            self.when_here(first, end, on_here)

    def has(self, start: int, end: int) -> bool:
        """Whether all of these bytes are here; they may be cut otherwise than our own chunks."""
        first = start - start % self._chunk_bytes
        return not any(chunk in self._not_here for chunk in range(first, end, self._chunk_bytes))

    def when_here(self, start: int, end: int, on_here: OnHere) -> None:
        """Called back at once, or later."""
        if self.has(start, end):
            on_here(True)
        else:
            self._waiting.append((start, end, on_here))

    def give_up(self) -> None:
        """Nothing more will come."""
        waiting, self._waiting = self._waiting, []
        for _, _, on_here in waiting:
            on_here(False)
