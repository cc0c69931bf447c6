"""Memory that a caller gives for the buffers of a reply, and how every transport fills it.

Ray: src/ray/object_manager/object_buffer_pool.h (chunks are written to their place in the object store)

``Channel.call`` states the contract. Sockets receive a reply straight into ``cut`` memory. gRPC and the simulation first
receive the whole reply in memory of their own, then ``write`` it. Both check the sizes first, so that no bytes are written
beyond the given memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.platform.base import Buffer


class DoesNotFit(Exception):
    """A reply is larger than the memory that its caller gave: the peer has broken a rule, and its channel ends."""


def cut(into: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Return views of the given memory, each as long as the buffer that will be written there. Raises ``DoesNotFit``."""
    if len(sizes) > len(into) or any(size > len(view) for view, size in zip(into, sizes, strict=False)):
        raise DoesNotFit(f"buffers of {list(sizes)} bytes do not fit into {[len(view) for view in into]}")
    return [view[:size] for view, size in zip(into, sizes, strict=False)]


def write(into: Sequence[memoryview], buffers: Sequence[Buffer]) -> list[memoryview]:
    """Copy a reply's buffers into the given memory and return read-only views of them. Raises ``DoesNotFit``."""
    places = cut(into, [memoryview(buffer).nbytes for buffer in buffers])
    for place, buffer in zip(places, buffers, strict=True):
        place[:] = buffer
    return [place.toreadonly() for place in places]
