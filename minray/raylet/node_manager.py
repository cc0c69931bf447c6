"""The raylet's service: one handler per message, each a few lines around the lease broker.

Ray: src/ray/raylet/node_manager.h (class NodeManager)

A handler leaves all checks to the broker; it passes the request on and builds the reply. Only two handlers wait, and are
``async``: one for the death of a lease's worker, one for output to reach its driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from minray.common.config import RayletConfig
from minray.platform.base import Platform
from minray.protocol.base import DONE, Address, Done
from minray.protocol.gcs import CheckAlive, NodeDrain
from minray.protocol.raylet import (
    CancelWorkerLease,
    DrainRaylet,
    DrainRayletReply,
    ExplainLease,
    FlushLogs,
    GetLeaseFailure,
    GetNodeStats,
    KillWorker,
    LeaseExplanation,
    LeaseFailure,
    LeaseReply,
    NodeStats,
    NotifyWorkerBlocked,
    RegisterDriver,
    RegisterDriverReply,
    RegisterWorker,
    RegisterWorkerReply,
    RequestWorkerLease,
    ReturnWorkerLease,
    Shutdown,
)
from minray.raylet.bundle_service import BundleService
from minray.raylet.explanations import Explanations
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.log_monitor import LogMonitor
from minray.rpc.service import Call

FLUSH_TIMEOUT_S = 2.0
"""Longest seconds that a driver's shutdown waits for its workers' output, if the driver is too busy to print."""


class NodeManager:
    """Serves the messages of ``protocol/raylet.py``."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        address: Callable[[], Address],
        broker: LeaseBroker,
        log_monitor: LogMonitor,
        groups: BundleService,
        leave: Callable[[NodeDrain], bool],
        on_shutdown: Callable[[str], None],
    ) -> None:
        """``leave`` begins to drain this node; it returns False if the node should leave as idle but has work."""
        self._platform = platform
        self._config = config
        self._address = address
        """Returns the address of this raylet, which is known once it listens."""
        self._broker = broker
        self._log_monitor = log_monitor
        self._groups = groups
        self._leave = leave
        self._on_shutdown = on_shutdown
        self._explanations = Explanations(broker, log_monitor)

    # --- Leases --------------------------------------------------------------------------------------------------------

    def handle_RequestWorkerLease(self, request: RequestWorkerLease, call: Call) -> LeaseReply | None:
        reply = self._broker.request(request, call)
        if request.shape.strategy.group_id:
            self._groups.on_request(request.shape.strategy.group_id)
        return reply

    def handle_ReturnWorkerLease(self, request: ReturnWorkerLease, call: Call) -> Done:
        self._broker.give_back(request.lease_id, request.kill_worker, request.reason)
        return DONE

    def handle_CancelWorkerLease(self, request: CancelWorkerLease, call: Call) -> Done:
        self._broker.cancel(request.lease_id)
        return DONE

    def handle_KillWorker(self, request: KillWorker, call: Call) -> Done:
        self._broker.kill(request.lease_id, request.reason)
        return DONE

    async def handle_GetLeaseFailure(self, request: GetLeaseFailure, call: Call) -> LeaseFailure:
        end = self._broker.table.end_of(request.lease_id)
        if isinstance(end, LeaseFailure):
            return end
        try:
            async with asyncio.timeout(request.timeout_s):
                return await end
        except TimeoutError:
            return LeaseFailure(known=True, dead=False)

    def handle_ExplainLease(self, request: ExplainLease, call: Call) -> LeaseExplanation:
        return LeaseExplanation(self._explanations.explain(request.lease_id, asyncio.get_running_loop().time()))

    # --- Workers and drivers -------------------------------------------------------------------------------------------

    def handle_RegisterWorker(self, request: RegisterWorker, call: Call) -> RegisterWorkerReply:
        accepted = self._broker.on_registered(request.address, request.pid)
        return RegisterWorkerReply(
            self._config.node_name, self._address(), "" if accepted else "this node does not expect this worker"
        )

    def handle_NotifyWorkerBlocked(self, request: NotifyWorkerBlocked, call: Call) -> Done:
        self._broker.on_blocked(request.worker_id, request.sequence, request.blocked)
        return DONE

    def handle_RegisterDriver(self, request: RegisterDriver, call: Call) -> RegisterDriverReply:
        config = self._config
        return RegisterDriverReply(
            node_id=config.node_id,
            node_ip=config.node_ip,
            node_name=config.node_name,
            gcs_endpoint=config.gcs_endpoint,
            socket_dir=config.socket_dir,
            session_dir=config.session_dir,
            tcp_host=config.tcp_host,
            address=self._address(),
        )

    async def handle_FlushLogs(self, request: FlushLogs, call: Call) -> Done:
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._log_monitor.flush(request.job_id)
        return DONE

    # --- The node ------------------------------------------------------------------------------------------------------

    def handle_GetNodeStats(self, request: GetNodeStats, call: Call) -> NodeStats:
        return NodeStats(
            node_id=self._config.node_id,
            pid=self._platform.processes.pid,
            total=self._broker.local.total,
            available=self._broker.local.resources.spare(),
            workers=self._explanations.workers(),
            pending_leases=self._explanations.pending(asyncio.get_running_loop().time()),
        )

    def handle_CheckAlive(self, request: CheckAlive, call: Call) -> Done:
        return DONE

    def handle_DrainRaylet(self, request: DrainRaylet, call: Call) -> DrainRayletReply:
        return DrainRayletReply(self._leave(request.drain))

    def handle_Shutdown(self, request: Shutdown, call: Call) -> Done:
        self._on_shutdown(request.reason)
        return DONE
