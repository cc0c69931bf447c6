"""One simulated channel: two ends, and a pipe in each direction.

A ``Pipe`` holds the messages on their way, each with the time when it arrives. It can lose a suffix, be held by a cut (a
network partition), and be shut. A ``ChannelEnd`` turns messages into calls and replies; the connecting side uses it as
``base.Channel``. ``network.SimWire`` decides what goes wrong with them, and when.

Only bytes travel, as copies: no object is shared by two processes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from minray.platform.base import (
    Buffer,
    ChannelBroken,
    Counters,
    OnIncoming,
    OnReply,
    RemoteFailure,
    check_size,
)
from minray.platform.transport.destinations import DoesNotFit, write
from minray.simulation.loop import TICKS_PER_SECOND, SimLoop, SimProcess, to_ticks
from minray.simulation.trace import RECEIVE, Trace

BANDWIDTH_UNIT_BYTES = 1024 * 1024
BANDWIDTH_UNIT_S = 0.000_5
"""Seconds by which each full unit of a message's buffers delays it; other messages may overtake it meanwhile."""

CALL, NOTIFY, REPLY, FAIL, CLOSE, BREAK = "call", "notify", "reply", "fail", "close", "break"
"""Kinds of messages. The channel itself sends the last two: CLOSE for an orderly end, BREAK for any other."""
SILENCE = "silence"
"""The ``method`` of a BREAK that the receiver notices by itself, so that no cut can hold it."""


@dataclass(slots=True, eq=False)
class Message:
    kind: str
    number: int = 0
    """The number of the call; a reply has the number of its call."""
    method: str = ""
    payload: bytes = b""
    buffers: tuple[memoryview, ...] = ()
    failure: RemoteFailure | None = None
    """The failure that a FAIL carries; None in other kinds."""
    event: int = -1
    """The number of the message's SEND event in the trace; -1 if it has none."""

    @property
    def word(self) -> str:
        """The message's name in faults and in the trace: ``PushTask``, ``PushTask reply``."""
        return self.method if self.kind in (CALL, NOTIFY) else f"{self.method} {self.kind}".lstrip()


class Wire(Protocol):
    """The carrier of the messages of all channels, as a channel sees it: ``network.SimWire``."""

    loop: SimLoop
    trace: Trace
    aims_at_messages: bool
    """Whether faults strike at messages, so that they must be named in time."""

    def latency_s(self, source: SimProcess, target: SimProcess) -> float:
        """Seconds that a message takes."""

    def is_cut(self, source: SimProcess, target: SimProcess) -> bool:
        """Whether messages from ``source`` to ``target`` are held back."""

    def hold(self, pipe: Pipe) -> None:
        """Keep a pipe that a cut holds, and release it when the cut is mended."""

    def send(self, end: ChannelEnd, message: Message) -> None:
        """Put a message on its way."""


class Attachment(Protocol):
    """The network of one process, as the ends of its channels see it: ``network.SimNetwork``."""

    @property
    def wire(self) -> Wire:
        """The wire that the process is attached to."""

    process: SimProcess
    counters: Counters
    ends: dict[ChannelEnd, None]
    """Open ends of this process."""

    def count_frame(self, end: ChannelEnd) -> None:
        """Count a message as a frame of its own, unless it goes with the one before."""


class Pipe:
    """One direction of a channel: messages on their way."""

    def __init__(self, wire: Wire, source: SimProcess, target: SimProcess, receive: Callable[[Message], None]) -> None:
        self._wire = wire
        self.source = source
        self.target = target
        self._receive = receive
        self._way: list[tuple[int, int, Message]] = []
        """The messages on their way, as a heap of (arrival tick, sending order, message)."""
        self._sent = 0
        self._last_tick = 0
        """The tick at which the last message arrives, without the time of its buffers: no later message may arrive
        before."""
        self._arriving = 0
        """The tick of the timer that takes out arrived messages; 0 if no timer is set."""
        self._shut = False
        """Whether the pipe takes no more messages."""
        self.held_since = 0
        """The tick at which a cut began to hold the pipe; 0 if none does."""

    @property
    def strike_name(self) -> str | None:
        """The name by which faults strike the receiver: that of a message about to be received; None if there is none."""
        due = self._wire.aims_at_messages and self._way and not self.held_since and self._way[0][0] <= self._wire.loop.ticks
        return f"receive {self._way[0][2].word}" if due else None

    def put(self, message: Message, delay_s: float = 0.0) -> None:
        if self._shut or not self.source.alive:
            return
        size_bytes = sum(buffer.nbytes for buffer in message.buffers)
        latency_s = self._wire.latency_s(self.source, self.target) + delay_s
        tick = max(self._wire.loop.ticks + to_ticks(latency_s), self._last_tick)
        if message.kind == CLOSE:
            tick = self._after_all(tick)
        self._last_tick = tick
        self._add(tick + to_ticks(size_bytes // BANDWIDTH_UNIT_BYTES * BANDWIDTH_UNIT_S), message)

    def shut(self, lose: int = 0, delay_s: float = 0.0) -> None:
        """End the pipe: the last ``lose`` messages on the way are lost. The target learns of the end after the others."""
        if self._shut:
            return
        self._shut = True
        if lose:
            kept = sorted(self._way, key=lambda entry: entry[1])[:-lose]
            self._way = sorted(kept)
        latency_s = self._wire.latency_s(self.source, self.target)
        self._add(self._after_all(self._wire.loop.ticks + to_ticks(latency_s + delay_s)), Message(BREAK))

    def hold_back(self, delay_s: float) -> None:
        """Let the messages on the way arrive later."""
        delay = to_ticks(delay_s)
        self._way = [(tick + delay, order, message) for tick, order, message in self._way]
        self._last_tick += delay if self._way else 0

    def give_up(self) -> None:
        """End the pipe after a long silence: all messages on the way are lost, and the target notices the end by itself."""
        self._shut = True
        self._way = []
        self.held_since = 0
        self._add(self._wire.loop.ticks, Message(BREAK, method=SILENCE))

    def let_go(self) -> None:
        """Release the pipe, since the cut has healed: held messages arrive soon."""
        self.held_since = 0
        soon = self._wire.loop.ticks + to_ticks(self._wire.latency_s(self.source, self.target))
        self._way = sorted((max(tick, soon), order, message) for tick, order, message in self._way)
        self._last_tick = max(self._last_tick, soon)
        self._maybe_look()

    def length(self) -> int:
        return len(self._way)

    def end_there(self) -> ChannelEnd:
        """Return the channel end that receives the pipe's messages."""
        end: ChannelEnd = self._receive.__self__  # type: ignore[attr-defined]
        return end

    def _after_all(self, tick: int) -> int:
        return max([tick, *(entry[0] for entry in self._way)])

    def _add(self, tick: int, message: Message) -> None:
        self._sent += 1
        heapq.heappush(self._way, (tick, self._sent, message))
        self._maybe_look()

    def _maybe_look(self) -> None:
        """Set a timer for the first message, unless one is set for that time or an earlier one."""
        if self._way and not self.held_since:
            tick = max(self._way[0][0], self._wire.loop.ticks)
            if not self._arriving or tick < self._arriving:
                self._arriving = tick
                self.target.call_later((tick - self._wire.loop.ticks) / TICKS_PER_SECOND, self._look, tick)

    def _look(self, tick: int) -> None:
        """Take out the first message if it has arrived; one per step, so that a crash can come between two."""
        if tick != self._arriving:
            return
        self._arriving = 0
        if self.held_since or not self._way or self._way[0][0] > self._wire.loop.ticks:
            self._maybe_look()
            return
        if self._wire.is_cut(self.source, self.target) and self._way[0][2].method != SILENCE:
            self.held_since = self._wire.loop.ticks
            self._wire.hold(self)
            return
        message = heapq.heappop(self._way)[2]
        self._maybe_look()
        self._receive(message)


class SimIncoming:
    """Implements ``base.Incoming``: one message that has arrived."""

    __slots__ = ("method", "payload", "buffers", "peer", "_end", "_number")

    def __init__(self, end: ChannelEnd, message: Message) -> None:
        self.method = message.method
        self.payload = message.payload
        self.buffers: Sequence[Buffer] = message.buffers
        self.peer = end.peer
        self._end = end
        self._number = message.number if message.kind == CALL else None
        """The number of the call to answer; None for a notification, and once the call is answered."""

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        self._answer(REPLY, payload, buffers, None)

    def fail(self, failure: RemoteFailure) -> None:
        self._answer(FAIL, b"", (), failure)

    def _answer(self, kind: str, payload: bytes, buffers: Sequence[Buffer], failure: RemoteFailure | None) -> None:
        if self._number is not None and not self._end.closed:
            _check("a reply", payload, buffers)
            number, self._number = self._number, None
            self._end.network.counters.replies += 1
            self._end.send(Message(kind, number, self.method, payload, copies(buffers), failure))


class ChannelEnd:
    """One end of a channel; the connecting side uses it as ``base.Channel``."""

    def __init__(self, network: Attachment, peer: bytes, on_close: Callable[[], None], on_incoming: OnIncoming) -> None:
        self.network = network
        self.peer = peer
        self.closed = False
        self.pipe: Pipe
        """The outgoing pipe; set when both ends exist."""
        self.other: ChannelEnd
        self._on_close = on_close
        self._on_incoming = on_incoming
        self._calls: dict[int, OnReply] = {}
        self._into: dict[int, Sequence[memoryview]] = {}
        """The memory that open calls have given for the buffers of their replies, by call number."""
        self._last_number = 0

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        if self.closed:
            self.network.process.call_soon(on_reply, ChannelBroken("the channel is closed"), b"", ())
            return
        _check(method, payload, buffers)
        self._last_number += 1
        self._calls[self._last_number] = on_reply
        if into:
            self._into[self._last_number] = into
        self.network.counters.requests += 1
        self.send(Message(CALL, self._last_number, method, payload, copies(buffers)))

    def notify(self, method: str, payload: bytes) -> None:
        if not self.closed:
            _check(method, payload, ())
            self.network.counters.requests += 1
            self.send(Message(NOTIFY, 0, method, payload))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.network.ends.pop(self, None)
        self.pipe.put(Message(CLOSE))
        self._break_calls()

    def send(self, message: Message) -> None:
        network = self.network
        network.counters.bytes += len(message.payload) + sum(buffer.nbytes for buffer in message.buffers)
        network.count_frame(self)
        network.wire.send(self, message)

    def receive(self, message: Message) -> None:
        """Handle one message that has arrived; called on the loop as a callback of this end's process."""
        if self.closed:
            return
        kind = message.kind
        if kind in (CLOSE, BREAK):
            self.end()
            return
        trace = self.network.wire.trace
        event = trace.add(self.network.process.name, RECEIVE, message.word, self.pipe.target.name)
        trace.senders[event] = message.event
        if kind in (CALL, NOTIFY):
            self._on_incoming(SimIncoming(self, message))
        elif message.number in self._calls:
            self._receive_reply(message)

    def _receive_reply(self, message: Message) -> None:
        buffers: Sequence[Buffer] = message.buffers
        if message.buffers and message.number in self._into:
            try:
                buffers = write(self._into[message.number], message.buffers)
            except DoesNotFit:
                self.end()
                return
        self._into.pop(message.number, None)
        self._calls.pop(message.number)(message.failure, message.payload, buffers)

    def end(self) -> None:
        """End the channel for any reason other than our own ``close``."""
        if self.closed:
            return
        self.closed = True
        self.network.ends.pop(self, None)
        self.pipe.shut()
        self._break_calls()
        self.network.process.call_soon(self._on_close)

    def forget(self) -> None:
        """Drop all calls, since the process is dead. Calls that it makes while it is unwound are not kept either."""
        self.closed = True
        self._calls.clear()
        self._into.clear()

    def _break_calls(self) -> None:
        self._into.clear()
        calls, self._calls = self._calls, {}
        for on_reply in calls.values():
            error = ChannelBroken("the channel closed before the reply came")
            self.network.process.call_soon(on_reply, error, b"", ())


def copies(buffers: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """Return read-only copies of the buffers, for the receiver."""
    return tuple(memoryview(bytes(buffer)) for buffer in buffers) if buffers else ()


def _check(word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
    """Raise ``RecordTooLarge`` for a message that is too large, like the real transports."""
    assert type(payload) is bytes, "only bytes travel"
    check_size(word, payload, buffers)
