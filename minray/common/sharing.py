"""Makes equal values one object, where many simulated processes keep the same ones.

Ray: none, its processes share nothing

All raylets of a simulation are in one Python process, and each keeps what the gcs has published about each node. So a
thousand raylets would keep a million copies of a thousand values. A simulation enters a function with a memory here. A real
process makes each value itself: a memory would only keep old values in it.

Rule: nobody changes a value that was made here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _make(function: Callable[[bytes], Any], content: bytes) -> Any:
    return function(content)


made: Callable[[Callable[[bytes], Any], bytes], Any] = _make
"""Function that returns ``function(content)``, perhaps the object of an earlier call; the simulation replaces it."""


def same(content: bytes) -> bytes:
    """Return these bytes, perhaps as an object that is kept already."""
    equal: bytes = made(_itself, content)
    return equal


def _itself(content: bytes) -> bytes:
    return content
