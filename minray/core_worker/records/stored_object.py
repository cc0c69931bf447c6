"""A serialized value or error, as the memory store, messages and results hold it.

Ray: src/ray/common/ray_object.h (RayObject)

The record of a small value contains its bytes. The record of a large value contains only its ``Place``: its bytes are in
the object store of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from minray.protocol.core_worker import RefInfo
from minray.protocol.object_store import Place

SEEN = -1
"""Value of ``StoredObject.unseen`` for an error that user code has retrieved."""


class StoredObject(msgspec.Struct, eq=False, gc=False):
    """A serialized value or error.

    Only its flags change, and the tickets in ``nested``, which are removed when they are noted.
    """

    data: Any
    """The pickle stream, or a packed exception."""
    buffers: Sequence[Any]
    """Read-only out-of-band buffers, in the order of the stream."""
    is_error: bool
    nested: Sequence[RefInfo]
    """References inside the value, by their numbers in the stream."""
    place: Place | None = None
    """Place of a large value in the object store; then the record has neither its stream nor its buffers."""
    is_fetched: bool = False
    """Whether a large value was read on this node."""
    is_freed: bool = False
    """Whether this is the error that stands for a value that the user has freed."""
    unseen: int = 0
    """Number of objects that have, or will have, this error of a task, while no user code has retrieved it.

    The error is logged when the last of these objects is dropped. SEEN if user code has retrieved it."""
    origin: StoredObject | None = None
    """The first error of the chain, if this is the error of a task that failed because its argument had failed."""

    def note_seen(self) -> None:
        """Note that user code has retrieved this error, and so the error that it follows from."""
        self.unseen = SEEN
        if self.origin is not None:
            self.origin.unseen = SEEN

    def hand_over(self) -> None:
        """Stop reporting this error as unseen, because another process or task has it now, or one that follows from it."""
        self.unseen = min(self.unseen, 0)

    def is_news(self) -> bool:
        """Whether no user code has retrieved the error that this one follows from."""
        return self.origin is None or self.origin.unseen != SEEN

    def size(self) -> int:
        return self.place.size if self.place is not None else len(self.data) + sum(map(len, self.buffers))
