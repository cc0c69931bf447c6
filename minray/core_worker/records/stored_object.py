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
"""As ``StoredObject.unseen``."""


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
    """Of a large value: it is in the object store, and neither its stream nor its buffers are here."""
    is_fetched: bool = False
    """Of a large value: it was seen on this node."""
    is_freed: bool = False
    """It is the error that says so: somebody has freed the value by hand."""
    unseen: int = 0
    """Of a task's error that nobody has looked at: how many objects it is, or will be; it is said when the last one goes.
    SEEN if somebody has."""
    origin: StoredObject | None = None
    """Of the error of a task that has failed because its argument had: the first one of this chain."""

    def note_seen(self) -> None:
        """Somebody has looked at this error, or at what has come of it."""
        self.unseen = SEEN
        if self.origin is not None:
            self.origin.unseen = SEEN

    def hand_over(self) -> None:
        """Somebody else has it now, or what has come of it: it is up to him whether it goes unseen."""
        self.unseen = min(self.unseen, 0)

    def is_news(self) -> bool:
        """Of an error that goes unseen: whether nobody has looked at what it has come of either."""
        return self.origin is None or self.origin.unseen != SEEN

    def size(self) -> int:
        return self.place.size if self.place is not None else len(self.data) + sum(map(len, self.buffers))
