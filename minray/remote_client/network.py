"""A client's network: channels and listeners that its driver process has for it.

Ray: python/ray/util/client/worker.py (Worker), which sends calls of the API instead

It implements ``Network``, so that the client's core worker works as that of any driver. Each operation is a record on the
link (``link``), which ``relay`` carries out. When the link is lost, every channel ends, and none can be opened any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minray.platform.base import (
    AuthenticationFailed,
    Buffer,
    ChannelBroken,
    ConnectFailed,
    ConnectRefused,
    Counters,
    OnIncoming,
    OnReply,
    PlatformError,
    RemoteFailure,
    WrongIncarnation,
    check_size,
)
from minray.platform.transport.destinations import DoesNotFit, write
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
    SendMessage,
)
from minray.remote_client.relay import BROKEN, Send, size_of, views_of
from minray.values.alignment import aligned_copy

logger = logging.getLogger(__name__)

FAILURES = {error.__name__: error for error in (ConnectFailed, ConnectRefused, WrongIncarnation, AuthenticationFailed)}
"""The errors of ``connect`` by their names."""


class RelayedChannel:
    """A channel of the driver process: a ``Channel``."""

    def __init__(self, network: RelayedNetwork, number: int, peer: bytes, on_close: Callable[[], None]) -> None:
        self.peer = peer
        self.closed = False
        self.number = number
        self._network = network
        self._on_close: Callable[[], None] | None = on_close

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        if self.closed:
            error = ChannelBroken("the channel is closed")
            asyncio.get_running_loop().call_soon(on_reply, error, b"", ())
            return
        check_size(method, payload, buffers)
        self._network.begin_call(self, method, payload, buffers, on_reply, into)

    def notify(self, method: str, payload: bytes) -> None:
        if not self.closed:
            check_size(method, payload, ())
            self._network.counters.requests += 1
            self._network.send_message(SendMessage(self.number, 0, method, payload), len(payload))

    def close(self) -> None:
        if not self.closed:
            self._on_close = None
            self._network.send(EndChannel(self.number), 0)
            self.end("this process closed it")

    def end(self, reason: str) -> None:
        """End the channel and its open calls."""
        if self.closed:
            return
        self.closed = True
        loop = asyncio.get_running_loop()
        for on_reply in self._network.on_channel_ended(self):
            loop.call_soon(on_reply, ChannelBroken(reason), b"", ())
        if self._on_close is not None:
            loop.call_soon(self._on_close)


class RelayedListener:
    """A listener of the driver process: a ``Listener``."""

    def __init__(self, network: RelayedNetwork, number: int, endpoint: str) -> None:
        self.endpoint = endpoint
        self._network = network
        self._number = number

    async def close(self) -> None:
        await self._network.close_listener(self._number)


class RelayedMessage:
    """A message that has arrived at the driver process: an ``Incoming``."""

    def __init__(self, network: RelayedNetwork, message: DeliverMessage) -> None:
        self.method = message.method
        self.payload = message.payload
        self.buffers = _aligned(message.buffers)
        self.peer = message.peer
        self._network = network
        self._call = message.call

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        check_size("a reply", payload, buffers)
        if self._call:
            record = AnswerMessage(self._call, "", payload, views_of(buffers))
            self._call = 0
            self._network.counters.replies += 1
            self._network.send_message(record, size_of(payload, buffers))

    def fail(self, failure: RemoteFailure) -> None:
        if self._call:
            record = AnswerMessage(self._call, failure.kind, failure.message.encode(errors="backslashreplace"))
            self._call = 0
            self._network.send(record, 0)


class RelayedNetwork:
    """The network of one client: a ``Network``."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.send: Send = _drop
        """Sends a record to the driver process; set when there is a link."""
        self.lost = ""
        """Why the link is lost; empty while it is not."""
        self._last_number = 0
        """The last number of a channel, listener or call."""
        self._channels: dict[int, RelayedChannel] = {}
        self._opening: dict[int, asyncio.Future[Any]] = {}
        """Answers that ``connect`` and ``listen`` wait for, by the number of their channel or listener."""
        self._listening: dict[int, OnIncoming] = {}
        """Receivers of the messages that arrive at each listener."""
        self._calls: dict[int, tuple[RelayedChannel, OnReply, Sequence[memoryview]]] = {}
        """Open calls by number, with the memory that their callers have given for the answers."""

    # --- the contract

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> RelayedListener:
        number = self._next()
        self._listening[number] = on_incoming
        self.send(OpenListener(number, endpoint, identity), 0)
        opened = await self._answer(number)
        if not opened.endpoint:
            del self._listening[number]
            raise PlatformError(opened.reason)
        return RelayedListener(self, number, opened.endpoint)

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> RelayedChannel:
        number = self._next()
        channel = self._channels[number] = RelayedChannel(self, number, target, on_close)
        self.send(OpenChannel(number, endpoint, target, identity), 0)
        try:
            opened = await self._answer(number)
        except BaseException:
            self._channels.pop(number, None)
            self.send(EndChannel(number), 0)
            raise
        if opened.failure:
            self._channels.pop(number, None)
            raise FAILURES.get(opened.failure, ConnectFailed)(opened.reason)
        channel.peer = opened.peer
        return channel

    async def _answer(self, number: int) -> Any:
        if self.lost:
            raise ConnectRefused(self.lost)
        answer = self._opening[number] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        finally:
            del self._opening[number]

    def _next(self) -> int:
        self._last_number += 1
        return self._last_number

    # --- for channels and listeners

    def begin_call(
        self,
        channel: RelayedChannel,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview],
    ) -> None:
        """Send a request on a channel."""
        self.counters.requests += 1
        call = self._next()
        self._calls[call] = channel, on_reply, into
        message = SendMessage(channel=channel.number, call=call, method=method, payload=payload, buffers=views_of(buffers))
        self.send_message(message, size_of(payload, buffers))

    def send_message(self, message: SendMessage | AnswerMessage, size: int) -> None:
        """Send a message of this process, and count it."""
        self.counters.frames += 1
        self.counters.bytes += size
        self.send(message, size)

    def on_channel_ended(self, channel: RelayedChannel) -> list[OnReply]:
        """Forget a channel; return the callbacks of its open calls."""
        self._channels.pop(channel.number, None)
        calls = [call for call, (of, _, _) in self._calls.items() if of is channel]
        return [self._calls.pop(call)[1] for call in calls]

    async def close_listener(self, number: int) -> None:
        """Close a listener; return when the driver process has closed it, or is gone."""
        if self._listening.pop(number, None) is not None:
            self.send(EndListener(number), 0)
            with suppress(ConnectRefused):
                await self._answer(number)

    # --- from the driver process

    def on_record(self, record: AnyRelayed) -> None:
        """React to a record of the driver process."""
        match record:
            case AnswerMessage():
                self._on_answer(record)
            case DeliverMessage():
                on_incoming = self._listening.get(record.listener)
                message = RelayedMessage(self, record)
                if on_incoming is None:
                    message.fail(RemoteFailure("closed", "the client has stopped listening"))
                else:
                    on_incoming(message)
            case ChannelOpened():
                self._settle(record.channel, record)
            case ListenerOpened():
                self._settle(record.listener, record)
            case EndListener():
                self._settle(record.listener, record)
            case EndChannel():
                channel = self._channels.get(record.channel)
                if channel is not None:
                    channel.end("the peer closed it")
            case _:
                logger.warning("ignoring a %s, which only a client sends", type(record).__name__)

    def _settle(self, number: int, opened: ChannelOpened | ListenerOpened | EndListener) -> None:
        answer = self._opening.get(number)
        if answer is not None and not answer.done():
            answer.set_result(opened)

    def _on_answer(self, answer: AnswerMessage) -> None:
        channel, on_reply, into = self._calls.pop(answer.call, (None, None, ()))
        if on_reply is None or channel is None:
            return
        try:
            if answer.failure == BROKEN:
                on_reply(ChannelBroken(answer.payload.decode(errors="replace")), b"", ())
            elif answer.failure:
                on_reply(RemoteFailure(answer.failure, answer.payload.decode(errors="replace")), b"", ())
            else:
                fits = into and answer.buffers
                on_reply(None, answer.payload, write(into, answer.buffers) if fits else _aligned(answer.buffers))
        except DoesNotFit as error:
            on_reply(ChannelBroken(str(error)), b"", ())
            self.send(EndChannel(channel.number), 0)
            channel.end(f"it broke the protocol: {error}")
        except Exception:
            logger.exception("on_reply raised; the channel goes on")

    def on_lost(self, reason: str) -> None:
        """End everything, because the link is lost."""
        self.lost = f"this client has lost its connection to the cluster: {reason}"
        self.send = _drop
        for number, answer in list(self._opening.items()):
            if not answer.done():
                answer.set_exception(ConnectRefused(self.lost))
            self._channels.pop(number, None)
        for channel in list(self._channels.values()):
            channel.end(self.lost)


def _aligned(buffers: Sequence[memoryview]) -> Sequence[Buffer]:
    """Return copies of buffers that begin where arrays must begin; in their frame they begin anywhere."""
    return [aligned_copy(buffer) for buffer in buffers] if buffers else ()


def _drop(_record: Any, _size: int) -> None:
    """Drop a record: there is no link."""
