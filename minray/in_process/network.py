"""The in-process network: a message is handed to the other end's process as a callback on the loop that they share.

Ray: has no counterpart

Messages are the very records that sockets would carry, encoded, and buffers are copied, so that no object is shared. There
is no token: only code of the same interpreter can reach an endpoint.

Rules
  * Messages of a channel arrive in order. One with large buffers takes a turn of the loop for each chunk of them, and later
    messages overtake it.
  * What a process had sent before it died still arrives; then its channels end.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.in_process.process import LocalProcess
from minray.platform.base import (
    CHUNK_BYTES,
    ConnectRefused,
    Counters,
    Incoming,
    OnIncoming,
    PlatformError,
    WrongIncarnation,
)
from minray.platform.transport.queued_channel import BREAK, CLOSE, ChannelEnd, Message


class LocalListener:
    """Implements ``base.Listener`` for one process."""

    def __init__(self, network: LocalNetwork, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> None:
        self.network = network
        self.endpoint = endpoint
        self.identity = identity
        self.on_incoming = on_incoming
        self.ends: dict[ChannelEnd, None] = {}
        """This side's ends of the channels that came in."""

    async def close(self) -> None:
        self.withdraw()
        ends, self.ends = self.ends, {}
        for end in ends:
            end.close()

    def withdraw(self) -> None:
        """Let no more channels come in."""
        listeners = self.network.listeners
        if listeners.get(self.endpoint) is self:
            del listeners[self.endpoint]


class LocalNetwork:
    """Implements ``base.Network``; one for each process, over the listeners of its world."""

    def __init__(self, listeners: dict[str, LocalListener], process: LocalProcess) -> None:
        self.listeners = listeners
        """The listeners of all processes, by endpoint."""
        self.process = process
        self.counters = Counters()
        self.ends: dict[ChannelEnd, None] = {}
        self._others: dict[ChannelEnd, ChannelEnd] = {}
        """For each open end of this process, the other end of its channel."""
        self._own: list[LocalListener] = []
        process.on_death.append(self._on_death)

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> LocalListener:
        if not endpoint.startswith("local:") or len(endpoint) == len("local:"):
            raise PlatformError(f"{endpoint}: not an endpoint of this process; those look like local:name")
        if endpoint in self.listeners:
            raise PlatformError(f"{endpoint}: another process listens there")
        listener = LocalListener(self, endpoint, identity, on_incoming)
        self.listeners[endpoint] = listener
        self._own.append(listener)
        return listener

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> ChannelEnd:
        listener = self.listeners.get(endpoint)
        if listener is None:
            raise ConnectRefused(f"{endpoint}: no process listens there")
        if target not in (b"", listener.identity):
            raise WrongIncarnation(f"{endpoint}: incarnation {target.hex()} is gone")
        near = ChannelEnd(self, listener.identity, on_close, _refuse)
        far = ChannelEnd(listener.network, identity, lambda: listener.ends.pop(far, None), listener.on_incoming)
        listener.ends[far] = None
        self._open(near, far)
        listener.network._open(far, near)
        return near

    def _open(self, end: ChannelEnd, other: ChannelEnd) -> None:
        self.ends[end] = None
        self._others[end] = other

    def send(self, end: ChannelEnd, message: Message) -> None:
        other = self._others.pop(end, None) if message.kind == CLOSE else self._others.get(end)
        if other is not None and self.process.alive:
            self.counters.frames += 1
            turns = sum(buffer.nbytes for buffer in message.buffers) // CHUNK_BYTES
            other.network.process.call_soon(_deliver, other, message, turns)

    def shut(self, end: ChannelEnd) -> None:
        other = self._others.pop(end, None)
        if other is not None:
            other.network.process.call_soon(other.receive, Message(BREAK))

    def on_message(self, end: ChannelEnd, message: Message) -> None:
        """Do nothing: no trace is kept."""

    def _on_death(self) -> None:
        for listener in self._own:
            listener.withdraw()
        for end in list(self.ends):
            self.shut(end)
            end.forget()
        self.ends.clear()
        self._others.clear()


def _deliver(end: ChannelEnd, message: Message, turns: int) -> None:
    """Hand a message over after this number of turns of the loop."""
    if turns:
        end.network.process.call_soon(_deliver, end, message, turns - 1)
    else:
        end.receive(message)


def _refuse(incoming: Incoming) -> None:
    raise AssertionError("the connecting side receives replies only")
