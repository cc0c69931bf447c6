"""The scheduling of leases on one node: it carries out what the pure classes decide after each change.

Ray: NodeManager::ScheduleAndGrantLeases in src/ray/raylet/node_manager.cc, and what the lease managers do for it

Four classes decide: ``ClusterLeaseManager`` (which node), ``LocalLeaseManager`` (resources and turn), ``WorkerPool`` (which
worker), ``LeaseDependencyManager`` (large arguments). They are made here. Every event changes some of them, and is followed
by one call of ``advance``. That carries out their decisions: replies, starts, kills, revocations, one timer. A second timer
asks workers to end that are idle for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from minray.common.config import RayletConfig
from minray.common.ids import short
from minray.common.resources import CPU, UNIT
from minray.common.state_table import StateMachine
from minray.object_store.store import ObjectStore
from minray.platform.base import Buffer, Platform, PlatformError
from minray.protocol.base import Address, Done
from minray.protocol.core_worker import RevokeLeases
from minray.protocol.raylet import GRANTED, REJECTED, SPILLBACK, UNSCHEDULABLE, LeaseFailure, LeaseReply
from minray.raylet.ended_leases import End
from minray.raylet.lease_arguments import LeaseArguments
from minray.raylet.lease_machines import argument_limit_bytes, make_cluster_view, make_local_leases, make_worker_pool
from minray.raylet.lease_table import LeaseEntry, LeaseTable
from minray.raylet.log_monitor import LogMonitor
from minray.raylet.worker_pool import Binding, Worker
from minray.raylet.worker_processes import WorkerProcesses
from minray.rpc.connection import Peers
from minray.scheduling import lease as states
from minray.scheduling.cluster_lease_manager import ClusterLeaseManager
from minray.scheduling.lease import Assignment, Placement

logger = logging.getLogger(__name__)


class LeaseScheduler:
    """Grants the leases of one node, and starts and ends its workers."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        peers: Peers,
        log_monitor: LogMonitor,
        processes: WorkerProcesses,
        store: Callable[[], ObjectStore],
        *,
        address_of_raylet: Callable[[bytes], Address],
        on_change: Callable[[], None],
        on_unknown_nodes: Callable[[list[bytes]], None],
    ) -> None:
        """``on_change`` follows each ``advance``. ``on_unknown_nodes`` has the gcs asked about nodes that requests name."""
        self._node_id = config.node_id
        self._system = config.system_config
        self._peers = peers
        self._log_monitor = log_monitor
        self._processes = processes
        self._address_of_raylet = address_of_raylet
        self._on_change = on_change
        self._on_unknown_nodes = on_unknown_nodes
        self.states = StateMachine("lease", states.LEASE_STATES, platform.record, short)
        self.arguments = LeaseArguments(
            store,
            argument_limit_bytes(config),
            lambda lease_id: self.local.has_room(lease_id),
            self._on_arguments_here,
            self.advance,
        )
        self.local = make_local_leases(config, self.states, self.arguments.manager)
        self.nodes = make_cluster_view(platform, config, self.local, log_monitor.warn)
        self.cluster = ClusterLeaseManager(self.nodes, self.local, self.states)
        self.pool = make_worker_pool(platform, config, self._is_kept)
        self.table = LeaseTable(self.arguments.end_lease)
        self.spilled_count = 0
        """Number of requests that were sent on to other nodes."""
        self._revoking: dict[bytes, None] = {}
        """Owners that were asked for idle leases and have not answered yet."""
        self._timer: asyncio.Handle | None = None
        self._wake_at: float | None = None
        """Time at which the timer fires; uvloop's handles do not tell it."""
        self._reap_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def close(self) -> None:
        """Decide nothing more, because the node ends."""
        self._is_closed = True
        self.arguments.close()
        for timer in (self._timer, self._reap_timer):
            if timer is not None:
                timer.cancel()

    # --- Carrying out decisions ----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Decide all that can be decided now, and do it; called after every change."""
        if self._is_closed:
            return
        now = self._now()
        has_more = True
        while has_more:
            assignment = self.cluster.assign(now)
            for placement in assignment.placed:
                self._answer(placement)
            for request in [request for request in assignment.infeasible if not request.shape.strategy.group_id]:
                why = self.cluster.why_infeasible(request)
                logger.warning("lease %s waits for a node to join: it %s", short(request.lease_id), why)
                asker = "an actor" if request.for_actor else "a task"
                self._log_monitor.warn(request.shape.job_id, f"{asker} waits for a node to join: it {why}")
            for request in assignment.allocated:
                self.arguments.pin(request.lease_id)
                gpus = self._gpus(request.lease_id)
                binding = Binding(request.shape.job_id, request.shape.runtime_env, request.for_actor, gpus)
                self.pool.request(request.lease_id, binding)
                self.pool.expect(min(request.backlog, self.free_cpus()), binding)
            actions = self.pool.assign(now)
            for lease_id, reason in actions.failures:
                self.local.end(lease_id)
                self.table.finish(self.table.entries[lease_id], End(reply=LeaseReply(UNSCHEDULABLE, reason=reason)))
            for lease_id, worker in actions.matches:
                self._grant(self.table.entries[lease_id], worker)
            for worker in actions.kills:
                self._processes.kill(worker.worker_id)
            for worker in actions.starts:
                self._processes.start(worker.worker_id)
            has_more = self._fetch_arguments(assignment) or bool(actions.failures)
        self.arguments.begin_pulls()
        for owner_id in self.local.owners_to_revoke(now, assignment):
            self._revoke(owner_id)
        self._set_timers([when for when in (assignment.wake_at, actions.wake_at) if when is not None])
        unknown = self.cluster.unknown_nodes()
        if unknown:
            self._on_unknown_nodes(unknown)
        self._on_change()

    def _fetch_arguments(self, assignment: Assignment) -> bool:
        """Have missing arguments pulled; return True if the arguments of some lease are all here already."""
        gone = self.arguments.manager.take_missing()
        for lease_id in gone:
            self.local.on_arguments_gone(lease_id)
        waiting = [*gone, *(request.lease_id for request in assignment.fetching)]
        complete = [lease_id for lease_id in waiting if self.arguments.fetch(lease_id)]
        for lease_id in complete:
            self.cluster.on_arguments_here(lease_id)
        return bool(complete)

    def _on_arguments_here(self, lease_id: bytes) -> None:
        self.cluster.on_arguments_here(lease_id)
        self.advance()

    def _grant(self, entry: LeaseEntry, worker: Worker) -> None:
        self.local.on_worker_found(entry.request.lease_id)
        self._log_monitor.on_bound(worker.worker_id, entry.request.shape.job_id)
        entry.worker = worker
        entry.granted_at = self._now()
        calls, entry.calls = entry.calls, []
        reply = self.granted(entry, worker)
        for call in calls:
            call.reply(reply)

    def granted(self, entry: LeaseEntry, worker: Worker) -> LeaseReply:
        """Return the reply to a request whose lease has a worker."""
        gpu_ids = self._gpus(entry.request.lease_id)
        contended = self.local.is_contended(entry.request)
        return LeaseReply(kind=GRANTED, worker=worker.address, pid=worker.pid, gpu_ids=gpu_ids, contended=contended)

    def _gpus(self, lease_id: bytes) -> tuple[int, ...]:
        return tuple(sorted(self.local.leases[lease_id].gpus.taken))

    def _answer(self, placement: Placement) -> None:
        entry = self.table.entries[placement.request.lease_id]
        if placement.kind == states.SPILLBACK:
            self.spilled_count += 1
            reply = LeaseReply(SPILLBACK, raylet=self._address_of_raylet(placement.node_id))
        elif placement.kind == states.REJECT:
            reply = LeaseReply(REJECTED, reason="this node has no room for it, or can never hold it")
        else:
            reply = LeaseReply(UNSCHEDULABLE, reason=placement.reason)
        self.table.finish(entry, End(LeaseFailure(known=False, dead=False), reply))

    def _revoke(self, owner_id: bytes) -> None:
        if owner_id in self._revoking:
            return
        self._revoking[owner_id] = None

        def on_answer(reply: Done | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
            self._revoking.pop(owner_id, None)

        owner = next(entry.owner for entry in self.table.entries.values() if entry.owner.worker_id == owner_id)
        self._peers.to(owner).send(RevokeLeases(self._node_id), on_answer)

    def _is_kept(self, worker: Worker) -> bool:
        """Tell whether a worker may keep its lease for ever: it serves an actor, or a task that waits for others."""
        entry = self.table.entries.get(worker.lease_id)
        return entry is not None and (entry.request.for_actor or self.local.leases[worker.lease_id].blocked)

    def free_cpus(self) -> int:
        """Return the number of whole free CPUs, that is, of further workers that may get work."""
        return 0 if self.nodes.local.draining else max(0, self.local.available.get(CPU, 0)) // UNIT

    # --- Timers, and idle workers --------------------------------------------------------------------------------------

    def _set_timers(self, times: list[float]) -> None:
        loop = asyncio.get_running_loop()
        wake_at = min(times, default=None)
        if self._timer is not None and wake_at != self._wake_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and wake_at is not None:
            self._timer, self._wake_at = loop.call_at(wake_at, self._on_timer), wake_at
        if self._reap_timer is None and self.pool.has_to_reap(self.free_cpus()):
            self._reap_timer = loop.call_later(self._system.kill_idle_workers_interval_ms / 1000, self._on_reap_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.advance()

    def _on_reap_timer(self) -> None:
        self._reap_timer = None
        self.reap()

    def reap(self) -> None:
        """Ask workers to end that are idle for long, or whose job has finished."""
        threshold_s = 0.0 if self.nodes.local.draining else self._system.idle_worker_killing_time_threshold_ms / 1000
        for worker, force in self.pool.reap(self._now(), self.free_cpus(), threshold_s):
            self.ask_to_exit(worker, force)
        self.advance()

    def ask_to_exit(self, worker: Worker, force: bool) -> None:
        def on_refused() -> None:
            self.pool.on_exit_refused(worker, self._now())
            self.advance()

        assert worker.address is not None
        self._processes.ask_to_exit(worker.worker_id, worker.address, force, on_refused)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
