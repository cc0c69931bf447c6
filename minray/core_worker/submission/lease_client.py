"""Carries out the submitter's decisions: requests leases, pushes tasks, and finds out what became of lost workers' tasks.

Ray: the sending half of src/ray/core_worker/task_submission/normal_task_submitter.cc, src/ray/raylet_rpc_client/

When a worker cannot be reached any more, its raylet is asked what became of it. The answer says how the worker died, and
the sequence number of the last task that had begun. Tasks that had not begun are pushed elsewhere without using up a retry.
If the raylet cannot be reached either, the node counts as dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from minray.common.ids import LeaseIdFactory, short
from minray.common.task_set import TaskSet
from minray.core_worker.ground.process import Process
from minray.core_worker.records.leased_worker import LeasedWorker, WorkerRequest
from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.submission.lease_policy import BestRaylet
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.core_worker.submission.task_manager import TaskManager
from minray.core_worker.submission.task_ports import PushOutcomes
from minray.exceptions import RaySystemError
from minray.platform.base import PlatformError, RecordTooLarge
from minray.protocol.base import Address, Done, Request
from minray.protocol.core_worker import NOT_STARTED, PushTask, PushTaskReply, ReclaimTasks
from minray.protocol.raylet import (
    CANCELLED,
    ENVIRONMENT_FAILED,
    GRANTED,
    GROUP_REMOVED,
    REJECTED,
    SPILLBACK,
    UNSCHEDULABLE,
    CancelWorkerLease,
    GetLeaseFailure,
    LeaseFailure,
    LeaseReply,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from minray.rpc.connection import Peer, PeerUnreachable, ignore

logger = logging.getLogger(__name__)

FAILURE_TIMEOUT_S = 5.0
"""Seconds that a raylet may take to notice that a worker is dead; it sees the process exit, so this is ample."""
REJECTED_DELAY_S = 0.05
"""Seconds to wait before another lease request, after one that was rejected, led to a lost raylet, or was cancelled there.

The raylets' views of each other need about this long to agree; longer if no other process knows yet that a node has died. A
raylet cancels our requests while it believes that our job has finished or that this process is dead. Without a pause it
would do so again at once."""


class LeasedOutcomes(PushOutcomes, Protocol):
    """The decisions about a task that was pushed to a leased worker, or waits for one."""

    def on_died(
        self, task: PendingTask, worker: LeasedWorker, failure: LeaseFailure | None, *, is_preempted: bool = False
    ) -> None:
        """Decide about a task that may have run on a worker that died.

        ``failure`` is None if the whole node died, or cannot be reached from here. ``is_preempted``: the node was
        preempted before.
        """

    def on_unschedulable(self, tasks: Sequence[PendingTask], reply: LeaseReply) -> None:
        """Fail tasks for which no worker will ever be granted."""


class LeaseClient:
    """Requests leases and pushes tasks for one process. It makes the submitter and implements its ``LeaseActions``."""

    def __init__(
        self,
        process: Process,
        tasks: TaskManager,
        outcomes: LeasedOutcomes,
        lease_ids: LeaseIdFactory,
        best_raylet: BestRaylet,
    ) -> None:
        self._peers = process.peers
        self._patient = process.patient
        self._local_raylet = process.raylet
        self._own = process.address
        self._outcomes = outcomes
        self._now = process.now
        self.submitter = NormalTaskSubmitter(process.config.system_config, lease_ids, tasks, self, best_raylet)
        self._unstarted: list[PendingTask] = []
        """Tasks answered NOT_STARTED in this turn of the loop; they are queued again together, in their order."""
        self._judging = TaskSet()

    # --- Actions

    def push(self, worker: LeasedWorker, task: PendingTask) -> None:
        message = PushTask(
            task.task_id,
            task.attempt,
            worker.lease_id,
            task.sequence,
            worker.acknowledged(),
            task.prepared.header,
            task.depth,
            task.args,
            task.arguments,
            task.nested,
            task.inline_buffers,
            worker.gpu_ids,
            rerun=self._outcomes.rerun(task) if task.attempt else None,
        )
        self._peers.to(worker.address).send(message, partial(self._on_pushed, worker, task))

    def request_lease(self, request: WorkerRequest) -> None:
        message = RequestWorkerLease(
            lease_id=request.lease_id,
            owner=self._own,
            shape=request.key.shape,
            depth=request.depth,
            backlog=request.backlog,
            grant_or_reject=request.grant_or_reject,
            retriable=request.retriable,
            dependencies=list(request.key.dependencies),
        )
        self._raylet(request.raylet).send(message, partial(self._on_lease, request))

    def cancel_lease(self, request: WorkerRequest) -> None:
        self._tell(request.raylet, CancelWorkerLease(request.lease_id))

    def return_lease(self, worker: LeasedWorker, kill_worker: bool, reason: str) -> None:
        self._tell(worker.raylet, ReturnWorkerLease(worker.lease_id, kill_worker, reason))

    def reclaim(self, worker: LeasedWorker) -> None:
        self._peers.to(worker.address).send(ReclaimTasks(worker.lease_id), ignore)

    def wake_after(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, lambda: self.submitter.on_timer(loop.time()))

    def wake_soon(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.submitter.on_turn(self._now()))

    # --- answers

    def _raylet(self, address: Address | None) -> Peer:
        return self._local_raylet if address is None else self._peers.to(address)

    def _tell(self, raylet: Address | None, request: Request[Done]) -> None:
        """Send a request that must arrive while the raylet lives, or its resources would stay leased to us for ever."""
        if raylet is None:
            self._local_raylet.send(request, ignore)
        else:
            self._patient.send(raylet, request, ignore)

    def _on_lease(
        self, request: WorkerRequest, reply: LeaseReply | None, error: PlatformError | None, _buffers: Sequence[Any]
    ) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if reply is None:
            self._on_lease_error(request, error)
        elif reply.kind == GRANTED:
            self.submitter.on_granted(request, reply, now)
        elif reply.kind == SPILLBACK:
            self.submitter.on_redirected(request, reply.raylet, True, now)
        elif reply.kind == REJECTED or (reply.kind == CANCELLED and not request.cancelled):
            loop.call_later(REJECTED_DELAY_S, lambda: self.submitter.on_request_ended(request, loop.time()))
        elif reply.kind in (UNSCHEDULABLE, ENVIRONMENT_FAILED, GROUP_REMOVED):
            self._outcomes.on_unschedulable(self.submitter.take_queue(request), reply)
            self.submitter.on_request_ended(request, now)
        else:
            assert reply.kind == CANCELLED, reply
            self.submitter.on_request_ended(request, now)

    def _on_lease_error(self, request: WorkerRequest, error: PlatformError | None) -> None:
        loop = asyncio.get_running_loop()
        if request.raylet is not None and isinstance(error, PeerUnreachable):
            # The raylet may be alive and still grant the lease: whatever it knows of this lease must end then.
            self._tell(request.raylet, CancelWorkerLease(request.lease_id))
            self._tell(request.raylet, ReturnWorkerLease(request.lease_id, False, "its raylet was out of reach"))
            loop.call_later(REJECTED_DELAY_S, self._ask_local_raylet, request)
        elif self._local_raylet.death is None:
            logger.warning("lease request %s failed: %s", short(request.lease_id), error)
            loop.call_later(1.0, lambda: self.submitter.on_request_ended(request, loop.time()))

    def _ask_local_raylet(self, request: WorkerRequest) -> None:
        """Repeat a request at the local raylet. The raylet where the arguments are may be the one that was lost."""
        self.submitter.on_redirected(request, None, False, self._now())

    def _on_pushed(
        self,
        worker: LeasedWorker,
        task: PendingTask,
        reply: PushTaskReply | None,
        error: PlatformError | None,
        buffers: Sequence[Any],
    ) -> None:
        """React to the reply to a push, or to its failure.

        A reply from a worker that does not have the task any more is dropped: that attempt was given up.
        """
        if reply is None and not isinstance(error, RecordTooLarge):
            self.on_unreachable(worker, str(error))
            return
        if task.worker is not worker:
            return
        now = self._now()
        submitter = self.submitter
        if reply is not None and reply.worker_exiting:
            submitter.on_worker_used_up(worker)
        if reply is None:
            submitter.on_task_answered(worker, task, now)
            self._outcomes.finish_with_error(task, RaySystemError(reason=str(error)))
        elif reply.status == NOT_STARTED:
            self._outcomes.on_missing(reply.missing)
            submitter.on_task_given_back(worker, task, now)
            if not self._unstarted:
                asyncio.get_running_loop().call_soon(self._give_unstarted)
            self._unstarted.append(task)
        else:
            submitter.on_task_answered(worker, task, now)
            self._outcomes.on_reply(task, reply, buffers)
        submitter.refill(worker, now)

    def _give_unstarted(self) -> None:
        tasks, self._unstarted = self._unstarted, []
        self._again(tasks)

    def _again(self, tasks: list[PendingTask]) -> None:
        """Queue those unstarted tasks that may be pushed again at once."""
        again = self._outcomes.on_unstarted(tasks)
        if again:
            self.submitter.on_tasks_unstarted(again, self._now())

    # --- death

    def on_unreachable(self, worker: LeasedWorker, reason: str) -> None:
        """Give up a worker whose connection is lost for good, and find out what became of its tasks."""
        lost = self.submitter.on_worker_lost(worker)
        if lost:
            self._judging.begin(self._judge(worker, lost), f"judge({short(worker.lease_id)})")
        else:
            logger.debug("leased worker %s is gone: %s", worker.pid, reason)

    def on_node_death(self, node_id: bytes) -> None:
        """Give up the workers of a dead node; no raylet can be asked about them."""
        workers = [worker for worker in self.submitter.leased_workers() if worker.address.node_id == node_id]
        lost = [(task, worker) for worker in workers for task in self.submitter.on_worker_lost(worker)]
        is_preempted = self.submitter.is_preempted(node_id)
        for task, worker in lost:
            self._outcomes.on_died(task, worker, None, is_preempted=is_preempted)

    async def _judge(self, worker: LeasedWorker, lost: list[PendingTask]) -> None:
        """Ask the raylet what became of the worker, then decide the fate of each task that it had."""
        failure: LeaseFailure | None
        try:
            failure = await self._raylet(worker.raylet).call(GetLeaseFailure(worker.lease_id, FAILURE_TIMEOUT_S))
        except PlatformError:
            failure = None
        if failure is not None and failure.known:
            unstarted = [task for task in lost if task.sequence > failure.started >= 0]
        else:
            unstarted = []
        for task in lost:
            if task not in unstarted:
                is_preempted = self.submitter.is_preempted(worker.address.node_id)
                self._outcomes.on_died(task, worker, failure, is_preempted=is_preempted)
        if unstarted:
            self._again(unstarted)

    def close(self) -> None:
        self._judging.cancel()
