"""A serialized value or error, as the memory store, messages and results hold it.

Ray: src/ray/common/ray_object.h (RayObject)

A small value is here whole. For a large value only its ``Place`` is here: its bytes are in the object store of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from minray.protocol.core_worker import RefInfo
from minray.protocol.object_store import Place

SEEN = -1
"""The value of ``StoredObject.unseen`` of an error that a user has looked at."""


class StoredObject(msgspec.Struct, eq=False, gc=False):
    """A serialised value. Immutable, but for tickets that ``nested`` loses when they are noted, and the flags."""

    data: Any
    """The pickle stream, or a packed exception."""
    buffers: Sequence[Any]
    """Read-only, in the order of the stream."""
    is_error: bool
    nested: Sequence[RefInfo]
    """References inside, by their numbers in the stream."""
    place: Place | None = None
    """Where a large value is in the object store; then neither its stream nor its buffers are here."""
    is_fetched: bool = False
    """Whether a large value was seen on this node."""
    is_freed: bool = False
    """Whether this is the error that stands for a value that the user has freed."""
    unseen: int = 0
    """How many objects are this error of a task, or will be, while no user has looked at it; it is logged when the last one
    goes. SEEN if a user has looked."""
    origin: StoredObject | None = None
    """The first error of the chain, if this is the error of a task that has failed because its argument had."""

    def note_seen(self) -> None:
        """A user has looked at this error, or at one that has come of it."""
        self.unseen = SEEN
        if self.origin is not None:
            self.origin.unseen = SEEN

    def hand_over(self) -> None:
        """Another process or task has this error now, or one that has come of it; this process reports it no more."""
        self.unseen = min(self.unseen, 0)

    def is_news(self) -> bool:
        """Tell whether no user has looked at the error that this one has come of."""
        return self.origin is None or self.origin.unseen != SEEN

    def size(self) -> int:
        return self.place.size if self.place is not None else len(self.data) + sum(map(len, self.buffers))
