"""Learns of the deaths of processes and nodes from the gcs, from the moment when they matter here.

Ray: src/ray/core_worker/reference_counter.cc (the subscriptions of owners), CoreWorker::OnNodeRemoved

Deaths matter to an owner: others depend on its objects, or keep copies of them. A process that has lent nothing, and has
no large object, subscribes to nothing. What a death means for the other parts stands in ``core_worker.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.core_worker.ground.process import Process
from minray.protocol.base import decode
from minray.protocol.gcs import NODES, WORKER_DEATHS, NodeInfo
from minray.rpc.pubsub import Subscription


class DeathWatch:
    """The subscriptions of one process."""

    def __init__(
        self, process: Process, on_worker_death: Callable[[bytes], None], on_node_death: Callable[[bytes], None]
    ) -> None:
        self._gcs = process.gcs
        self._peers = process.peers
        self._on_worker_death = on_worker_death
        """Called with the id of a dead worker, once nothing is sent to it any more."""
        self._on_node_death = on_node_death
        """Called with the id of a dead node."""
        self._subscriptions: list[Subscription] = []

    def begin(self) -> None:
        """Subscribe to both channels; do nothing if that has been done."""
        if self._subscriptions:
            return
        for channel, on_change in ((WORKER_DEATHS, self._on_worker), (NODES, self._on_node)):
            subscription = Subscription(self._gcs, channel, on_change)
            subscription.start()
            self._subscriptions.append(subscription)

    def _on_worker(self, worker_id: bytes, value: bytes | None) -> None:
        if value is not None:
            self._peers.on_death_of(worker_id, "it is reported dead")
            self._on_worker_death(worker_id)

    def _on_node(self, node_id: bytes, value: bytes | None) -> None:
        if value is not None and not decode(NodeInfo, value).alive:
            self._on_node_death(node_id)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
