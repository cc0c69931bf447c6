"""The table of nodes: which may join, which are alive, and what each has free.

Ray: src/ray/gcs/gcs_node_manager.h, gcs_resource_manager.h

    ALIVE [-> DRAINING] -> DEAD    for ever: the id of a dead node never returns, a restarted raylet is a new node (G108)

Rules
  * A node is admitted once; its first registration stands, repetitions change nothing.
  * A node that claims to be a member, or that reports, but is not in the table is refused. Either its id was declared
    dead, or this gcs was started with the tables of another cluster (or with none). Its raylet must exit.
  * A draining node is alive but gets nothing new: no actors, no bundles, no leases (its raylet refuses these).
  * Resource reports are never stored, since the next one replaces them; an older version is ignored.
  * A report without news is a sign of life. It is published only while requests wait on its node (``LocalGc`` counts them);
    otherwise an idle cluster would send the square of its nodes every few seconds.

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
"""Transitions of a node's state.

NEW leads to any state because a restarted gcs loads nodes from its tables. DRAINING repeats when a drain's terms change."""
LIVING = (ALIVE, DRAINING)


class GcsNodeManager:
    """Holds the table of nodes, and decides each change of it."""

    def __init__(self, cluster_id: bytes, record: Record | None) -> None:
        self._cluster_id = cluster_id
        self._states = StateMachine("node", TRANSITIONS, record)
        self._nodes: dict[bytes, NodeInfo] = {}
        """Records of all nodes that ever registered, as stored; ``alive`` agrees with the node's state."""
        self._resources: dict[bytes, NodeResources] = {}
        """Latest published report of each living node; later ones have said the same."""
        self._versions: dict[bytes, int] = {}
        """Version of the latest report of each living node."""

    def load(self, nodes: Iterable[NodeInfo]) -> list[Publication]:
        """Enter the stored nodes after a restart; the health checks find out which of the living are still alive."""
        return [publication for node in nodes for publication in self.on_committed(node)]

    def refusal(self, node_id: bytes) -> str:
        """Return why a node is no member of this cluster although it claims to be; empty if it is one."""
        state = self._states.get(node_id)
        if state in LIVING:
            return ""
        if state == DEAD:
            return f"node {short(node_id)} was declared dead ({self._nodes[node_id].death_cause}); its id never returns"
        return f"node {short(node_id)} is unknown to this gcs: its tables are empty or belong to another cluster"

    def refusal_to_join(self, node_id: bytes, cluster_id: bytes) -> str:
        """Return why a node may not register; empty if it may. ``cluster_id``: empty if it says that it never did."""
        if cluster_id and cluster_id != self._cluster_id:
            return f"node {short(node_id)} belongs to cluster {short(cluster_id)}, this is {short(self._cluster_id)}"
        if not cluster_id and self._states.get(node_id) == NEW:
            return ""
        return self.refusal(node_id)

    def register(self, node: NodeInfo) -> NodeInfo | None:
        """Return the record to store for a node that may join; None if it has joined before."""
        if self._states.get(node.node_id) in LIVING:
            return None
        assert self._states.get(node.node_id) == NEW, "ask refusal_to_join first"
        return msgspec.structs.replace(node, alive=True, death_cause="", drain=None, death_reason=0)

    def drain(self, node_id: bytes, drain: NodeDrain) -> NodeInfo | None:
        """Return the record to store for a node that is drained; None if it is dead, or is drained on these terms."""
        node = self._nodes.get(node_id)
        if node is None or not node.alive or node.drain == drain:
            return None
        return msgspec.structs.replace(node, drain=drain)

    def bury(self, node_id: bytes, cause: str, drain: NodeDrain | None = None) -> NodeInfo | None:
        """Return the record to store for a node that says it ends; None if it is unknown or dead already.

        ``drain``: the terms on which it was drained, if it ends because of that.
        """
        if self._states.get(node_id) not in LIVING:
            return None
        node = self._nodes[node_id]
        if drain is None:
            return _dead(node, cause, EXPECTED_TERMINATION, node.drain)
        return _dead(node, cause, DRAINED_PREEMPTED if drain.reason == PREEMPTION else DRAINED_IDLE, drain)

    def bury_lost(self, node_id: bytes, cause: str, now: float) -> NodeInfo | None:
        """Return the record to store for a node that was found dead; None if it is unknown or dead already.

        A preempted node whose deadline is over counts as drained, not as lost."""
        if self._states.get(node_id) not in LIVING:
            return None
        node = self._nodes[node_id]
        if node.drain is not None and node.is_preempted() and 0 < node.drain.deadline <= now:
            return _dead(node, f"{node.drain.message} (preempted: {cause})", DRAINED_PREEMPTED, node.drain)
        return _dead(node, cause, UNEXPECTED_TERMINATION, node.drain)

    def on_committed(self, node: NodeInfo) -> list[Publication]:
        """Enter a record that is durable, and return the publications."""
        self._states.set(node.node_id, DEAD if not node.alive else ALIVE if node.drain is None else DRAINING)
        self._nodes[node.node_id] = node
        publications = [Publication(NODES, node.node_id, node)]
        if not node.alive:
            self._versions.pop(node.node_id, None)
        if not node.alive and self._resources.pop(node.node_id, None) is not None:
            publications.append(Publication(RESOURCES, node.node_id, None))
        return publications

    def on_report(self, resources: NodeResources) -> list[Publication] | None:
        """Take in the resource report of a living node, and return the publications; None if a later one has come before."""
        node_id = resources.node_id
        assert self._states.get(node_id) in LIVING, "ask refusal first"
        if resources.version <= self._versions.get(node_id, -1):
            return None
        self._versions[node_id] = resources.version
        known = self._resources.get(node_id)
        has_news = known is None or msgspec.structs.replace(resources, version=known.version) != known
        if not has_news and not resources.pending:
            return []
        self._resources[node_id] = resources
        return [Publication(RESOURCES, node_id, resources)]

    def death_cause(self, node_id: bytes) -> str | None:
        """Return why a node died; None if it is alive or unknown."""
        return self._nodes[node_id].death_cause if self._states.get(node_id) == DEAD else None

    def get(self, node_id: bytes) -> NodeInfo | None:
        return self._nodes.get(node_id)

    def available(self, node_id: bytes) -> Mapping[str, int]:
        """Return the free resources in a living node's last report; before the first, all its resources."""
        report = self._resources.get(node_id)
        return self._nodes[node_id].resources_total if report is None else report.available

    def living(self) -> list[NodeInfo]:
        return [node for node in self._nodes.values() if node.alive]

    def open_nodes(self) -> list[NodeInfo]:
        """Return the nodes that take new work."""
        return [node for node in self._nodes.values() if node.alive and node.drain is None]


def _dead(node: NodeInfo, cause: str, reason: int, drain: NodeDrain | None) -> NodeInfo:
    return msgspec.structs.replace(node, alive=False, death_cause=cause, death_reason=reason, drain=drain)
