"""The messages between the zygote and its clients, and the socket pair that carries them.

Ray: no counterpart; plasma's src/ray/object_manager/plasma/fling.cc also sends descriptors beside messages

Clients are the zygote's owner (a driver, or ``minray start``) and every child that was spawned with a control socket (the
raylet). Both ends of a pair are our own processes and trust each other. So a malformed frame is a bug, not an event.

A frame is four bytes of length, one byte that says whether descriptors belong to it, and one record as MessagePack. The
socket is a stream, not one of packets, because macOS has no unix SOCK_SEQPACKET.

Rules
  * A link never blocks: frames that cannot be written wait in order, and ``wants_write`` asks for a ``flush``.
  * A broken link drops unsent frames, and the next ``receive`` raises EOFError.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from typing import Final

import msgspec

MARK_BYTES = 64
"""Bytes of the memory that each child shares with the zygote and with the process that spawned it."""
MAX_CONFIG_BYTES = 32 * 1024 * 1024
"""The largest config of a child in bytes: that of a node with 100,000 resources or labels takes 5 MB."""
MAX_RECORD_BYTES = MAX_CONFIG_BYTES + 256 * 1024
"""The largest record in bytes: beside the config, a ``Spawn`` has names, and a ``Ready`` its payload."""
_HEADER: Final = struct.Struct("!IB")
_RECEIVE_BYTES = 64 * 1024
_MAX_DESCRIPTORS = 8
_CLOSE_ON_EXEC: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Spawn(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Client to zygote: fork a child. Answered by ``Spawned`` or ``NotSpawned``."""

    request_id: int
    """Chosen by the client, unique on this link."""
    role: str
    """Which program the child runs; the zygote's ``run_role`` knows the names."""
    name: str
    """The child's name for people: ``gcs``, ``raylet/head``, ``worker/1f3c``."""
    config: bytes
    """Bytes for the role; the zygote does not read them."""
    log_path: str = ""
    """File to which standard output and error are appended; empty: /dev/null. Unused with ``pipes``."""
    pipes: bool = False
    """Whether the client wants to read the child's standard output and error through pipes."""
    ready: bool = False
    """Whether the child will say that it is ready; relayed as ``Ready``."""
    control: bool = False
    """Whether the child gets a control socket, to spawn children of its own."""
    essential: bool = False
    """Whether everything ends when this child does."""
    respawn: bool = False
    """Whether this child is forked again, with the same config, when it ends with another exit code than 0."""


class KillChild(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Client to zygote: send SIGKILL to a child of this client. Nothing happens if it is gone."""

    pid: int
    for_good: bool = False
    """Whether a ``respawn`` child is not forked again."""


class Release(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Client to zygote: the marks of this dead child have been read, and its slot may be reused."""

    slot: int


class Detach(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Owner to zygote: live on without me. Answered by the end of the link."""


class Spawned(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Zygote to client: the child runs. With ``pipes``, its output's read ends (stdout, stderr) come along.

    Comes again, with the same ``request_id``, each time a ``respawn`` child was forked anew.
    """

    request_id: int
    pid: int
    slot: int
    """Index of the child's 64 bytes in the memory that all children share."""


class NotSpawned(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Zygote to client: no child was forked, with the reason. ``request_id`` 0: the zygote itself could not begin."""

    request_id: int
    reason: str


class Ready(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Zygote to client: the child is ready, with the payload it sent. Comes before its ``Exited``."""

    pid: int
    payload: bytes


class Exited(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Zygote to client: the child has ended and was reaped; exactly one of ``code`` and ``signal`` is set."""

    pid: int
    code: int | None
    signal: int | None


Message = Spawn | KillChild | Release | Detach | Spawned | NotSpawned | Ready | Exited

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Link:
    """One end of a socket pair that carries records and descriptors, without ever blocking."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        """Frames, or the rest of one, that the kernel had no room for. Their descriptors stay open until they are sent."""
        self._received = bytearray()
        """The beginning of a frame whose end has not arrived."""
        self._descriptors: deque[list[int]] = deque()
        """Groups of descriptors that have arrived before their frame was complete."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether ``flush`` should be called when the socket is writable."""
        return bool(self._unsent)

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message with descriptors, now or as soon as there is room. The link closes the descriptors afterwards."""
        payload = _encoder.encode(message)
        assert len(payload) <= MAX_RECORD_BYTES, f"{type(message).__name__} of {len(payload)} bytes"
        self._unsent.append((_HEADER.pack(len(payload), bool(descriptors)) + payload, descriptors))
        self.flush()

    def flush(self) -> None:
        while self._unsent:
            frame, descriptors = self._unsent[0]
            try:
                sent = socket.send_fds(self._socket, [frame], descriptors) if descriptors else self._socket.send(frame)
            except BlockingIOError:
                return
            except OSError:
                self._drop_unsent()
                return
            _close_all(descriptors)
            if sent < len(frame):
                self._unsent[0] = (frame[sent:], ())
            else:
                self._unsent.popleft()

    def receive(self) -> list[tuple[Message, list[int]]]:
        """The records that have arrived, each with its descriptors; raises EOFError once the other end is gone."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, _MAX_DESCRIPTORS, _CLOSE_ON_EXEC)
        except BlockingIOError:
            return []
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        if descriptors or flags & socket.MSG_CTRUNC:
            # MSG_CTRUNC: this process is out of descriptors. The group, even if incomplete, keeps its place in the queue.
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self._descriptors.append(descriptors)
        self._received += data
        return list(self._complete_frames())

    def _complete_frames(self) -> list[tuple[Message, list[int]]]:
        frames: list[tuple[Message, list[int]]] = []
        start = 0
        while len(self._received) - start >= _HEADER.size:
            length, has_descriptors = _HEADER.unpack_from(self._received, start)
            assert length <= MAX_RECORD_BYTES, f"a frame of {length} bytes"
            end = start + _HEADER.size + length
            if len(self._received) < end:
                break
            message = _decoder.decode(bytes(self._received[start + _HEADER.size : end]))
            frames.append((message, self._descriptors.popleft() if has_descriptors else []))
            start = end
        del self._received[:start]
        return frames

    def shut_down(self) -> None:
        """Tell the other end that nothing more comes, even if forked copies of this end are still open."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The other end is gone already.

    def close(self) -> None:
        self._drop_unsent()
        while self._descriptors:
            _close_all(self._descriptors.popleft())
        self._socket.close()

    def forget(self) -> None:
        """Give up the descriptor without closing it. A forked child closes all inherited descriptors by number."""
        self._socket.detach()

    def _drop_unsent(self) -> None:
        while self._unsent:
            _close_all(self._unsent.popleft()[1])


def _close_all(descriptors: tuple[int, ...] | list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
