"""The nodes of the cluster: who may join, who is alive, what is free where.

Ray: src/ray/gcs/gcs_node_manager.h, gcs_resource_manager.h

    ALIVE -> DRAINING -> DEAD    for ever: the id of a dead node never returns, a restarted raylet is a new node (G108)

Rules
  * A node is admitted once; its first registration stands, repetitions change nothing.
  * A node that says it was a member before, or that reports without being known, is refused: either its id was declared
    dead, or this gcs was started with the tables of another cluster (or with none). Its raylet must exit.
  * A draining node is a living one that gets nothing new: no actors, no bundles, no leases (its raylet sees to that).
  * Resource reports are news, not state: they are never stored, and an older version is ignored.

What we do not like about it yet: dead nodes are kept for ever, a few hundred bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from minray.common.ids import short
from minray.common.state_table import NEW, StateMachine
from minray.gcs.effects import Publication
from minray.platform.base import Record
from minray.protocol.gcs import (
    DRAINED_IDLE,
    DRAINED_PREEMPTED,
    EXPECTED_TERMINATION,
    NODES,
    PREEMPTION,
    RESOURCES,
    UNEXPECTED_TERMINATION,
    NodeDrain,
    NodeInfo,
    NodeResources,
)

ALIVE, DRAINING, DEAD = "ALIVE", "DRAINING", "DEAD"
TRANSITIONS = {
    NEW: (ALIVE, DRAINING, DEAD),
    ALIVE: (DRAINING, DEAD),
    DRAINING: (DRAINING, DEAD),
    DEAD: (),
}
"""New and something else than ALIVE: a node of the tables that a restarted gcs has loaded. Twice DRAINING: other terms."""
LIVING = (ALIVE, DRAINING)


class NodeManager:
    """The table of nodes."""

    def __init__(self, cluster_id: bytes, record: Record | None) -> None:
        self._cluster_id = cluster_id
        self._states = StateMachine("node", TRANSITIONS, record)
        self._nodes: dict[bytes, NodeInfo] = {}
        """Every node that ever registered, as stored; ``alive`` agrees with its state."""
        self._resources: dict[bytes, NodeResources] = {}
        """The latest report of each living node."""

    def load(self, nodes: Iterable[NodeInfo]) -> list[Publication]:
        """After a restart: all are as they were; whether the living still live is for the health checks to find out."""
        return [publication for node in nodes for publication in self.on_committed(node)]

    def refusal(self, node_id: bytes) -> str:
        """Why a node that claims to be a member is none; empty if it is one."""
        state = self._states.get(node_id)
        if state in LIVING:
            return ""
        if state == DEAD:
            return f"node {short(node_id)} was declared dead ({self._nodes[node_id].death_cause}); its id never returns"
        return f"node {short(node_id)} is unknown to this gcs: its tables are empty or belong to another cluster"

    def refusal_to_join(self, node_id: bytes, cluster_id: bytes) -> str:
        """Why a node may not register; ``cluster_id`` is empty if it says that it never did."""
        if cluster_id and cluster_id != self._cluster_id:
            return f"node {short(node_id)} belongs to cluster {short(cluster_id)}, this is {short(self._cluster_id)}"
        if not cluster_id and self._states.get(node_id) == NEW:
            return ""
        return self.refusal(node_id)

    def register(self, node: NodeInfo) -> NodeInfo | None:
        """The record to store for a node that may join; None if that was done before."""
        if self._states.get(node.node_id) in LIVING:
            return None
        assert self._states.get(node.node_id) == NEW, "ask refusal_to_join first"
        return msgspec.structs.replace(node, alive=True, death_cause="", drain=None, death_reason=0)

    def drain(self, node_id: bytes, drain: NodeDrain) -> NodeInfo | None:
        """The record to store for a node that is to leave; None if it lives no more, or knows that."""
        node = self._nodes.get(node_id)
        if node is None or not node.alive or node.drain == drain:
            return None
        return msgspec.structs.replace(node, drain=drain)

    def bury(self, node_id: bytes, cause: str, drain: NodeDrain | None = None) -> NodeInfo | None:
        """The record to store for a node that ends, as it says; None if it is unknown or was dead before.

        ``drain``: what it was told, if it ends because of that.
        """
        if self._states.get(node_id) not in LIVING:
            return None
        node = self._nodes[node_id]
        if drain is None:
            return _dead(node, cause, EXPECTED_TERMINATION, node.drain)
        return _dead(node, cause, DRAINED_PREEMPTED if drain.reason == PREEMPTION else DRAINED_IDLE, drain)

    def bury_lost(self, node_id: bytes, cause: str, now: float) -> NodeInfo | None:
        """The same for one that was found dead: one that had to be gone by ``now`` was taken away."""
        if self._states.get(node_id) not in LIVING:
            return None
        node = self._nodes[node_id]
        if node.drain is not None and node.is_preempted() and 0 < node.drain.deadline <= now:
            return _dead(node, f"{node.drain.message} (preempted: {cause})", DRAINED_PREEMPTED, node.drain)
        return _dead(node, cause, UNEXPECTED_TERMINATION, node.drain)

    def on_committed(self, node: NodeInfo) -> list[Publication]:
        """The record is durable: from now on it is true."""
        self._states.set(node.node_id, DEAD if not node.alive else ALIVE if node.drain is None else DRAINING)
        self._nodes[node.node_id] = node
        publications = [Publication(NODES, node.node_id, node)]
        if not node.alive and self._resources.pop(node.node_id, None) is not None:
            publications.append(Publication(RESOURCES, node.node_id, None))
        return publications

    def on_report(self, resources: NodeResources) -> list[Publication]:
        """A living node says what it has free."""
        assert self._states.get(resources.node_id) in LIVING, "ask refusal first"
        known = self._resources.get(resources.node_id)
        if known is not None and known.version >= resources.version:
            return []
        self._resources[resources.node_id] = resources
        return [Publication(RESOURCES, resources.node_id, resources)]

    def death_cause(self, node_id: bytes) -> str | None:
        """Why a node died; None if it lives or is unknown."""
        return self._nodes[node_id].death_cause if self._states.get(node_id) == DEAD else None

    def get(self, node_id: bytes) -> NodeInfo | None:
        return self._nodes.get(node_id)

    def available(self, node_id: bytes) -> Mapping[str, int]:
        """What a living node had free when it last reported; everything, before its first report."""
        report = self._resources.get(node_id)
        return self._nodes[node_id].resources_total if report is None else report.available

    def living(self) -> list[NodeInfo]:
        return [node for node in self._nodes.values() if node.alive]

    def open(self) -> list[NodeInfo]:
        """Those that take something new."""
        return [node for node in self._nodes.values() if node.alive and node.drain is None]


def _dead(node: NodeInfo, cause: str, reason: int, drain: NodeDrain | None) -> NodeInfo:
    return msgspec.structs.replace(node, alive=False, death_cause=cause, death_reason=reason, drain=drain)
