"""Alignment of buffers: arrays begin at multiples of 64 bytes, as vector instructions and Arrow want it.

Ray: kMajorBufferAlign in python/ray/includes/serialization.pxi

Buffers in the object store are aligned there. Those of a small value arrive as ``bytes``, which begin anywhere at a multiple
of 16. They are copied when the value is made, if they need it. A larger value is not copied: its buffers are in the store.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE

ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line, and the widest vector register."""
_ZERO = array("B", [0])
_BYTES_HEAD = bytes.__basicsize__ - 1
"""Distance in bytes from a ``bytes`` object (its ``id``) to its content; the size includes one zero at the end."""


def aligned(buffers: Sequence[Any]) -> Sequence[Any]:
    """Return the buffers of a value. If it is small, read-only copies take the place of those that begin elsewhere."""
    if sum(map(len, buffers)) > MAX_DIRECT_CALL_OBJECT_SIZE:
        return buffers
    return [buffer if _is_aligned(buffer) else aligned_copy(buffer) for buffer in buffers]


def _is_aligned(buffer: Any) -> bool:
    return type(buffer) is not bytes or not (id(buffer) + _BYTES_HEAD) % ALIGNMENT


def aligned_copy(buffer: bytes | memoryview) -> memoryview:
    """Return a read-only copy of a buffer in aligned memory."""
    memory = aligned_memory(len(buffer))
    memory[:] = buffer
    return memory.toreadonly()


def aligned_memory(size: int) -> memoryview:
    """Make aligned memory of this size in bytes, filled with zeros."""
    memory = _ZERO * (size + ALIGNMENT - 1)
    address, _ = memory.buffer_info()
    start = -address % ALIGNMENT
    return memoryview(memory)[start : start + size]
