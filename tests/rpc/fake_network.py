"""A network within the test: it delivers in the next turn of the loop, and breaks when the test says so.

One ``FakeNetwork`` is both sides of every channel. ``held`` keeps requests from arriving until ``break_channels`` says how
many of them still do; replies to those are lost with the channel, as the contract in ``platform.base`` allows. Time is
virtual: ``run`` runs a story on a simulated loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from minray.platform.base import (
    Buffer,
    ChannelBroken,
    ConnectFailed,
    ConnectRefused,
    Counters,
    OnIncoming,
    OnReply,
    RecordTooLarge,
    RemoteFailure,
    WrongIncarnation,
)
from minray.platform.transport.destinations import write
from minray.simulation.loop import SimLoop
from tests.helpers import turn
from tests.platform_record import platform_record

MAX_BYTES = 10_000
OWN = b"own-incarnation-"


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story in virtual time; whatever nobody caught fails it."""
    loop = SimLoop()
    try:
        loop.run_until_complete(story())
        assert loop.failures == []
    finally:
        loop.close()


def in_virtual_time(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of a story."""

    @wraps(story)
    def test(*arguments: Any, **named: Any) -> None:
        run(lambda: story(*arguments, **named))

    return test


async def turns(count: int = 20) -> None:
    """Let everything that can happen now happen."""
    for _ in range(count):
        await turn()


async def pass_time(duration_s: float) -> None:
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(duration_s, later.set_result, None)
    await later


@dataclass(eq=False)
class FakeIncoming:
    """One request as the listener sees it."""

    method: str
    payload: bytes
    buffers: Sequence[Buffer]
    peer: bytes
    answer: OnReply

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        check_size(payload)
        self.answer(None, payload, buffers)

    def fail(self, failure: RemoteFailure) -> None:
        self.answer(failure, b"", ())


class FakeChannel:
    """See ``base.Channel``."""

    def __init__(self, network: FakeNetwork, peer: bytes, on_incoming: OnIncoming, on_close: Callable[[], None]) -> None:
        self.peer = peer
        self.closed = False
        self._network = network
        self._on_incoming = on_incoming
        self._on_close = on_close
        self._open: dict[FakeIncoming, tuple[OnReply, Sequence[memoryview]]] = {}
        self._held: list[FakeIncoming] = []

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        check_size(payload)
        incoming = FakeIncoming(method, payload, buffers, OWN, lambda *answer: self._answer(incoming, *answer))
        self._open[incoming] = on_reply, into
        if self.closed:
            self._break_calls()
        elif self._network.held:
            self._held.append(incoming)
        else:
            asyncio.get_running_loop().call_soon(self._on_incoming, incoming)

    def _answer(self, incoming: FakeIncoming, error: Any, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if not self.closed:
            asyncio.get_running_loop().call_soon(self._hear, incoming, error, payload, buffers)

    def _hear(self, incoming: FakeIncoming, error: Any, payload: bytes, buffers: Sequence[Buffer]) -> None:
        on_reply, into = self._open.pop(incoming, (None, ()))
        if on_reply is not None:
            on_reply(error, payload, write(into, buffers) if into else buffers)

    def break_off(self, still_arrive: int, close_is_told_first: bool) -> None:
        """End the channel. The first ``still_arrive`` of the held requests arrive all the same."""
        self.closed = True
        for incoming in self._held[:still_arrive]:
            asyncio.get_running_loop().call_soon(self._on_incoming, incoming)
        if close_is_told_first:
            asyncio.get_running_loop().call_soon(self._on_close)
        self._break_calls()
        if not close_is_told_first:
            asyncio.get_running_loop().call_soon(self._on_close)

    def _break_calls(self) -> None:
        calls, self._open = self._open, {}
        for on_reply, _ in calls.values():
            asyncio.get_running_loop().call_soon(on_reply, ChannelBroken("broken"), b"", ())

    def notify(self, method: str, payload: bytes) -> None:
        raise AssertionError("nothing here notifies")

    def close(self) -> None:
        self.closed = True
        self._break_calls()


class FakeNetwork:
    """See ``base.Network``."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.listeners: dict[str, tuple[bytes, OnIncoming]] = {}
        self.channels: list[FakeChannel] = []
        self.attempts: list[float] = []
        """When somebody tried to connect."""
        self.held = False
        """Requests stay on the way."""
        self.unreachable = False
        """Whether no connection is answered."""
        self.stands_still_s = 0.0
        """Seconds that the next attempt takes, without any other work in this process, before it fails."""
        self.stillborn = 0
        """Number of the next channels that break before any process is told that they are open."""
        self.platform = platform_record(network=self, identity=OWN)

    def listen_at(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> None:
        self.listeners[endpoint] = identity, on_incoming

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> FakeChannel:
        self.attempts.append(asyncio.get_running_loop().time())
        await turns(1)
        if self.stands_still_s:
            stands_still_s, self.stands_still_s = self.stands_still_s, 0.0
            await pass_time(stands_still_s)
            raise ConnectFailed(f"{endpoint}: too late")
        if self.unreachable:
            raise ConnectFailed(f"{endpoint}: no answer")
        if endpoint not in self.listeners:
            raise ConnectRefused(f"{endpoint}: nobody listens there")
        there, on_incoming = self.listeners[endpoint]
        if target not in (b"", there):
            raise WrongIncarnation(f"{endpoint}: somebody else listens there")
        channel = FakeChannel(self, there, on_incoming, on_close)
        self.channels.append(channel)
        if self.stillborn:
            self.stillborn -= 1
            channel.break_off(0, True)
        return channel

    def break_channels(self, still_arrive: int = 0, close_is_told_first: bool = True) -> None:
        for channel in self.channels:
            if not channel.closed:
                channel.break_off(still_arrive, close_is_told_first)


def check_size(payload: bytes) -> None:
    if len(payload) > MAX_BYTES:
        raise RecordTooLarge(f"{len(payload)} bytes")
