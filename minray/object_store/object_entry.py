"""One copy of an object on a node, and its place on disk: records that ``ObjectTable`` makes and changes.

Ray: LocalObject in src/ray/object_manager/plasma/common.h

An entry is a copy as one attempt of its task has made it. Its state is not here but in the table's state machine.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from minray.protocol.base import Address


class SpillFile(NamedTuple):
    """One file of spilled copies."""

    directory: int
    """Index of the node's spill directory."""
    name: str


class Spilled(NamedTuple):
    """The place of a spilled copy on disk."""

    file: SpillFile
    start: int
    checksums: list[int]
    """Checksums of the copy's pieces."""


class ObjectEntry(msgspec.Struct, eq=False):
    """One copy of an object on this node."""

    object_id: bytes
    attempt: int
    offset: int
    size: int
    owner: Address
    creator: bytes
    """Worker id of the client that writes, or wrote, the copy; empty: this raylet."""
    is_primary: bool
    pins: dict[bytes, bytes]
    """Pins (uses) of the copy, each with its client's worker id (empty: this raylet itself)."""
    number: int
    """Number of the copy in this table: an object may have several copies here, of which one is available to requests."""
    is_written: bool = False
    """Whether the creator has sealed or aborted the copy, or is dead."""
    is_moving: bool = False
    """Whether the copy is being written to disk, or read from there."""
    spilled: Spilled | None = None
    """Place on disk; set when the copy is there, with or without memory."""

    @property
    def key(self) -> bytes:
        return self.object_id + self.number.to_bytes(8, "big")

    def in_use(self) -> bool:
        return not self.is_written or self.is_moving or bool(self.pins)
