"""The lease broker: it receives all messages and events about the leases of one node.

Ray: src/ray/raylet/node_manager.cc (HandleRequestWorkerLease, HandleReturnWorkerLease, DisconnectClient, ...)

An event changes the classes that decide, and the lease scheduler carries out what follows (``LeaseScheduler.advance``).

Rules
  * A lease id names one lease. A repeated request gets the same grant, or waits with the first one, or gets the reply of
    the ended lease. A repeated return or cancel finds nothing to end (G112).
  * A lease whose owner is dead, or whose job has finished, is reclaimed. Its worker is killed, since it may be executing.
  * The lease of every dead worker is cleaned up in one place, ``on_worker_exit``, when the process is seen dead. Until
    then its resources are taken (G99).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minray.common.config import RayletConfig
from minray.object_store.store import ObjectStore
from minray.platform.base import Platform
from minray.protocol.base import Address
from minray.protocol.gcs import PREEMPTION, NodeDrain, WorkerDeath
from minray.protocol.raylet import CANCELLED, MAX_CALLS, LeaseReply, RequestWorkerLease
from minray.protocol.state import WorkerTaskEvents
from minray.raylet.ended_leases import CANCELLED_EARLY, RETURNED, End
from minray.raylet.lease_scheduler import LeaseScheduler
from minray.raylet.lease_table import LeaseEntry
from minray.raylet.log_monitor import LogMonitor
from minray.raylet.refusals import IN_REMOVED_GROUP, Refusals
from minray.raylet.worker_pool import Worker
from minray.raylet.worker_processes import Death, WorkerProcesses
from minray.rpc.connection import Peers
from minray.rpc.service import Call
from minray.scheduling import lease as states
from minray.scheduling.lease import LeaseRequest


class LeaseBroker:
    """Handles all leases and workers of one node."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        endpoint: str,
        peers: Peers,
        log_monitor: LogMonitor,
        store: Callable[[], ObjectStore],
        *,
        address_of_raylet: Callable[[bytes], Address],
        on_change: Callable[[], None],
        on_worker_death: Callable[[WorkerDeath], None],
        on_task_events: Callable[[WorkerTaskEvents], None],
        on_unknown_nodes: Callable[[list[bytes]], None],
    ) -> None:
        self._node_id = config.node_id
        self._peers = peers
        self._log_monitor = log_monitor
        self._on_worker_death = on_worker_death
        self.processes = WorkerProcesses(platform, config, endpoint, peers, log_monitor, on_task_events, self.on_worker_exit)
        self.scheduler = LeaseScheduler(
            platform,
            config,
            peers,
            log_monitor,
            self.processes,
            store,
            address_of_raylet=address_of_raylet,
            on_change=on_change,
            on_unknown_nodes=on_unknown_nodes,
        )
        self.table, self.entries = self.scheduler.table, self.scheduler.table.entries
        self.states, self.arguments, self.pool = self.scheduler.states, self.scheduler.arguments, self.scheduler.pool
        self.local, self.nodes, self.cluster = self.scheduler.local, self.scheduler.nodes, self.scheduler.cluster
        self.refusals = Refusals(self.nodes, self.pool)
        self.leaving: NodeDrain | None = None
        """Drain of this node; when set, nothing new is leased here."""
        self._why_closed: str | None = None
        """Reason why the node ends; None while it goes on."""

    # --- Messages from owners ------------------------------------------------------------------------------------------

    def request(self, message: RequestWorkerLease, call: Call) -> LeaseReply | None:
        """Take in a lease request; return the reply, or None if ``call`` is answered later."""
        lease_id = message.lease_id
        entry = self.entries.get(lease_id)
        if entry is not None:
            if entry.worker is not None:
                return self.scheduler.granted(entry, entry.worker)
            entry.calls.append(call)
            return None
        end = self.table.ended.get(lease_id)
        if end is not None:
            return end.reply
        refusal = self.refusals.refusal(message)
        if refusal is not None:
            return refusal
        request = LeaseRequest(
            lease_id=lease_id,
            owner_id=message.owner.worker_id,
            shape=message.shape,
            depth=message.depth,
            backlog=message.backlog,
            grant_or_reject=message.grant_or_reject,
            for_actor=bool(message.actor_id),
            dependency_ids=tuple(dependency.object_id for dependency in message.dependencies),
        )
        self.entries[lease_id] = LeaseEntry(request, message.owner, [call], message.retriable)
        self.arguments.add_lease(lease_id, message.dependencies, request.level)
        self.cluster.submit(request)
        self.scheduler.advance()
        return None

    def cancel(self, lease_id: bytes) -> None:
        """Withdraw a request. If it is granted already, the owner must return it: the grant is on its way to the owner."""
        entry = self.entries.get(lease_id)
        if entry is not None:
            if entry.worker is None:
                self._reclaim(entry, CANCELLED_EARLY)
                self.scheduler.advance()
        elif self.table.ended.get(lease_id) is None:
            self.table.ended.remember(lease_id, CANCELLED_EARLY, self._now())

    def give_back(self, lease_id: bytes, kill_worker: bool, reason: str) -> None:
        """End a lease that its owner returns. Nothing happens if it is over, even if another lease has the worker now."""
        entry = self.entries.get(lease_id)
        if entry is None:
            return
        worker = entry.worker
        if worker is None:
            self._reclaim(entry, CANCELLED_EARLY)
        elif self.states.get(lease_id) == states.GRANTED:
            if kill_worker and reason != MAX_CALLS:
                self._kill(entry, reason)
                return
            self.local.end(lease_id)
            self.table.finish(entry, RETURNED)
            if kill_worker:
                self.pool.retire(worker, self._now())
                self.scheduler.ask_to_exit(worker, force=False)
            else:
                self.pool.release_worker(worker, self._now())
        self.scheduler.advance()

    def kill(self, lease_id: bytes, reason: str) -> None:
        """Kill the worker of a lease, if the lease is still held."""
        entry = self.entries.get(lease_id)
        if entry is not None and self.states.get(lease_id) == states.GRANTED:
            self._kill(entry, reason)

    def kill_worker(self, worker: Worker, reason: str) -> None:
        """Kill a worker, whether it is leased or idle."""
        entry = self.entries.get(worker.lease_id)
        if entry is not None:
            self._kill(entry, reason)
        else:
            self.pool.doom(worker, reason)
            self.processes.kill(worker.worker_id)

    # --- Events of owners, jobs and workers ------------------------------------------------------------------------------

    def on_owner_death(self, worker_id: bytes, is_dead: bool, reason: str) -> None:
        """Reclaim the leases of a dead owner; ``is_dead`` False: the gcs no longer keeps its death certificate."""
        if not is_dead:
            self.refusals.forget_dead_owner(worker_id)
            return
        self.refusals.add_dead_owner(worker_id)
        self._peers.on_death_of(worker_id, reason)
        over = LeaseReply(CANCELLED, reason=f"its owner is dead: {reason}")
        self._reclaim_where(lambda entry: entry.owner.worker_id == worker_id, over)

    def on_node_death(self, node_id: bytes, reason: str) -> None:
        over = LeaseReply(CANCELLED, reason=f"its owner's node is dead: {reason}")
        self._reclaim_where(lambda entry: entry.owner.node_id == node_id, over)

    def on_job_finished(self, job_id: bytes) -> None:
        if self.pool.is_over(job_id):
            return
        self.pool.on_job_finished(job_id)
        over = LeaseReply(CANCELLED, reason="its job has finished")
        self._reclaim_where(lambda entry: entry.request.shape.job_id == job_id, over)
        self.scheduler.reap()

    def on_group_removed(self, group_id: bytes) -> None:
        """End all leases of a removed placement group: the waiting ones, and the granted ones by killing their workers."""
        if self.refusals.add_removed_group(group_id) and self.table.works_in_group(group_id):
            self._reclaim_where(lambda entry: entry.request.shape.strategy.group_id == group_id, IN_REMOVED_GROUP)

    def drain(self, drain: NodeDrain) -> None:
        """Drain this node: waiting requests go to other nodes, and idle workers are asked to end."""
        self.leaving = drain
        self.cluster.drain()
        self.pool.stop_expecting()
        self.scheduler.reap()

    def on_registered(self, address: Address, pid: int) -> bool:
        accepted = self.pool.on_registered(address, pid, self._now())
        if accepted:
            self._log_monitor.on_started(address.worker_id, pid)
            self.scheduler.advance()
        return accepted

    def on_blocked(self, worker_id: bytes, sequence: int, blocked: bool) -> None:
        worker = self.pool.workers.get(worker_id)
        if worker is None or sequence <= worker.block_sequence:
            return
        worker.block_sequence = sequence
        if self.states.get(worker.lease_id) == states.GRANTED:
            self.local.set_blocked(worker.lease_id, blocked)
            self.arguments.manager.set_blocked(worker.lease_id, blocked)
            self.scheduler.advance()

    def on_worker_exit(self, worker_id: bytes, death: Death) -> None:
        """End the lease of a worker process that is dead; this is the one place where that happens."""
        last_words = f": {death.stderr_tail[-1]}" if death.stderr_tail else ""
        worker = self.pool.on_exit(worker_id, death.cause + last_words, death.is_excused(), self._now())
        entry = self.entries.get(worker.lease_id)
        if entry is not None:
            self.local.end(worker.lease_id)
            group_removed = self.refusals.is_removed(entry.request.shape.strategy.group_id)
            preempted = self._why_closed is not None and self.leaving is not None and self.leaving.reason == PREEMPTION
            certificate = death.certificate(
                worker.lease_id, worker.doom, worker.memory_usage, group_removed, self._why_closed, preempted
            )
            self.table.finish(entry, End(certificate))
        if self._why_closed is not None:
            return
        if death.pid:  # Also report a worker that has not registered: it may have listened already, and left its socket.
            doom = death.doom_that_counts(worker.doom)
            notice = WorkerDeath(
                worker_id=worker_id,
                node_id=self._node_id,
                pid=death.pid,
                cause=f"{death.cause}: {doom}" if doom else death.cause,
                last_words=death.stderr_tail if entry and entry.request.for_actor else [],
                for_memory=worker.memory_usage[1] > 0,
            )
            self._on_worker_death(notice)
            self.on_owner_death(worker_id, True, notice.cause)
        self.scheduler.advance()

    def _reclaim_where(self, applies: Callable[[LeaseEntry], bool], reply: LeaseReply) -> None:
        end = End(reply=reply)
        for entry in [entry for entry in self.entries.values() if applies(entry)]:
            self._reclaim(entry, end)
        self.scheduler.advance()

    def _reclaim(self, entry: LeaseEntry, end: End) -> None:
        """Take a lease back in any state. If a worker has it, that is killed, and ``on_worker_exit`` does the rest."""
        lease_id = entry.request.lease_id
        state = self.states.get(lease_id)
        if state == states.GRANTED:
            self._kill(entry, end.reply.reason)
        if entry.worker is not None:
            return
        if state == states.WAITING:
            self.cluster.withdraw(lease_id)
        else:
            self.pool.cancel(lease_id)
            self.local.end(lease_id)
        self.table.finish(entry, end)

    def _kill(self, entry: LeaseEntry, reason: str) -> None:
        assert entry.worker is not None
        self.local.on_worker_doomed(entry.request.lease_id)
        self.pool.doom(entry.worker, reason)
        self.processes.kill(entry.worker.worker_id)

    async def close(self, reason: str) -> None:
        """Kill all workers, because the node ends for this ``reason``; after that only ``GetLeaseFailure`` is answered."""
        self._why_closed = reason
        self.scheduler.close()
        await self.processes.close()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
