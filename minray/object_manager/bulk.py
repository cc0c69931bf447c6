"""Bulk connections between nodes, on which objects travel: several per pair of nodes, apart from the one for messages.

Ray: src/ray/object_manager/object_manager.h (its own rpc server and clients)

A platform has a few networks for bulk data, its *lanes*. A node begins to listen on each lane when another node first asks
it to (``OpenLanes``). From then on, that other node asks for chunks on all lanes in turn. A platform without lanes uses the
ordinary connection.

Left out: lanes are closed when a node dies, but not when nothing is moved for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from minray.common.config import RayletConfig
from minray.platform.base import Buffer, Listener, Network, OnIncoming, Platform, PlatformError
from minray.protocol.base import Address
from minray.protocol.object_store import ChunkReply, OpenLanes, OpenLanesReply, ReadChunk
from minray.rpc.connection import OnAnswer, Peers

logger = logging.getLogger(__name__)


class Bulk:
    """Holds the bulk connections of one node."""

    def __init__(self, platform: Platform, config: RayletConfig, peers: Peers) -> None:
        timeout_s = config.system_config.rpc_reconnect_timeout_s
        self._config = config
        self._networks = platform.bulk
        self._peers = peers
        of_lanes = [msgspec.structs.replace(platform, network=lane) for lane in platform.bulk]
        self._lanes = [Peers(of_lane, config.node_id, timeout_s) for of_lane in of_lanes]
        self._remote: dict[bytes, Sequence[Address]] = {}
        """Lane addresses of other nodes, by their raylets' ids."""
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}
        """Reads that wait for the lane addresses of their node, by its raylet's id."""
        self._read_count = 0
        self._opening = asyncio.Lock()
        """Lock held while this node begins to listen."""
        self._listeners: list[Listener] = []
        self._addresses: list[Address] = []
        """Lane addresses of this node; empty before another node asks, and if listening fails."""

    # --- asking other nodes

    def read(self, source: Address, chunk: ReadChunk, into: memoryview, on_answer: OnAnswer[ChunkReply]) -> None:
        """Ask another node for a chunk, on the next of its lanes."""
        if source.worker_id in self._remote:
            self._read(source, chunk, into, on_answer)
            return
        waiting = self._waiting.setdefault(source.worker_id, [])
        waiting.append(partial(self._read, source, chunk, into, on_answer))
        if len(waiting) == 1:
            self._peers.to(source).send(OpenLanes(), partial(self._on_opened, source))

    def _on_opened(
        self, source: Address, reply: OpenLanesReply | None, _error: PlatformError | None, _: Sequence[Buffer]
    ) -> None:
        if reply is not None:
            self._remote[source.worker_id] = reply.lanes
        for read in self._waiting.pop(source.worker_id):
            read()

    def _read(self, source: Address, chunk: ReadChunk, into: memoryview, on_answer: OnAnswer[ChunkReply]) -> None:
        pairs = list(zip(self._lanes, self._remote.get(source.worker_id, ()), strict=False)) or [(self._peers, source)]
        self._read_count += 1
        peers, address = pairs[self._read_count % len(pairs)]
        peers.to(address).send(chunk, on_answer, into=[into])

    def on_node_death(self, worker_id: bytes, reason: str) -> None:
        """Close the lanes to a raylet that is known to be dead."""
        self._remote.pop(worker_id, None)
        for lane in self._lanes:
            lane.on_death_of(worker_id, reason)

    # --- serving other nodes

    async def open(self, on_incoming: OnIncoming) -> list[Address]:
        """Begin to listen on all lanes, unless that has begun, and return the addresses."""
        async with self._opening:
            if not self._listeners:
                try:
                    self._addresses = [await self._listen(*lane, on_incoming) for lane in enumerate(self._networks)]
                except PlatformError as error:
                    logger.warning("no bulk lanes could be opened; objects leave on the ordinary connections: %s", error)
        return self._addresses

    async def _listen(self, number: int, network: Network, on_incoming: OnIncoming) -> Address:
        node_id = self._config.node_id
        unix = await network.listen(f"{self._config.socket_dir}/bulk-{number}", node_id, on_incoming)
        self._listeners.append(unix)
        if not self._config.tcp_host:
            return Address(node_id, node_id, unix.endpoint)
        tcp = await network.listen(f"tcp:{self._config.tcp_host}:0", node_id, on_incoming)
        self._listeners.append(tcp)
        return Address(node_id, node_id, unix.endpoint, tcp.endpoint)

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        for lane in self._lanes:
            lane.close()
