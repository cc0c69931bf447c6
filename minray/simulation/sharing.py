"""Lets the processes of a simulated cluster share the values that the gcs publishes to all of them.

Each of n raylets keeps what it has heard of each of n nodes. With a thousand nodes these are a million records, and nearly
all are equal to others. ``common.sharing`` names the places where processes share them.

Rule: a value depends on its bytes alone, so that a run is the same with and without this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Any

from minray.common import sharing

MOST_SHARED = 1 << 15
"""Number of values that are remembered: several for each of a few thousand nodes. Older ones are made again."""


@contextlib.contextmanager
def shared_values() -> Generator[None, None, None]:
    """Have equal values made once, as long as the context is open."""

    @lru_cache(MOST_SHARED)
    def made(function: Callable[[bytes], Any], content: bytes) -> Any:
        return function(content)

    before, sharing.made = sharing.made, made
    try:
        yield
    finally:
        sharing.made = before
