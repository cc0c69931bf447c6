"""What happened in a simulated world, in order: for the equality check, for failures, and for people.

An event is ``(ticks, process, kind, details)`` and holds words only: never payloads, sizes or addresses, which differ
between interpreters although nothing that matters does. Two runs of one seed are the same if their digests are.

The transitions of state tables come in through ``Platform.record``, all else from the simulated parts themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from minray.simulation.loop import TICKS_PER_SECOND, SimLoop

MAX_ROWS = 40
ROW_CHARACTERS = 150

FAULT, LIFE, STATE, SEND, RECEIVE, OUTPUT, LOG = "fault", "life", "state", "send", "receive", "output", "log"
"""Kinds of events."""
_RANK = {FAULT: 0, LOG: 0, LIFE: 1, STATE: 1, OUTPUT: 1, RECEIVE: 2, SEND: 2}
"""A story that must be cut keeps the lowest of these, and among equals the latest."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One of very many, which the garbage collector need not look at."""

    ticks: int
    process: str
    kind: str
    details: tuple[str, ...]

    def text(self) -> str:
        """A cell of the story."""
        if self.kind == STATE:
            table, key, old, new = self.details
            return f"{table} {key[:8]}: {old or 'new'} -> {new or 'gone'}"
        if self.kind == SEND:
            return f"{self.details[0]} -> {self.details[1]}"
        if self.kind == RECEIVE:
            return f"{self.details[0]} <- {self.details[1]}"
        return " ".join([*(["!!"] if self.kind == FAULT else []), *self.details])


class Trace:
    """The events of one world."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.events: list[Event] = []
        self.senders: dict[int, int] = {}
        """The number of a RECEIVE event -> the number of the SEND event of that message. No part of the digest."""

    def add(self, process: str, kind: str, *details: str) -> int:
        """Returns the event's number."""
        self.events.append(Event(self._loop.ticks, process, kind, details))
        return len(self.events) - 1

    def nodes(self) -> dict[str, str]:
        """Process -> the machine it runs on, in the order in which they first started."""
        return {process.name: process.node for process in self._loop.processes if process is not self._loop.world}

    def recorder(self, process: str) -> Callable[[str, str, str, str], None]:
        """For ``Platform.record``."""

        def record(table: str, key: str, old: str, new: str) -> None:
            self.add(process, STATE, table, key, old, new)

        return record

    def digest(self) -> str:
        """The same for two runs exactly if all their events and the number of steps are."""
        hasher = hashlib.blake2b(str(self._loop.steps).encode(), digest_size=16)
        for event in self.events:
            if event.kind != LOG:  # Logs quote exceptions, and those may quote anything.
                hasher.update(repr(msgspec.structs.astuple(event)).encode())
        return hasher.hexdigest()

    def story(self, rows: int = MAX_ROWS) -> str:
        """A lane per process, at most ``rows`` events: all faults if possible, then the latest of what tells most."""
        by_rank = sorted(range(len(self.events)), key=lambda i: (_RANK[self.events[i].kind], -i))
        shown = [self.events[i] for i in sorted(by_rank[:rows])]
        lanes = list(dict.fromkeys(event.process for event in shown))
        width = max(8, min(26, ROW_CHARACTERS // max(1, len(lanes))))
        lines = [" ".join(["     seconds", *(lane[: width - 1].ljust(width - 1) for lane in lanes)]).rstrip()]
        for event in shown:
            indent = " " * (lanes.index(event.process) * width)
            lines.append(f"{event.ticks / TICKS_PER_SECOND:12.6f} {indent}{event.text()}")
        if len(self.events) > len(shown):
            lines.append(f"({len(self.events) - len(shown)} of {len(self.events)} events are not shown)")
        return "\n".join(lines)


def first_difference(one: Trace, other: Trace) -> str:
    """Where two runs part, for the message of a failed equality check; empty if they do not."""
    for number, (left, right) in enumerate(zip(one.events, other.events, strict=False)):
        if left != right:
            return f"event {number}: {left} / {right}"
    shared = min(len(one.events), len(other.events))
    rest = max(one.events, other.events, key=len)[shared:]
    return f"event {shared}, in one run only: {rest[0]}" if rest else ""
