"""Lets a task wait until all its top-level arguments exist, then puts the values of the small ones into it.

Ray: src/ray/core_worker/task_submission/dependency_resolver.h

G10: a task never starts before its arguments are computed. G1: if one of them is an error, the task ends with that error
and its body does not run. Large arguments stay references, with their places. A function that
the gcs does not know yet counts as one more argument to wait for. A task may come again because an argument, or one of its
own results, was lost. It then keeps the values that it carries and waits for the other arguments.

Arguments in the object store are the task's *dependencies*: the raylet that grants a worker first brings them to its node.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE, TASK_RPC_INLINED_BYTES_LIMIT
from minray.common.ids import short
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.records.pending_task import WAITING, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.protocol.core_worker import Argument, Value
from minray.protocol.object_store import Place
from minray.protocol.raylet import Dependency

logger = logging.getLogger(__name__)


class DependencyResolver:
    """Resolves the arguments of the waiting tasks of one process."""

    def __init__(
        self,
        own_id: bytes,
        store: MemoryStore,
        futures: FutureResolver,
        on_ready: Callable[[PendingTask], None],
        on_failed_argument: Callable[[PendingTask, StoredObject], None],
    ) -> None:
        self._own_id = own_id
        self._store = store
        self._futures = futures
        self._on_ready = on_ready
        self._on_failed_argument = on_failed_argument
        self._large: dict[bytes, Place | None] = {}
        """Places of borrowed objects that exist on other nodes and are too large for a message, by object id."""
        self._for_function: dict[bytes, list[PendingTask]] = {}
        """Tasks whose function is being exported, by function id."""
        self._failed: deque[tuple[PendingTask, StoredObject]] = deque()
        """Tasks that must still be failed, each with the error that is its argument."""
        self._is_failing = False
        """Whether ``_fail`` is running, so that failures inside it are queued and not nested."""

    def resolve(self, task: PendingTask) -> None:
        """Wait for a task's arguments, then call ``on_ready`` or ``on_failed_argument``; this may happen at once."""
        missing: set[bytes] = set()
        if not task.prepared.export.done:
            function_id = task.prepared.template.function_id
            missing.add(function_id)
            self._for_function.setdefault(function_id, []).append(task)
        slots = enumerate(task.slots)
        absent = {id_: owner for index, (id_, owner) in slots if not (self._is_available(id_) or task.is_inlined(index))}
        missing.update(absent)
        task.waiting_for = missing
        if absent:
            self._wait(task, missing, absent)
        elif not missing:
            self._complete(task)

    def is_resolved(self, task: PendingTask) -> bool:
        """Whether all arguments of a task that has waited already still exist, as far as this process knows."""
        return all(task.is_inlined(index) or self._is_available(id_) for index, (id_, _) in enumerate(task.slots))

    def _is_available(self, object_id: bytes) -> bool:
        return object_id in self._store.objects or object_id in self._large

    def on_function_exported(self, function_id: bytes) -> None:
        for task in self._for_function.pop(function_id, ()):
            if task.state is WAITING and task.waiting_for is not None:
                task.waiting_for.discard(function_id)
                if not task.waiting_for:
                    self._complete(task)

    def _wait(self, task: PendingTask, missing: set[bytes], absent: Mapping[bytes, Address]) -> None:
        """Wait for all absent objects together, and ask the owners of borrowed ones."""
        waiter = Waiter(len(absent), True, lambda: self._on_enough(task, missing))
        self._store.wait(absent, waiter)
        for object_id, owner in absent.items():
            if owner.worker_id != self._own_id:
                on_large = partial(self._on_large, waiter, object_id)
                self._futures.probe(object_id, owner, MAX_DIRECT_CALL_OBJECT_SIZE, on_large)

    def _on_large(self, waiter: Waiter, object_id: bytes, place: Place | None) -> None:
        self._large[object_id] = place
        waiter.on_one()

    def _on_enough(self, task: PendingTask, missing: set[bytes]) -> None:
        """Look which objects are here: all, or an error among them, or fewer if one has come twice."""
        if task.state is not WAITING or task.waiting_for is not missing:
            return
        for stored in filter(None, map(self._store.objects.get, missing)):
            if stored.is_error:
                self._fail(task, stored)
                return
        absent = [object_id for object_id in missing if object_id not in self._large and self._store.is_awaited(object_id)]
        missing.intersection_update([*absent, *self._for_function])
        if absent:
            self._store.wait(absent, Waiter(len(absent), True, lambda: self._on_enough(task, missing)))
        elif not missing:
            self._complete(task)

    def _fail(self, task: PendingTask, error: StoredObject) -> None:
        """Fail a task. Tasks that take its results fail after it, not within this call: a chain may exceed the stack."""
        task.waiting_for = None
        self._failed.append((task, error))
        if self._is_failing:
            return
        self._is_failing = True
        try:
            while self._failed:
                task, error = self._failed.popleft()
                if task.state is not WAITING:
                    continue
                try:
                    self._on_failed_argument(task, error)
                except Exception:  # a bug of ours; the other tasks must still end
                    logger.exception("task %s has not ended with the error of its argument", short(task.task_id))
        finally:
            self._is_failing = False

    def _complete(self, task: PendingTask) -> None:
        task.waiting_for = None
        arguments: list[Argument] = []
        dependencies: dict[bytes, Dependency] = {}
        room = TASK_RPC_INLINED_BYTES_LIMIT
        for index, (object_id, owner) in enumerate(task.slots):
            stored = self._store.objects.get(object_id)
            if task.is_inlined(index):
                arguments.append(task.arguments[index])
                continue
            place = self.place_of(object_id)
            if place is not None:
                dependencies[object_id] = Dependency(object_id, owner, place.size)
            if stored is None:
                arguments.append(Argument(None, object_id, owner))
                continue
            if stored.is_error:
                self._fail(task, stored)
                return
            size = stored.size()
            if stored.place is None and size <= MAX_DIRECT_CALL_OBJECT_SIZE and size <= room:
                room -= size
                value = Value(stored.data, False, tuple(map(bytes, stored.buffers)), 0, tuple(stored.nested))
                arguments.append(Argument(value, object_id, owner))
            else:
                arguments.append(Argument(None, object_id, owner, None if stored.nested else stored.place))
        task.arguments = tuple(arguments)
        task.dependencies = tuple(dependencies.values())
        self._on_ready(task)

    def place_of(self, object_id: bytes) -> Place | None:
        """Return where the first copy of a large object is, or was when its owner was asked; None for other objects."""
        stored = self._store.objects.get(object_id)
        return self._large.get(object_id) if stored is None else stored.place

    def forget(self, object_ids: Iterable[bytes]) -> None:
        """Drop the places of objects to which this process has no reference any more."""
        if self._large:
            for object_id in object_ids:
                self._large.pop(object_id, None)

    def missing_of(self, task: PendingTask) -> list[bytes]:
        """Return the ids of the arguments that a task waits for; for ``why``."""
        return sorted(object_id for object_id in task.waiting_for or () if not self._is_available(object_id))
