"""Explanations for users: what a waiting lease waits for, and what the node is doing.

Ray: there is no counterpart; its nearest relative is ``ray status`` with its list of pending demands.

Everything here only reads. An explanation names the missing resource and its holders, and when the next worker may start if
that is known.
"""

from __future__ import annotations

from minray.common.bundles import is_reserved, plain_name
from minray.common.ids import short
from minray.common.resources import UNIT, describe
from minray.protocol.raylet import WorkerStatus
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.lease_table import LeaseEntry
from minray.raylet.log_monitor import LogMonitor
from minray.scheduling import lease as states
from minray.scheduling.local_lease_manager import Lease

MAX_HOLDERS = 5
"""Number of holders of a resource that are named; the others are counted."""


class Explanations:
    """Explains the leases and workers of one node."""

    def __init__(self, broker: LeaseBroker, log_monitor: LogMonitor) -> None:
        self._broker = broker
        self._log_monitor = log_monitor

    def explain(self, lease_id: bytes, now: float) -> str:
        """Explain why a lease is not granted; return an empty text if it is, or is unknown."""
        entry = self._broker.entries.get(lease_id)
        if entry is None:
            return ""
        request = entry.request
        state = self._broker.states.get(lease_id)
        if state == states.QUEUED:
            return self._explain_queued(entry, now)
        if state == states.FETCHING:
            missing = self._broker.arguments.missing(lease_id)
            named = ", ".join(short(object_id) for object_id in missing[:MAX_HOLDERS])
            return f"waits for {len(missing)} large arguments to come to node {self._broker.nodes.local}: {named}"
        if state == states.ALLOCATED:
            return self._broker.pool.describe_wait(lease_id, str(self._broker.nodes.local))
        if state == states.WAITING:
            if request.shape.strategy.group_id:
                return "waits for a node that holds such a bundle: none is known (yet)"
            if request in self._broker.cluster.infeasible():
                return self._broker.cluster.why_infeasible(request)
            if request.shape.strategy.node_id in self._broker.cluster.unknown_nodes():
                return f"asks whether node {request.shape.strategy.node_id.hex()} exists"
            return "waits for a node to be chosen"
        return ""

    def _explain_queued(self, entry: LeaseEntry, now: float) -> str:
        local, node = self._broker.local, self._broker.nodes.local
        lacking = local.lacking(entry.request)
        if lacking:
            return "; ".join(self._explain_lack(name) for name in lacking)
        over_cap_at = local.over_cap_at(entry.request)
        if over_cap_at is not None:
            cap = local.cap(entry.request.shape)
            return (
                f"waits on node {node}: {cap} workers or more serve tasks like it, most of them blocked in get or wait; "
                f"the next may start in {max(0.0, over_cap_at - now):.1f} s"
            )
        manager = self._broker.arguments.manager
        if entry.request.dependency_ids and not manager.has_memory(entry.request.lease_id):
            return f"waits for memory on node {node}: the large arguments of running tasks take {manager.pinned_bytes} bytes"
        return f"waits for its turn on node {node}"

    def _explain_lack(self, name: str) -> str:
        local, node = self._broker.local, self._broker.nodes.local
        total = local.total.get(name, 0)
        holders = [self._describe_holder(lease) for lease in local.holders(name)]
        others = f" and {len(holders) - MAX_HOLDERS} more" if len(holders) > MAX_HOLDERS else ""
        used = (total - local.available.get(name, 0)) / UNIT
        by = f" by {', '.join(holders[:MAX_HOLDERS])}{others}" if holders else ""
        return f"waits for {_readable(name)} on node {node}: {used:g} of {total / UNIT:g} in use{by}"

    def _describe_holder(self, lease: Lease) -> str:
        worker = self._broker.entries[lease.request.lease_id].worker
        if worker is None:
            return "a lease whose worker is starting"
        kind = "an actor" if lease.request.for_actor else "a task"
        return f"{self._log_monitor.task_name(worker.worker_id) or kind} (pid {worker.pid})"

    def pending(self, now: float) -> list[str]:
        """Return one line for each waiting request."""
        return [
            f"{describe(entry.request.resources)} for {short(entry.owner.worker_id)}: {self.explain(lease_id, now)}"
            for lease_id, entry in self._broker.entries.items()
            if entry.worker is None
        ]

    def workers(self) -> list[WorkerStatus]:
        """Return the status of all worker processes."""
        pool, leases = self._broker.pool, self._broker.local.leases
        return [
            WorkerStatus(
                worker_id=worker.worker_id,
                pid=worker.pid,
                state=pool.state(worker.worker_id),
                job_id=worker.binding.job_id if worker.binding is not None else b"",
                lease_id=worker.lease_id,
                blocked=worker.lease_id in leases and leases[worker.lease_id].blocked,
                address=worker.address,
            )
            for worker in pool.workers.values()
        ]


def _readable(name: str) -> str:
    """Return a resource's name for users; of a bundle's resource, the plain name and that it is in a placement group."""
    return f"{plain_name(name)} of its placement group" if is_reserved(name) else name
