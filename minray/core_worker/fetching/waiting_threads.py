"""Lets user threads wait for objects, and completes the futures of awaited objects.

Ray: CoreWorker::Get and Wait

A thread names the objects that it lacks and parks. ``begin`` has the objects of other owners fetched, and the thread is
released when enough of them are here. Meanwhile the blocked task lends its CPUs to others (``blocked_tasks``).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

from minray.core_worker.fetching.blocked_tasks import BlockedTasks
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import failure
from minray.exceptions import RaySystemError
from minray.protocol.base import Address


class WaitingThreads:
    """Begins and ends the waits of one process's user threads."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        objects: Objects,
        futures: FutureResolver,
        fetcher: ValueFetcher,
        blocked: BlockedTasks,
    ) -> None:
        self._own_id = process.config.worker_id
        self._node_id = process.config.node_id
        self._post = process.platform.user_code.post
        self._references = references
        self._store = store
        self._objects = objects
        self._futures = futures
        self._fetcher = fetcher
        self._blocked = blocked

    def begin_wait(
        self,
        wanted: Sequence[tuple[bytes, Address]],
        waiter: Waiter,
        task: ReceivedTask | None = None,
        to_fetch: Sequence[LargeObject] = (),
    ) -> None:
        """Begin to wait for ``wanted`` objects to be known, and for the known ones ``to_fetch`` to be on this node.

        ``task`` is the thread's task, whose CPUs are lent meanwhile; None for an actor's call, which lends nothing.
        """
        for large in to_fetch:
            self._fetcher.fetch_for(waiter, large)
        missing = set(self._store.wait([object_id for object_id, _ in wanted], waiter))
        for object_id, owner in wanted:
            if object_id in missing and owner.worker_id != self._own_id:
                reference = self._references.reference_of(object_id)
                if reference is not None and reference.local:
                    self._futures.fetch(object_id, owner)
                else:
                    self._put_foreign(object_id, owner)
        if task is not None:
            self._blocked.hold_up(task, waiter)

    def follow(
        self,
        future: concurrent.futures.Future[Any],
        object_id: bytes,
        owner: Address,
        on_known: Callable[[], None],
        task_id: bytes = b"",
    ) -> None:
        """Call ``on_known`` on the loop when this object is known, unless ``future`` is cancelled before.

        ``task_id`` is the id of the task that waits, if one does.

        Safe in any thread. A future keeps its callbacks for ever, so its callback must not refer back to the future.
        """
        post = self._post
        waiting: list[Waiter] = []
        """The waiter, which refers to the future; empty once the object is known or the future is cancelled."""

        def on_enough() -> None:
            waiting.clear()
            on_known()

        def stop() -> None:
            while waiting:
                self.end_wait([object_id], waiting.pop())

        def on_done(done: concurrent.futures.Future[Any]) -> None:
            if done.cancelled():
                post(stop)

        def begin() -> None:
            try:
                self.begin_wait([(object_id, owner)], waiter)
            except Exception as error:
                waiting.clear()
                if future.set_running_or_notify_cancel():
                    future.set_exception(RaySystemError(reason=failure(error)))
                raise  # to the log

        waiting.append(waiter := Waiter(1, True, on_enough, task_id))
        post(begin)
        future.add_done_callback(on_done)

    def _put_foreign(self, object_id: bytes, owner: Address) -> None:
        """Store an error for a reference that is not counted here: its ObjectRef is of a cluster that this process left."""
        reason = "this process has left the cluster that it belongs to"
        self._store.put(object_id, self._objects.as_lost(object_id, owner, reason))

    def end_wait(self, object_ids: Sequence[bytes], waiter: Waiter) -> None:
        """End the wait of a thread that goes on, also if it was interrupted before it began to wait."""
        if waiter.needed > 0:
            self._store.stop_waiting(object_ids, waiter)
        self._blocked.go_on(waiter)

    def must_fetch(self, stored: StoredObject) -> bool:
        """Whether this value is on another node, as far as this process knows; safe in any thread."""
        place = stored.place
        return place is not None and not stored.is_fetched and place.raylet.node_id != self._node_id
