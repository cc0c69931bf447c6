"""Memory that a caller gives for the buffers of a reply: what every transport has to do with it.

Ray: src/ray/object_manager/object_buffer_pool.h (chunks are written to their place in the object store)

``Channel.call`` states the contract. Sockets receive a reply straight into ``cut`` memory; gRPC and the simulation have it
in memory of their own when it is complete, and ``write`` it. Both check it first: nobody's neighbour is written over.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.platform.base import Buffer


class DoesNotFit(Exception):
    """A reply brings more than its caller has memory for: the peer has broken a rule, and its channel ends."""


def cut(into: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """The given memory, as long as the buffers that will be written there."""
    if len(sizes) > len(into) or any(size > len(view) for view, size in zip(into, sizes, strict=False)):
        raise DoesNotFit(f"buffers of {list(sizes)} bytes do not fit into {[len(view) for view in into]}")
    return [view[:size] for view, size in zip(into, sizes, strict=False)]


def write(into: Sequence[memoryview], buffers: Sequence[Buffer]) -> list[memoryview]:
    """For transports that receive a reply elsewhere first: write its buffers there, and give read-only views of them."""
    places = cut(into, [memoryview(buffer).nbytes for buffer in buffers])
    for place, buffer in zip(places, buffers, strict=True):
        place[:] = buffer
    return [place.toreadonly() for place in places]
