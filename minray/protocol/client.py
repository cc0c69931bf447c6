"""Messages between a remote client, the client server, and the driver process that stands in the cluster for the client.

Ray: src/ray/protobuf/ray_client.proto

The client asks the server for a session (``OpenClient``). After that the server only forwards ``Carry`` and its answers
between the client and its driver process, without looking into them. ``Carry`` brings the client's frames, and its answer
those of the driver process: so a call that the program awaits costs one message in each direction. Frames are numbered in
both directions, and kept until they are acknowledged (``minray/remote_client/session.py``).

A frame holds a piece of a batch of ``Relayed`` records: what the client's core worker does with its network. The driver
process has the true channels and listeners. ``PutValue`` and the requests after it go to the driver process itself, which
writes and reads the object store for the client.
"""

from __future__ import annotations

import msgspec

from minray.protocol.base import Address, Count, Done, Finite, Record, Request
from minray.protocol.object_store import GET, CreateReply, Pinned

# --- between the client and the server ---------------------------------------------------------------------------------


class OpenClientReply(Record, frozen=True):
    refused: str
    """Why the server serves no such client; empty if it does."""
    node: bytes = b""
    """The file of the server's node, as JSON."""
    pid: int = 0
    """Process id of the driver process."""
    clients: int = 0
    """Number of clients that the server serves, this one included."""


class OpenClient(Request[OpenClientReply], frozen=True):
    """Asks for a session; the client is the incarnation that the handshake has named."""

    version: str
    """Version of minray."""
    python: str
    """Version of Python without the patch level: values and functions are pickled by one side and unpickled by the other."""
    resumes: bool
    """Whether the client had a session, and has lost its connection."""


# --- between the client and its driver process -------------------------------------------------------------------------


class Parcel(Record, frozen=True):
    """May bring one frame from the driver process. A large frame is the buffer of the message."""

    acknowledged: Count
    """Number of the last frame of the client that has arrived in its turn."""
    number: Count = 0
    """Number of the frame; 0: there is none."""
    is_end: bool = False
    """Whether the frame ends its batch."""
    frame: bytes = b""


class Carry(Request[Parcel], frozen=True):
    """May bring one frame from the client, as ``Parcel`` does, and asks for one; answered when there is one, or soon."""

    acknowledged: Count
    """Number of the last frame of the driver process that has arrived in its turn."""
    connection: Count
    """Number of the client's connection, from 1. With a new one, unacknowledged frames are sent again."""
    number: Count = 0
    is_end: bool = False
    frame: bytes = b""


# --- inside the frames -------------------------------------------------------------------------------------------------


class Relayed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of the records inside frames."""


class OpenChannel(Relayed, frozen=True, tag=1):
    """From the client: connect to an endpoint; ``ChannelOpened`` answers."""

    channel: int
    endpoint: str
    target: bytes
    identity: bytes


class ChannelOpened(Relayed, frozen=True, tag=2):
    channel: int
    peer: bytes
    failure: str = ""
    """Name of the error's class; empty: the channel is open."""
    reason: str = ""


class EndChannel(Relayed, frozen=True, tag=3):
    """From the client: close the channel. From the driver process: the channel has ended."""

    channel: int


class SendMessage(Relayed, frozen=True, tag=4):
    """From the client: send a request (or with call 0 a notification) on a channel."""

    channel: int
    call: int
    method: str
    payload: bytes
    buffers: tuple[memoryview, ...] = ()


class AnswerMessage(Relayed, frozen=True, tag=5):
    """The answer to the other side's ``SendMessage`` or ``DeliverMessage``, by the number of the call."""

    call: int
    failure: str
    """Kind of the failure; empty: success."""
    payload: bytes
    buffers: tuple[memoryview, ...] = ()


class OpenListener(Relayed, frozen=True, tag=6):
    """From the client: listen at an endpoint of the driver process's machine; ``ListenerOpened`` answers."""

    listener: int
    endpoint: str
    identity: bytes


class ListenerOpened(Relayed, frozen=True, tag=7):
    listener: int
    endpoint: str
    """The endpoint as peers reach it; empty: it cannot be opened."""
    reason: str = ""


class EndListener(Relayed, frozen=True, tag=8):
    """From the client: stop listening. From the driver process: it has."""

    listener: int


class DeliverMessage(Relayed, frozen=True, tag=9):
    """From the driver process: a request (or with call 0 a notification) has arrived at a listener."""

    listener: int
    call: int
    method: str
    payload: bytes
    peer: bytes
    buffers: tuple[memoryview, ...] = ()


class LeaveClient(Relayed, frozen=True, tag=10):
    """From the client: it disconnects for good. From the driver process: it ends, for this reason."""

    reason: str


AnyRelayed = (
    OpenChannel
    | ChannelOpened
    | EndChannel
    | SendMessage
    | AnswerMessage
    | OpenListener
    | ListenerOpened
    | EndListener
    | DeliverMessage
    | LeaveClient
)

# --- from the client to its driver process, on a channel of their own --------------------------------------------------


class PutValue(Request[CreateReply], frozen=True):
    """Asks for room in the object store for a value whose pieces have these sizes."""

    object_id: bytes
    attempt: int
    owner: Address
    sizes: list[Count]


class PutPiece(Request[Done], frozen=True):
    """Brings some bytes of a piece, as the buffer of the message."""

    object_id: bytes
    attempt: int
    piece: Count
    offset: Count


class EndPut(Request[Done], frozen=True):
    """Seals a value, or drops it."""

    object_id: bytes
    attempt: int
    is_kept: bool


class FoundValue(Record, frozen=True):
    pinned: Pinned
    key: int = 0
    """Name of the value for ``ReadPiece``; 0: it cannot be read, or was not wanted."""
    sizes: list[Count] = []
    """Sizes of its pieces."""


class FindValuesReply(Record, frozen=True):
    found: list[FoundValue]


class FindValues(Request[FindValuesReply], frozen=True):
    """Asks to bring values to the node of the driver process, and to keep them readable until ``DropValue``."""

    wanted: list[tuple[bytes, Address, int]]
    """For each its object id, its owner and the attempt that the client knows."""
    timeout_s: Finite | None
    purpose: int = GET


class ReadPiece(Request[Done], frozen=True):
    """Asks for some bytes of a piece; they come as the buffer of the answer."""

    key: int
    piece: Count
    offset: Count
    size: Count


class DropValue(Request[Done], frozen=True):
    key: int
