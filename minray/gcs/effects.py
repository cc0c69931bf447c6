"""Effects of the gcs's tables: publications for subscribers.

Ray: src/ray/gcs/pubsub_handler.h (GcsPublisher, whose calls these records replace)

Managers are pure. A decision (``register``, ``bury``, ``finish``) returns the record that has to be stored, and changes
nothing. When it is stored, ``on_committed`` takes it into the table and returns the publications. So no process sees a
change before it is durable, and a failed write leaves nothing to undo.
"""

from __future__ import annotations

from typing import NamedTuple

from minray.protocol.base import Record


class Publication(NamedTuple):
    """The new value of one entry of a channel."""

    channel: str
    key: bytes
    record: Record | None
    """New value; None: the entry is removed."""
