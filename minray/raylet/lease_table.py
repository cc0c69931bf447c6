"""The leases of one node: those that are not over, found by their id, and the one way in which each of them ends.

Ray: src/ray/raylet/node_manager.h (leased_workers_), src/ray/raylet/scheduling/internal.h (internal::Work, with its replies)

A lease is in the table from its first request to its end. It ends once, in ``finish``: its arguments are released, its end
is remembered for late messages, and every request and question that waits is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from minray.protocol.base import Address
from minray.protocol.raylet import LeaseFailure
from minray.raylet.ended_leases import End, EndedLeases
from minray.raylet.worker_pool import Worker
from minray.rpc.service import Call
from minray.scheduling.lease import LeaseRequest


class LeaseEntry(msgspec.Struct, eq=False):
    """One lease that is not over."""

    request: LeaseRequest
    owner: Address
    calls: list[Call]
    """Requests that wait for the reply; more than one if the request was repeated."""
    retriable: bool = True
    """Whether the task can be retried if its worker is killed."""
    worker: Worker | None = None
    """Worker of the lease; set when it is granted."""
    granted_at: float = 0.0
    waiters: list[asyncio.Future[LeaseFailure]] = msgspec.field(default_factory=list)
    """Futures of requests that ask how the lease ends."""


class LeaseTable:
    """Holds the leases of one node, and the ends of earlier ones."""

    def __init__(self, end_arguments: Callable[[bytes], None]) -> None:
        """``end_arguments`` releases the large arguments of a lease that has ended."""
        self._end_arguments = end_arguments
        self.entries: dict[bytes, LeaseEntry] = {}
        """Leases that are not over, by lease id."""
        self.ended = EndedLeases()

    def finish(self, entry: LeaseEntry, end: End) -> None:
        """End a lease: nothing else takes one out of the table."""
        lease_id = entry.request.lease_id
        del self.entries[lease_id]
        self._end_arguments(lease_id)
        self.ended.remember(lease_id, end, asyncio.get_running_loop().time())
        for call in entry.calls:
            call.reply(end.reply)
        for waiter in entry.waiters:
            if not waiter.done():
                waiter.set_result(end.failure)

    def end_of(self, lease_id: bytes) -> LeaseFailure | asyncio.Future[LeaseFailure]:
        """Return how a lease ended, or a future of that if it goes on."""
        entry = self.entries.get(lease_id)
        if entry is None:
            end = self.ended.get(lease_id)
            return end.failure if end is not None else LeaseFailure(known=False, dead=False)
        waiter: asyncio.Future[LeaseFailure] = asyncio.get_running_loop().create_future()
        entry.waiters = [*(other for other in entry.waiters if not other.done()), waiter]
        return waiter

    def works_in_group(self, group_id: bytes) -> bool:
        """Tell whether there are leases in a group, or requests for some."""
        return any(entry.request.shape.strategy.group_id == group_id for entry in self.entries.values())
