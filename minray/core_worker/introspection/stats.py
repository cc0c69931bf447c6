"""What this process refers to, told to people.

Ray: CoreWorker::HandleGetCoreWorkerStats and ReferenceCounter::AddObjectRefStats

Only reads. The answer has the largest references, so many at most that it fits into one message, and says how many there
are. Whether this process is reading an object in the object store is not known here; the store knows (``CopyInfo``).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from minray.common.ids import PUT_INDEX, task_of
from minray.core_worker.execution.task_account import TaskAccount
from minray.core_worker.introspection.metric_registry import metrics_of
from minray.core_worker.introspection.stacks import stacks_of
from minray.core_worker.ownership.call_sites import DISABLED
from minray.core_worker.ownership.reference_counter import Reference
from minray.core_worker.records.pending_task import FAILED, FINISHED
from minray.protocol.core_worker import CoreWorkerStats, GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.object_store import MOST_ENTRIES
from minray.protocol.state import ProcessMetrics, ProcessStacks, ProfileEvents

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

NIL = "NIL"
UNKNOWN_SIZE = -1


class Statistician:
    """Reads the tables of one core worker."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self.account = TaskAccount(core)

    def stats(self, request: GetCoreWorkerStats) -> CoreWorkerStats:
        """The answer of this process."""
        core = self._core
        found = core.references.items() if request.object_ids is None else self._of(request.object_ids)
        largest = heapq.nlargest(min(request.limit, MOST_ENTRIES), found, key=lambda item: self._size(item[0]))
        infos = [self._describe(object_id, reference) for object_id, reference in largest]
        pid, config = core.platform.processes.pid, core.config
        return CoreWorkerStats(config.worker_id, config.node_id, pid, config.is_driver, len(found), infos)

    def profile(self) -> ProfileEvents:
        """The tasks that have run here."""
        return self._core.profile.events(self._core)

    def stacks(self) -> ProcessStacks:
        """What runs here right now."""
        return stacks_of(self._core)

    def metrics(self) -> ProcessMetrics:
        """What programs have measured here."""
        return metrics_of(self._core)

    def _of(self, object_ids: list[bytes]) -> list[tuple[bytes, Reference]]:
        known = [(object_id, self._core.references.get(object_id)) for object_id in dict.fromkeys(object_ids)]
        return [(object_id, reference) for object_id, reference in known if reference is not None]

    def _size(self, object_id: bytes) -> int:
        stored = self._core.store.objects.get(object_id)
        return UNKNOWN_SIZE if stored is None else stored.size()

    def _describe(self, object_id: bytes, reference: Reference) -> ObjectRefInfo:
        core = self._core
        status, attempt = self._task_status(object_id, reference)
        borrowers = {borrower.worker_id for borrower, _ in (reference.lent or {}).values()}
        return ObjectRefInfo(
            object_id,
            core.config.worker_id if reference.owner is None else reference.owner.worker_id,
            reference.local,
            reference.submitted,
            reference.contained,
            len(borrowers),
            reference.pinned,
            self._size(object_id),
            status,
            attempt,
            DISABLED if core.call_sites is None else core.call_sites.of(object_id),
        )

    def _task_status(self, object_id: bytes, reference: Reference) -> tuple[str, int]:
        """Of the task that makes the object, and which attempt it is."""
        task = self._core.tasks.tasks.get(task_of(object_id))
        stored = self._core.store.objects.get(object_id)
        if task is not None:
            return task.state, task.attempt
        if stored is None or stored.is_freed or reference.owner is not None or object_id.endswith(PUT_INDEX):
            return NIL, 0
        return FAILED if stored.is_error else FINISHED, 0 if stored.place is None else stored.place.attempt
