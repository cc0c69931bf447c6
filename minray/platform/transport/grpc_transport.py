"""The gRPC transport: implements the network contract with one gRPC call, on a named method, per operation.

Ray: src/ray/rpc/grpc_client.h, src/ray/rpc/client_call.h

This file is the side that connects; ``grpc_server`` listens, and ``grpc_wire`` defines the calls.

Rules
  * gRPC may reorder calls, so requests and replies without buffers are numbered, and either side delivers them in order.
    A number that never comes must not block later ones for ever: any failed call ends the channel.
  * At most ``MAX_CALLS_IN_FLIGHT`` calls are under way on a channel, and the others wait here. With more streams on one
    connection, the peer would end it.
  * A network may send the requests of a channel in one stream, which keeps their order (``exchanges``). Remote clients and
    their driver processes do.
  * Before gRPC connects to a unix socket, a connection of our own finds out whose process listens there.
  * gRPC does not survive a fork. Only processes of a cluster that asked for it import this module; the zygote never.
    A child that user code forks from such a process cannot use gRPC or join a cluster through it. The child also keeps the
    sockets of its parent open.
  * gRPC polls its sockets in the thread that waits for events (its former poller). Its newer event engine has threads of its
    own for that, and each message then wakes one more. Such an operation takes up to two fifths more processor time.
  * A process uses gRPC on one event loop: calls that end late report to the loop they were made on, even if it is closed.

What we do not like yet: a call that waits long for its reply counts as under way, so that 2,000 of them block the channel.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from minray.common.requirements import unmet

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Otherwise gRPC prints to standard error what it also raises.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # Else it crashes one in five children that user code forks.
if not unmet(["grpcio<1.86"]):  # newer versions were not tried, and gRPC complains of experiments that it does not know
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
import grpc
import grpc.aio

from minray.common.task_set import TaskSet
from minray.platform.base import (
    AuthenticationFailed,
    Buffer,
    ChannelBroken,
    ConnectFailed,
    ConnectRefused,
    Counters,
    Host,
    OnIncoming,
    OnReply,
    PlatformError,
    RemoteFailure,
    check_size,
)
from minray.platform.transport import endpoints
from minray.platform.transport.destinations import write
from minray.platform.transport.grpc_server import GrpcListener
from minray.platform.transport.grpc_tls import channel_credentials, refuse_tls, server_credentials, visit
from minray.platform.transport.grpc_wire import (
    CHALLENGE,
    CHANNEL_OPTIONS,
    CLOSE,
    DOWNLOAD,
    EXCHANGE,
    MALFORMED,
    MAX_CALLS_IN_FLIGHT,
    OPEN,
    OPERATION,
    PROVE,
    SAID,
    TCP_OPTIONS,
    TICKET,
    TICKET_BYTES,
    UPLOAD,
    Assembly,
    BatchWriter,
    InOrder,
    Stream,
    count_frame,
    decode_answer,
    decode_answers,
    encode,
    pieces,
    sizes_of,
)
from minray.platform.transport.handshake import (
    HANDSHAKE_TIMEOUT_S,
    NONCE_BYTES,
    OTHER_TRANSPORT,
    ClientHandshake,
    ServerHandshake,
)
from minray.platform.transport.tls import LOST_BY_CLIENT, Tls, describe_text

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""Seconds that a closed channel waits at most until what it sent has arrived: longer, and the peer is as good as gone."""
DRAIN_TIMEOUT_S = 1.0
"""Seconds that a channel, after its peer has ended it, waits at most for replies that are still on their way."""


_imported_by = os.getpid()


def check_not_forked() -> None:
    """Raise RuntimeError in a fork of a process that may have used gRPC: no call would ever be answered there."""
    if os.getpid() != _imported_by:
        raise RuntimeError(
            "gRPC cannot be used in a process that was forked from one with a connection: start it anew"
            ' (multiprocessing.get_context("spawn")), or have the cluster use transport="stream"'
        )


class GrpcChannel:
    """The side that connected: a ``Channel``."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        opened: Stream,
        peer: bytes,
        ticket: bytes,
        name: str,
        counters: Counters,
        exchanges: bool = False,
    ) -> None:
        """Make a channel out of an open session; with ``exchanges``, requests without buffers travel in one stream."""
        self.peer = peer
        self.closed = False
        self.on_close: Callable[[], None] | None = None
        """Set once ``connect`` returns this channel; dropped by our own ``close``."""
        self._name = name
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._opened = opened
        """The stream that lives as long as the channel."""
        self._upload_buffers: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(UPLOAD)
        self._download_buffers: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(DOWNLOAD)
        self._await_arrival: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CLOSE)
        self._metadata = ((TICKET, ticket),)
        self._calls: dict[int, OnReply] = {}
        """Open calls by id; each ends with exactly one reply or with the channel."""
        self._into: dict[int, Sequence[memoryview]] = {}
        """The memory that open calls have given for the buffers of their replies."""
        self._last_call_id = 0
        self._last_sequence = 0
        """The number of the last message without buffers."""
        self._sent = 0
        """Number of messages that are sent or wait to be sent."""
        self._replies = InOrder()
        self._waiting: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        """Operations that wait until fewer than ``MAX_CALLS_IN_FLIGHT`` calls are under way."""
        self._operations: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        """gRPC's callable of each method used so far."""
        self._in_flight: set[asyncio.Task[None]] = set()
        """The calls under way."""
        self._tasks = TaskSet()
        self._spawn(self._watch(), "watch")
        self._writer: BatchWriter | None = None
        """Sends requests without buffers in one stream; None if each is a call of its own."""
        self._reading: set[asyncio.Task[None]] = set()
        """Reads that stream, if there is one."""
        if exchanges:
            exchange: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(EXCHANGE)
            stream = exchange(metadata=self._metadata)
            self._writer = BatchWriter(stream.write, counters)
            self._reading.add(self._spawn(self._guard(self._read_exchange(stream)), "read"))

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        if self.closed:
            self._loop.call_soon(on_reply, ChannelBroken(f"{self._name} is closed"), b"", ())
            return
        check_size(method, payload, buffers)
        self._last_call_id += 1
        self._calls[self._last_call_id] = on_reply
        if into:
            self._into[self._last_call_id] = into
        self._send(method, self._last_call_id, payload, buffers)

    def notify(self, method: str, payload: bytes) -> None:
        if not self.closed:
            check_size(method, payload, ())
            self._send(method, 0, payload, ())

    def close(self) -> None:
        self.on_close = None
        if not self.closed:
            self._end("this process closed it")
            self._spawn(self._close(), "close")

    def _send(self, method: str, call_id: int, payload: bytes, buffers: Sequence[Buffer]) -> None:
        self._counters.requests += 1
        self._sent += 1
        if self._writer is not None and not buffers:
            self._writer.add((method, call_id, payload), len(payload))
            return
        if not buffers:
            self._last_sequence += 1
        message = encode((call_id, 0 if buffers else self._last_sequence, payload, sizes_of(buffers)))
        self._begin(partial(self._perform, method, call_id, message, buffers))

    def _begin(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin an operation as soon as fewer than ``MAX_CALLS_IN_FLIGHT`` are under way."""
        self._waiting.append(operation)
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._in_flight) < MAX_CALLS_IN_FLIGHT:
            task = self._spawn(self._guard(self._waiting.popleft()()), "call")
            self._in_flight.add(task)
            task.add_done_callback(self._on_landed)

    def _on_landed(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._start()

    async def _perform(self, method: str, call_id: int, message: bytes, buffers: Sequence[Buffer]) -> None:
        """Carry out one operation, from its request to the delivery of its reply."""
        if buffers:
            await self._upload(call_id, buffers)
        operation = self._operations.get(method)
        if operation is None:
            operation = self._operations[method] = self._channel.unary_unary(OPERATION + method)
        count_frame(self._counters, message)
        answer = await operation(message, metadata=self._metadata)
        if call_id:
            await self._receive(call_id, answer)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Await a part of the channel's work; if it fails, break the channel."""
        try:
            await work
        except grpc.aio.AioRpcError as error:
            self._break(f"{error.code().name}: {error.details()}")
        except (asyncio.CancelledError, grpc.aio.UsageError):  # gRPC's way to report that its channel was closed meanwhile
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._break("cancelled")
        except MALFORMED as error:
            logger.warning("closing %s: %s", self._name, error)
            self._break(f"it broke the protocol: {error}")

    async def _upload(self, call_id: int, buffers: Sequence[Buffer]) -> None:
        async def requests() -> AsyncIterator[bytes]:
            yield encode((call_id, sizes_of(buffers)))
            for piece in pieces(buffers, self._counters):
                yield piece

        await self._upload_buffers(requests(), metadata=self._metadata)

    async def _receive(self, call_id: int, message: bytes) -> None:
        failure, sequence, payload, sizes = decode_answer(message)
        if not sizes:
            self._replies.arrive(sequence, partial(self._deliver, call_id, failure, payload, ()))
        else:
            await self._download(call_id, failure, payload, sizes)

    async def _read_exchange(self, stream: Stream) -> None:
        """Deliver the answers that come in the stream, until the listener ends it."""
        while isinstance(message := await stream.read(), bytes):
            for call_id, failure, payload, sizes in decode_answers(message):
                if sizes:
                    self._begin(partial(self._download, call_id, failure, payload, sizes))
                else:
                    self._deliver(call_id, failure, payload, ())

    async def _download(self, call_id: int, failure: str, payload: bytes, sizes: Sequence[int]) -> None:
        """Fetch the buffers of a reply, and deliver it."""
        assembly = Assembly(sizes)
        async for piece in self._download_buffers(encode(call_id), metadata=self._metadata):
            assembly.add(piece)
        buffers = assembly.finish()
        if call_id in self._into and not failure:  # and the channel was not closed meanwhile
            buffers = write(self._into[call_id], buffers)
        self._deliver(call_id, failure, payload, buffers)

    def _deliver(self, call_id: int, failure: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        on_reply = self._calls.pop(call_id, None)
        self._into.pop(call_id, None)
        if on_reply is None:
            return  # the channel was closed meanwhile
        try:
            if failure:
                on_reply(RemoteFailure(failure, payload.decode(errors="replace")), b"", ())
            else:
                on_reply(None, payload, buffers)
        except Exception:
            logger.exception("on_reply raised; %s goes on", self._name)

    # Ending

    async def _watch(self) -> None:
        """End the channel when the stream ``Open`` ends. The listener sends nothing more on that stream."""
        try:
            await self._opened.read()
            reason = "the peer closed it"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        self._break(reason)

    def _break(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._waiting.clear()
            self._spawn(self._drain(reason), "end")

    async def _drain(self, reason: str) -> None:
        """Wait a moment for replies that were sent before the end, then end the channel and its open calls."""
        if self._in_flight or self._reading:
            await asyncio.wait(self._in_flight | self._reading, timeout=DRAIN_TIMEOUT_S)
        self._end(reason)
        await self._channel.close()

    def _end(self, reason: str) -> None:
        self.closed = True
        self._into.clear()
        calls, self._calls = self._calls, {}
        for on_reply in calls.values():
            self._loop.call_soon(on_reply, ChannelBroken(f"{self._name} ended: {reason}"), b"", ())
        if self.on_close is not None:
            self._loop.call_soon(self.on_close)

    async def _close(self) -> None:
        """Wait at most ``CLOSE_TIMEOUT_S`` until everything sent has arrived; then end the channel."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._await_arrival(encode(self._sent), metadata=self._metadata)
        except (TimeoutError, grpc.aio.AioRpcError):
            pass  # the peer is gone, or as good as gone
        self._waiting.clear()
        await self._channel.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.begin(work, f"{name} of {self._name}")


class GrpcNetwork:
    """The ``Network`` of clusters with ``transport="grpc"``. TLS is spoken at ``tcp:`` endpoints alone."""

    def __init__(self, token: bytes, host: Host, *, tls: Tls | None = None, exchanges: bool = False) -> None:
        """With ``exchanges``, the requests of each channel travel in one stream instead of a call for each."""
        self.counters = Counters()
        self.token = token
        self.host = host
        self.tls = tls
        self.exchanges = exchanges

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> GrpcListener:
        def new_handshake(binding: bytes) -> ServerHandshake:
            return ServerHandshake(self.token, identity, self.host.random_bytes(NONCE_BYTES), binding)

        new_ticket = partial(self.host.random_bytes, TICKET_BYTES)
        listener = GrpcListener(endpoint, new_handshake, new_ticket, on_incoming, self.counters)
        try:
            credentials = None if self.tls is None else server_credentials(self.tls.files)
            await listener.open(endpoints.parse(endpoint), credentials)
        except OSError as error:
            raise PlatformError(f"{endpoint}: {error.strerror or error}") from error
        return listener

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> GrpcChannel:
        try:
            where = endpoints.parse(endpoint)
        except PlatformError as error:
            raise ConnectFailed(str(error)) from None
        raw: grpc.aio.Channel | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                raw, binding = await self._new_channel(where)
                channel = await self._shake_hands(raw, endpoint, target, identity, binding)
        except BaseException as error:
            if raw is not None:
                await raw.close()
            if isinstance(error, grpc.aio.AioRpcError):
                raise await self._connect_error(endpoint, where, error) from None
            raise endpoints.connect_error(endpoint, error) from error
        channel.on_close = on_close
        return channel

    async def _new_channel(self, where: endpoints.UnixEndpoint | endpoints.TcpEndpoint) -> tuple[grpc.aio.Channel, bytes]:
        """Make a channel that connects when it is used; return it with the binding of its TLS."""
        if isinstance(where, endpoints.UnixEndpoint):
            endpoints.check_listener(where)
            return grpc.aio.insecure_channel(f"unix:{quote(where.path)}", options=CHANNEL_OPTIONS), b""
        address = str(where).removeprefix("tcp:")
        options: list[tuple[str, Any]] = [*CHANNEL_OPTIONS, *TCP_OPTIONS]
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=options), b""
        name = await visit(where, self.tls)
        if name:
            options.append(("grpc.ssl_target_name_override", name))
        credentials, binding = channel_credentials(self.tls.files)
        return grpc.aio.secure_channel(address, credentials, options), binding

    async def _connect_error(
        self, endpoint: str, where: endpoints.UnixEndpoint | endpoints.TcpEndpoint, error: grpc.aio.AioRpcError
    ) -> BaseException:
        if self.tls is None and isinstance(where, endpoints.TcpEndpoint):
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    await refuse_tls(where)
            except (AuthenticationFailed, OSError) as reason:
                return endpoints.connect_error(endpoint, reason)
        elif self.tls is not None and "Socket closed" in (error.details() or ""):
            return ConnectFailed(f"{endpoint}: {LOST_BY_CLIENT}")
        return _connect_error(endpoint, error)

    async def _shake_hands(
        self, raw: grpc.aio.Channel, endpoint: str, target: bytes, identity: bytes, binding: bytes
    ) -> GrpcChannel:
        client = ClientHandshake(self.token, target, identity, self.host.random_bytes(NONCE_BYTES), binding)
        open_session: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = raw.stream_stream(OPEN)
        prove: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = raw.stream_stream(PROVE)
        opened = open_session(metadata=((SAID, client.hello),))
        challenge = await _read(opened)
        proof = client.receive(bytearray(challenge))
        proving = prove(metadata=((CHALLENGE, challenge), (SAID, proof)))
        client.receive(bytearray(await _read(opened)))
        ticket = await _read(opened)
        proving.cancel()
        assert client.peer is not None
        name = f"the channel to {endpoint}"
        return GrpcChannel(raw, opened, client.peer, ticket, name, self.counters, self.exchanges)


async def _read(opened: Stream) -> bytes:
    """Return the listener's next word of a handshake."""
    received = await opened.read()
    if not isinstance(received, bytes):  # the end of the stream
        raise ConnectFailed("the connection ended in the middle of the handshake")
    return received


def _connect_error(endpoint: str, error: grpc.aio.AioRpcError) -> ConnectFailed:
    details = error.details() or error.code().name
    if "Connection refused" in details or "No such file" in details:
        return ConnectRefused(f"{endpoint}: {details}")
    if "HTTP/2" in details:  # gRPC could not read the peer's first bytes
        return ConnectFailed(f"{endpoint}: it does not speak gRPC; if it is minray, {OTHER_TRANSPORT} ({details})")
    if "handshake failed" in details.lower() or "CERTIFICATE" in details:
        return AuthenticationFailed(f"{endpoint}: {describe_text(details)}")
    return ConnectFailed(f"{endpoint}: {details}")
