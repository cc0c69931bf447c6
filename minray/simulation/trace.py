"""Records the events of a simulated world in order: for the equality check, for failures, and for people.

An event is ``(ticks, process, kind, details)`` and contains words only. Payloads, sizes and addresses are left out: they
differ between interpreters even if the runs are the same. Two runs of one seed are the same if their digests are.

Transitions of state tables come in through ``Platform.record``; the simulated parts add all other events.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect
from collections.abc import Callable, Iterable

import msgspec

from minray.protocol.core_worker import TASK_NAME_MARK
from minray.simulation.loop import TICKS_PER_SECOND, SimLoop

MAX_ROWS = 40
ROW_CHARACTERS = 150
LINE_CHARACTERS = 80
"""Characters of one event in a conversation: a page then needs no scrolling."""

FAULT, LIFE, STATE, SEND, RECEIVE, OUTPUT, LOG = "fault", "life", "state", "send", "receive", "output", "log"
"""Kinds of events."""
TALKS = (SEND, RECEIVE)
"""The kinds that are messages. Most events are, so a story shows only few of them."""
PROGRAM = ("task", "lease", "actor", "object")
"""The state tables that show what a program does."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. There are very many, so the garbage collector does not track them."""

    ticks: int
    process: str
    kind: str
    details: tuple[str, ...]

    def is_task_mark(self) -> bool:
        """Whether this is the line by which a worker says for which task it prints the next lines."""
        return self.kind == OUTPUT and self.details[1].startswith(TASK_NAME_MARK)

    def text(self) -> str:
        """Return the event's text in the story."""
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
        """Number of a RECEIVE event -> number of the message's SEND event. Not part of the digest."""
        self.on_event: Callable[[], object] | None = None
        """Called after each event; it changes nothing in the world but to stop its loop."""

    def add(self, process: str, kind: str, *details: str) -> int:
        """Add an event and return its number."""
        self.events.append(Event(self._loop.ticks, process, kind, details))
        if self.on_event is not None:
            self.on_event()
        return len(self.events) - 1

    def nodes(self) -> dict[str, str]:
        """Return the machine of each process, in the order in which they first started."""
        return {process.name: process.node for process in self._loop.processes if process is not self._loop.world}

    def recorder(self, process: str) -> Callable[[str, str, str, str], None]:
        """Return a recorder for ``Platform.record`` of this process."""

        def record(table: str, key: str, old: str, new: str) -> None:
            self.add(process, STATE, table, key, old, new)

        return record

    def digest(self) -> str:
        """Return a digest of the number of steps and of all events except log lines. Equal digests mean equal runs."""
        hasher = hashlib.blake2b(str(self._loop.steps).encode(), digest_size=16)
        for event in self.events:
            if event.kind != LOG:  # Logs quote exceptions, and those may quote anything.
                hasher.update(repr(msgspec.structs.astuple(event)).encode())
        return hasher.hexdigest()

    def story(self, rows: int = MAX_ROWS, marked: int | None = None) -> str:
        """Return a text with a lane per process and at most ``rows`` events. The event ``marked`` is always shown.

        It shows all faults if possible, and the events nearest to them and to the marked one. Without either it shows the
        beginning of the program.
        """
        chosen = self._chosen(rows, marked)
        shown = [self.events[i] for i in chosen]
        lanes = list(dict.fromkeys(event.process for event in shown))
        width = max(8, min(26, ROW_CHARACTERS // max(1, len(lanes))))
        lines = [" ".join(["     seconds", *(lane[: width - 1].ljust(width - 1) for lane in lanes)]).rstrip()]
        for number, event in zip(chosen, shown, strict=True):
            indent = " " * (lanes.index(event.process) * width)
            mark = ">" if number == marked else ""
            lines.append(f"{mark}{event.ticks / TICKS_PER_SECOND:{12 - len(mark)}.6f} {indent}{event.text()}")
        if len(self.events) > len(shown):
            lines.append(f"({len(self.events) - len(shown)} of {len(self.events)} events are not shown)")
        return "\n".join(lines)

    def conversation(self, *told: str) -> str:
        """Return a text with one line for each event of ``told``: the virtual second, the process, and what happens.

        ``told`` has names of messages, of state tables, and of kinds of events. A message's line stands where the message
        arrives, and its answer is told with it. ``output`` means the lines that workers print. Faults are always told.
        """
        lines = []
        for event in self.events:
            if event.kind == FAULT or self._is_told(event, told):
                text = event.text()
                short = text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 4]} ..."
                lines.append(f"{event.ticks / TICKS_PER_SECOND:8.4f}  {event.process:16} {short}")
        return "\n".join(lines)

    def _is_told(self, event: Event, told: Iterable[str]) -> bool:
        if event.kind == OUTPUT:
            return OUTPUT in told and event.process.startswith("worker/") and not event.is_task_mark()
        if event.kind == STATE:
            return event.details[0] in told
        return event.kind in told or (event.kind == RECEIVE and event.details[0].removesuffix(" reply") in told)

    def _chosen(self, rows: int, marked: int | None) -> list[int]:
        """Return the numbers of a story's events.

        Faults come first. Half of the remaining rows is for events near them, then come the first states of tasks, leases,
        actors and objects.
        """
        births: dict[tuple[str, ...], int] = {}
        told = [i for i, event in enumerate(self.events) if not event.is_task_mark()]
        for i in told:
            event = self.events[i]
            if event.kind == STATE and event.details[0] in PROGRAM:
                births.setdefault((event.process, *event.details[:2]), i)
        struck = [i for i in told if self.events[i].kind == FAULT or i == marked]
        begun = next(iter(births.values()), 0)

        def distance(i: int) -> tuple[bool, int]:
            if not struck:
                return i < begun, abs(i - begun)
            after = bisect(struck, i)
            return False, min(abs(i - near) for near in struck[max(0, after - 1) : after + 1])

        chosen: set[int] = set() if marked is None else {marked}

        def take(part: float, numbers: Iterable[int]) -> None:
            count = round((rows - len(chosen)) * part)
            chosen.update(heapq.nsmallest(count, (i for i in numbers if i not in chosen), distance))

        take(1, struck)
        take(1 / 4, [i for i in told if self.events[i].kind == LOG])
        take(1 / 2, [i for i in told if self.events[i].kind not in TALKS])
        take(1 / 2, births.values())
        take(1 / 2, [i for i in told if self.events[i].kind in TALKS])
        take(1, [i for i in told if self.events[i].kind not in TALKS])
        take(1, told)
        return sorted(chosen)


def parting(one: Trace, other: Trace) -> int | None:
    """Return the number of the first event in which two runs differ; None if they are equal."""
    for number, (left, right) in enumerate(zip(one.events, other.events, strict=False)):
        if left != right:
            return number
    shared = min(len(one.events), len(other.events))
    return None if len(one.events) == len(other.events) else shared


def first_difference(one: Trace, other: Trace) -> str:
    """Describe the first event in which two runs differ, for the message of a failed equality check; empty if they are
    equal."""
    number = parting(one, other)
    if number is None:
        return ""
    events = [trace.events[number] for trace in (one, other) if number < len(trace.events)]
    where = f"event {number}" if len(events) == 2 else f"event {number}, in one run only"
    return f"{where}: {' / '.join(map(str, events))}"
