"""Tombstones: ids of things that are over, kept for a while so that late messages about them are recognised.

Ray: has none of its own; its managers keep such sets themselves, as NodeManager the leases that are over

A message may be repeated long after the lease or object that it names has ended. The receiver asks the tombstones before it
takes that message for something new. Their number is bounded, because a cluster may run for months: when there are a hundred
thousand, the oldest is too old to matter.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

MAX_TOMBSTONES = 100_000
"""Most tombstones of one kind. A message about a thing that ended a hundred thousand things ago is not expected."""

K = TypeVar("K")
V = TypeVar("V")


def remember(tombstones: OrderedDict[K, V], key: K, value: V) -> None:
    """Add a tombstone, and drop the oldest if there are more than MAX_TOMBSTONES."""
    tombstones[key] = value
    if len(tombstones) > MAX_TOMBSTONES:
        tombstones.popitem(last=False)
