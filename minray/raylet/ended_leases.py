"""What became of leases that are over, remembered for a while, because messages about them may still come.

Ray: src/ray/raylet/node_manager.cc (worker failure causes, cancelled lease tombstones)

A lease id lives once. When it is over, or cancelled before it was heard of, its id stays here: a request that comes late
or twice gets the answer that the first one got, or hears that the lease is over, and is never granted again (G112); and
``GetLeaseFailure`` finds the death certificate of the worker. Ids are kept for ten minutes, and at most a hundred
thousand of them, the oldest going first.
"""

from __future__ import annotations

from dataclasses import dataclass

from minray.protocol.raylet import CANCELLED, LeaseFailure, LeaseReply

KEPT_S = 600.0
MAX_KEPT = 100_000

ALIVE = LeaseFailure(known=True, dead=False)
OVER = LeaseReply(CANCELLED, reason="this lease is over")


@dataclass(frozen=True, slots=True)
class End:
    """How a lease ended."""

    failure: LeaseFailure = ALIVE
    """The certificate of its worker, if that died."""
    reply: LeaseReply = OVER
    """What a repeated request is told."""


RETURNED = End()
CANCELLED_EARLY = End(reply=LeaseReply(CANCELLED, reason="cancelled by its owner"))
"""Also the tombstone of a lease whose request has not come yet."""


class EndedLeases:
    """A bounded memory, by lease id."""

    def __init__(self) -> None:
        self._ends: dict[bytes, tuple[float, End]] = {}
        """When and how each ended, oldest first."""

    def remember(self, lease_id: bytes, end: End, now: float) -> None:
        self._ends.pop(lease_id, None)
        self._ends[lease_id] = now, end
        while True:
            oldest = next(iter(self._ends))
            if len(self._ends) <= MAX_KEPT and now - self._ends[oldest][0] <= KEPT_S:
                return
            del self._ends[oldest]

    def get(self, lease_id: bytes) -> End | None:
        """None: not over, or not known (any more)."""
        entry = self._ends.get(lease_id)
        return None if entry is None else entry[1]

    def __len__(self) -> int:
        return len(self._ends)
