"""Workers that are killed or ended, and numbers that cannot be right; a part of the ``Watch`` (see ``invariants``).

| | looked at when | |
|---|---|---|
| G89 | a raylet kills a worker for memory | idle workers come first, then those that can be retried, then the newest lease |
| G89 | a raylet kills a worker for memory | it says which of these has decided |
| L5 | a raylet ends idle workers | they are idle for long, and more are idle than CPUs are free |
| G89 | a lease is requested | it says truly whether what it is for can be retried |
| L5 | a lease is requested | it says truly for how many tasks no lease is requested |
| state | a node tells its figures | none is below zero |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from minray.common.ids import short
from minray.protocol.base import decode
from minray.protocol.raylet import RequestWorkerLease
from minray.raylet.worker_pool import IDLE, LEASED
from minray.simulation.cluster import GCS
from minray.simulation.loop import SimLoop

FIGURES = frozenset({"GetNodeStats reply", "GetNodeMetrics reply"})
"""Messages whose numbers are amounts, so that none is negative."""

IDLE_REASON, RERUN_REASON = "it was idle", "its task or actor can be rerun"
LAST_REASON = "no worker was left whose task or actor can be rerun"
"""Reasons that people are told."""


class Victims:
    """Looks at the choices of one cluster's memory monitors."""

    def __init__(self, on_broken: Callable[[str, str], None], loop: SimLoop) -> None:
        self._on_broken = on_broken
        self._loop = loop
        self._grants: dict[bytes, int] = {}
        """Lease -> the tick at which it was granted."""
        self._may_run_again: dict[bytes, bool] = {}
        """Lease -> whether the task or actor for which it was requested may be retried."""

    def add_raylet(self, name: str, raylet: Any) -> None:
        """Note the grants of a raylet, and look at what it kills."""
        scheduler, workers = raylet._broker.scheduler, raylet._memory_monitor._workers
        grant, kill = scheduler._grant, workers.kill

        def watched_grant(entry: Any, worker: Any) -> None:
            self._grants.setdefault(entry.request.lease_id, self._loop.ticks)
            grant(entry, worker)

        def watched_kill(victim: Any, reason: str, *args: Any) -> None:
            self._expect_right_one(name, raylet._broker, victim.worker_id)
            self._expect_right_reason(name, victim, reason)
            kill(victim, reason, *args)

        reap, pool = raylet._broker.pool.reap, raylet._broker.pool

        def watched_reap(now: float, free_cpus: int, threshold_s: float) -> Any:
            idle = dict(pool._idle)
            reaped = reap(now, free_cpus, threshold_s)
            is_needed = [one for one, force in reaped if not force and one.worker_id in idle]
            left = len(idle) - sum(one.worker_id in idle for one, _ in reaped)
            early = [one for one in is_needed if now - one.idle_since <= threshold_s]
            if early or (is_needed and left < free_cpus):
                self._on_broken("L5", f"{name} ends {len(is_needed)} idle workers that it should keep")
            return reaped

        scheduler._grant, workers.kill, pool.reap = watched_grant, watched_kill, watched_reap

    def _expect_right_one(self, name: str, broker: Any, victim: bytes) -> None:
        pool = broker.pool
        workers = [worker for worker in pool.workers.values() if pool.state(worker.worker_id) in (IDLE, LEASED)]
        idle = [worker.worker_id for worker in workers if pool.state(worker.worker_id) == IDLE]
        if idle:
            if victim not in idle:
                self._on_broken("G89", f"{name} kills worker {short(victim)} for memory, and has {len(idle)} idle ones")
            return
        ranks = {
            worker.worker_id: (self._may_run_again.get(worker.lease_id, True), self._grants.get(worker.lease_id, 0))
            for worker in workers
        }
        if ranks and ranks.get(victim) != max(ranks.values()):
            is_wrong = "a task that cannot be retried" if ranks[victim][0] != max(ranks.values())[0] else "an older lease"
            self._on_broken("G89", f"{name} kills worker {short(victim)} for memory, which has {is_wrong}")

    def _expect_right_reason(self, name: str, victim: Any, reason: str) -> None:
        """The victim was chosen for the reason that people are told."""
        may_run_again = self._may_run_again.get(victim.lease_id, True)
        why = IDLE_REASON if not victim.lease_id else RERUN_REASON if may_run_again else LAST_REASON
        if f"is killed: {why}" not in reason:
            self._on_broken("G89", f"{name} kills worker {short(victim.worker_id)}, and says: {reason}")

    def add_core(self, core: Any) -> None:
        """Look at the requests of an owner."""
        client = core.submission.lease_client
        request_lease = client.request_lease

        def watched(request: Any) -> None:
            first = request.key.queue[0] if request.key.queue else None
            may_run_again = first is None or first.retries_left != 0
            self._expect_truth(request.lease_id, may_run_again, request.retriable)
            left = max(0, len(request.key.queue) - len(request.key.requests))
            if request.backlog != left:
                what = f"the request for lease {short(request.lease_id)}"
                self._on_broken("L5", f"{what} says that {request.backlog} more tasks wait, not {left}")
            request_lease(request)

        client.request_lease = watched

    def _expect_truth(self, lease_id: bytes, may_run_again: bool, said: bool) -> None:
        self._may_run_again[lease_id] = may_run_again
        if said != may_run_again:
            can = "can" if may_run_again else "cannot"
            self._on_broken("G89", f"the request for lease {short(lease_id)} is for what {can} be retried, and denies that")

    def on_send(self, end: Any, message: Any, word: str, rows: Callable[[], dict[bytes, Any]]) -> None:
        """Look at a message that is about to be sent; ``rows``: the actors that the gcs knows."""
        if word == "RequestWorkerLease" and end.pipe.source.name == GCS:
            request = decode(RequestWorkerLease, message.payload)
            row = rows().get(request.actor_id)
            if row is not None:
                info = row.info
                is_left = info.max_restarts < 0 or info.restarts - info.preemptions < info.max_restarts
                self._expect_truth(request.lease_id, is_left, request.retriable)
        elif word in FIGURES:
            if (negative := next(_negatives(msgspec.msgpack.decode(message.payload)), None)) is not None:
                self._on_broken("state", f"{end.pipe.source.name} says {negative} in a {word}")


def _negatives(part: Any) -> Iterator[float]:
    if isinstance(part, dict):
        for value in part.values():
            yield from _negatives(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _negatives(value)
    elif isinstance(part, int | float) and part < 0:
        yield part
