"""What is over, remembered for a while: a late message about it must find out, though not for ever.

Ray: has none of its own; its managers keep such sets themselves, as NodeManager the leases that are over

A message may come again long after what it speaks of has ended. Who would take it for something new asks the tombstones
first. They are bounded, because a cluster may run for months: of a hundred thousand, the oldest is too old to matter.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

MAX_TOMBSTONES = 100_000

K = TypeVar("K")
V = TypeVar("V")


def remember(tombstones: OrderedDict[K, V], key: K, value: V) -> None:
    """The oldest ones are forgotten when there are too many."""
    tombstones[key] = value
    if len(tombstones) > MAX_TOMBSTONES:
        tombstones.popitem(last=False)
