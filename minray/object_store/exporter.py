"""An object that exports a part of a buffer, and is freed when the last view of it is gone.

Ray: python/ray/includes/buffer.pxi (SharedMemoryBuffer)

A memoryview of the whole arena would keep no account of one value. An array does. Where numpy is missing, in a browser, a
class with ``__buffer__`` does, which needs Python 3.12.
"""

from __future__ import annotations

from typing import Any

from minray.platform.base import Buffer


def exporter_of(data: Buffer, start: int, size: int) -> Any:
    """Return an exporter of ``size`` bytes of ``data`` from ``start``; it supports weak references."""
    try:
        import numpy as np  # Imported here, so that a driver without large values does not wait for it.
    except ImportError:
        return _Part(memoryview(data)[start : start + size])
    return np.frombuffer(data, np.uint8, size, start)


class _Part:
    """Exports a part of a buffer, as an array does."""

    def __init__(self, part: memoryview) -> None:
        self._part = part

    def __buffer__(self, flags: int) -> memoryview:
        return self._part
