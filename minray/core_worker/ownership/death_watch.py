"""Learns of the deaths of processes and nodes from the gcs, as soon as that matters here.

Ray: src/ray/core_worker/reference_counter.cc (the subscriptions of owners), CoreWorker::OnNodeRemoved

It matters to an owner: others depend on its objects, or keep copies of them. The tickets of a dead borrower are void, the
copies on a dead node are lost (and are not made again by a worker that was leased there), and an actor that lives here need
not wait for the calls of a dead caller. A process that owns nothing of that kind follows nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minray.core_worker.ownership.reference_counter import Effects
from minray.protocol.base import decode
from minray.protocol.gcs import NODES, WORKER_DEATHS, NodeInfo
from minray.rpc.pubsub import Subscription

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker


class DeathWatch:
    """That of one core worker."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self._subscriptions: list[Subscription] = []

    def begin(self) -> None:
        """From now on; nothing happens if it has begun."""
        if self._subscriptions:
            return
        for channel, on_change in ((WORKER_DEATHS, self._on_worker), (NODES, self._on_node)):
            subscription = Subscription(self._core.gcs, channel, on_change)
            subscription.start()
            self._subscriptions.append(subscription)

    def _on_worker(self, worker_id: bytes, value: bytes | None) -> None:
        if value is not None:
            self._core.peers.on_death_of(worker_id, "it is reported dead")
            self._on_death(worker_id)

    def _on_node(self, node_id: bytes, value: bytes | None) -> None:
        if value is not None and not decode(NodeInfo, value).alive:
            self._core.lease_client.on_node_death(node_id)
            self._core.actors.on_node_death(node_id)
            self._on_death(node_id)
            self._core.directory.on_node_death(node_id)

    def _on_death(self, worker_or_node: bytes) -> None:
        core, effects = self._core, Effects()
        core.references.on_death(worker_or_node, effects)
        core.borrowing.apply(effects)
        core.actor_receiver.on_death(worker_or_node)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
