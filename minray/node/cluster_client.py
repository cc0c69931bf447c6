"""A client that asks a cluster from outside, without being a driver: for the command line and for tests.

Ray: python/ray/_raylet.pyx (GcsClient), python/ray/_private/state.py

Calls block. They raise ConnectionError with a readable message if the cluster does not answer within seconds: no process
listens there, or another program does, or the token or the version differs. A thread with an event loop does the work, so
that these calls also work where a loop is running already (Jupyter).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from minray.common.config import SystemConfig
from minray.node.discovery import NodeFile
from minray.node.own_thread import make_own_thread
from minray.observability.state_reader import ClusterObjects, StateReader
from minray.platform.base import PlatformError
from minray.protocol.base import Address, Record, Request, decode
from minray.protocol.gcs import (
    NODES,
    RESOURCES,
    CheckAlive,
    CheckJoin,
    CheckJoinReply,
    DrainNode,
    GetInternalConfig,
    GetWorkerDeath,
    NodeInfo,
    NodeResources,
)
from minray.protocol.raylet import GetNodeStats, NodeStats, Shutdown
from minray.rpc.connection import Peer, Peers, ignore
from minray.rpc.pubsub import read_table

R = TypeVar("R", bound=Record)
T = TypeVar("T")

TIMEOUT_S = 5.0
"""Seconds that a process has to answer. People wait for the command line, so it is short."""
FAREWELL_S = 3.0
"""Seconds that a node has to unregister and end by itself before it is ended."""


class ClusterClient:
    """A connection to the gcs at an endpoint, and to the processes that the gcs knows."""

    def __init__(self, gcs_endpoint: str, token: bytes, system_config: SystemConfig, address: str = "") -> None:
        """Make a client, which connects at its first question.

        Only the transport of ``system_config`` matters. ``address`` is the cluster's name in error messages.
        """
        self.address = address or gcs_endpoint.removeprefix("tcp:")
        self.token = token
        self.own_config = system_config
        self._target = gcs_endpoint, token, system_config, address
        self._thread, _, platform = make_own_thread("client", secrets.token_bytes(16), gcs_endpoint, token, system_config)
        self._platform = platform
        self._peers = Peers(platform, b"", TIMEOUT_S)
        self._gcs = self._peers.at(gcs_endpoint, reconnect_timeout_s=TIMEOUT_S, may_restart=False)

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def again(self) -> ClusterClient:
        """Make another client of the same cluster: one that has failed to reach its gcs does not try again."""
        return ClusterClient(*self._target)

    def close(self) -> None:
        self._thread.run(self._close())
        self._thread.stop()

    async def _close(self) -> None:
        self._peers.close()

    # --- questions

    def system_config(self) -> SystemConfig:
        """Return the cluster's configuration. Raises ConnectionError if no gcs answers or the gcs refuses our token."""
        return SystemConfig.from_overrides(dict(self._ask(self._gcs, GetInternalConfig()).system_config))

    def nodes(self) -> list[NodeInfo]:
        """Return all living and dead nodes that the gcs knows."""
        return self._table(NODES, NodeInfo)

    def resources(self) -> dict[bytes, NodeResources]:
        """Return the newest report of each living node, by its id."""
        return {report.node_id: report for report in self._table(RESOURCES, NodeResources)}

    def node_stats(self, addresses: Sequence[Address]) -> dict[bytes, NodeStats]:
        """Ask these raylets about themselves and their workers; return the answers by node id.

        Raylets that do not answer are left out.
        """

        async def ask(address: Address) -> NodeStats | None:
            peer = self._peers.to(address)
            try:
                return await _ask(peer, peer.call(GetNodeStats()), self.address)
            except ConnectionError:
                return None

        async def ask_all() -> list[NodeStats | None]:
            return await asyncio.gather(*map(ask, addresses))

        return {stats.node_id: stats for stats in self._thread.run(ask_all()) if stats is not None}

    def drain_node(self, node_id: bytes, reason: int, message: str, remaining_s: float = 0.0) -> str:
        """Drain a node, so that it leaves the cluster. Return "" if it accepts, else its reason for refusing.

        If ``remaining_s`` is not 0, the node leaves after that many seconds in any case. A dead or unknown node accepts.
        """
        deadline = self._platform.host.time() + remaining_s if remaining_s else 0.0
        reply = self._ask(self._gcs, DrainNode(node_id, reason, message, deadline))
        return "" if reply.is_accepted else reply.rejection

    def is_node_dead(self, node_id: bytes) -> bool:
        """Tell whether the gcs has declared a node dead; an unknown one is not."""
        return self._ask(self._gcs, GetWorkerDeath(b"", node_id)).death is not None

    def check_join(self, host: str) -> tuple[CheckJoinReply, float]:
        """Ask the gcs about itself, and whether it reaches a listener at this address; empty: that is not asked.

        The second value says by how many seconds this machine's clock is ahead of the gcs's, give or take half of the time
        that the answer took. Raises ConnectionError, and PlatformError if nothing can listen there.
        """

        async def check() -> CheckJoinReply:
            if not host:
                return await self._gcs.call(CheckJoin(""))
            where = f"tcp:[{host}]:0" if ":" in host else f"tcp:{host}:0"
            listener = await self._platform.network.listen(where, self._platform.identity, lambda incoming: None)
            try:
                return await self._gcs.call(CheckJoin(listener.endpoint))
            finally:
                await listener.close()

        began = self._platform.host.time()
        reply = self._thread.run(_ask(self._gcs, check(), self.address))
        return reply, (began + self._platform.host.time()) / 2 - reply.time

    def objects(self) -> ClusterObjects:
        """Ask all processes of the cluster about its objects."""
        return self.read(lambda reader: reader.read(TIMEOUT_S))

    def read(self, question: Callable[[StateReader], Coroutine[Any, Any, T]]) -> T:
        """Ask all processes one question of ``StateReader``, and return the answers."""
        self.system_config()  # Raises ConnectionError with a readable message.
        return self._thread.run(question(StateReader(self._peers, self._gcs)))

    def _table(self, channel: str, record: type[R]) -> list[R]:
        rows = self._thread.run(_ask(self._gcs, read_table(self._gcs, channel), self.address))
        return [decode(record, value) for value in rows]

    def _ask(self, peer: Peer, request: Request[R]) -> R:
        return self._thread.run(_ask(peer, peer.call(request), self.address))


async def _ask(peer: Peer, answer: Awaitable[T], address: str) -> T:
    """Await a peer's answer. Raises ConnectionError after TIMEOUT_S, or if the peer cannot be reached."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await answer
    except TimeoutError:
        silence = f"{peer.endpoint} was silent for {TIMEOUT_S:g} s"
        raise ConnectionError(f"the cluster at {address} does not answer: {silence}") from None
    except PlatformError as error:
        raise ConnectionError(f"the cluster at {address} cannot be reached: {error}") from None


def end_gracefully(file: NodeFile, token: bytes, reason: str) -> None:
    """Ask a node of this machine to unregister and end. Return when its raylet has ended, at most FAREWELL_S later."""
    thread, _, platform = make_own_thread("client", secrets.token_bytes(16), file.gcs_endpoint, token, file.system_config)

    async def end() -> None:
        peers = Peers(platform, bytes.fromhex(file.node_id), FAREWELL_S)
        raylet = peers.at(file.raylet_endpoint, reconnect_timeout_s=FAREWELL_S, may_restart=False)
        gone = asyncio.Event()
        raylet.on_death = lambda death: gone.set()
        raylet.on_break = lambda: raylet.send(CheckAlive(), ignore)  # finds out whether the raylet has ended
        raylet.send(Shutdown(reason), ignore)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await gone.wait()
        except TimeoutError:
            return
        finally:
            raylet.on_break = None
            peers.close()

    try:
        thread.run(end())
    finally:
        thread.stop()
