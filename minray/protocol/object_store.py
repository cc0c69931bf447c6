"""Messages that the object store of a node understands: from its clients, from owners, and from other nodes' stores.

Ray: src/ray/object_manager/plasma/plasma.fbs, src/ray/protobuf/object_manager.proto

A *copy* is one object as one attempt of its task has made it, on one node: ``(object_id, attempt)``. All messages may be
repeated. Creating an existing copy answers with the same place. A pin has a name that is taken once and given back once. A
freed copy leaves a tombstone, so that a late ``CreateObject`` learns that it is unwanted.
"""

from __future__ import annotations

from minray.protocol.base import Address, Count, Done, Finite, Record, Request


class Place(Record, frozen=True):
    """Says where the primary copy of a large object is."""

    attempt: int
    size: int
    """Size in the store, in bytes."""
    raylet: Address


class Copy(Record, frozen=True):
    """One object as one attempt has made it."""

    object_id: bytes
    attempt: int


CREATED, FULL, UNWANTED, OUT_OF_DISK = range(4)


class CreateReply(Record, frozen=True):
    status: int
    """Outcome of the creation.

    FULL: the store had no room for a while. UNWANTED: the object was freed, its owner is dead, or a later attempt's copy is
    here. OUT_OF_DISK: the store has no room, and the disk has none for its spilled objects.
    """
    raylet: Address
    offset: int = 0
    """CREATED: offset in the arena where the creator may write, until it seals or aborts."""
    reason: str = ""
    """FULL, OUT_OF_DISK: the store's size, what fills it, and what may help."""


class CreateObject(Request[CreateReply], frozen=True):
    """From a client: asks for room for a new object; answered when there is room, or the store gives up."""

    object_id: bytes
    attempt: int
    size: int
    owner: Address
    creator: bytes
    """Worker id of the client; copies that it has not sealed are dropped when it dies."""


class SealObject(Request[Done], frozen=True):
    """From the creator: says that a copy is written and will never change (S5)."""

    object_id: bytes
    attempt: int


class AbortObject(Request[Done], frozen=True):
    """From the creator: drops a copy that will not be written, or not be announced."""

    object_id: bytes
    attempt: int


class Wanted(Record, frozen=True):
    """One object that a client wants to read."""

    object_id: bytes
    owner: Address
    pin: bytes
    """Name that the client gave to this use; the object stays where it is until the name is given back."""
    attempt: int = 0
    """Attempt that the client knows."""


GET, WAIT, TASK_ARGUMENTS = range(3)
"""Purposes for which objects are wanted, in the order in which they are served (G87)."""
PINNED, LOST, FREED, OWNER_DIED, NOT_HERE, NO_ROOM, CHANGED = range(7)


class Pinned(Record, frozen=True):
    status: int
    """Outcome of the pin.

    NOT_HERE: the time is up, or the object is an argument that is being reconstructed. CHANGED: the client's knowledge is
    outdated, since the owner has another attempt, a small value, or an error instead."""
    offset: int = 0
    size: int = 0
    reason: str = ""


class PinReply(Record, frozen=True):
    pinned: list[Pinned]
    """One outcome for each wanted object, in order."""


class PinObjects(Request[PinReply], frozen=True):
    """From a client: pulls objects to this node if they are elsewhere, and pins them.

    It is answered when each of them is here or lost, or when the time is up; then some are NOT_HERE.
    """

    client: bytes
    wanted: list[Wanted]
    purpose: int = GET
    """GET, WAIT or TASK_ARGUMENTS."""
    timeout_s: Finite | None = None


class ReleasePins(Request[Done], frozen=True):
    """From a client: gives pins back, because these uses are over."""

    pins: list[bytes]


class FreeObjects(Request[Done], frozen=True):
    """From the owner: frees copies, and those of earlier attempts; a process that reads one may finish."""

    copies: list[Copy]


class PromoteObjects(Request[Done], frozen=True):
    """From the owner: makes these copies the primary ones, which must stay, because the primary ones are lost (G66)."""

    copies: list[Copy]


class OpenLanesReply(Record, frozen=True):
    lanes: list[Address]
    """Addresses of the same raylet, each for a connection of its own; empty: use the ordinary connection."""


class OpenLanes(Request[OpenLanesReply], frozen=True):
    """From another raylet: asks for the addresses on which to ask for chunks."""


class EvictObjects(Request[Done], frozen=True):
    """From a client: evicts copies of these objects that are neither primary nor being read."""

    object_ids: list[bytes]


MOST_ENTRIES = 10_000
"""Most objects described in one answer, so that it fits into one message; their total number is told beside them."""


class CopyInfo(Record, frozen=True):
    """One copy of a node's store, for the state API."""

    object_id: bytes
    attempt: int
    size: int
    owner_id: bytes
    """Worker id of the owner."""
    state: str
    """State in the object table."""
    is_primary: bool
    use_count: int
    """Number of pins that keep the copy where it is."""
    readers: list[bytes]
    """Worker ids of the processes that hold these pins."""
    is_on_disk: bool = False
    is_in_fallback: bool = False
    """Whether its memory is fallback memory, which is on disk."""


class SpillStats(Record, frozen=True):
    """Amounts that a node has spilled to disk, and read from there, since it began."""

    spilled_bytes: int = 0
    spilled_objects: int = 0
    restored_bytes: int = 0
    restored_objects: int = 0
    streamed_bytes: int = 0
    """Bytes read from disk for other nodes, without restoring them to the arena."""


class ObjectsInfo(Record, frozen=True):
    """The content of a node's store."""

    node_id: bytes
    capacity: int
    used: int
    largest_hole: int
    total: int
    """Number of copies; ``copies`` has the largest ones."""
    copies: list[CopyInfo]
    spill: SpillStats = SpillStats()
    fallback_used: int = 0
    """Bytes of fallback memory in use, which is on disk."""


class GetObjectsInfo(Request[ObjectsInfo], frozen=True):
    """To a raylet: asks what its store holds, of all objects or of ``object_ids``."""

    limit: Count = MOST_ENTRIES
    object_ids: list[bytes] | None = None


class ChunkReply(Record, frozen=True):
    is_here: bool
    """Whether the bytes come beside this record; False: this node has no such copy (any more)."""


class ReadChunk(Request[ChunkReply], frozen=True):
    """From another raylet: asks for some bytes of a copy."""

    object_id: bytes
    attempt: int
    start: int
    size: int
    turn: int
    """Turn of the asking raylet among all receivers. A raylet that still receives the object lets only later ones wait."""
