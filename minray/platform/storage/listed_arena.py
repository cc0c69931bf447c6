"""An arena for processes of one interpreter: a mapping that the creator lists under its endpoint as long as it lives.

Ray: has no counterpart

The simulation and the in-process world share this file. All processes of a world are in one process of the system, so they
see the same view. The arena is mapped, not allocated: it is full of zeros at first, and takes memory only where it was
written. The view outlives the listing; the mapping goes with the last view.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any


class ListedArena:
    """Implements ``base.Arena`` with an anonymous mapping."""

    def __init__(self, arenas: dict[str, Any], endpoint: str, size: int, on_death: list[Callable[[], object]]) -> None:
        """``arenas`` is the list of a world, by endpoint, and ``on_death`` that of the creator's callbacks.

        Raises OSError, OverflowError or ValueError if there can be no mapping of this size.
        """
        self.view = memoryview(mmap.mmap(-1, size))
        self._arenas = arenas
        self._endpoint = endpoint
        arenas[endpoint] = self
        on_death.append(self._withdraw)

    async def close(self) -> None:
        self._withdraw()

    def _withdraw(self) -> None:
        """Let no more processes attach."""
        if self._arenas.get(self._endpoint) is self:
            del self._arenas[self._endpoint]
