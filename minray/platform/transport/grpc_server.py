"""The listening side of the gRPC transport.

Ray: src/ray/rpc/grpc_server.cc, src/ray/rpc/server_call.h

Rules
  * A call is checked when gRPC knows its method and metadata, before its message is read. Without the ticket (the session
    key in its metadata) of an open session it is turned away.
  * Before the handshake is over no message is read, only metadata. At most ``MOST_STRANGERS`` handshakes are under way.
  * A peer that breaks the rules of ``grpc_wire`` is logged in one line, and its session ends. Peers without a session are
    logged at most once a minute (``peer_log.py``).
  * Exceptions of ``on_incoming`` are our bugs: they are logged, and the session goes on.

What we do not like yet: gRPC does not tell which user owns the process at the other end of a unix socket. There only the
private directory and the token protect. gRPC itself refuses bytes that are not HTTP/2 and drops silent peers, and logs
neither. When gRPC stops, it removes the file at its socket's path, even if another process has replaced it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
import grpc.aio
import msgspec

from minray.common.peer_log import KNOWN_PEERS, PeerLog
from minray.platform.base import Buffer, Counters, OnIncoming, PlatformError, RemoteFailure, check_size
from minray.platform.transport import endpoints
from minray.platform.transport.grpc_tls import binding_of
from minray.platform.transport.grpc_wire import (
    CHALLENGE,
    CLOSE,
    DOWNLOAD,
    EXCHANGE,
    MALFORMED,
    OPEN,
    OPERATION,
    PROVE,
    SAID,
    SERVER_OPTIONS,
    TCP_OPTIONS,
    TICKET,
    UPLOAD,
    Assembly,
    BatchWriter,
    Context,
    InOrder,
    Violation,
    count_frame,
    decode_number,
    decode_request,
    decode_requests,
    decode_upload,
    encode,
    pieces,
    sizes_of,
)
from minray.platform.transport.handshake import HANDSHAKE_TIMEOUT_S, HandshakeRefused, ServerHandshake
from minray.platform.transport.strangers import CROWDED, Strangers

logger = logging.getLogger("minray.platform.transport.grpc_transport")

STOP_GRACE_S = 0.2
"""Seconds that a closing listener gives to calls that did not end with their session."""


class GrpcIncoming(msgspec.Struct, eq=False):
    """One arrived message: an ``Incoming``."""

    method: str
    payload: bytes
    buffers: Sequence[Buffer]
    peer: bytes
    session: _Session
    call_id: int
    """0 for a notification, and once the call is answered."""

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        if self.call_id:
            self.session.answer(self.call_id, "", payload, buffers)
            self.call_id = 0

    def fail(self, failure: RemoteFailure) -> None:
        if self.call_id:
            self.session.answer(self.call_id, failure.kind, failure.message.encode(), ())
            self.call_id = 0


class _Session:
    """A channel, as its listener sees it."""

    def __init__(self, peer: bytes, name: str, on_incoming: OnIncoming, counters: Counters, peer_log: PeerLog) -> None:
        self._peer_log = peer_log
        self.ended = asyncio.Event()
        """Set when the channel is gone or has to end."""
        self._peer = peer
        self._name = name
        self._on_incoming = on_incoming
        self._counters = counters
        self._requests = InOrder()
        self._heard = 0
        """Number of messages delivered."""
        self._all_heard: tuple[int, asyncio.Event] | None = None
        """Set while a client that closes waits: the number of messages it has sent, and the event of their delivery."""
        self._answers: dict[int, asyncio.Future[bytes] | BatchWriter] = {}
        """Where the answer of each open call goes, by call id: to the gRPC call that brought it, or into an exchange."""
        self._reading: set[asyncio.Task[None]] = set()
        """The reading of each exchange that is open."""
        self._last_reply = 0
        """The number of the last reply without buffers."""
        self._uploads: dict[int, list[memoryview]] = {}
        """Uploaded buffers whose request has not come yet, by call id."""
        self._downloads: dict[int, Sequence[Buffer]] = {}
        """Buffers of replies that the client has not fetched yet, by call id."""

    def end(self) -> None:
        self.ended.set()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if isinstance(answer, asyncio.Future):
                answer.cancel()
        for reading in self._reading:
            reading.cancel()
        self._downloads.clear()

    async def handle(self, method: str, request: bytes, context: Context) -> bytes:
        """Handle one operation: deliver it in its turn, then wait for its answer and return it."""
        try:
            call_id, sequence, payload, sizes = decode_request(request)
            buffers: Sequence[Buffer] = ()
            if sizes:
                buffers = self._uploads.pop(call_id, ())
                if sizes_of(buffers) != sizes:
                    raise Violation(f"the buffers of call {call_id} were not uploaded")
            answer: asyncio.Future[bytes] | None = asyncio.get_running_loop().create_future() if call_id else None
            if answer is not None:
                self._begin_call(call_id, answer)
            deliver = partial(self._deliver, GrpcIncoming(method, payload, buffers, self._peer, self, call_id))
            if sizes:
                deliver()
            else:
                self._requests.arrive(sequence, deliver)
        except MALFORMED as error:
            await self._refuse(error, context)
        if answer is None:
            return b""
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise  # gRPC has cancelled this call; the session has not ended.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the session has ended")

    def _begin_call(self, call_id: int, answer: asyncio.Future[bytes] | BatchWriter) -> None:
        if call_id in self._answers:
            raise Violation(f"call {call_id} came twice")
        self._answers[call_id] = answer

    async def exchange(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle the requests of one stream until the client or the session ends; their answers go back on it."""
        writer = BatchWriter(context.write, self._counters)
        reading = asyncio.get_running_loop().create_task(self._read_exchange(writer, context), name="read an exchange")
        self._reading.add(reading)
        try:
            await asyncio.wait([reading])
            if not reading.cancelled() and isinstance(error := reading.exception(), MALFORMED):
                await self._refuse(error, context)
            await writer.finish()
        finally:
            reading.cancel()
            self._reading.discard(reading)

    async def _read_exchange(self, writer: BatchWriter, context: Context) -> None:
        while isinstance(message := await context.read(), bytes):
            for method, call_id, payload in decode_requests(message):
                if call_id:
                    self._begin_call(call_id, writer)
                self._deliver(GrpcIncoming(method, payload, (), self._peer, self, call_id))

    def _deliver(self, incoming: GrpcIncoming) -> None:
        if self.ended.is_set():
            return
        self._heard += 1
        try:
            self._on_incoming(incoming)
        except Exception:
            logger.exception("on_incoming raised for %s; %s goes on", incoming.method, self._name)
        if self._all_heard is not None and self._heard >= self._all_heard[0]:
            self._all_heard[1].set()

    def answer(self, call_id: int, failure: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
        check_size("a reply", payload, buffers)
        answer = self._answers.pop(call_id, None)
        if answer is None or (isinstance(answer, asyncio.Future) and answer.done()):
            return
        self._counters.replies += 1
        if buffers:
            self._downloads[call_id] = buffers
        if isinstance(answer, BatchWriter):
            answer.add((call_id, failure, payload, sizes_of(buffers)), len(payload))
            return
        if not buffers:
            self._last_reply += 1
        message = encode((failure, 0 if buffers else self._last_reply, payload, sizes_of(buffers)))
        count_frame(self._counters, message)
        answer.set_result(message)

    async def upload(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        try:
            call_id, sizes = decode_upload(await anext(requests))
            assembly = Assembly(sizes)
            async for piece in requests:
                assembly.add(piece)
            self._uploads[call_id] = assembly.finish()
        except (*MALFORMED, StopAsyncIteration) as error:
            await self._refuse(error, context)
        return b""

    async def download(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            buffers = self._downloads.pop(decode_number(request), ())
        except MALFORMED as error:
            await self._refuse(error, context)
        for piece in pieces(buffers, self._counters):
            yield piece

    async def close(self, request: bytes, context: Context) -> bytes:
        try:
            sent = decode_number(request)
        except MALFORMED as error:
            await self._refuse(error, context)
        if self._heard < sent:
            all_heard = asyncio.Event()
            self._all_heard = (sent, all_heard)
            await all_heard.wait()
        return b""

    async def _refuse(self, error: Exception, context: Context) -> NoReturn:
        self._peer_log.warn(KNOWN_PEERS, f"closing {self._name}: {error}")
        self.end()
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError("abort raises")


class GrpcListener(grpc.GenericRpcHandler):
    """An open endpoint and its sessions: a ``Listener``."""

    def __init__(
        self,
        endpoint: str,
        new_handshake: Callable[[bytes], ServerHandshake],
        new_ticket: Callable[[], bytes],
        on_incoming: OnIncoming,
        counters: Counters,
    ) -> None:
        self.endpoint = endpoint
        self._new_handshake = new_handshake
        self._new_ticket = new_ticket
        self._on_incoming = on_incoming
        self._counters = counters
        self._sessions: dict[bytes, _Session] = {}
        """The sessions that have not ended, by ticket."""
        self.strangers: Strangers[_Opening] = Strangers()
        """Handshakes that are not over."""
        self._proofs: dict[bytes, asyncio.Future[bytes]] = {}
        """The proofs for which handshakes wait, by the challenge that was sent."""
        self._peer_log = PeerLog(logger)
        """Logs which peers were turned away."""
        self._ended_tickets: deque[object] = deque(maxlen=1000)
        """Tickets of the last sessions that ended: their late calls are turned away without a log line."""
        self._server: grpc.aio.Server | None = None
        """None before it listens and after ``close``."""
        self._inode = 0
        """Identifies the socket file, so that only our own is removed."""

    async def open(
        self, where: endpoints.UnixEndpoint | endpoints.TcpEndpoint, credentials: grpc.ServerCredentials | None
    ) -> None:
        if isinstance(where, endpoints.UnixEndpoint):
            endpoints.make_room(where)
        options = SERVER_OPTIONS if isinstance(where, endpoints.UnixEndpoint) else SERVER_OPTIONS + TCP_OPTIONS
        self._server = grpc.aio.server(handlers=[self], options=options)
        try:
            if isinstance(where, endpoints.UnixEndpoint):
                self._server.add_insecure_port(f"unix:{quote(where.path)}")
                self._inode = endpoints.inode(where)
            else:
                address = str(where).removeprefix("tcp:")
                if credentials is None:
                    port = self._server.add_insecure_port(address)
                else:
                    port = self._server.add_secure_port(address, credentials)
                self.endpoint = str(endpoints.TcpEndpoint(where.host, port))
        except RuntimeError as error:
            await self.close()
            raise PlatformError(f"{self.endpoint}: cannot be bound, perhaps because it is in use ({error})") from None
        await self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call. gRPC calls this for every call, before it reads the call's message."""
        method = details.method
        if method == OPEN:
            return grpc.stream_stream_rpc_method_handler(self._open)
        if method == PROVE:
            return grpc.stream_stream_rpc_method_handler(self._prove)
        ticket = dict(details.invocation_metadata).get(TICKET)
        session = self._sessions.get(ticket) if isinstance(ticket, bytes) else None
        if session is None or session.ended.is_set():
            is_late = session is not None or ticket in self._ended_tickets
            return grpc.stream_stream_rpc_method_handler(partial(self._turn_away, method, is_late))
        if method.startswith(OPERATION):
            return grpc.unary_unary_rpc_method_handler(partial(session.handle, method.removeprefix(OPERATION)))
        if method == EXCHANGE:
            return grpc.stream_stream_rpc_method_handler(session.exchange)
        if method == UPLOAD:
            return grpc.stream_unary_rpc_method_handler(session.upload)
        if method == DOWNLOAD:
            return grpc.unary_stream_rpc_method_handler(session.download)
        if method == CLOSE:
            return grpc.unary_unary_rpc_method_handler(session.close)
        return None

    async def _turn_away(self, method: str, is_late: bool, requests: AsyncIterator[bytes], context: Context) -> None:
        if not is_late:
            text = f"refusing {method} of {context.peer()} at {self.endpoint}: it has no ticket"
            self._peer_log.warn(_machine(context), text)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no ticket")

    async def _open(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Make a handshake, then hold a session. No message of the stream is ever read."""
        opening = _Opening(f"the session of {context.peer()} at {self.endpoint}")
        machine = _machine(context)
        surplus = self.strangers.add(machine, opening)
        if surplus is not None:
            surplus.crowd_out()
        challenge = b""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S) as opening.limit:
                server = self._new_handshake(binding_of(context.auth_context()))
                challenge = _answer(server, _said(context, SAID))
                proof = self._proofs[challenge] = asyncio.get_running_loop().create_future()
                yield challenge
                answer = _answer(server, await proof)
        except HandshakeRefused as refused:
            self._peer_log.warn(machine, f"closing {opening.name}: {refused}")
            yield refused.answer
            return
        except TimeoutError:
            self._peer_log.warn(machine, f"closing {opening.name}: {opening.reason}")
            return
        finally:
            self._proofs.pop(challenge, None)
            self.strangers.discard(machine, opening)
        assert server.peer is not None
        ticket = self._new_ticket()
        session = self._sessions[ticket] = _Session(
            server.peer, opening.name, self._on_incoming, self._counters, self._peer_log
        )
        try:
            yield answer
            yield ticket
            await session.ended.wait()
        finally:
            session.end()
            del self._sessions[ticket]
            self._ended_tickets.append(ticket)

    async def _prove(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Take a client's proof. Its answer comes on the stream of the handshake."""
        proof = self._proofs.pop(_said(context, CHALLENGE), None)
        if proof is None:
            text = f"refusing the proof of {context.peer()} at {self.endpoint}: it answers no challenge"
            self._peer_log.warn(_machine(context), text)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no challenge")
        elif not proof.done():
            proof.set_result(_said(context, SAID))

    async def close(self) -> None:
        self._peer_log.close()
        server, self._server = self._server, None
        if server is None:
            return
        for session in list(self._sessions.values()):
            session.end()
        await server.stop(STOP_GRACE_S)
        if self._inode:
            endpoints.remove(endpoints.UnixEndpoint(self.endpoint.removeprefix("unix:")), self._inode)


class _Opening:
    """A handshake that is not over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason = f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"
        """Why the handshake is given up, if it is."""
        self.limit: asyncio.Timeout | None = None

    def crowd_out(self) -> None:
        self.reason = CROWDED
        if self.limit is not None:
            self.limit.reschedule(0.0)


def _said(context: Context, key: str) -> bytes:
    """Return what a client says in the metadata of its call."""
    value = dict(context.invocation_metadata() or ()).get(key)
    return value if isinstance(value, bytes) else b""


def _answer(server: ServerHandshake, said: bytes) -> bytes:
    """Return the answer to one whole message of a handshake. Raises ``HandshakeRefused``."""
    received = bytearray(said)
    answer = server.receive(received)
    if received or not answer:
        raise HandshakeRefused("a malformed handshake message", "garbage")
    return answer


def _machine(context: Context) -> str:
    """Return the origin of a call without its port: ``ipv4:10.0.0.7`` for ``ipv4:10.0.0.7:4711``."""
    peer = str(context.peer())
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer
