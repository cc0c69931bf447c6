"""Ended leases: how each lease ended is kept for a while, because messages about it may still come.

Ray: src/ray/raylet/node_manager.cc (worker failure causes, cancelled lease tombstones)

A lease id is used once. When the lease has ended, or was cancelled before its request came, its id stays here. A late or
repeated request gets the reply of the first one, or the reply that the lease is over; it is never granted again (G112).
``GetLeaseFailure`` finds the death certificate of the worker here. Ids are kept for ten minutes, and at most a hundred
thousand of them; the oldest are dropped first.
"""

from __future__ import annotations

import msgspec

from minray.protocol.raylet import CANCELLED, LeaseFailure, LeaseReply

KEPT_S = 600.0
"""Seconds that the end of a lease is kept."""
MAX_KEPT = 100_000
"""Most ends of leases that are kept."""

ALIVE = LeaseFailure(known=True, dead=False)
OVER = LeaseReply(CANCELLED, reason="this lease is over")


class End(msgspec.Struct, frozen=True):
    """Says how a lease ended."""

    failure: LeaseFailure = ALIVE
    """Death certificate of the lease's worker, if that died."""
    reply: LeaseReply = OVER
    """Reply to a repeated request."""


RETURNED = End()
CANCELLED_EARLY = End(reply=LeaseReply(CANCELLED, reason="cancelled by its owner"))
"""End of a cancelled lease; also the tombstone of a lease whose request has not come yet."""


class EndedLeases:
    """Keeps the ends of a bounded number of leases, by lease id."""

    def __init__(self) -> None:
        self._ends: dict[bytes, tuple[float, End]] = {}
        """Time and kind of each lease's end, oldest first."""

    def remember(self, lease_id: bytes, end: End, now: float) -> None:
        self._ends.pop(lease_id, None)
        self._ends[lease_id] = now, end
        while True:
            oldest = next(iter(self._ends))
            if len(self._ends) <= MAX_KEPT and now - self._ends[oldest][0] <= KEPT_S:
                return
            del self._ends[oldest]

    def get(self, lease_id: bytes) -> End | None:
        """Return how a lease ended; None if it has not ended, or is not known (any more)."""
        entry = self._ends.get(lease_id)
        return None if entry is None else entry[1]

    def __len__(self) -> int:
        return len(self._ends)
