"""The two ends of a channel whose messages stay in one interpreter, and become calls and replies there.

Ray: has no counterpart

The simulation and the in-process world share this file. Each of them carries messages between the ends in its own way (an
``Attachment``). A ``ChannelEnd`` turns messages into calls and replies; the side that has connected uses it as
``base.Channel``.

Only bytes travel, as copies: no object is shared by two processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minray.platform.base import (
    Buffer,
    ChannelBroken,
    Counters,
    OnIncoming,
    OnReply,
    RemoteFailure,
    check_size,
)
from minray.platform.transport.destinations import DoesNotFit, write

CALL, NOTIFY, REPLY, FAIL, CLOSE, BREAK = "call", "notify", "reply", "fail", "close", "break"
"""Kinds of messages. The channel itself sends the last two: CLOSE for an orderly end, BREAK for any other."""


@dataclass(slots=True, eq=False)
class Message:
    kind: str
    number: int = 0
    """The number of the call; a reply has the number of its call."""
    method: str = ""
    payload: bytes = b""
    buffers: tuple[memoryview, ...] = ()
    failure: RemoteFailure | None = None
    """The failure that a FAIL carries; None in other kinds."""
    event: int = -1
    """The number of the message's SEND event in the trace; -1 if it has none."""

    @property
    def word(self) -> str:
        """The message's name in faults and in the trace: ``PushTask``, ``PushTask reply``."""
        return self.method if self.kind in (CALL, NOTIFY) else f"{self.method} {self.kind}".lstrip()


class Owner(Protocol):
    """The process of an end."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> object:
        """Call back in this process, unless it has died."""


class Attachment(Protocol):
    """The network of one process, as the ends of its channels see it."""

    counters: Counters
    ends: dict[Any, None]
    """Open ends of this process."""

    @property
    def process(self) -> Owner:
        """The process to which the network belongs."""

    def send(self, end: Any, message: Message) -> None:
        """Put a message on its way to the other end. CLOSE, the last message of an orderly end, comes this way too."""

    def shut(self, end: Any) -> None:
        """Tell the other end that this one is closed, behind all messages that were sent before."""

    def on_message(self, end: Any, message: Message) -> None:
        """Note that a message has arrived at this end, before it is handled."""


class QueuedIncoming:
    """Implements ``base.Incoming``: one message that has arrived."""

    __slots__ = ("method", "payload", "buffers", "peer", "_end", "_number")

    def __init__(self, end: ChannelEnd, message: Message) -> None:
        self.method = message.method
        self.payload = message.payload
        self.buffers: Sequence[Buffer] = message.buffers
        self.peer = end.peer
        self._end = end
        self._number = message.number if message.kind == CALL else None
        """The number of the call to answer; None for a notification, and once the call is answered."""

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        self._answer(REPLY, payload, buffers, None)

    def fail(self, failure: RemoteFailure) -> None:
        self._answer(FAIL, b"", (), failure)

    def _answer(self, kind: str, payload: bytes, buffers: Sequence[Buffer], failure: RemoteFailure | None) -> None:
        if self._number is not None and not self._end.closed:
            _check("a reply", payload, buffers)
            number, self._number = self._number, None
            self._end.network.counters.replies += 1
            self._end.send(Message(kind, number, self.method, payload, copies(buffers), failure))


class ChannelEnd:
    """One end of a channel; the connecting side uses it as ``base.Channel``."""

    def __init__(self, network: Attachment, peer: bytes, on_close: Callable[[], None], on_incoming: OnIncoming) -> None:
        self.network = network
        self.peer = peer
        self.closed = False
        self._on_close = on_close
        self._on_incoming = on_incoming
        self._calls: dict[int, OnReply] = {}
        self._into: dict[int, Sequence[memoryview]] = {}
        """The memory that open calls have given for the buffers of their replies, by call number."""
        self._last_number = 0

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        if self.closed:
            self.network.process.call_soon(on_reply, ChannelBroken("the channel is closed"), b"", ())
            return
        _check(method, payload, buffers)
        self._last_number += 1
        self._calls[self._last_number] = on_reply
        if into:
            self._into[self._last_number] = into
        self.network.counters.requests += 1
        self.send(Message(CALL, self._last_number, method, payload, copies(buffers)))

    def notify(self, method: str, payload: bytes) -> None:
        if not self.closed:
            _check(method, payload, ())
            self.network.counters.requests += 1
            self.send(Message(NOTIFY, 0, method, payload))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.network.ends.pop(self, None)
        self.network.send(self, Message(CLOSE))
        self._break_calls()

    def send(self, message: Message) -> None:
        network = self.network
        network.counters.bytes += len(message.payload) + sum(buffer.nbytes for buffer in message.buffers)
        network.send(self, message)

    def receive(self, message: Message) -> None:
        """Handle one message that has arrived; called on the loop as a callback of this end's process."""
        if self.closed:
            return
        kind = message.kind
        if kind in (CLOSE, BREAK):
            self.end()
            return
        self.network.on_message(self, message)
        if kind in (CALL, NOTIFY):
            self._on_incoming(QueuedIncoming(self, message))
        elif message.number in self._calls:
            self._receive_reply(message)

    def _receive_reply(self, message: Message) -> None:
        buffers: Sequence[Buffer] = message.buffers
        if message.buffers and message.number in self._into:
            try:
                buffers = write(self._into[message.number], message.buffers)
            except DoesNotFit:
                self.end()
                return
        self._into.pop(message.number, None)
        self._calls.pop(message.number)(message.failure, message.payload, buffers)

    def end(self) -> None:
        """End the channel for any reason other than a call of ``close`` on this side."""
        if self.closed:
            return
        self.closed = True
        self.network.ends.pop(self, None)
        self.network.shut(self)
        self._break_calls()
        self.network.process.call_soon(self._on_close)

    def forget(self) -> None:
        """Drop all open calls, since the process is dead. Calls of its ``finally`` blocks get no reply either."""
        self.closed = True
        self._calls.clear()
        self._into.clear()

    def _break_calls(self) -> None:
        self._into.clear()
        calls, self._calls = self._calls, {}
        for on_reply in calls.values():
            error = ChannelBroken("the channel closed before the reply came")
            self.network.process.call_soon(on_reply, error, b"", ())


def copies(buffers: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """Return read-only copies of the buffers, for the receiver."""
    return tuple(memoryview(bytes(buffer)) for buffer in buffers) if buffers else ()


def _check(word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
    """Raise ``RecordTooLarge`` for a message that is too large, like the real transports."""
    assert type(payload) is bytes, "only bytes travel"
    check_size(word, payload, buffers)
