"""What the object store of a node understands: from its clients, from owners, and from other nodes' stores.

Ray: src/ray/object_manager/plasma/plasma.fbs, src/ray/protobuf/object_manager.proto

A *copy* is one object as one attempt of its task has made it, on one node: ``(object_id, attempt)``. Everything here may
be repeated: creating what exists answers with the same place, a pin is a name that is taken once and given back once, and
what was freed leaves a tombstone, so that a late ``CreateObject`` finds that nobody wants it.
"""

from __future__ import annotations

from minray.protocol.base import Address, Done, Record, Request


class Place(Record, frozen=True):
    """Where the first copy of a large object is."""

    attempt: int
    size: int
    """Bytes in the store."""
    raylet: Address


class Copy(Record, frozen=True):
    """One object as one attempt has made it."""

    object_id: bytes
    attempt: int


CREATED, FULL, UNWANTED, OUT_OF_DISK = range(4)


class CreateReply(Record, frozen=True):
    status: int
    """FULL: no room, for a while. UNWANTED: it was freed, or its owner is dead, or a later attempt's copy is here.

    OUT_OF_DISK: no room either, because the disk has none for what is here.
    """
    raylet: Address
    offset: int = 0
    """CREATED: where in the arena the creator may write, until it seals or aborts."""
    reason: str = ""
    """FULL, OUT_OF_DISK: how much there is, who holds it, and what may help."""


class CreateObject(Request[CreateReply], frozen=True):
    """From a client: room for a new object. Answered when there is room."""

    object_id: bytes
    attempt: int
    size: int
    owner: Address
    creator: bytes
    """The client's worker id: what it has not sealed when it dies is forgotten."""


class SealObject(Request[Done], frozen=True):
    """From the creator: it is written, and will never change (S5)."""

    object_id: bytes
    attempt: int


class AbortObject(Request[Done], frozen=True):
    """From the creator: it will not be written, or not be told of."""

    object_id: bytes
    attempt: int


class Wanted(Record, frozen=True):
    """One object that a client wants to read."""

    object_id: bytes
    owner: Address
    pin: bytes
    """The client's own name for this use; the object stays where it is until the name is given back."""
    attempt: int = 0
    """The one that the client knows."""


GET, WAIT, TASK_ARGUMENTS = range(3)
"""What objects are wanted for; the first is served first (G87)."""
PINNED, LOST, FREED, OWNER_DIED, NOT_HERE, NO_ROOM, CHANGED = range(7)


class Pinned(Record, frozen=True):
    status: int
    """NOT_HERE: the time is up, or it is an argument and is being made again. CHANGED: what the client knows is not so any
    more; the owner has another attempt, a small value, or an error in its place."""
    offset: int = 0
    size: int = 0
    reason: str = ""


class PinReply(Record, frozen=True):
    pinned: list[Pinned]
    """One for each that was wanted, in order."""


class PinObjects(Request[PinReply], frozen=True):
    """From a client: bring these objects here, if they are elsewhere, and keep them.

    Answered when all are here or lost, or the time is up: then some are NOT_HERE.
    """

    client: bytes
    wanted: list[Wanted]
    purpose: int = GET
    """GET, WAIT or TASK_ARGUMENTS."""
    timeout_s: float | None = None


class ReleasePins(Request[Done], frozen=True):
    """From a client: these uses are over."""

    pins: list[bytes]


class FreeObjects(Request[Done], frozen=True):
    """From the owner: nobody needs these copies, nor earlier attempts; whoever reads one may finish."""

    copies: list[Copy]


class PromoteObjects(Request[Done], frozen=True):
    """From the owner: the first copies are lost, so these are now the ones that must stay (G66)."""

    copies: list[Copy]


class OpenLanesReply(Record, frozen=True):
    lanes: list[Address]
    """Each is the same raylet, on a connection of its own; empty: there is only the one that was asked on."""


class OpenLanes(Request[OpenLanesReply], frozen=True):
    """From another raylet: where can chunks be asked for?"""


class EvictObjects(Request[Done], frozen=True):
    """From a client: copies of these that may go, since they are neither the first ones nor being read, may go now."""

    object_ids: list[bytes]


MOST_ENTRIES = 10_000
"""So many objects are described in one answer at most; how many there are is told beside."""


class CopyInfo(Record, frozen=True):
    """One copy of a node's store, for people."""

    object_id: bytes
    attempt: int
    size: int
    owner_id: bytes
    """The owner's worker id."""
    state: str
    """As the object table calls it."""
    is_primary: bool
    use_count: int
    """How many uses keep it where it is."""
    readers: list[bytes]
    """The worker ids of the processes whose uses these are."""
    is_on_disk: bool = False
    is_in_fallback: bool = False
    """Its memory is on disk."""


class SpillStats(Record, frozen=True):
    """What a node has written to disk, and read from there, since it began."""

    spilled_bytes: int = 0
    spilled_objects: int = 0
    restored_bytes: int = 0
    restored_objects: int = 0
    streamed_bytes: int = 0
    """Read for other nodes, past the arena."""


class ObjectsInfo(Record, frozen=True):
    """What a node's store holds."""

    node_id: bytes
    capacity: int
    used: int
    largest_hole: int
    total: int
    """How many copies there are; ``copies`` has the largest ones."""
    copies: list[CopyInfo]
    spill: SpillStats = SpillStats()
    fallback_used: int = 0
    """Bytes of memory on disk."""


class GetObjectsInfo(Request[ObjectsInfo], frozen=True):
    """To a raylet: what is in your store, all of it, or of these objects?"""

    limit: int = MOST_ENTRIES
    object_ids: list[bytes] | None = None


class ChunkReply(Record, frozen=True):
    is_here: bool
    """True: the bytes come beside this record. False: this node has no such copy (any more)."""


class ReadChunk(Request[ChunkReply], frozen=True):
    """From another raylet: some bytes of a copy."""

    object_id: bytes
    attempt: int
    start: int
    size: int
    turn: int
    """The asker's among all that receive the object; who is receiving it himself lets only later ones wait for it."""
