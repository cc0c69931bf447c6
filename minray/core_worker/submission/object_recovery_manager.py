"""Makes lost objects of this process again: it runs the tasks that have made them once more.

Ray: src/ray/core_worker/object_recovery_manager.h, TaskManager::ResubmitTask

An object is lost when no node has a copy of it (``object_directory`` looks for another copy before it says so). From then on
it counts as not made yet. It leaves the memory store. A process that wants it waits for it, or hears that it is not made.
All of them get the value that the next attempt of its task makes.

Rules
  * A task runs again once, for all its lost results and all waiting processes (G74). Results that still exist are not made
    again and not replaced: the worker is told which results are unwanted.
  * Arguments of the task that are lost too are made again first, also those that were freed because only lineage needed
    them (G67).
  * Running again uses up a retry (G70). An object that cannot be made again becomes an ObjectReconstructionFailedError
    (``Reference.obstacle``).
  * A copy is identified by its attempt, so that a leftover copy of an earlier attempt is never taken for a later one.
  * A result may be lost, or needed, while its task runs again without making it. It is recovered when that attempt has
    ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from minray.common.ids import short, task_of
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.lineage import Lineage
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import ObjectLostError, ObjectReconstructionFailedError, ReconstructionFailure

logger = logging.getLogger(__name__)


class ObjectRecoveryManager:
    """Remembers the tasks of one process that may have to run again, and runs them again."""

    def __init__(
        self,
        process: Process,
        tasks: TaskManager,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        objects: Objects,
        *,
        resolve: Callable[[PendingTask], None],
        lost_items: Callable[[PendingTask], list[int]],
        hurry: Callable[[PendingTask], None],
        keep_actor: Callable[[PendingTask], None],
    ) -> None:
        system = process.config.system_config
        self._process = process
        self._is_enabled = system.lineage_pinning_enabled
        self._tasks = tasks
        self._references = references
        self._store = store
        self._borrowing = borrowing
        self._objects = objects
        self._resolve = resolve
        """Function that waits for the arguments of a task that runs again."""
        self._lost_items = lost_items
        """Function that returns the numbers of a generator's items that have arrived and are lost."""
        self._hurry = hurry
        """Function that releases a generator that back-pressure holds up."""
        self._keep_actor = keep_actor
        """Function that holds the handle of the actor whose method runs again."""
        self.lineage = Lineage(references, system.max_lineage_bytes)

    # --- a task ends

    def remember(self, task: PendingTask, values: Sequence[StoredObject | None]) -> None:
        """Remember a task that has made these values (None: unwanted), if one of them may be lost.

        This is called before the values are stored, since they may be lost already.
        """
        has_items = task.stream is not None and task.stream.has_large
        if task.needs is None and not has_items:
            for value in values:
                if value is not None and value.place is not None:
                    break
            else:
                return
        obstacle = self._obstacle_of(task)
        made: dict[bytes, StoredObject | None] = dict(zip(task.result_ids(), values, strict=True))
        items = dict.fromkeys(task.item_ids() if has_items else ())
        results = []
        for object_id, value in (made | items).items():
            reference = self._references.reference_of(object_id)
            stored = self._store.objects.get(object_id) or value
            if reference is None:
                continue
            if stored is not None and stored.place is None:
                reference.obstacle = ReconstructionFailure.PUT
            elif stored is not None or reference.obstacle is None or object_id in items:
                reference.obstacle = obstacle  # also for an item that was lost before its task ended
            if reference.obstacle is None:
                results.append(object_id)
        effects = Effects()
        self.lineage.keep_task(task, results, effects)
        self._borrowing.apply(effects)

    def _obstacle_of(self, task: PendingTask) -> ReconstructionFailure | None:
        """Return the reason why this task cannot run again; None if it can."""
        if not self._is_enabled:
            return ReconstructionFailure.LINEAGE_DISABLED
        if not task.prepared.template.is_reconstructable():
            return ReconstructionFailure.RETRIES_DISABLED
        if task.cancelled:
            return ReconstructionFailure.TASK_CANCELLED
        return ReconstructionFailure.MAX_ATTEMPTS_EXCEEDED if task.retries_left == 0 else None

    def look_after(self, task: PendingTask) -> None:
        """Recover results of an ended task that were lost, or asked for, while it ran."""
        task.has_lost_results = False
        self.recover([id_ for id_ in task.result_ids() + task.item_ids() if self._references.is_in_scope(id_)])

    # --- objects are lost

    def on_lost(self, object_ids: Sequence[bytes]) -> None:
        """Recover objects of this process of which no node has a copy any more."""
        effects = Effects()
        for object_id in object_ids:
            if self._references.reference_of(object_id) is not None:  # an earlier object may have held its last reference
                self._references.forget_value(object_id, effects)
        self._store.delete(object_ids)
        self._borrowing.apply(effects)
        self.recover(object_ids)

    def recover(self, object_ids: Iterable[bytes]) -> None:
        """Make these objects again, and the arguments that this takes.

        Objects that exist, are being made, or belong to other owners are skipped.
        """
        lacking = list(object_ids)
        while lacking:
            object_id = lacking.pop()
            reference = self._references.reference_of(object_id)
            if reference is None or reference.owner is not None or object_id in self._store.objects:
                continue
            task_id = task_of(object_id)
            running = self._tasks.tasks.get(task_id)
            if running is not None:
                running.has_lost_results = True
                self._hurry(running)
                continue
            task = self.lineage.find(task_id)
            if self._process.is_exiting:
                error = ObjectLostError(object_id_hex=object_id.hex(), reason="the cluster is gone")
                self._objects.put_error(object_id, error)
            elif task is not None and reference.obstacle is None and self._tasks.begin_retry(task):
                lacking += self._run_again(task)
            else:
                failure = reference.obstacle or ReconstructionFailure.LINEAGE_EVICTED
                owner = self._process.address.endpoint
                self._objects.put_error(
                    object_id, ObjectReconstructionFailedError(object_id_hex=object_id.hex(), owner=owner, reason=failure)
                )

    def _run_again(self, task: PendingTask) -> Sequence[bytes]:
        """Begin another attempt of a finished task; return the ids of the objects that it takes."""
        needs = self.lineage.needs_of(task.task_id)
        logger.debug("task %s runs again (attempt %d): its results are lost", short(task.task_id), task.attempt)
        self._references.add_submitted(needs, [None] * len(needs))
        if task.handle_id and self._references.reference_of(task.handle_id) is not None:
            self._keep_actor(task)
        else:
            task.handle_id = b""
        if task.prepared.client is not None:
            task.prepared.client.ended -= 1  # it is one of the pending calls again
        if task.stream is not None:  # noted now, because the task may fail before it is pushed
            task.items_lost = dict.fromkeys(self._lost_items(task))
        self._tasks.begin_again(task, needs)
        self._resolve(task)
        return needs

    def unwanted(self, task: PendingTask) -> tuple[int, ...]:
        """Return the indices of the results that the next attempt of a task must not make."""
        store, references = self._store.objects, self._references
        return tuple(
            index
            for index, object_id in enumerate(task.result_ids(), 1)
            if object_id in store or not references.is_in_scope(object_id)
        )

    # --- references go

    def on_freed(self, effects: Effects) -> None:
        """Forget the tasks of freed objects, unless the objects may have to be made again."""
        if len(self.lineage):
            for object_id in effects.freed:  # the list may grow meanwhile
                if self._references.reference_of(object_id) is None:
                    self.lineage.on_forgotten(object_id, effects)
