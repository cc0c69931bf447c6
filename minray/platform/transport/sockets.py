"""The stream transport: framed messages over unix sockets within a machine and TCP between machines.

Ray: src/ray/raylet_ipc_client/ and src/ray/rpc/grpc_server.cc (Ray listens with its own frames on unix sockets only)

Connections begin in this file: endpoints are opened, and peers make their handshakes. ``stream_connection`` takes over
after that.

Rules
  * No message is sent or read before the handshake (``handshake.py``) has succeeded on both sides, within ten seconds and
    a few hundred bytes. On a unix socket the handshake begins only with a process of this user.
  * A peer that fails the handshake is cut off; other connections are not affected. Such peers are logged, at most one line a
    minute for each (``peer_log.py``). A peer that connects and leaves without sending anything only checked whether we
    listen.
  * A unix socket's file is made and removed with its listener.
  * A TCP connection breaks when nothing is heard from the other machine for 30 seconds, even if no request is open: the
    kernels probe each other (keepalive). It does not break because a process is busy or stopped.
  * With TLS (``tls.py``), TCP connections are accepted by ``tls_acceptor.py``, and the handshake happens inside.
  * A TCP listener keeps few connections that have proven nothing (``strangers.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from minray.common.forks import at_fork
from minray.platform.base import AuthenticationFailed, ConnectFailed, Host, OnIncoming, PlatformError
from minray.platform.transport import endpoints
from minray.platform.transport.chunk_writer import descriptor_of
from minray.platform.transport.handshake import (
    HANDSHAKE_TIMEOUT_S,
    NONCE_BYTES,
    ClientHandshake,
    HandshakeRefused,
    ServerHandshake,
)
from minray.platform.transport.strangers import CROWDED, Stranger, Strangers
from minray.platform.transport.stream_connection import (
    MAX_TRANSFER_BYTES,
    Outbox,
    ServerConnection,
    StreamChannel,
)

if TYPE_CHECKING:  # Only clusters with TLS load these.
    from minray.platform.transport.tls import Context, Tls
    from minray.platform.transport.tls_acceptor import TlsAcceptor

logger = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
KEEPALIVE = {
    "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 30_000,
}
"""Options of TCP connections: seconds of silence before the first probe, seconds between probes, number of probes;
milliseconds without an acknowledgement. Together they break a silent connection after 30 s. Options that a system lacks are
left out."""


class _ServerGreeting(asyncio.Protocol):
    """A connection that came in and has not proven anything yet."""

    def __init__(self, listener: StreamListener) -> None:
        self._listener = listener
        self._handshake: ServerHandshake
        """The handshake; made when the connection, and with it the peer's certificate, is known."""
        self._received = bytearray()
        """At most one incomplete handshake message."""
        self._silent = True
        """Whether nothing has arrived. A peer that leaves then only checked whether we listen, and is not logged."""
        self._over = False
        """Whether the handshake is over: refused, or handed over to a ``ServerConnection``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _break_when_silent(self._transport)
        self._peer, place = _describe_peer(self._transport)
        self._name = f"the connection of {place} to {self._listener.endpoint}"
        network = self._listener.network
        self._handshake = ServerHandshake(
            network.token,
            self._listener.identity,
            network.host.random_bytes(NONCE_BYTES),
            b"" if network.tls is None else network.tls.bound_by(self._transport.get_extra_info("ssl_object")),
        )
        self._timeout = asyncio.get_running_loop().call_later(
            HANDSHAKE_TIMEOUT_S, self._refuse, f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"
        )
        self._listener.connections.add(self)
        try:
            _check_user(self._transport)
        except AuthenticationFailed as error:
            self._refuse(str(error))
        else:
            self._listener.on_stranger(self._peer, self)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._silent = False
        before = len(self._received) + len(data)
        self._received += data
        try:
            answer = self._handshake.receive(self._received)
            if self._received and len(self._received) < before:
                raise HandshakeRefused("it sent more than the handshake", "garbage")
        except HandshakeRefused as refused:
            self._transport.write(refused.answer)
            self._refuse(str(refused))
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.peer is not None:
            self._finish()
            connection = self._listener.connection(self._transport, self._handshake.peer, self._name)
            self._transport.set_protocol(connection)

    def fileno(self) -> int:
        return descriptor_of(self._transport)

    def _refuse(self, reason: str) -> None:
        self._listener.network.peer_log.warn(self._peer, f"closing {self._name}: {reason}")
        self._finish()
        self._transport.close()

    def crowd_out(self) -> None:
        self._refuse(CROWDED)

    def _finish(self) -> None:
        self._over = True
        self._timeout.cancel()
        self._listener.strangers.discard(self._peer, self)
        self._listener.on_gone(self)

    def close(self) -> None:
        self._finish()
        self._transport.abort()

    abort = close

    def connection_lost(self, error: Exception | None) -> None:
        if not self._over:
            if not self._silent:
                self._listener.network.peer_log.warn(self._peer, f"{self._name} ended in the middle of the handshake")
            self._finish()


class _ClientGreeting(asyncio.Protocol):
    """A connection of ours whose server has not proven anything yet."""

    def __init__(
        self, network: StreamNetwork, endpoint: str, target: bytes, identity: bytes, context: Context | None
    ) -> None:
        """``context`` is that of TLS; None without it."""
        self._tls = None if context is None else network.tls
        self._silent = True
        """Whether the server has said nothing yet."""
        self._network = network
        self._name = f"the channel to {endpoint}"
        bound = b"" if context is None else context.binding
        nonce = network.host.random_bytes(NONCE_BYTES)
        self._handshake = ClientHandshake(network.token, target, identity, nonce, bound)
        self._received = bytearray()
        """At most one incomplete handshake message."""
        self.channel: asyncio.Future[StreamChannel] = asyncio.get_running_loop().create_future()
        """The outcome of the handshake."""
        self._transport: asyncio.Transport | None = None
        """The transport; None until the connection is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _break_when_silent(self._transport)
        try:
            _check_user(self._transport)
        except AuthenticationFailed as error:
            self.channel.set_exception(error.with_traceback(None))  # which would lead back to this object
            return
        self._transport.write(self._handshake.hello)

    def data_received(self, data: bytes) -> None:
        if self.channel.done():
            return
        assert self._transport is not None
        self._silent = False
        before = len(self._received) + len(data)
        self._received += data
        try:
            answer = self._handshake.receive(self._received)
            if self._received and len(self._received) < before:
                raise AuthenticationFailed("it sent more than the handshake")
        except PlatformError as error:
            self.channel.set_exception(error.with_traceback(None))  # which would lead back to this object
            return
        if answer:
            self._transport.write(answer)
        if self._handshake.peer is not None:
            channel = StreamChannel(self._transport, self._handshake.peer, self._name, self._network.outbox)
            self._transport.set_protocol(channel)
            self._network.channels.add(channel)
            self.channel.set_result(channel)

    def abandon(self) -> None:
        """End the attempt to connect, whatever its state."""
        self.channel.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.channel.done():
            return
        reason = None if self._tls is None else self._tls.explain_end(error, self._silent)
        self.channel.set_exception(reason or ConnectFailed("the connection ended in the middle of the handshake"))


class StreamListener:
    """An open endpoint and the connections that came in through it: a ``Listener``."""

    def __init__(self, network: StreamNetwork, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> None:
        self.network = network
        self.endpoint = endpoint
        self.identity = identity
        self.on_incoming = on_incoming
        self.connections: set[ServerConnection | _ServerGreeting] = set()
        """Every connection that has not ended; ``on_gone`` removes."""
        self.strangers: Strangers[Stranger] = Strangers()
        """Connections from other machines that have proven nothing yet."""
        self._server: asyncio.Server | None = None
        """The server; None before it listens, after ``close``, and if connections are accepted with TLS."""
        self._acceptor: TlsAcceptor | None = None
        """Accepts connections instead of ``_server`` where TLS is spoken."""
        self._inode = 0
        """Identifies the socket file, so that only our own is removed."""
        self._all_gone: asyncio.Event | None = None
        """Set when ``close`` waits for the last connection."""

    async def open(self, endpoint: endpoints.UnixEndpoint | endpoints.TcpEndpoint) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(endpoint, endpoints.UnixEndpoint):
            endpoints.make_room(endpoint)
            self._server = await loop.create_unix_server(self._greet, endpoint.path, backlog=LISTEN_BACKLOG)
            self._inode = endpoints.inode(endpoint)
            return
        if self.network.tls is not None:
            from minray.platform.transport.tls_acceptor import TlsAcceptor, listening_socket

            self.network.tls.server()  # Raises, if the files cannot be used, before anybody connects.
            listening = await listening_socket(endpoint.host, endpoint.port, LISTEN_BACKLOG)
            self._acceptor = TlsAcceptor([listening], self.network.tls, self.strangers, self._greet, self._log_refusal)
        else:
            # Only the first of several addresses (localhost has two): port 0 would become a different number on each.
            addresses = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            host = str(addresses[0][4][0])
            self._server = await loop.create_server(self._greet, host, endpoint.port, backlog=LISTEN_BACKLOG)
            listening = self._server.sockets[0]
        self.endpoint = str(endpoints.TcpEndpoint(endpoint.host, listening.getsockname()[1]))

    def _log_refusal(self, machine: str, place: str, reason: str) -> None:
        self.network.peer_log.warn(machine, f"closing the connection of {place} to {self.endpoint}: {reason}")

    def _greet(self) -> _ServerGreeting:
        return _ServerGreeting(self)

    def connection(self, transport: asyncio.Transport, peer: bytes, name: str) -> ServerConnection:
        """Make the connection of a peer whose handshake has succeeded."""
        network = self.network
        connection = ServerConnection(transport, peer, name, network.outbox, self.on_incoming, self.on_gone)
        self.connections.add(connection)
        return connection

    def on_stranger(self, machine: str, connection: _ServerGreeting) -> None:
        """Count a connection that has begun its handshake; close the oldest of its kind if there are too many."""
        if self.endpoint.startswith("tcp:"):
            surplus = self.strangers.add(machine, connection)
            if surplus is not None:
                surplus.crowd_out()

    def on_gone(self, connection: ServerConnection | _ServerGreeting) -> None:
        self.connections.discard(connection)
        if self._all_gone is not None and not self.connections:
            self._all_gone.set()

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening sockets, and of the connections that came in through them."""
        own: list[Any] = [] if self._server is None else list(self._server.sockets)
        if self._acceptor is not None:
            own += [*self._acceptor.sockets, *self._acceptor.greetings]
        return [one.fileno() for one in (*own, *self.connections)]

    async def close(self) -> None:
        if self._acceptor is not None:
            acceptor, self._acceptor = self._acceptor, None
            await acceptor.close()
        elif self._server is not None:
            self._server.close()
            self._server = None
        else:
            return
        if self._inode:
            endpoints.remove(endpoints.UnixEndpoint(self.endpoint.removeprefix("unix:")), self._inode)
        self._all_gone = asyncio.Event()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            await self._all_gone.wait()


class StreamNetwork:
    """The ``Network`` of real clusters, unless they ask for gRPC. TLS is spoken at ``tcp:`` endpoints alone."""

    def __init__(
        self,
        token: bytes,
        host: Host,
        *,
        tls: Tls | None = None,
        max_transfer_bytes: int = MAX_TRANSFER_BYTES,
        write_bytes: int | None = None,
    ) -> None:
        """``write_bytes`` of large buffers are written at once. More is faster, but lets small messages wait longer."""
        self.outbox = Outbox(max_transfer_bytes, write_bytes)
        self.counters = self.outbox.counters
        self.token = token
        self.host = host
        self.tls = tls
        self.peer_log = self.outbox.peer_log
        self.channels: weakref.WeakSet[StreamChannel] = weakref.WeakSet()
        """All open channels of this side, and perhaps some that have ended."""
        self._listeners: weakref.WeakSet[StreamListener] = weakref.WeakSet()
        _networks.add(self)

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> StreamListener:
        listener = StreamListener(self, endpoint, identity, on_incoming)
        self._listeners.add(listener)
        try:
            await listener.open(endpoints.parse(endpoint))
        except OSError as error:
            raise PlatformError(f"{endpoint}: {error.strerror or error}") from error
        return listener

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> StreamChannel:
        try:
            where = endpoints.parse(endpoint)
            context: Context | None = None
            if self.tls is not None and isinstance(where, endpoints.TcpEndpoint):
                context = self.tls.client(where.host)
        except PlatformError as error:
            raise ConnectFailed(str(error)) from None
        greeting = _ClientGreeting(self, endpoint, target, identity, context)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await self._open(where, greeting, context)
                channel = await greeting.channel
            if channel.closed:
                raise ConnectFailed("the connection ended right after the handshake")
        except BaseException as error:
            greeting.abandon()
            del greeting  # It refers to the error too, whose traceback refers to this frame.
            raise endpoints.connect_error(endpoint, error) from error
        channel.on_close = on_close
        return channel

    def cut_off(self) -> None:
        """End the connections inside TLS that still wait for their peer's goodbye, because the loop ends now.

        Without TLS they end with the loop. Those of TLS would be open for uvloop, which warns of them."""
        if self.tls is not None:
            for connection in [*self.channels, *(one for listener in self._listeners for one in listener.connections)]:
                connection.abort()

    def descriptors(self) -> list[int]:
        """Return the descriptors of all open sockets."""
        found = [channel.fileno() for channel in self.channels]
        for listener in self._listeners:
            found += listener.descriptors()
        return [descriptor for descriptor in found if descriptor >= 0]

    async def _open(
        self,
        where: endpoints.UnixEndpoint | endpoints.TcpEndpoint,
        greeting: _ClientGreeting,
        context: Context | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(where, endpoints.UnixEndpoint):
            await loop.create_unix_connection(lambda: greeting, where.path)
            return
        # Try one address after the other here: if all fail, asyncio would hide the error.
        addresses = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        options: dict[str, Any] = {}
        if context is not None:
            options = context.arguments(where.host)
        for left, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            try:
                await loop.create_connection(lambda: greeting, str(address[4][0]), where.port, **options)
                return
            except OSError:
                if not left:
                    raise


_networks: weakref.WeakSet[StreamNetwork] = weakref.WeakSet()
"""All stream networks of this process."""


def _let_go() -> None:
    """Close the connections in a child that user code has forked. If they stayed open, peers would believe that the parent
    lives.

    Each descriptor is replaced by /dev/null instead of closed, since objects of the parent refer to its number.
    """
    if not _networks:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for network in list(_networks):
        try:
            for descriptor in network.descriptors():
                os.dup2(nowhere, descriptor, inheritable=False)
        except Exception:
            logger.exception("a child that was forked keeps connections of its parent's")
    os.close(nowhere)


at_fork(after_in_child=_let_go)


def _break_when_silent(transport: asyncio.Transport) -> None:
    """Set options between machines: a peer whose machine or network has vanished must not be waited for for ever."""
    connected = transport.get_extra_info("socket")
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _check_user(transport: asyncio.Transport) -> None:
    """Raise ``AuthenticationFailed`` if the transport leads to a process of another user of this machine."""
    connected = transport.get_extra_info("socket")
    if connected.family == socket.AF_UNIX:
        endpoints.check_peer(connected)


def _describe_peer(transport: asyncio.Transport) -> tuple[str, str]:
    """Return (peer, connection): names of the machine or process, by which log lines are counted, and of the connection."""
    address = transport.get_extra_info("peername")
    if address:
        return address[0], f"{address[0]}:{address[1]}"
    other = endpoints.peer(transport.get_extra_info("socket"))
    name = "a process of this machine" if other is None else f"process {other[0]}"
    return name, name
