"""L5, by counting: who says the same thing twice, although its first word has not been lost, does needless work.

A part of the ``Watch`` (see ``invariants``). Messages cost hardly any virtual time, so a detour or a poll in a hurry changes
no outcome. It is seen here, because its messages are counted.

| | looked at when | |
|---|---|---|
| L5 | a request of ``ONCE`` is sent | it was not just sent on the same channel, which loses nothing unless it breaks |
| L5 | any request is sent | its receiver was not sent the same one more than ``MOST_A_SECOND`` times in the last second |
| L5 | a copy is written to disk | it is not there already |
| G112 | a request is sent again | it has the same buffers |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from minray.common.ids import short
from minray.platform.transport.queued_channel import CALL
from minray.simulation.faults import Key
from minray.simulation.loop import TICKS_PER_SECOND

ONCE = frozenset(
    """
    CreateActor CreateObject CreatePlacementGroup EndActor ExitActor FinishJob GetJob GetObject GetObjects
    GetObjectLocations NotifyWorkerBlocked PinObjects PromoteObjects PushActorTask PushTask
    RegisterActor RegisterDriver RegisterJob RegisterNode RegisterWorker ReleasePins ReleaseUnusedBundles RemoveBorrower
    ReportActorExit ReportGeneratorItem ReportResources ReportWorkerDeath RequestWorkerLease ReturnWorkerLease SealObject
    UnregisterNode UpdateObjectLocations WaitForReader
    """.split()
)
"""Requests that name what they are about by a fresh id or number, so that the same bytes mean a repetition."""
AGAIN = ("break", "reset", "duplicate")
"""Faults after which a message comes again."""
GCS = "gcs"
"""The gcs may return a lease twice: the actor is killed twice, before the first kill has ended it."""
TWICE_TICKS = TICKS_PER_SECOND // 2
"""Virtual time after which a request may be repeated: its answer was a failure, or a long poll has run out."""
MOST_A_SECOND = 60
"""Five times what a campaign has seen."""


class Repeats:
    """Counts the requests of one cluster."""

    def __init__(self, on_broken: Callable[[str, str], None], answers: Mapping[Key, int]) -> None:
        """``answers``: the faults that have struck."""
        self._on_broken = on_broken
        self._answers = answers
        self._sent: dict[tuple[Any, str, bytes], int] = {}
        """Time at which each request of ``ONCE`` was sent last, by the channel's end, method and record."""
        self._buffers: dict[tuple[str, str, str, bytes], tuple[int, ...]] = {}
        """Sizes of the buffers of each request that has had some, by sender, receiver, method and record."""
        self._with_buffers: set[str] = set()
        """Methods of these requests."""
        self._times: dict[tuple[str, str, str, bytes], deque[int]] = {}
        """Times in the last second at which a process has sent the same request to another one."""

    def on_send(self, end: Any, message: Any, ticks: int) -> None:
        """Look at a message that is about to be sent."""
        if message.kind != CALL:
            return
        name, source = message.method, end.pipe.source.name
        if message.buffers or name in self._with_buffers:
            self._expect_same_buffers(source, end.pipe.target.name, message)
        if name in ONCE and (source, name) != (GCS, "ReturnWorkerLease"):
            key = end, name, bytes(message.payload)
            is_early = ticks < self._sent.get(key, -TWICE_TICKS) + TWICE_TICKS
            if is_early and not (name == "RemoveBorrower" and self._is_struck(f">{source}", "ReportGeneratorItem")):
                self._on_broken("L5", f"{source} sends the same {name} twice on one channel")
            self._sent[key] = ticks
            return
        if name == "CancelTask":
            return  # programs may cancel by force as often as they like
        target = end.pipe.target.name
        times = self._times.setdefault((source, target, name, bytes(message.payload)), deque())
        times.append(ticks)
        while times[0] < ticks - TICKS_PER_SECOND:
            times.popleft()
        if len(times) == MOST_A_SECOND:
            self._on_broken("L5", f"{source} has sent {target} the same {name} {MOST_A_SECOND} times in a second")

    def _is_struck(self, side: str, name: str) -> bool:
        """Whether a message was repeated on its way to a process, which gives its tickets back each time."""
        return any(key[0] in AGAIN and str(key[1]).endswith(side) and key[2] == name for key in self._answers)

    def _expect_same_buffers(self, source: str, target: str, message: Any) -> None:
        key = source, target, message.method, bytes(message.payload)
        sizes = tuple(buffer.nbytes for buffer in message.buffers)
        self._with_buffers.add(message.method)
        if self._buffers.setdefault(key, sizes) != sizes:
            before = self._buffers[key]
            self._on_broken("G112", f"{source} repeats a {message.method} with buffers of {sizes} bytes, not {before}")

    def add_raylet(self, name: str, raylet: Any) -> None:
        """Look at what a node writes to disk."""
        table = raylet.store.table
        begin_spill = table.begin_spill

        def watched_spill(entry: Any) -> None:
            if entry.spilled is not None or entry.is_moving:
                self._on_broken("L5", f"{name} writes {short(entry.object_id)}, which is on disk or on its way there")
            begin_spill(entry)

        table.begin_spill = watched_spill
