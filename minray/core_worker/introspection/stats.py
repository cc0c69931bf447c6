"""Answers requests for the state of this process: its references, tasks, task times, stacks, metrics and breakpoints.

Ray: CoreWorker::HandleGetCoreWorkerStats and ReferenceCounter::AddObjectRefStats

This file only reads. Its answer about references lists the largest objects, as many as fit into one message, and the number
of all. It does not know whether this process reads an object of the object store; the store knows (``CopyInfo``).
"""

from __future__ import annotations

import heapq

from minray.common.ids import PUT_INDEX, task_of
from minray.core_worker.execution.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.execution.task_receiver import TaskReceiver
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.process_metrics import ProcessFigures
from minray.core_worker.introspection.stacks import stacks_of
from minray.core_worker.introspection.task_account import TaskAccount
from minray.core_worker.ownership.call_sites import DISABLED, CallSites
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Reference, ReferenceCounter
from minray.core_worker.records.pending_task import FAILED, FINISHED
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.core_worker import NIL, UNKNOWN_SIZE, CoreWorkerStats, GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.object_store import MOST_ENTRIES
from minray.protocol.state import (
    GetProfileEvents,
    GetTasksInfo,
    ProcessBreakpoints,
    ProcessMetrics,
    ProcessStacks,
    ProfileEvents,
    TasksInfo,
)


class Statistician:
    """Answers state requests from the tables of one core worker."""

    def __init__(
        self,
        *,
        process: Process,
        context: JobContext,
        references: ReferenceCounter,
        store: MemoryStore,
        tasks: TaskManager,
        call_sites: CallSites | None,
        profile: TaskProfile,
        receiver: TaskReceiver,
        actor_receiver: ActorTaskReceiver,
    ) -> None:
        self._process = process
        self._references = references
        self._store = store
        self._pending = tasks
        self._call_sites = call_sites
        self._profile = profile
        self._receiver = receiver
        self._actor_receiver = actor_receiver
        self._account = TaskAccount(process, tasks, store, self._unanswered)
        self.figures = ProcessFigures(
            process=process,
            context=context,
            tasks=tasks,
            store=store,
            actor_receiver=actor_receiver,
            unanswered=self._unanswered,
        )

    def _unanswered(self) -> list[ReceivedTask]:
        return self._receiver.unanswered() + self._actor_receiver.unanswered()

    def stats(self, request: GetCoreWorkerStats) -> CoreWorkerStats:
        """Return this process's answer to a request for its references."""
        found = self._references.items() if request.object_ids is None else self._of(request.object_ids)
        largest = heapq.nlargest(min(request.limit, MOST_ENTRIES), found, key=lambda item: self._size(item[0]))
        infos = [self._describe(object_id, reference) for object_id, reference in largest]
        pid, config = self._process.platform.processes.pid, self._process.config
        return CoreWorkerStats(
            worker_id=config.worker_id,
            node_id=config.node_id,
            pid=pid,
            is_driver=config.is_driver,
            total=len(found),
            references=infos,
        )

    def tasks(self, request: GetTasksInfo) -> TasksInfo:
        """Return the tasks that this process owns, and those that were pushed to it."""
        return self._account.tasks(request)

    def profile(self, request: GetProfileEvents) -> ProfileEvents:
        """Return the times of the tasks that have run in this process."""
        return self._profile.events(self._process, request)

    def stacks(self) -> ProcessStacks:
        """Return the current stacks of this process."""
        return stacks_of(self._process, self._unanswered(), self._actor_receiver.actor)

    def metrics(self) -> ProcessMetrics:
        """Return the metrics that user code has recorded in this process, and its figures about the system."""
        return self.figures.metrics()

    def breakpoints(self) -> ProcessBreakpoints:
        """Return the breakpoints at which this process waits."""
        config, waiting = self._process.config, list(self._process.breakpoints.values())
        return ProcessBreakpoints(
            node_id=config.node_id,
            worker_id=config.worker_id,
            pid=self._process.platform.processes.pid,
            breakpoints=[describe() for describe in waiting],
        )

    def _of(self, object_ids: list[bytes]) -> list[tuple[bytes, Reference]]:
        known = [(object_id, self._references.reference_of(object_id)) for object_id in dict.fromkeys(object_ids)]
        return [(object_id, reference) for object_id, reference in known if reference is not None]

    def _size(self, object_id: bytes) -> int:
        stored = self._store.objects.get(object_id)
        return UNKNOWN_SIZE if stored is None else stored.size()

    def _describe(self, object_id: bytes, reference: Reference) -> ObjectRefInfo:
        status, attempt = self._task_status(object_id, reference)
        borrowers = {borrower.worker_id for borrower, *_ in (reference.lent or {}).values()}
        return ObjectRefInfo(
            object_id=object_id,
            owner_id=self._process.config.worker_id if reference.owner is None else reference.owner.worker_id,
            local=reference.local,
            submitted=reference.submitted,
            contained=reference.contained,
            borrowers=len(borrowers),
            is_pickled=reference.pinned,
            size=self._size(object_id),
            task_status=status,
            attempt=attempt,
            call_site=DISABLED if self._call_sites is None else self._call_sites.of(object_id),
        )

    def _task_status(self, object_id: bytes, reference: Reference) -> tuple[str, int]:
        """Return the status and the attempt of the task that makes an object."""
        task = self._pending.tasks.get(task_of(object_id))
        stored = self._store.objects.get(object_id)
        if task is not None:
            return task.state, task.attempt
        if stored is None or stored.is_freed or reference.owner is not None or object_id.endswith(PUT_INDEX):
            return NIL, 0
        return FAILED if stored.is_error else FINISHED, 0 if stored.place is None else stored.place.attempt
