"""One simulated channel: two ends, and a pipe in each direction.

A ``Pipe`` holds the messages on their way, each with the time when it arrives. It can lose a suffix, be held by a cut (a
network partition), and be shut. The ends turn messages into calls and replies. ``network.SimWire`` decides what goes wrong
with them, and when.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from minray.platform.transport.queued_channel import BREAK, CLOSE, ChannelEnd, Message
from minray.simulation.loop import TICKS_PER_SECOND, SimLoop, SimProcess, to_ticks
from minray.simulation.trace import Trace

SILENCE = "silence"
"""The ``method`` of a BREAK that the receiver notices by itself, so that no cut can hold it."""


class Wire(Protocol):
    """The carrier of the messages of all channels, as a channel sees it: ``network.SimWire``."""

    loop: SimLoop
    trace: Trace
    aims_at_messages: bool
    """Whether faults strike at messages, so that they must be named in time."""

    def latency_s(self, source: SimProcess, target: SimProcess) -> float:
        """Seconds until the beginning of a message arrives."""

    def carry_s(self, source: SimProcess, target: SimProcess, message: Message) -> float:
        """Further seconds that the buffers of a message take; other messages may overtake it meanwhile."""

    def is_cut(self, source: SimProcess, target: SimProcess) -> bool:
        """Whether messages from ``source`` to ``target`` are held back."""

    def hold(self, pipe: Pipe) -> None:
        """Keep a pipe that a cut holds, and release it when the cut is mended."""


class SimChannelEnd(ChannelEnd):
    """One end of a simulated channel."""

    pipe: Pipe
    """The outgoing pipe; set when both ends exist."""
    other: SimChannelEnd


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
        latency_s = self._wire.latency_s(self.source, self.target) + delay_s
        tick = max(self._wire.loop.ticks + to_ticks(latency_s), self._last_tick)
        if message.kind == CLOSE:
            tick = self._after_all(tick)
        self._last_tick = tick
        self._add(tick + to_ticks(self._wire.carry_s(self.source, self.target, message)), message)

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

    def end_there(self) -> SimChannelEnd:
        """Return the channel end that receives the pipe's messages."""
        end: SimChannelEnd = self._receive.__self__  # type: ignore[attr-defined]
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
