"""Learns of the deaths of processes and nodes from the gcs, as soon as they matter to this process.

Ray: src/ray/core_worker/reference_counter.cc (the subscriptions of owners), CoreWorker::OnNodeRemoved

Deaths matter to an owner, because other processes borrow its objects and other nodes keep copies of them. A process that
has lent no reference and has no large object does not subscribe. ``core_worker.py`` passes a death on to the other parts.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.core_worker.ground.process import Process
from minray.protocol.base import decode
from minray.protocol.gcs import NODES, WORKER_DEATHS, NodeInfo
from minray.rpc.pubsub import Subscription


class DeathWatch:
    """Subscribes one process to the news of deaths."""

    def __init__(
        self, process: Process, on_worker_death: Callable[[bytes], None], on_node_death: Callable[[bytes], None]
    ) -> None:
        self._gcs = process.gcs
        self._peers = process.peers
        self._on_worker_death = on_worker_death
        """Function called with the id of a dead worker, once no message is sent to it any more."""
        self._on_node_death = on_node_death
        """Function called with the id of a dead node."""
        self._subscriptions: list[Subscription] = []

    def begin_watch(self) -> None:
        """Subscribe to both channels, unless that was done before."""
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
