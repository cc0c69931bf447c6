"""Draining of nodes: the gcs asks a raylet to leave the cluster.

Ray: GcsAutoscalerStateManager::HandleDrainNode (src/ray/gcs/gcs_autoscaler_state_manager.cc)

A node that is to be preempted cannot refuse: its drain is stored and published first, and from then on no process chooses
the node. A node that is to leave because it is idle decides itself whether it is idle, and from that moment takes nothing
new. In both cases the request is answered when the raylet has heard it, or is dead. The rest is the raylet's part
(``raylet.departure``). The head cannot leave, because the gcs is on it. Bundles of placement groups are placed anew as soon
as their raylet has heard the request. It then knows that bundles which the gcs no longer has there were moved, not removed.

If the gcs dies after it stored a preemption, the raylet may not know of it. So the next gcs tells the raylet again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from minray.common.config import SystemConfig
from minray.common.task_set import TaskSet
from minray.gcs.durable import Changes, durable, until_stored
from minray.gcs.gcs_node_manager import GcsNodeManager
from minray.gcs.persistent_caller import PersistentCaller
from minray.platform.base import Platform
from minray.protocol.gcs import IDLE_TERMINATION, PREEMPTION, DrainNode, DrainNodeReply, NodeDrain, NodeInfo
from minray.protocol.raylet import DrainRaylet
from minray.rpc.connection import Peers
from minray.rpc.service import Call

GONE = DrainNodeReply(True)


class NodeDrainer:
    """Serves ``DrainNode``, and tells raylets that their nodes are drained."""

    def __init__(
        self,
        platform: Platform,
        config: SystemConfig,
        nodes: Callable[[], GcsNodeManager],
        changes: Changes,
        store: Callable[[NodeInfo], Awaitable[None]],
        on_leaving: Callable[[bytes], None],
    ) -> None:
        self._nodes = nodes
        self._changes = changes
        self._store = store
        """Stores a record, and then enters it in the table. If it raises StorageFailed, it has done neither."""
        self._on_leaving = on_leaving
        """Called with the id of a node whose raylet has accepted that it must leave."""
        self._peers = Peers(platform, b"", config.rpc_reconnect_timeout_s)
        self._caller = PersistentCaller(self._peers, lambda raylet: nodes().death_cause(raylet.node_id) is not None)
        self._telling = TaskSet()
        """Tasks that tell raylets what an earlier gcs may not have told them."""

    def resume(self) -> None:
        """Continue where an earlier gcs stopped: tell preempted nodes again that they are drained."""
        for node in self._nodes().living():
            if node.drain is not None and node.is_preempted():
                self._telling.begin(self._tell(node, node.drain), "tell_preempted")

    def close(self) -> None:
        self._telling.cancel()
        self._peers.close()

    def on_node_dead(self, node_id: bytes) -> None:
        self._peers.on_death_of(node_id, "its node was declared dead")

    @durable
    async def handle_DrainNode(self, request: DrainNode, call: Call) -> DrainNodeReply:
        node = self._nodes().get(request.node_id)
        if request.reason not in (IDLE_TERMINATION, PREEMPTION) or request.deadline < 0:
            return DrainNodeReply(False, f"reason {request.reason} is unknown, or deadline {request.deadline:g} is negative")
        if node is None or not node.alive:
            return GONE
        if node.is_head:
            return DrainNodeReply(False, "it is the head, and the cluster ends with it")
        drain = NodeDrain(request.reason, request.message, request.deadline)
        if drain.reason == PREEMPTION:
            await self._note(node.node_id, drain)
        if not await self._tell(node, drain):
            return DrainNodeReply(False, "it is not idle (any more)")
        await until_stored(self._note, node.node_id, drain)  # The node leaves already, so a failed write is retried.
        return GONE

    async def _note(self, node_id: bytes, drain: NodeDrain) -> None:
        async with self._changes.of(node_id):
            node = self._nodes().drain(node_id, drain)
            if node is not None:
                await self._store(node)

    async def _tell(self, node: NodeInfo, drain: NodeDrain) -> bool:
        """Tell a raylet that its node is drained; return whether it accepts. A dead node counts as accepting."""
        reply = await self._caller.call(node.address, DrainRaylet(drain))
        if reply is not None and reply.is_accepted:
            self._on_leaving(node.node_id)
        return reply is None or reply.is_accepted
