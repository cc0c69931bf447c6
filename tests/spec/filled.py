"""Arrays of equal bytes: numpy's, and others for a Python that has no numpy, as the one of the playground.

Ray: has no counterpart.

The others travel as numpy's do: their bytes in a buffer apart from the pickle stream, and in the stream as many bytes as
numpy writes there. So a scenario has the same trace with either, which ``tests/spec/test_filled.py`` compares.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any

try:
    import numpy
except ImportError:
    numpy = None

LIKE_NUMPY = 0
"""Number that makes the stream as long as the one of an array of numpy."""


def filled(size: int, byte: int) -> Any:
    """Make an array of ``size`` bytes which are all the same; its ``tobytes`` returns them."""
    return Filled(bytes([byte]) * size) if numpy is None else numpy.full(size, byte, numpy.uint8)


class Filled:
    """An array of bytes that were made here, or that a buffer of the object store shows."""

    def __init__(self, buffer: Any, _like_numpy: int = LIKE_NUMPY, _shape: tuple[int, ...] = ()) -> None:
        self._shown = memoryview(buffer)

    def tobytes(self) -> bytes:
        return self._shown.tobytes()

    def __reduce_ex__(self, protocol: Any) -> tuple[type[Filled], tuple[PickleBuffer, int, tuple[int]]]:
        return Filled, (PickleBuffer(self._shown), LIKE_NUMPY, (self._shown.nbytes,))
