"""The transports under test, and how tests talk through them.

A transport joins with one entry in ``TRANSPORTS``: a context manager that takes an empty directory with a short path
and gives a ``Transport``. Everything here uses the event loop that ``Transport.run`` provides and no clock of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import uvloop

from minray.in_process.network import LocalListener, LocalNetwork
from minray.in_process.process import LocalLoop, LocalProcess
from minray.platform.base import Buffer, Channel, Incoming, Listener, Network, PlatformError
from minray.platform.transport.grpc_transport import GrpcNetwork
from minray.platform.transport.lanes import Lane
from minray.platform.transport.sockets import StreamNetwork
from minray.platform.transport.tls import Tls
from minray.simulation.faults import Oracle
from minray.simulation.loop import SimLoop
from minray.simulation.network import SimNetwork, SimWire
from minray.simulation.trace import Trace
from tests.platform.certificates import node_files
from tests.platform.relayed import relayed_network

SERVER, CLIENT, OTHER = b"s" * 16, b"c" * 16, b"o" * 16
TOKENS = b"token", b"token", b"another"
"""Tokens of the side that connects, the side that listens, and the stranger."""
TIMEOUT_S = 30


@dataclass(frozen=True)
class Transport:
    """One way to connect two processes, here both in one."""

    network_a: Network
    """Connects."""
    network_b: Network
    """Listens."""
    endpoint: str
    """Where ``network_b`` may listen."""
    run: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a coroutine to its end on the transport's kind of event loop."""
    stranger: Network | None
    """Connects with another token; None if the transport has no tokens."""


class RealHost:
    """The one member of a host that a network needs."""

    random_bytes = staticmethod(os.urandom)


def run_asyncio(story: Coroutine[Any, Any, None]) -> None:
    """Run on the plain loop, until its last socket is closed; only the loop's own one stays."""

    async def run() -> None:
        await story
        loop: Any = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S):
            await until(lambda: len(loop._selector.get_map()) == 1)

    asyncio.run(run())


@cache
def _grpc_loop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    atexit.register(loop.close)
    return loop


def run_grpc(story: Coroutine[Any, Any, None]) -> None:
    """Run on a loop that stays: gRPC delivers what is left of its calls later, and complains of a closed loop."""
    _grpc_loop().run_until_complete(story)


def tls(scheme: str) -> Tls | None:
    return Tls(node_files()) if scheme == "tls" else None


@contextmanager
def stream(directory: Path, scheme: str, run: Callable[[Any], None]) -> Iterator[Transport]:
    endpoint = f"unix:{directory}/listener" if scheme == "unix" else "tcp:127.0.0.1:0"
    network_a, network_b, stranger = (StreamNetwork(token, RealHost(), tls=tls(scheme)) for token in TOKENS)
    yield Transport(network_a, network_b, endpoint, run, stranger)


@contextmanager
def lanes(directory: Path, scheme: str) -> Iterator[Transport]:
    with stream(directory, scheme, uvloop.run) as inner:
        assert inner.stranger is not None
        networks = [Lane(network, "lane") for network in (inner.network_a, inner.network_b, inner.stranger)]
        yield Transport(networks[0], networks[1], inner.endpoint, uvloop.run, networks[2])
        for network in networks:
            if network._thread is not None:
                network._thread.stop()


@contextmanager
def grpc(directory: Path, scheme: str, exchanges: bool = False) -> Iterator[Transport]:
    endpoint = f"unix:{directory}/listener" if scheme == "unix" else "tcp:127.0.0.1:0"
    network_a, network_b, stranger = (
        GrpcNetwork(token, RealHost(), tls=tls(scheme), exchanges=exchanges) for token in TOKENS
    )
    yield Transport(network_a, network_b, endpoint, run_grpc, stranger)


@contextmanager
def simulated(directory: Path) -> Iterator[Transport]:
    loop = SimLoop()
    wire = SimWire(loop, Oracle(0), Trace(loop))
    networks = [
        SimNetwork(wire, loop.add_process(name, f"node-{name}", i), token)
        for i, (name, token) in enumerate(zip("abc", TOKENS, strict=True))
    ]
    yield Transport(networks[0], networks[1], "sim:listener", loop.run_until_complete, networks[2])
    loop.close()
    assert loop.failures == []


@contextmanager
def in_process(directory: Path) -> Iterator[Transport]:
    loop = LocalLoop()
    listeners: dict[str, LocalListener] = {}
    networks = [LocalNetwork(listeners, LocalProcess(loop, name, "node")) for name in "ab"]
    yield Transport(networks[0], networks[1], "local:listener", loop.run_until_complete, None)
    loop.close()


@contextmanager
def relayed(directory: Path, listens: bool) -> Iterator[Transport]:
    """A remote client connects, or listens."""
    with stream(directory, "unix", uvloop.run) as inner:
        a, b = inner.network_a, inner.network_b
        networks = (a, relayed_network(b)) if listens else (relayed_network(a), b)
        yield Transport(*networks, inner.endpoint, uvloop.run, inner.stranger)


TRANSPORTS: dict[str, Callable[[Path], AbstractContextManager[Transport]]] = {
    "stream-unix": partial(stream, scheme="unix", run=uvloop.run),
    "stream-tcp": partial(stream, scheme="tcp", run=uvloop.run),
    "stream-tls": partial(stream, scheme="tls", run=uvloop.run),
    "stream-unix-asyncio": partial(stream, scheme="unix", run=run_asyncio),
    "stream-tcp-asyncio": partial(stream, scheme="tcp", run=run_asyncio),
    "stream-tls-asyncio": partial(stream, scheme="tls", run=run_asyncio),
    "lane-unix": partial(lanes, scheme="unix"),
    "lane-tcp": partial(lanes, scheme="tcp"),
    "lane-tls": partial(lanes, scheme="tls"),
    "grpc-unix": partial(grpc, scheme="unix"),
    "grpc-tcp": partial(grpc, scheme="tcp"),
    "grpc-tls": partial(grpc, scheme="tls"),
    "grpc-exchange": partial(grpc, scheme="tcp", exchanges=True),
    "relayed-channel": partial(relayed, listens=False),
    "relayed-listener": partial(relayed, listens=True),
    "simulated": simulated,
    "in-process": in_process,
}


@dataclass
class Conversation:
    """A listener and one channel to it, and everything that was said to the listener."""

    transport: Transport
    listener: Listener
    channel: Channel
    heard: list[Incoming]
    """Messages that have arrived, in order."""
    closed: list[str]
    """A name for every ``on_close`` that was called."""

    def ask(
        self, method: str, payload: bytes = b"", buffers: Sequence[Buffer] = (), into: Sequence[memoryview] = ()
    ) -> asyncio.Future[Any]:
        return ask(self.channel, method, payload, buffers, into)

    async def wait_heard(self, count: int) -> list[Incoming]:
        await until(lambda: len(self.heard) >= count)
        return self.heard

    async def connect(self, name: str = "another") -> Channel:
        return await self.transport.network_a.connect(
            self.listener.endpoint, SERVER, CLIENT, lambda: self.closed.append(name)
        )


def ask(
    channel: Channel,
    method: str,
    payload: bytes = b"",
    buffers: Sequence[Buffer] = (),
    into: Sequence[memoryview] = (),
) -> asyncio.Future[Any]:
    """The reply as a future of ``(payload, buffers)``; a second ``on_reply`` raises InvalidStateError in its caller."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_reply(error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result((payload, buffers))

    channel.call(method, payload, buffers, on_reply, into)
    return future


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds."""
    loop = asyncio.get_running_loop()
    while not condition():
        turn = loop.create_future()
        loop.call_later(0.001, turn.set_result, None)
        await turn


def echo(incoming: Incoming) -> None:
    incoming.reply(incoming.payload, incoming.buffers)


def converse(
    transport: Transport,
    story: Callable[[Conversation], Coroutine[Any, Any, None]],
    answer: Callable[[Incoming], None] = echo,
) -> None:
    """Run ``story`` between an open listener, which answers with ``answer``, and a channel to it."""

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S), conversation(transport, answer) as talk:
            await story(talk)

    transport.run(run())


@asynccontextmanager
async def conversation(transport: Transport, answer: Callable[[Incoming], None] = echo) -> AsyncIterator[Conversation]:
    heard: list[Incoming] = []
    closed: list[str] = []

    def on_incoming(incoming: Incoming) -> None:
        heard.append(incoming)
        answer(incoming)

    async with listening(transport.network_b, transport.endpoint, on_incoming) as listener:
        channel = await transport.network_a.connect(listener.endpoint, SERVER, CLIENT, lambda: closed.append("channel"))
        yield Conversation(transport, listener, channel, heard, closed)
        channel.close()


@asynccontextmanager
async def listening(
    network: Network, endpoint: str, on_incoming: Callable[[Incoming], None], identity: bytes = SERVER
) -> AsyncIterator[Listener]:
    """A listener that ends with the test, also a failed one: uvloop does not close a loop that still listens."""
    listener = await network.listen(endpoint, identity, on_incoming)
    try:
        yield listener
    finally:
        await listener.close()
