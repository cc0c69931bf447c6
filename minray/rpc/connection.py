"""The calling side of rpc: peers, and calls to them that survive a broken channel.

Ray: src/ray/rpc/retryable_grpc_client.h, core_worker_client_pool.h

A ``Peer`` is one incarnation of one process. Its channel is opened when it is first needed and again when it breaks. The
unanswered calls are then sent again, in their order; therefore every request must be idempotent (G112).

  * A peer is dead if no process, or another one, listens at its endpoint. All calls to it then fail with
    ``PeerUnreachable``, at once and for ever, since an incarnation never comes back.
  * A peer that does not know our token counts as dead, too.
  * A peer that merely does not answer is retried for ``rpc_reconnect_timeout_s`` before its calls fail.
  * The gcs is the exception: with durable tables it is started again, so a refused connection only means "not yet" there.

``send`` is the primitive: a callback per call, no task, no future. ``call`` wraps it for coroutines. A call that has
given memory for its reply (``into``) may be sent again with the same memory. A broken channel writes nothing any more, so
the bytes that are there when the answer comes belong to that answer.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import msgspec

from minray.common.decoding import MALFORMED
from minray.platform.base import (
    AuthenticationFailed,
    Buffer,
    Channel,
    ChannelBroken,
    ConnectFailed,
    ConnectRefused,
    Platform,
    PlatformError,
    RecordTooLarge,
    RemoteFailure,
    WrongIncarnation,
)
from minray.protocol.base import Address, Record, Request, decoder, encode, reply_class

R = TypeVar("R", bound=Record)
OnAnswer = Callable[[R | None, PlatformError | None, Sequence[Buffer]], None]

RECONNECT_FIRST_DELAY_S = 0.01
"""Seconds before the first new attempt to connect; the pause doubles each time."""
RECONNECT_MAX_DELAY_S = 1.0
"""Longest pause, in seconds, between two attempts to connect."""
IDLE_END_S = 1.0
"""Seconds after a channel's end without a new one, after which the peer is dropped as probably gone."""


class PeerUnreachable(PlatformError):
    """Error of a call to a peer that is dead, or that has not answered for ``rpc_reconnect_timeout_s``."""

    is_certain = False
    """Whether the peer is surely dead: no process, or another one, listens at its endpoint. False: it does not answer."""


@cache
def _method_of(request_class: type[Request[Any]]) -> tuple[str, Callable[[bytes], Any]]:
    """Return a request class's name on the wire and the function that decodes its reply."""
    return request_class.__name__, decoder(reply_class(request_class)).decode


class _Call(msgspec.Struct, eq=False, gc=False):
    """One request under way. Calling it delivers the reply: it serves as the channel's ``on_reply``."""

    peer: Peer
    number: int
    """Position of the call in the order in which this peer's calls were made."""
    method: str
    payload: bytes
    buffers: Sequence[Buffer]
    into: Sequence[memoryview]
    decode: Any
    on_answer: OnAnswer[Any]

    def __call__(self, error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if error is None:
            try:
                reply = self.decode(payload)
            except MALFORMED as problem:
                error = RemoteFailure("bad-reply", f"{self.method}: {problem}")
            else:
                self.on_answer(reply, None, buffers)
                return
        if isinstance(error, ChannelBroken):
            self.peer.send_again(self)
        else:
            self.on_answer(None, error, ())


def ignore(_reply: Any, _error: PlatformError | None, _buffers: Sequence[Buffer]) -> None:
    """Do nothing with an answer: for messages whose reply does not matter and that a dead peer does not need."""


_number_of = operator.itemgetter(1)


async def answer_of(send: Callable[[OnAnswer[R]], None]) -> tuple[R, Sequence[Buffer]]:
    """Send a request and await its answer: return the reply and its buffers, or raise the error."""
    future: asyncio.Future[tuple[R, Sequence[Buffer]]] = asyncio.get_running_loop().create_future()
    send(partial(_settle, future))
    try:
        return await future
    finally:
        del future  # Otherwise future -> error -> traceback -> this frame -> future keeps the frames of all waiting callers.


def _settle(
    future: asyncio.Future[tuple[R, Sequence[Buffer]]],
    reply: R | None,
    error: PlatformError | None,
    buffers: Sequence[Buffer],
) -> None:
    if future.done():
        return
    if reply is None:
        assert error is not None
        future.set_exception(error)
    else:
        future.set_result((reply, buffers))


class Peer:
    """Another process that this process sends requests to."""

    def __init__(
        self,
        platform: Platform,
        endpoint: str,
        target: bytes,
        reconnect_timeout_s: float,
        may_restart: bool,
        on_end: Callable[[Peer], None] | None = None,
    ) -> None:
        self._platform = platform
        self._endpoint = endpoint
        self.target = target
        """Incarnation that must answer; empty: any process there (only for finding the gcs, and a raylet by its socket)."""
        self._reconnect_timeout_s = reconnect_timeout_s
        self.may_restart = may_restart
        """Whether the peer may be started again, so that a refused connection only means "not yet"."""
        self._on_end = on_end
        """Called when this object is of no more use; a later call to the same address makes a new Peer."""
        self._channel: Channel | None = None
        self._call_count = 0
        self._waiting: list[tuple[Any, ...]] = []
        """Fields of the calls that wait for a channel.

        The calls of a broken channel are appended after newer ones, but are sent first (by number). Calls are stored as
        tuples, because the garbage collector does not track ``_Call``: peer and calls would keep each other alive."""
        self._connecting: asyncio.Task[None] | None = None
        self.death: PeerUnreachable | None = None
        """Error with which every call fails; set once, when the peer is given up."""
        self._is_closed = False
        """Whether this process has closed the peer: later calls are dropped and never answered."""
        self.on_death: Callable[[PeerUnreachable], None] | None = None
        self.on_break: Callable[[], None] | None = None
        """Called when the open channel ends, for callers that watch a peer but rarely send to it."""

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def send(
        self,
        request: Request[R],
        on_answer: OnAnswer[R],
        buffers: Sequence[Buffer] = (),
        into: Sequence[memoryview] = (),
    ) -> None:
        """Send a request; ``on_answer(reply, error, buffers)`` is called once, later. ``into``: see ``Channel.call``.

        Errors: PeerUnreachable, RemoteFailure, RecordTooLarge.
        """
        method, decode = _method_of(type(request))
        self._call_count += 1
        call = _Call(self, self._call_count, method, encode(request), buffers, into, decode, on_answer)
        channel = self._channel
        if channel is not None and not channel.closed:
            self._send_on(channel, call)
        else:
            self.send_again(call)

    async def call(self, request: Request[R]) -> R:
        """Send a request and await the reply; raise the errors of ``send``. For a time limit use ``asyncio.timeout``."""
        reply, _ = await self.call_with_buffers(request)
        return reply

    async def call_with_buffers(self, request: Request[R]) -> tuple[R, Sequence[Buffer]]:
        return await answer_of(lambda on_answer: self.send(request, on_answer))

    def _send_on(self, channel: Channel, call: _Call) -> None:
        try:
            channel.call(call.method, call.payload, call.buffers, call, call.into)
        except RecordTooLarge as error:
            asyncio.get_running_loop().call_soon(call.on_answer, None, error, ())

    def send_again(self, call: _Call) -> None:
        """Queue a call until there is a channel."""
        if self._is_closed:
            return
        if self.death is not None:
            self._fail(call, self.death)
            return
        self._waiting.append(msgspec.structs.astuple(call))
        self.open()

    @staticmethod
    def _fail(call: _Call, death: PeerUnreachable) -> None:
        """Fail a call with a copy of the error: a raised error keeps the frames it passes, and the peer keeps ``death``."""
        error = PeerUnreachable(*death.args)
        error.is_certain = death.is_certain
        asyncio.get_running_loop().call_soon(call.on_answer, None, error, ())

    def keep_open(self) -> None:
        """Notice this peer's death even without calls: reopen the channel when it ends; if that fails, the peer is dead."""
        self.on_break = self.open
        self.open()

    def open(self) -> None:
        """Begin to open a channel, unless there is one already, or the peer is dead or closed."""
        if self._connecting is None and self._channel is None and self.death is None and not self._is_closed:
            name = f"connect({self._endpoint.rpartition('/')[2]})"
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name=name)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._reconnect_timeout_s
        delay_s = RECONNECT_FIRST_DELAY_S
        try:
            while True:
                began = loop.time()  # An attempt that ends late because this process was suspended proves nothing.
                try:
                    channel = await self._platform.network.connect(
                        self._endpoint, self.target, self._platform.identity, self._on_close
                    )
                    if channel.closed:  # It broke before ``connect`` returned.
                        raise ConnectFailed(f"{self._endpoint}: the channel broke at once")
                    break
                except ConnectFailed as error:
                    gone = isinstance(error, WrongIncarnation | AuthenticationFailed)
                    gone = gone or (isinstance(error, ConnectRefused) and not self.may_restart)
                    if gone or began + delay_s > deadline:
                        self.give_up(str(error), is_certain=gone)
                        return
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RECONNECT_MAX_DELAY_S)
        finally:
            self._connecting = None
        self._channel = channel
        waiting, self._waiting = self._waiting, []
        waiting.sort(key=_number_of)
        for fields in waiting:
            self._send_on(channel, _Call(*fields))

    def _on_close(self) -> None:
        self._channel = None
        if self._waiting:
            self.open()
        if self.on_break is not None:
            self.on_break()
        asyncio.get_running_loop().call_later(IDLE_END_S, self._maybe_end)

    def _maybe_end(self) -> None:
        """Drop this peer if its channel ended a while ago and no call has come since: most likely the process is gone."""
        if self._channel is None and self._connecting is None and self._on_end is not None:
            self._on_end(self)

    def give_up(self, reason: str, *, is_certain: bool = True) -> None:
        """Declare the peer dead: fail the waiting calls and all later ones."""
        if self.death is not None:
            return
        self.death = PeerUnreachable(f"{self._endpoint} (incarnation {self.target.hex()[:8] or 'any'}): {reason}")
        self.death.is_certain = is_certain
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        waiting, self._waiting = self._waiting, []
        for fields in waiting:
            self._fail(_Call(*fields), self.death)
        if self._on_end is not None:
            self._on_end(self)
        if self.on_death is not None:
            self.on_death(self.death)

    def close(self) -> None:
        """Close the channel without failing any call, because this process is ending."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._channel is not None:
            self._channel.close()


class Peers:
    """Holds all peers of one process, by incarnation."""

    def __init__(self, platform: Platform, node_id: bytes, reconnect_timeout_s: float) -> None:
        self._platform = platform
        self._node_id = node_id
        self._reconnect_timeout_s = reconnect_timeout_s
        self._peers: dict[bytes, Peer] = {}

    def to(self, address: Address) -> Peer:
        """Return the peer at an address: one object per incarnation."""
        peer = self._peers.get(address.worker_id)
        if peer is None:
            endpoint = address.endpoint_from(self._node_id)
            peer = Peer(self._platform, endpoint, address.worker_id, self._reconnect_timeout_s, False, self._on_end)
            self._peers[address.worker_id] = peer
        return peer

    def _on_end(self, peer: Peer) -> None:
        if self._peers.get(peer.target) is peer:
            del self._peers[peer.target]

    def at(self, endpoint: str, target: bytes = b"", *, reconnect_timeout_s: float, may_restart: bool) -> Peer:
        """Return the peer at an endpoint: the local raylet, or the gcs, of which any incarnation will do."""
        peer = self._peers.get(endpoint.encode())
        if peer is None:
            peer = Peer(self._platform, endpoint, target, reconnect_timeout_s, may_restart)
            self._peers[endpoint.encode()] = peer
        return peer

    def on_death_of(self, worker_id: bytes, reason: str) -> None:
        """Give a peer up, because a reliable source says that this incarnation is dead."""
        peer = self._peers.get(worker_id)
        if peer is not None:
            peer.give_up(reason)

    def close(self) -> None:
        for peer in list(self._peers.values()):
            peer.close()
