"""What the tables of the gcs ask for: news for subscribers.

Ray: src/ray/gcs/pubsub_handler.h (GcsPublisher, whose calls these records replace)

Managers are pure. A decision (``register``, ``bury``, ``finish``) returns the record that has to be stored, and changes
nothing; when it is stored, ``on_committed`` takes it into the table and returns the publications. So nothing is seen by
anyone before it is durable, and a failed write leaves nothing to undo.
"""

from __future__ import annotations

from typing import NamedTuple

from minray.protocol.base import Record


class Publication(NamedTuple):
    """One entry of a channel has a new value."""

    channel: str
    key: bytes
    record: Record | None
    """None: the entry is gone."""
