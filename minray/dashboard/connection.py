"""The dashboard's connection to its cluster, which it finds again after the head has been started anew.

Ray: python/ray/dashboard/head.py (its GcsClient)

The connection lives on the loop of the server. It asks as a client from outside does (``minray.node.cluster_client``): it is
no driver, has no job, and nobody waits for it. A connection that is lost for good is made anew, at most once a second, and
``locate`` then says where: a head that was started again has other sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from minray.common.config import SystemConfig
from minray.observability.state_reader import StateReader
from minray.platform.base import Platform
from minray.protocol.base import Record, Request
from minray.rpc.connection import Peer, Peers

R = TypeVar("R", bound=Record)

RECONNECT_S = 1.0
"""Seconds for which a process that is not reached is tried again. Then the gcs is looked for; others count as silent."""


class Target(NamedTuple):
    """The cluster to connect to."""

    gcs_endpoint: str
    token: bytes
    system_config: SystemConfig
    address: str
    """Address of the cluster, for people."""
    session: str
    """Name of the session; empty if the head is on another machine."""


MakePlatform = Callable[[Target], Platform]


class ClusterConnection:
    """The peers of a cluster; ``gcs``, ``peers`` and ``reader`` belong to the newest connection."""

    def __init__(self, target: Target, locate: Callable[[], Target], make_platform: MakePlatform) -> None:
        """``locate`` raises ConnectionError or RuntimeError while the cluster is not found."""
        self.target = target
        self._locate = locate
        self._make_platform = make_platform
        self._next_try_at = 0.0
        self._connect(target)

    def _connect(self, target: Target) -> None:
        self.target = target
        self.platform = self._make_platform(target)
        self.peers = Peers(self.platform, b"", RECONNECT_S)
        self.gcs = self.peers.at(target.gcs_endpoint, reconnect_timeout_s=RECONNECT_S, may_restart=True)

    def reader(self) -> StateReader:
        """Return a reader of the cluster's state. Raises ConnectionError as ``connected`` does."""
        return StateReader(self.peers, self.connected())

    def connected(self) -> Peer:
        """Return the gcs, after making a lost connection anew. Raises ConnectionError if the cluster is not found."""
        now = asyncio.get_running_loop().time()
        if self.gcs.death is not None and now >= self._next_try_at:
            self._next_try_at = now + RECONNECT_S
            try:
                target = self._locate()
            except (ConnectionError, RuntimeError) as error:
                raise ConnectionError(f"the cluster at {self.target.address} is not found any more: {error}") from None
            self.close()
            self._connect(target)
        return self.gcs

    async def ask(self, peer: Peer, request: Request[R], timeout_s: float) -> R:
        """Ask one process. Raises PlatformError, and TimeoutError if it does not answer in time."""
        async with asyncio.timeout(timeout_s):
            return await peer.call(request)

    def close(self) -> None:
        self.peers.close()
