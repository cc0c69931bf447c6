"""Decides which worker runs which task: leases, their reuse, and pipelining.

Ray: src/ray/core_worker/task_submission/normal_task_submitter.h

Pure: this class decides, and acts only through its ``LeaseActions`` port. There is one ``KeyQueue`` per lease shape and set
of large arguments (see ``records.leased_worker``). It has the waiting tasks, the leased workers and the open lease requests.
``assign`` does all scheduling. It is called at once when a worker is idle, and otherwise once for all changes of a turn:

  1. Give waiting tasks to leased workers, to idle ones first. A task is queued behind another only if its function was
     measured to be short (``pipelining``), so that no task waits long.
  2. Request more workers while more tasks wait than requests are open (or several times as many:
     ``lease_requests_per_task``); cancel the requests when no task waits.

A worker whose queue is empty keeps its lease for ``worker_lease_linger_milliseconds``, so that a loop of
``get(f.remote())`` pays no lease round trip. A raylet where other requests wait says so (``on_revoke``). Then idle leases
are returned at once. A busy worker whose lease is older than ``worker_lease_timeout_milliseconds`` gets no more tasks, and
its lease is returned when it is idle.

A request for tasks with large arguments goes to the node that has most of them (``lease_policy``). Its raylet pins the
arguments before it grants the lease. Hence the workers are reused for the same arguments only. Idle workers that are leased
there are returned before the request: a node full of them would spill the request back to another node.

A worker that gives tasks back unstarted has *stalled*: its running task blocks (perhaps on those very tasks), or takes
longer than its function was measured to take. No task is queued behind that one.

Ray's key holds the function as well. Ray's pipelining was removed in 2022 together with work stealing. Here unstarted tasks
are taken back (``reclaim``) from a worker that has not answered for a while, which the measured depth makes rare.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from minray.common.config import SystemConfig
from minray.common.ids import LeaseIdFactory
from minray.common.task_spec import STRATEGY_DEFAULT, LeaseShape
from minray.common.tombstones import remember
from minray.core_worker.records.leased_worker import KeyQueue, LeasedWorker, WorkerRequest
from minray.core_worker.records.pending_task import PUSHED, QUEUED, PendingTask
from minray.core_worker.submission.lease_policy import BestRaylet
from minray.core_worker.submission.pipelining import Pipelining, at_once
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.base import Address
from minray.protocol.raylet import MAX_CALLS, Dependency, LeaseReply

CHECK_S = 0.01
"""Seconds between two looks at workers that have tasks queued behind a running one."""
SILENCE_S = 0.005
"""Seconds without an answer after which the tasks queued on a worker are reclaimed if another worker is idle.

Tiny tasks are not: the worker may only wait for a core, and to move them costs more than to run them."""
STALL_S = 0.1
"""Seconds without an answer after which they are reclaimed in any case: the running task may wait for their results."""

TIMER_SLACK_S = 0.0005
"""Remaining seconds for which no timer is worth setting: a lease that has lingered up to this is returned at once."""


class LeaseActions(Protocol):
    """The messages and timers that the submitter decides on."""

    def push(self, worker: LeasedWorker, task: PendingTask) -> None: ...

    def request_lease(self, request: WorkerRequest) -> None: ...

    def cancel_lease(self, request: WorkerRequest) -> None: ...

    def return_lease(self, worker: LeasedWorker, kill_worker: bool, reason: str) -> None: ...

    def reclaim(self, worker: LeasedWorker) -> None: ...

    def wake_after(self, delay_s: float) -> None:
        """Call ``on_timer`` once, after ``delay_s``."""

    def wake_soon(self) -> None:
        """Call ``on_turn`` once, when the events at hand have been handled."""


class NormalTaskSubmitter:
    """Queues, pushes and pipelines the normal tasks of one process."""

    def __init__(
        self,
        config: SystemConfig,
        lease_ids: LeaseIdFactory,
        tasks: TaskManager,
        actions: LeaseActions,
        best_raylet: BestRaylet = lambda dependencies: None,
    ) -> None:
        self._lease_ids = lease_ids
        self._tasks = tasks
        self._actions = actions
        self._best_raylet = best_raylet
        self._keys: dict[tuple[LeaseShape, tuple[bytes, ...]], KeyQueue] = {}
        """Queues by lease shape and the ids of large arguments.

        Queues without large arguments or a placement group are kept for good: a program has a handful of shapes, and
        prepared functions refer to their queue. The others are dropped when they are empty."""
        self._workers: dict[bytes, LeasedWorker] = {}
        """All leased workers, by lease id."""
        self._linger_s = config.worker_lease_linger_milliseconds / 1000
        self._lease_timeout_s = config.worker_lease_timeout_milliseconds / 1000
        self._pipelining = Pipelining(config)
        self._max_requests = config.max_pending_lease_requests_per_scheduling_category
        self._requests_per_task = config.lease_requests_per_task
        self.node_count = 1
        """Number of alive nodes, for the limit of open requests."""
        self._timer_is_set = False
        self._due: list[KeyQueue] = []
        """Queues for which ``assign`` is called at the end of this turn."""
        self._revoked_until = 0.0
        """Time until which other processes are believed to wait for leases."""
        self._leaving: OrderedDict[bytes, None] = OrderedDict()
        """Ids of preempted nodes, which will leave the cluster."""

    # --- events

    def on_task_ready(self, task: PendingTask, now: float) -> None:
        """Queue a task whose arguments exist, and push it at once if a worker is idle."""
        key = self._enqueue(task)
        key.queue.append(task)
        if key.is_due:
            return
        idle = next((worker for worker in key.low_workers() if not worker.in_flight), None)
        if idle is not None and at_once(task) > 1 and any(worker.in_flight for worker in key.workers.values()):
            self._assign_soon(key)
        elif idle is not None and len(key.queue) == 1 and not key.requests and self._may_take(idle, now):
            self._fill(idle, 1, now)  # The most frequent case of ``assign``.
        elif idle is not None:
            self.assign(key, now)
        elif len(key.queue) <= self._request_limit() + 1:
            self._assign_soon(key)
        # else: more tasks were waiting already, so all workers are full and all requests are open; answers call ``assign``.

    def on_tasks_unstarted(self, tasks: list[PendingTask], now: float) -> None:
        """Put tasks that were pushed but did not start back to the front, in their order."""
        for task in reversed(tasks):
            self._enqueue(task).queue.appendleft(task)
        for key in dict.fromkeys(map(self._key, tasks)):
            self.assign(key, now)

    def on_task_answered(self, worker: LeasedWorker, task: PendingTask, now: float) -> None:
        """Take a pushed task off its worker because it was answered, however it ended."""
        del worker.in_flight[task.sequence]
        task.worker = None
        worker.progress_at = now
        if worker.in_flight:
            worker.queued_us -= task.estimate_us
        else:
            worker.queued_us = 0.0
            worker.idle_since = now
            worker.stalled = False
        if self._pipelining.is_low(worker):
            worker.key.low[worker.lease_id] = worker

    def on_task_given_back(self, worker: LeasedWorker, task: PendingTask, now: float) -> None:
        """Take a task off a worker that gave it back unstarted; ``on_tasks_unstarted`` follows."""
        self.on_task_answered(worker, task, now)
        worker.stalled = bool(worker.in_flight)

    def on_granted(self, request: WorkerRequest, reply: LeaseReply, now: float) -> None:
        """Take over a worker that was granted, even if no task waits for it any more."""
        key = request.key
        del key.requests[request.lease_id]
        worker = LeasedWorker(request, reply, now)
        key.workers[worker.lease_id] = key.low[worker.lease_id] = self._workers[worker.lease_id] = worker
        worker.closing = worker.address.node_id in self._leaving
        if reply.contended:
            self._revoked_until = now + self._lease_timeout_s
        self.assign(key, now)

    def on_redirected(self, request: WorkerRequest, raylet: Address | None, grant_or_reject: bool, now: float) -> None:
        """Repeat a request at another raylet, with a fresh lease id.

        The raylet answered SPILLBACK, or did not answer; then ``raylet`` is None, and the local raylet is asked.
        """
        key = request.key
        del key.requests[request.lease_id]
        if key.queue:
            self._request(key, raylet, grant_or_reject)
        self.assign(key, now)

    def on_request_ended(self, request: WorkerRequest, now: float) -> None:
        """Drop a request that was rejected, cancelled or failed; tasks that still wait make new requests."""
        key = request.key
        del key.requests[request.lease_id]
        self.assign(key, now)

    def on_worker_lost(self, worker: LeasedWorker) -> list[PendingTask]:
        """Return the lease of a worker that cannot be used any more; the result is the tasks that were in flight."""
        self._close(worker, kill_worker=True, reason="its channel broke")
        lost = list(worker.in_flight.values())
        worker.in_flight.clear()
        for task in lost:
            task.worker = None
        return lost

    def on_worker_used_up(self, worker: LeasedWorker) -> None:
        """Give no more tasks to a worker that has said that it takes none (``max_calls``)."""
        worker.closing = worker.used_up = True

    def on_revoke(self, now: float) -> None:
        """Return idle leases at once, because a raylet says that other requests wait."""
        self._revoked_until = now + self._lease_timeout_s
        for key in list(self._keys.values()):
            self.assign(key, now)

    def on_node_leaving(self, node_id: bytes, now: float) -> None:
        """Give the workers of a leaving node no more tasks, and return them when they are idle."""
        remember(self._leaving, node_id, None)
        for worker in self._workers.values():
            if worker.address.node_id == node_id:
                worker.closing = True
                if len(worker.in_flight) > 1 and not worker.stalled:
                    worker.stalled = True
                    self._actions.reclaim(worker)
        for key in list(self._keys.values()):
            self.assign(key, now)

    def is_preempted(self, node_id: bytes) -> bool:
        """Whether this node was preempted, so that tasks lost with it use up no retry (G21)."""
        return node_id in self._leaving

    def on_timer(self, now: float) -> None:
        """Reclaim tasks that are queued on slow workers, and return workers that have been idle for long."""
        self._timer_is_set = False
        for key in list(self._keys.values()):
            self._maybe_reclaim(key, now)
            self.assign(key, now)

    def remove_queued(self, task: PendingTask, now: float) -> None:
        """Remove a cancelled task from its queue."""
        key = self._key(task)
        key.queue.remove(task)
        self.assign(key, now)

    def take_queue(self, request: WorkerRequest) -> list[PendingTask]:
        """Remove and return all tasks queued under a request that no node can satisfy."""
        tasks = list(request.key.queue)
        request.key.queue.clear()
        return tasks

    def forget_all(self) -> None:
        """Forget all tasks and workers because the cluster is gone: no task is pushed any more, and answers are ignored."""
        for key in self._keys.values():
            key.queue.clear()
            key.forget_workers()
        self._workers.clear()

    # --- decisions

    def assign(self, key: KeyQueue, now: float) -> None:
        """Give waiting tasks to workers, return idle workers, then request or cancel further ones."""
        if key.queue and key.workers:
            ready = key.workers.values() if at_once(key.queue[0]) > 1 else key.low_workers()
            takers = [worker for worker in ready if self._may_take(worker, now)]
            takers.sort(key=_load)
            for index, worker in enumerate(takers):
                self._fill(worker, max(-(-len(key.queue) // (len(takers) - index)), at_once(key.queue[0])), now)
                if not key.queue:
                    break
        self._return_idle(key, now)
        if key.queue:
            wanted = min(self._requests_per_task * len(key.queue), self._request_limit())
            while len(key.requests) < wanted:
                raylet = self._first_raylet(key)
                if key.dependencies:
                    self._return_idle_at(raylet)
                self._request(key, raylet, False)
        else:
            for request in key.requests.values():
                if not request.cancelled:
                    request.cancelled = True
                    self._actions.cancel_lease(request)
            self._maybe_forget(key)

    def refill(self, worker: LeasedWorker, now: float) -> None:
        """Give more tasks to a worker that has answered: at once if it is idle, else at the end of this turn."""
        if not worker.in_flight:
            self.assign(worker.key, now)
        elif worker.key.queue or worker.key.requests:
            self._assign_soon(worker.key)

    def on_turn(self, now: float) -> None:
        """Assign at the end of a turn in which tasks became ready or were answered."""
        due, self._due = self._due, []
        for key in due:
            key.is_due = False
            self.assign(key, now)

    def _assign_soon(self, key: KeyQueue) -> None:
        if not key.is_due:
            key.is_due = True
            self._due.append(key)
            if len(self._due) == 1:
                self._actions.wake_soon()

    def _may_take(self, worker: LeasedWorker, now: float) -> bool:
        return not (worker.closing or worker.stalled or self._is_overdue(worker, now))

    def _fill(self, worker: LeasedWorker, most: int, now: float) -> None:
        """Push at most ``most`` tasks from the front of the queue to a worker."""
        queue, in_flight = worker.key.queue, worker.in_flight
        limit = self._request_limit()
        while queue and most > 0:
            task = queue[0]
            estimate_us = self._pipelining.estimate_us(task, len(queue) > limit)
            if in_flight:
                if not self._pipelining.has_room(worker, estimate_us):
                    break
                self._wake_later(CHECK_S)
            else:
                worker.progress_at = now
            queue.popleft()
            most -= 1
            task.estimate_us = estimate_us
            worker.queued_us += estimate_us
            task.worker = worker
            task.sequence = worker.next_sequence
            in_flight[task.sequence] = task
            worker.next_sequence += 1
            self._tasks.move(task, PUSHED)
            self._actions.push(worker, task)
        if not self._pipelining.is_low(worker):
            worker.key.low.pop(worker.lease_id, None)

    def _request_limit(self) -> int:
        return self._max_requests if self._max_requests > 0 else max(10, self.node_count)

    def _is_overdue(self, worker: LeasedWorker, now: float) -> bool:
        return now < self._revoked_until and now - worker.granted_at > self._lease_timeout_s

    def _return_idle(self, key: KeyQueue, now: float) -> None:
        contended = now < self._revoked_until
        for worker in key.low_workers():
            if worker.in_flight:
                continue
            if worker.closing or self._is_overdue(worker, now):
                self._give_back(worker, "lease time is up")
            elif not key.queue:
                left_s = worker.idle_since + self._linger_s - now
                if contended or left_s < TIMER_SLACK_S:
                    self._give_back(worker, "idle")
                else:
                    self._wake_later(left_s)

    def _return_idle_at(self, raylet: Address | None) -> None:
        for worker in list(self._workers.values()):
            if worker.raylet == raylet and not worker.in_flight:
                self._give_back(worker, "idle")

    def _give_back(self, worker: LeasedWorker, reason: str) -> None:
        """Return an idle worker. A used-up one is not leased again, and its raylet asks it to end."""
        if worker.used_up:
            reason = MAX_CALLS
        elif worker.address.node_id in self._leaving:
            reason = "its node is to leave"
        self._close(worker, kill_worker=worker.used_up, reason=reason)

    def _maybe_reclaim(self, key: KeyQueue, now: float) -> None:
        """Reclaim the tasks that are queued behind a slow task; keep idle workers for them until that is decided."""
        idle = [worker for worker in key.low_workers() if not worker.in_flight]
        for worker in key.workers.values():
            if len(worker.in_flight) > 1 and not worker.stalled:
                is_worth = idle and at_once(next(reversed(worker.in_flight.values()))) == 1
                if now - worker.progress_at > (SILENCE_S if is_worth else STALL_S) - TIMER_SLACK_S:
                    worker.stalled = True
                    self._actions.reclaim(worker)
                else:
                    self._wake_later(CHECK_S)
                for other in idle:
                    other.idle_since = now

    def _first_raylet(self, key: KeyQueue) -> Address | None:
        if key.dependencies and key.shape.strategy.kind == STRATEGY_DEFAULT:
            return self._best_raylet(key.dependencies)
        return None

    def _request(self, key: KeyQueue, raylet: Address | None, grant_or_reject: bool) -> None:
        depth = key.queue[0].depth if key.queue else 0
        retriable = not key.queue or key.queue[0].retries_left != 0
        backlog = max(0, len(key.queue) - len(key.requests) - 1)
        request = WorkerRequest(self._lease_ids.next(), key, raylet, grant_or_reject, backlog, depth, retriable)
        key.requests[request.lease_id] = request
        self._actions.request_lease(request)

    def _close(self, worker: LeasedWorker, kill_worker: bool, reason: str) -> None:
        worker.closing = True
        if self._workers.pop(worker.lease_id, None) is not None:
            worker.key.drop_worker(worker)
            self._actions.return_lease(worker, kill_worker, reason)
            self._maybe_forget(worker.key)

    def _maybe_forget(self, key: KeyQueue) -> None:
        """Drop an empty queue with large arguments or a placement group: these come and go, and must not pile up."""
        passes = key.dependencies or key.shape.strategy.group_id
        name = key.shape, _ids(key.dependencies)
        if passes and not (key.queue or key.workers or key.requests) and self._keys.get(name) is key:
            del self._keys[name]

    def _wake_later(self, delay_s: float) -> None:
        if not self._timer_is_set:
            self._timer_is_set = True
            self._actions.wake_after(delay_s)

    def _enqueue(self, task: PendingTask) -> KeyQueue:
        self._tasks.move(task, QUEUED)
        return self._key(task)

    def _key(self, task: PendingTask) -> KeyQueue:
        prepared = task.prepared
        if not task.dependencies and isinstance(prepared.key, KeyQueue):
            return prepared.key
        shape = prepared.template.shape
        name = shape, _ids(task.dependencies)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = KeyQueue(shape, task.dependencies)
        if not (task.dependencies or shape.strategy.group_id):
            prepared.key = key
        return key

    # --- questions

    def request_of(self, task: PendingTask) -> WorkerRequest | None:
        """Return an open request that could serve this task, for ``why``; None if there is none."""
        return next(iter(self._key(task).requests.values()), None)

    def leased_workers(self) -> list[LeasedWorker]:
        return list(self._workers.values())


def _ids(dependencies: tuple[Dependency, ...]) -> tuple[bytes, ...]:
    return tuple(dependency.object_id for dependency in dependencies)


def _load(worker: LeasedWorker) -> float:
    return worker.queued_us if worker.in_flight else -1.0
