"""The lease broker: it carries each lease from request to end, as the pure scheduling classes decide.

Ray: src/ray/raylet/node_manager.cc (HandleRequestWorkerLease, HandleReturnWorkerLease, DisconnectClient, ...)

Five classes decide: ``ClusterLeaseManager`` (which node), ``LocalLeaseManager`` (resources and turn), ``WorkerPool`` (which
worker), ``LeaseDependencyManager`` (large arguments), ``EndedLeases`` (replies to late messages). Every event handler here
changes them and calls ``advance``, which carries out their decisions: replies, starts, kills, revocations, one timer.

Rules
  * A lease id names one lease. A repeated request gets the same grant, or waits with the first one, or gets the reply of
    the ended lease. A repeated return or cancel finds nothing to end (G112).
  * A lease whose owner is dead, or whose job has finished, is reclaimed. Its worker is killed, since it may be executing.
  * The lease of every dead worker is cleaned up in one place, ``on_worker_exit``, when the process is seen dead. Until
    then its resources are taken (G99).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minray.common.config import RayletConfig
from minray.common.ids import short
from minray.common.resources import CPU, UNIT, ResourceSet
from minray.common.state_table import StateMachine
from minray.object_store.store import ObjectStore
from minray.platform.base import Buffer, Platform, PlatformError
from minray.protocol.base import Address, Done
from minray.protocol.core_worker import RevokeLeases
from minray.protocol.gcs import PREEMPTION, NodeDrain, WorkerDeath
from minray.protocol.raylet import (
    CANCELLED,
    GRANTED,
    MAX_CALLS,
    REJECTED,
    SPILLBACK,
    UNSCHEDULABLE,
    LeaseFailure,
    LeaseReply,
    RequestWorkerLease,
)
from minray.raylet.ended_leases import CANCELLED_EARLY, RETURNED, End, EndedLeases
from minray.raylet.lease_arguments import LeaseArguments
from minray.raylet.lease_machines import argument_limit_bytes, make_cluster_view, make_local_leases, make_worker_pool
from minray.raylet.log_monitor import LogMonitor
from minray.raylet.memory_monitor import Candidate
from minray.raylet.refusals import IN_REMOVED_GROUP, Refusals
from minray.raylet.worker_pool import DYING, IDLE, LEASED, Binding, Worker
from minray.raylet.worker_processes import Death, WorkerProcesses
from minray.rpc.connection import Peers
from minray.rpc.service import Call
from minray.scheduling import lease as states
from minray.scheduling.cluster_lease_manager import ClusterLeaseManager
from minray.scheduling.lease import Assignment, LeaseRequest, Placement

logger = logging.getLogger(__name__)

MAX_PENDING_SHAPES = 100
"""Most different needs of waiting requests in one resource report."""


@dataclass(slots=True, eq=False)
class LeaseEntry:
    """One lease that is not over."""

    request: LeaseRequest
    owner: Address
    calls: list[Call]
    """Requests that wait for the reply; more than one if the request was repeated."""
    retriable: bool = True
    """Whether the task can be retried if its worker is killed."""
    worker: Worker | None = None
    """Worker of the lease; set when it is granted."""
    granted_at: float = 0.0
    waiters: list[asyncio.Future[LeaseFailure]] = field(default_factory=list)
    """Futures of requests that ask how the lease ends."""


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
        on_unknown_nodes: Callable[[list[bytes]], None],
    ) -> None:
        self._node_id = config.node_id
        self._system = config.system_config
        self._peers = peers
        self._log_monitor = log_monitor
        self._address_of_raylet = address_of_raylet
        self._on_change = on_change
        self._on_worker_death = on_worker_death
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
        self.nodes = make_cluster_view(platform, config, self.local)
        self.cluster = ClusterLeaseManager(self.nodes, self.local, self.states)
        self.pool = make_worker_pool(platform, config, self._is_kept)
        self.processes = WorkerProcesses(platform, config, endpoint, peers, log_monitor, self.on_worker_exit)
        self.entries: dict[bytes, LeaseEntry] = {}
        self._ended = EndedLeases()
        self.refusals = Refusals(self.nodes, self.pool)
        self._revoking: dict[bytes, None] = {}
        """Owners that were asked for idle leases and have not answered yet."""
        self._timer: asyncio.Handle | None = None
        self._wake_at: float | None = None
        """Time at which the timer fires; uvloop's handles do not tell it."""
        self._reap_timer: asyncio.TimerHandle | None = None
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
                return self._granted(entry, entry.worker)
            entry.calls.append(call)
            return None
        end = self._ended.get(lease_id)
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
        self.arguments.add(lease_id, message.dependencies, request.level)
        self.cluster.submit(request)
        self.advance()
        return None

    def cancel(self, lease_id: bytes) -> None:
        """Withdraw a request. If it is granted already, the owner must return it: the grant is on its way to the owner."""
        entry = self.entries.get(lease_id)
        if entry is not None:
            if entry.worker is None:
                self._reclaim(entry, CANCELLED_EARLY)
                self.advance()
        elif self._ended.get(lease_id) is None:
            self._ended.remember(lease_id, CANCELLED_EARLY, self._now())

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
            self._finish(entry, RETURNED)
            if kill_worker:
                self.pool.retire(worker, self._now())
                self._ask_to_exit(worker, force=False)
            else:
                self.pool.release(worker, self._now())
        self.advance()

    def kill(self, lease_id: bytes, reason: str) -> None:
        """Kill the worker of a lease, if the lease is still held."""
        entry = self.entries.get(lease_id)
        if entry is not None and self.states.get(lease_id) == states.GRANTED:
            self._kill(entry, reason)

    def candidates_to_kill(self, memory_of: Callable[[int], int]) -> list[Candidate] | None:
        """Return the workers whose death would free memory; None while one is dying."""
        candidates = []
        for worker in self.pool.workers.values():
            state = self.pool.state(worker.worker_id)
            if state == DYING:
                return None
            if state in (IDLE, LEASED):
                entry = self.entries.get(worker.lease_id)
                retriable, granted_at = (entry.retriable, entry.granted_at) if entry is not None else (True, 0.0)
                memory = memory_of(worker.pid)
                candidates.append(
                    Candidate(
                        worker_id=worker.worker_id,
                        pid=worker.pid,
                        lease_id=worker.lease_id,
                        retriable=retriable,
                        leased_at=granted_at,
                        memory_bytes=memory,
                    )
                )
        return candidates

    def kill_for_memory(self, victim: Candidate, reason: str, used: int, total: int) -> None:
        worker = self.pool.workers[victim.worker_id]
        worker.memory_usage = (used, total)
        entry = self.entries.get(worker.lease_id)
        if entry is not None:
            self._kill(entry, reason)
        else:
            self.pool.doom(worker, reason)
            self.processes.kill(worker.worker_id)

    def end_of(self, lease_id: bytes) -> LeaseFailure | asyncio.Future[LeaseFailure]:
        """Return how a lease ended, or a future of that if it goes on."""
        entry = self.entries.get(lease_id)
        if entry is None:
            end = self._ended.get(lease_id)
            return end.failure if end is not None else LeaseFailure(known=False, dead=False)
        waiter: asyncio.Future[LeaseFailure] = asyncio.get_running_loop().create_future()
        entry.waiters = [*(other for other in entry.waiters if not other.done()), waiter]
        return waiter

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
        self._reap()

    def on_group_removed(self, group_id: bytes) -> None:
        """End all leases of a removed placement group: the waiting ones, and the granted ones by killing their workers."""
        if self.refusals.add_removed_group(group_id) and self.works_in_group(group_id):
            self._reclaim_where(lambda entry: entry.request.shape.strategy.group_id == group_id, IN_REMOVED_GROUP)

    def drain(self, drain: NodeDrain) -> None:
        """Drain this node: waiting requests go to other nodes, and idle workers are asked to end."""
        self.leaving = drain
        self.cluster.drain()
        self.pool.stop_expecting()
        self._reap()

    def works_in_group(self, group_id: bytes) -> bool:
        """Tell whether there are leases in a group, or requests for some."""
        return any(entry.request.shape.strategy.group_id == group_id for entry in self.entries.values())

    def on_registered(self, address: Address, pid: int) -> bool:
        accepted = self.pool.on_registered(address, pid, self._now())
        if accepted:
            self._log_monitor.on_started(address.worker_id, pid)
            self.advance()
        return accepted

    def on_blocked(self, worker_id: bytes, sequence: int, blocked: bool) -> None:
        worker = self.pool.workers.get(worker_id)
        if worker is None or sequence <= worker.block_sequence:
            return
        worker.block_sequence = sequence
        if self.states.get(worker.lease_id) == states.GRANTED:
            self.local.set_blocked(worker.lease_id, blocked)
            self.arguments.manager.set_blocked(worker.lease_id, blocked)
            self.advance()

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
            self._finish(entry, End(certificate))
        if self._why_closed is not None:
            return
        if death.pid:  # Also report a worker that has not registered: it may have listened already, and left its socket.
            doom = death.doom_that_counts(worker.doom)
            cause = f"{death.cause}: {doom}" if doom else death.cause
            words = death.stderr_tail if entry and entry.request.for_actor else []
            for_memory = worker.memory_usage[1] > 0
            self._on_worker_death(
                WorkerDeath(
                    worker_id=worker_id,
                    node_id=self._node_id,
                    pid=death.pid,
                    cause=cause,
                    last_words=words,
                    for_memory=for_memory,
                )
            )
            self.on_owner_death(worker_id, True, cause)
        self.advance()

    def _reclaim_where(self, applies: Callable[[LeaseEntry], bool], reply: LeaseReply) -> None:
        end = End(reply=reply)
        for entry in [entry for entry in self.entries.values() if applies(entry)]:
            self._reclaim(entry, end)
        self.advance()

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
        self._finish(entry, end)

    def _kill(self, entry: LeaseEntry, reason: str) -> None:
        assert entry.worker is not None
        self.local.on_worker_doomed(entry.request.lease_id)
        self.pool.doom(entry.worker, reason)
        self.processes.kill(entry.worker.worker_id)

    def _finish(self, entry: LeaseEntry, end: End) -> None:
        lease_id = entry.request.lease_id
        del self.entries[lease_id]
        self.arguments.end(lease_id)
        self._ended.remember(lease_id, end, self._now())
        for call in entry.calls:
            call.reply(end.reply)
        for waiter in entry.waiters:
            if not waiter.done():
                waiter.set_result(end.failure)

    # --- Carrying out decisions ----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Decide all that can be decided now, and do it; called after every change."""
        if self._why_closed is not None:
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
                binding = Binding(request.shape.job_id, request.shape.runtime_env, request.for_actor)
                self.pool.request(request.lease_id, binding)
                self.pool.expect(min(request.backlog, self.free_cpus()), binding)
            actions = self.pool.assign(now)
            for lease_id, reason in actions.failures:
                self.local.end(lease_id)
                self._finish(self.entries[lease_id], End(reply=LeaseReply(UNSCHEDULABLE, reason=reason)))
            for lease_id, worker in actions.matches:
                self._grant(self.entries[lease_id], worker)
            for worker in actions.kills:
                self.processes.kill(worker.worker_id)
            for worker in actions.starts:
                self.processes.start(worker.worker_id)
            has_more = self._fetch_arguments(assignment) or bool(actions.failures)
        self.arguments.let_go()
        self.arguments.begin()
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
        self._reap()

    def _reap(self) -> None:
        threshold_s = 0.0 if self.leaving else self._system.idle_worker_killing_time_threshold_ms / 1000
        for worker, force in self.pool.reap(self._now(), self.free_cpus(), threshold_s):
            self._ask_to_exit(worker, force)
        self.advance()

    def _ask_to_exit(self, worker: Worker, force: bool) -> None:
        def on_refused() -> None:
            self.pool.on_exit_refused(worker, self._now())
            self.advance()

        assert worker.address is not None
        self.processes.ask_to_exit(worker.worker_id, worker.address, force, on_refused)

    def _is_kept(self, worker: Worker) -> bool:
        """Tell whether a worker may keep its lease for ever: it serves an actor, or a task that waits for others."""
        entry = self.entries.get(worker.lease_id)
        return entry is not None and (entry.request.for_actor or self.local.leases[worker.lease_id].blocked)

    def _grant(self, entry: LeaseEntry, worker: Worker) -> None:
        self.local.on_worker_found(entry.request.lease_id)
        self._log_monitor.on_bound(worker.worker_id, entry.request.shape.job_id)
        entry.worker = worker
        entry.granted_at = self._now()
        calls, entry.calls = entry.calls, []
        reply = self._granted(entry, worker)
        for call in calls:
            call.reply(reply)

    def _granted(self, entry: LeaseEntry, worker: Worker) -> LeaseReply:
        gpu_ids = tuple(sorted(self.local.leases[entry.request.lease_id].gpus.taken))
        contended = self.local.is_contended(entry.request)
        return LeaseReply(kind=GRANTED, worker=worker.address, pid=worker.pid, gpu_ids=gpu_ids, contended=contended)

    def _answer(self, placement: Placement) -> None:
        entry = self.entries[placement.request.lease_id]
        if placement.kind == states.SPILLBACK:
            reply = LeaseReply(SPILLBACK, raylet=self._address_of_raylet(placement.node_id))
        elif placement.kind == states.REJECT:
            reply = LeaseReply(REJECTED, reason="this node has no room for it, or can never hold it")
        else:
            reply = LeaseReply(UNSCHEDULABLE, reason=placement.reason)
        self._finish(entry, End(LeaseFailure(known=False, dead=False), reply))

    def _revoke(self, owner_id: bytes) -> None:
        if owner_id in self._revoking:
            return
        self._revoking[owner_id] = None

        def on_answer(reply: Done | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
            self._revoking.pop(owner_id, None)

        owner = next(entry.owner for entry in self.entries.values() if entry.owner.worker_id == owner_id)
        self._peers.to(owner).send(RevokeLeases(self._node_id), on_answer)

    # --- Reports, and the end ------------------------------------------------------------------------------------------

    def free_cpus(self) -> int:
        """Return the number of whole free CPUs, that is, of further workers that may get work."""
        return 0 if self.leaving else max(0, self.local.available.get(CPU, 0)) // UNIT

    def available(self) -> ResourceSet:
        """Return the free resources for reports. Amounts below zero (CPUs that unblocked workers took back) become zero."""
        return {name: max(0, amount) for name, amount in self.local.available.items()}

    def pending(self) -> list[tuple[ResourceSet, int]]:
        """Return the needs of waiting requests with their counts, also of infeasible ones; at most MAX_PENDING_SHAPES."""
        counts: Counter[tuple[tuple[str, int], ...]] = Counter()
        for request in [*self.local.queued(), *self.cluster.infeasible()]:
            counts[request.shape.resources] += 1
        return [(dict(resources), count) for resources, count in counts.most_common(MAX_PENDING_SHAPES)]

    async def close(self, reason: str) -> None:
        """Kill all workers, because the node ends for this ``reason``; after that only ``GetLeaseFailure`` is answered."""
        self._why_closed = reason
        self.arguments.close()
        for timer in (self._timer, self._reap_timer):
            if timer is not None:
                timer.cancel()
        await self.processes.close()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

