"""Lease requests that a raylet refuses at once: of dead owners, of finished jobs, in removed placement groups.

Ray: the checks at the head of NodeManager::HandleRequestWorkerLease in src/ray/raylet/node_manager.cc

A request may arrive long after the news that makes it pointless, because its sender was cut off or has died since. Granting
it would lease a worker that no owner ever returns.
"""

from __future__ import annotations

from collections import OrderedDict

from minray.common.tombstones import remember
from minray.protocol.raylet import CANCELLED, GROUP_REMOVED, LeaseReply, RequestWorkerLease
from minray.raylet.worker_pool import WorkerPool
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler

MAX_DEAD_OWNERS = 100_000
"""Most dead owners that are remembered; the oldest are dropped first."""
IN_REMOVED_GROUP = LeaseReply(GROUP_REMOVED, reason="its placement group was removed")


class Refusals:
    """The news of one raylet that makes it refuse requests."""

    def __init__(self, nodes: ClusterResourceScheduler, pool: WorkerPool) -> None:
        self._nodes = nodes
        self._pool = pool
        self._dead_owners: dict[bytes, None] = {}
        """Dead owners: the gcs keeps their death certificates, or they died here."""
        self._removed_groups: OrderedDict[bytes, None] = OrderedDict()
        """Removed placement groups, in which nothing is leased any more."""

    def refusal(self, message: RequestWorkerLease) -> LeaseReply | None:
        """Return the refusal if the owner is dead, its job is over or its group was removed; else None."""
        node = self._nodes.get(message.owner.node_id)
        if message.owner.worker_id in self._dead_owners or (node is not None and not node.alive):
            return LeaseReply(CANCELLED, reason="its owner is dead")
        if self._pool.is_over(message.shape.job_id):
            return LeaseReply(CANCELLED, reason="its job has finished")
        return IN_REMOVED_GROUP if self.is_removed(message.shape.strategy.group_id) else None

    def add_dead_owner(self, worker_id: bytes) -> None:
        """Refuse the late requests of an owner."""
        self._dead_owners[worker_id] = None
        if len(self._dead_owners) > MAX_DEAD_OWNERS:
            del self._dead_owners[next(iter(self._dead_owners))]

    def forget_dead_owner(self, worker_id: bytes) -> None:
        """The gcs no longer keeps its death certificate."""
        self._dead_owners.pop(worker_id, None)

    def add_removed_group(self, group_id: bytes) -> bool:
        """Refuse requests in a placement group; return whether its removal is new."""
        if self.is_removed(group_id):
            return False
        remember(self._removed_groups, group_id, None)
        return True

    def is_removed(self, group_id: bytes) -> bool:
        """Whether a placement group was removed."""
        return group_id in self._removed_groups
