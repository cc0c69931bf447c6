"""The nodes of the cluster: who may join, who is alive, what is free where.

Ray: src/ray/gcs/gcs_node_manager.h, gcs_resource_manager.h

    ALIVE -> DEAD        for ever: an id that was declared dead never returns, a restarted raylet is a new node (G108)

Rules
  * A node is admitted once; its first registration stands, repetitions change nothing.
  * A node that says it was a member before, or that reports without being known, is refused: either its id was declared
    dead, or this gcs was started with the tables of another cluster (or with none). Its raylet must exit.
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
from minray.protocol.gcs import NODES, RESOURCES, NodeInfo, NodeResources

ALIVE, DEAD = "ALIVE", "DEAD"
TRANSITIONS = {NEW: (ALIVE, DEAD), ALIVE: (DEAD,), DEAD: ()}
"""New and dead at once: a dead node of the tables that a restarted gcs has loaded."""


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
        if state == ALIVE:
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
        if self._states.get(node.node_id) == ALIVE:
            return None
        assert self._states.get(node.node_id) == NEW, "ask refusal_to_join first"
        return msgspec.structs.replace(node, alive=True, death_cause="")

    def bury(self, node_id: bytes, cause: str) -> NodeInfo | None:
        """The record to store for a node that has died; None if it is unknown or was dead before."""
        if self._states.get(node_id) != ALIVE:
            return None
        return msgspec.structs.replace(self._nodes[node_id], alive=False, death_cause=cause)

    def on_committed(self, node: NodeInfo) -> list[Publication]:
        """The record is durable: from now on it is true."""
        self._states.set(node.node_id, ALIVE if node.alive else DEAD)
        self._nodes[node.node_id] = node
        publications = [Publication(NODES, node.node_id, node)]
        if self._resources.pop(node.node_id, None) is not None:
            publications.append(Publication(RESOURCES, node.node_id, None))
        return publications

    def on_report(self, resources: NodeResources) -> list[Publication]:
        """A living node says what it has free."""
        assert self._states.get(resources.node_id) == ALIVE, "ask refusal first"
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
