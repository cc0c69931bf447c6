"""The chunks in which one object arrives at a node.

Ray: src/ray/object_manager/object_buffer_pool.h

Pure. Every chunk is missing, on its way, or here. Every node asks for missing chunks in the same order, from the first to
the last. So a node that is receiving an object has roughly its beginning, and the next node finds there the chunks it needs.
A node that asks for a chunk that is not here yet gets its answer when the chunk arrives, or will not come.

A large object has larger chunks, because each chunk costs a request and four thread switches with cold caches. About 32
chunks are still enough for pipelining: a node that reads from another receiver is hardly behind it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

OnHere = Callable[[bool], None]
"""Callback that receives True when the bytes are here, or False if they will not come."""

MOST_CHUNKS = 32
"""Approximate number of chunks of a large object, unless they would be larger than ``MOST_CHUNK_BYTES``."""
MOST_CHUNK_BYTES = 64 * 1024 * 1024
"""Largest chunk of a large object, in bytes, unless ``object_manager_default_chunk_size`` is larger."""


def chunk_bytes_of(size: int, least: int) -> int:
    """Return the chunk size of an object, a multiple of ``least``, which is the chunk size of all but large objects."""
    return least * max(1, min(size // MOST_CHUNKS, MOST_CHUNK_BYTES) // least)


class Chunks:
    """Keeps the states of the chunks of one copy."""

    def __init__(self, size: int, chunk_bytes: int) -> None:
        self.size = size
        self._chunk_bytes = chunk_bytes
        self._missing = list(range(0, size, chunk_bytes))
        """Heap of the offsets of missing chunks."""
        self._not_here = set(self._missing)
        """Offsets of the chunks that are missing or on their way."""
        self._waiting: list[tuple[int, int, OnHere]] = []
        """Byte ranges that other nodes wait for, each with its callback."""

    def is_complete(self) -> bool:
        return not self._not_here

    def is_all_taken(self) -> bool:
        """Tell whether no chunk is missing; some may be on their way."""
        return not self._missing

    def take(self) -> tuple[int, int]:
        """Mark the first missing chunk as on its way, and return its start and end."""
        start = heapq.heappop(self._missing)
        return start, min(start + self._chunk_bytes, self.size)

    def give_back(self, start: int) -> None:
        """Mark a chunk that did not come as missing again."""
        heapq.heappush(self._missing, start)

    def arrive(self, start: int) -> None:
        self._not_here.remove(start)
        waiting, self._waiting = self._waiting, []
        for first, end, on_here in waiting:
            self.when_here(first, end, on_here)

    def has(self, start: int, end: int) -> bool:
        """Tell whether all bytes of a range are here; the range may span parts of several chunks."""
        first = start - start % self._chunk_bytes
        return not any(chunk in self._not_here for chunk in range(first, end, self._chunk_bytes))

    def when_here(self, start: int, end: int, on_here: OnHere) -> None:
        """Call ``on_here`` when the bytes are here or will not come: at once, or later."""
        if self.has(start, end):
            on_here(True)
        else:
            self._waiting.append((start, end, on_here))

    def give_up(self) -> None:
        """Answer all waiting requests with False, because no more chunks will come."""
        waiting, self._waiting = self._waiting, []
        for _, _, on_here in waiting:
            on_here(False)
