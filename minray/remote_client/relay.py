"""The driver process's side of a client's network: true channels and listeners, which the client uses as its own.

Ray: python/ray/util/client/server/server.py (RayletServicer), which runs each call of a client in its driver

The client's core worker owns its objects and submits its tasks itself, as that of any driver. It only has no sockets here.
So each of its requests to another process comes as a record, is sent from here, and its answer goes back; and what other
processes send to the client arrives here first. Nothing is decoded on the way, and nothing is unpickled.

``OWN`` is the endpoint of the driver process itself, which serves the object store (``store_service``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minray.common.task_set import TaskSet
from minray.platform.base import (
    Buffer,
    Channel,
    ChannelBroken,
    ConnectFailed,
    Incoming,
    Listener,
    Network,
    OnIncoming,
    OnReply,
    PlatformError,
    RemoteFailure,
)
from minray.protocol.client import (
    AnswerMessage,
    AnyRelayed,
    ChannelOpened,
    DeliverMessage,
    EndChannel,
    EndListener,
    ListenerOpened,
    OpenChannel,
    OpenListener,
    Relayed,
    SendMessage,
)

logger = logging.getLogger(__name__)

OWN = "client:own"
"""Endpoint of the driver process itself, for its client."""
BROKEN = "channel-broken"
"""Failure of a call whose channel has ended; no process answers with this kind."""
Send = Callable[[Relayed, int], None]
"""Function that sends a record to the client, with the bytes of its payload and buffers."""


def size_of(payload: bytes, buffers: Sequence[Buffer]) -> int:
    """Return the bytes of a message."""
    return len(payload) + sum(memoryview(buffer).nbytes for buffer in buffers)


def views_of(buffers: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """Return buffers as flat views of bytes, which a record can hold."""
    return tuple(memoryview(buffer).cast("B") for buffer in buffers)


class _OwnMessage:
    """A request of the client to the driver process itself: an ``Incoming``."""

    def __init__(self, message: SendMessage, peer: bytes, on_reply: OnReply) -> None:
        self.method = message.method
        self.payload = message.payload
        self.buffers: Sequence[Buffer] = message.buffers
        self.peer = peer
        self._on_reply = on_reply

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        self._on_reply(None, payload, buffers)

    def fail(self, failure: RemoteFailure) -> None:
        self._on_reply(failure, b"", ())


class Relay:
    """Carries out what one client does with its network."""

    def __init__(self, network: Network, client: bytes, send: Send, own: OnIncoming) -> None:
        """Serve the client with this incarnation; ``own`` receives its requests to the driver process itself."""
        self._network = network
        self._client = client
        self._send = send
        self._own = own
        self._channels: dict[int, Channel] = {}
        """Open channels by the client's number."""
        self._own_channels: set[int] = set()
        """Numbers of the client's channels to the driver process itself."""
        self._opening: dict[int, asyncio.Task[None]] = {}
        """Attempts to open a channel, by its number."""
        self._listeners: dict[int, Listener] = {}
        self._calls: dict[int, Incoming] = {}
        """Requests that have arrived and that the client has not answered, by number."""
        self._last_call = 0
        self._tasks = TaskSet()

    def on_record(self, record: AnyRelayed) -> None:
        """Do what a record of the client says."""
        match record:
            case SendMessage():
                self._on_message(record)
            case AnswerMessage():
                self._on_answer(record)
            case OpenChannel():
                name = f"connect({record.endpoint.rpartition('/')[2]})"
                self._opening[record.channel] = self._tasks.begin(self._open_channel(record), name)
            case EndChannel():
                self._end_channel(record.channel)
            case OpenListener():
                self._tasks.begin(self._open_listener(record), f"listen({record.endpoint.rpartition('/')[2]})")
            case EndListener():
                self._tasks.begin(self._end_listener(record.listener), "end_listener")
            case _:
                logger.warning("ignoring a %s, which only the driver process sends", type(record).__name__)

    # --- channels

    async def _open_channel(self, record: OpenChannel) -> None:
        number = record.channel
        try:
            if record.endpoint == OWN:
                self._own_channels.add(number)
                self._send(ChannelOpened(number, b""), 0)
                return
            on_close = partial(self._on_channel_closed, number)
            channel = await self._network.connect(record.endpoint, record.target, record.identity, on_close)
        except ConnectFailed as error:
            self._send(ChannelOpened(number, b"", type(error).__name__, str(error)), 0)
        else:
            self._channels[number] = channel
            self._send(ChannelOpened(number, channel.peer), 0)
            if channel.closed:
                self._on_channel_closed(number)
        finally:
            self._opening.pop(number, None)

    def _on_channel_closed(self, number: int) -> None:
        if self._channels.pop(number, None) is not None:
            self._send(EndChannel(number), 0)

    def _end_channel(self, number: int) -> None:
        self._own_channels.discard(number)
        opening = self._opening.pop(number, None)
        if opening is not None:
            opening.cancel()
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()

    def _on_message(self, message: SendMessage) -> None:
        on_reply = partial(self._on_reply, message.call)
        if message.channel in self._own_channels:
            self._own(_OwnMessage(message, self._client, on_reply))
            return
        channel = self._channels.get(message.channel)
        if channel is None:  # it has ended, and the client hears of that
            on_reply(ChannelBroken("the channel has ended"), b"", ())
        elif message.call:
            channel.call(message.method, message.payload, message.buffers, on_reply)
        else:
            channel.notify(message.method, message.payload)

    def _on_reply(self, call: int, error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if not call:
            return
        if error is None:
            self._send(AnswerMessage(call, "", payload, views_of(buffers)), size_of(payload, buffers))
        elif isinstance(error, RemoteFailure):
            self._send(AnswerMessage(call, error.kind, error.message.encode(errors="backslashreplace")), 0)
        else:
            self._send(AnswerMessage(call, BROKEN, str(error).encode(errors="backslashreplace")), 0)

    # --- listeners

    async def _open_listener(self, record: OpenListener) -> None:
        on_incoming = partial(self._on_incoming, record.listener)
        try:
            listener = await self._network.listen(record.endpoint, record.identity, on_incoming)
        except PlatformError as error:
            self._send(ListenerOpened(record.listener, "", str(error)), 0)
            return
        self._listeners[record.listener] = listener
        self._send(ListenerOpened(record.listener, listener.endpoint), 0)

    async def _end_listener(self, number: int) -> None:
        listener = self._listeners.pop(number, None)
        if listener is not None:
            await listener.close()
        self._send(EndListener(number), 0)

    def _on_incoming(self, listener: int, incoming: Incoming) -> None:
        call = 0  # of a notification, which both transports of processes mark like this
        if getattr(incoming, "call_id", 1):
            self._last_call += 1
            call = self._last_call
            self._calls[call] = incoming
        message = DeliverMessage(
            listener=listener,
            call=call,
            method=incoming.method,
            payload=incoming.payload,
            peer=incoming.peer,
            buffers=views_of(incoming.buffers),
        )
        self._send(message, size_of(incoming.payload, incoming.buffers))

    def _on_answer(self, answer: AnswerMessage) -> None:
        incoming = self._calls.pop(answer.call, None)
        if incoming is None:
            return
        if answer.failure:
            incoming.fail(RemoteFailure(answer.failure, answer.payload.decode(errors="replace")))
        else:
            incoming.reply(answer.payload, answer.buffers)

    async def close(self) -> None:
        """Close all channels and listeners: other processes then see that this incarnation has ended."""
        self._tasks.cancel()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        listeners: list[Any] = [listener.close() for listener in self._listeners.values()]
        self._listeners.clear()
        await asyncio.gather(*listeners, return_exceptions=True)
