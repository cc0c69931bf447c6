"""A caller's notes about its leases: the workers it has, the open requests, and the tasks that wait for them.

Ray: LeaseEntry and SchedulingKeyEntry in src/ray/core_worker/task_submission/normal_task_submitter.h

``NormalTaskSubmitter`` changes these records and decides by them; ``LeaseClient`` makes messages of them.
"""

from __future__ import annotations

from collections import deque

from minray.common.task_spec import LeaseShape
from minray.core_worker.records.pending_task import PendingTask
from minray.protocol.base import Address
from minray.protocol.raylet import Dependency, LeaseReply


class WorkerRequest:
    """One open lease request, as the requesting owner sees it."""

    __slots__ = ("lease_id", "key", "raylet", "grant_or_reject", "backlog", "depth", "retriable", "cancelled")

    def __init__(
        self,
        lease_id: bytes,
        key: KeyQueue,
        raylet: Address | None,
        grant_or_reject: bool,
        backlog: int,
        depth: int,
        retriable: bool = True,
    ) -> None:
        self.lease_id = lease_id
        self.key = key
        self.raylet = raylet
        """Address of the raylet that is asked; None: the local one."""
        self.grant_or_reject = grant_or_reject
        """Whether the raylet must grant or reject and not spill back again; True after a spillback."""
        self.backlog = backlog
        """Number of tasks that wait for further workers."""
        self.depth = depth
        """Depth of the first waiting task in the tree of tasks that submit tasks."""
        self.retriable = retriable
        """Whether the task for which the worker was requested may be retried."""
        self.cancelled = False
        """Whether a cancellation was sent. A grant that comes nevertheless is used, or returned when its worker is idle."""


class LeasedWorker:
    """A worker that is leased to this process."""

    __slots__ = (
        "lease_id",
        "address",
        "raylet",
        "pid",
        "gpu_ids",
        "key",
        "in_flight",
        "next_sequence",
        "queued_us",
        "granted_at",
        "idle_since",
        "progress_at",
        "closing",
        "used_up",
        "stalled",
    )

    def __init__(self, request: WorkerRequest, reply: LeaseReply, now: float) -> None:
        assert reply.worker is not None
        self.lease_id = request.lease_id
        self.address = reply.worker
        self.raylet = request.raylet
        self.pid = reply.pid
        self.gpu_ids = reply.gpu_ids
        self.key = request.key
        self.in_flight: dict[int, PendingTask] = {}
        """Tasks that were pushed and not answered, by sequence number, oldest first."""
        self.next_sequence = 1
        self.queued_us = 0.0
        """Estimated duration of the tasks in flight, in microseconds."""
        self.granted_at = now
        self.idle_since = now
        """Time at which ``in_flight`` became empty; meaningful while it is empty."""
        self.progress_at = now
        """Presumed time at which the oldest task in flight began: it was pushed then, or the one before it was answered."""
        self.closing = False
        """Whether the worker gets no more tasks: it is broken or used up, or its lease ends when it is idle."""
        self.used_up = False
        """Whether the worker's process runs no more tasks (``max_calls``)."""
        self.stalled = False
        """Whether tasks were given back unstarted, or reclaimed, and the task in front of them has not ended."""

    def acknowledged(self) -> int:
        """Return the sequence number up to which all replies have come."""
        return next(iter(self.in_flight), self.next_sequence) - 1


class KeyQueue:
    """The waiting tasks, leased workers and open requests of one lease shape and set of large arguments."""

    __slots__ = ("shape", "dependencies", "queue", "workers", "low", "requests", "is_due")

    def __init__(self, shape: LeaseShape, dependencies: tuple[Dependency, ...] = ()) -> None:
        self.shape = shape
        self.dependencies = dependencies
        self.queue: deque[PendingTask] = deque()
        self.workers: dict[bytes, LeasedWorker] = {}
        """Leased workers by lease id, oldest first."""
        self.low: dict[bytes, LeasedWorker] = {}
        """Those of them that have little to do or nothing (``Pipelining.is_low``); usually few of many."""
        self.requests: dict[bytes, WorkerRequest] = {}
        """Open lease requests, by lease id."""
        self.is_due = False
        """Whether ``assign`` will be called at the end of this turn."""

    def drop_worker(self, worker: LeasedWorker) -> None:
        del self.workers[worker.lease_id]
        self.low.pop(worker.lease_id, None)

    def forget_workers(self) -> None:
        """Drop all workers because the cluster is gone, and note at their tasks that these are with no worker."""
        for worker in self.workers.values():
            for task in worker.in_flight.values():
                task.worker = None
            worker.in_flight.clear()
        self.workers.clear()
        self.low.clear()

    def low_workers(self) -> list[LeasedWorker]:
        """Return the workers that have little to do, those with the oldest lease first."""
        if len(self.low) < 2:
            return list(self.low.values())
        return [worker for worker in self.workers.values() if worker.lease_id in self.low]
