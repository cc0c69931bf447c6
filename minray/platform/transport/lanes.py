"""A lane: a network whose connections live in a thread of their own, for large objects.

Ray: the threads of rpc_service in src/ray/object_manager/object_manager.h

Python lets other threads run while the kernel copies. So with a few lanes several copies are made at once, and none of them
holds up the loop of the process, with its heartbeats and leases. A lane keeps the contract of every network: callbacks are
called on the loop on which ``connect`` or ``listen`` was called. Only the bytes do not pass through that loop.

Rules
  * Threads hand each other callbacks, through ``call_soon_threadsafe``, which keeps their order.
  * The last reference to a buffer may be dropped in the lane's thread. The buffer's finalizers must allow for that.
  * The thread begins when the lane is first used; in a raylet it ends with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from minray.platform.base import (
    Buffer,
    Channel,
    Incoming,
    Listener,
    Network,
    OnIncoming,
    OnReply,
    RemoteFailure,
    check_size,
)
from minray.platform.threads.user_code import IoThread

logger = logging.getLogger(__name__)

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop


class Lane:
    """Implements ``base.Network`` with another network in a thread of its own."""

    def __init__(self, network: Network, name: str) -> None:
        self.counters = network.counters
        self._network = network
        """The network that carries the bytes; used in the lane's thread alone."""
        self._name = name
        self._thread: IoThread | None = None
        """The lane's thread; None before the lane is used."""

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> LaneListener:
        listener = LaneListener(self, on_incoming)
        await self.perform(listener.open(self._network, endpoint, identity))
        return listener

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> LaneChannel:
        channel = LaneChannel(on_close)
        await self.perform(channel.open(self._network, endpoint, target, identity))
        return channel

    async def perform(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the lane's thread and return its result."""
        if self._thread is None:
            self._thread = IoThread(self._name)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._thread.loop))


class LaneChannel:
    """Implements ``base.Channel`` with a channel of the lane's network."""

    peer: bytes

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.closed = False
        """Whether the channel has ended, as far as the caller's loop knows."""
        self._loop = asyncio.get_running_loop()
        self._on_close = on_close
        self._lane: Loop
        self._channel: Channel
        """The channel of the lane's network; ``open`` sets it and ``_lane``."""

    async def open(self, network: Network, endpoint: str, target: bytes, identity: bytes) -> None:
        """Connect; called in the lane's thread."""
        self._lane = asyncio.get_running_loop()
        on_end = _on_loop(self._loop, self._end)
        self._channel = await network.connect(endpoint, target, identity, on_end)
        self.peer = self._channel.peer

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        check_size(method, payload, buffers)
        on_end = _on_loop(self._loop, on_reply)
        self._lane.call_soon_threadsafe(self._channel.call, method, payload, buffers, on_end, into)

    def notify(self, method: str, payload: bytes) -> None:
        check_size(method, payload, ())
        self._lane.call_soon_threadsafe(self._channel.notify, method, payload)

    def close(self) -> None:
        self.closed = True
        self._lane.call_soon_threadsafe(self._channel.close)

    def _end(self) -> None:
        if not self.closed:
            self.closed = True
            self._on_close()


class LaneListener:
    """Implements ``base.Listener`` with a listener of the lane's network."""

    endpoint: str

    def __init__(self, lane: Lane, on_incoming: OnIncoming) -> None:
        self._lane = lane
        self._loop = asyncio.get_running_loop()
        self._on_incoming = on_incoming
        self._listener: Listener
        """The listener of the lane's network; ``open`` sets it."""

    async def open(self, network: Network, endpoint: str, identity: bytes) -> None:
        """Listen; called in the lane's thread."""
        lane = asyncio.get_running_loop()
        deliver = _on_loop(self._loop, self._deliver)
        self._listener = await network.listen(endpoint, identity, lambda incoming: deliver(LaneIncoming(incoming, lane)))
        self.endpoint = self._listener.endpoint

    def _deliver(self, incoming: LaneIncoming) -> None:
        try:
            self._on_incoming(incoming)
        except Exception:
            logger.exception("on_incoming raised for %s; the channel goes on", incoming.method)

    async def close(self) -> None:
        await self._lane.perform(self._listener.close())


class LaneIncoming:
    """Implements ``base.Incoming``; its answers go through the lane's thread."""

    def __init__(self, incoming: Incoming, lane: Loop) -> None:
        self.method = incoming.method
        self.payload = incoming.payload
        self.buffers = incoming.buffers
        self.peer = incoming.peer
        self._incoming = incoming
        self._lane = lane

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        check_size("a reply", payload, buffers)
        self._lane.call_soon_threadsafe(self._incoming.reply, payload, buffers)

    def fail(self, failure: RemoteFailure) -> None:
        self._lane.call_soon_threadsafe(self._incoming.fail, failure)


def _on_loop(loop: Loop, callback: Callable[..., None]) -> Callable[..., None]:
    """Wrap a callback so that other threads can have it called on ``loop``. Does nothing once the loop is closed."""

    def call(*args: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback, *args)

    return call
