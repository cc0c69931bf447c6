"""Requests that nobody can answer any more (L1); a part of the ``Watch`` (see ``invariants``).

A handler that answers later keeps its call. If it forgets the call, the caller waits until it gives up, or for ever. So a
call must not be freed before it is answered, as long as its channel is open and its process lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.platform.transport import queued_channel
from minray.platform.transport.queued_channel import QueuedIncoming
from minray.simulation.loop import SimLoop

OnBroken = Callable[[str, str], None]

GIVEN_UP = frozenset({"PushTask", "PushActorTask"})
"""Requests that are dropped with the lease or the stream of calls that their caller has given up."""

LISTENER = "on_forgotten_call"
"""Attribute of a world's loop: who is told. A table of loops would keep each world, to which its listener refers."""


class WatchedIncoming(QueuedIncoming):
    """A message that has arrived, and tells when it is forgotten without an answer."""

    __slots__ = ()

    def __del__(self) -> None:
        if self._number is None or self._end.closed or self.method in GIVEN_UP:
            return
        process: Any = self._end.network.process
        loop = getattr(process, "loop", None)
        if loop is None or not process.alive or loop.is_closed():
            return
        on_broken: OnBroken | None = loop.__dict__.get(LISTENER)
        if on_broken is not None:
            on_broken("L1", f"{process.name} has forgotten a {self.method}, and will never answer it")


queued_channel.QueuedIncoming = WatchedIncoming  # type: ignore[misc]


def watch_calls(loop: SimLoop, on_broken: OnBroken) -> None:
    """From now on tell of each request in this world that is forgotten."""
    loop.__dict__[LISTENER] = on_broken
