"""User threads that wait for objects, and the task that stands still meanwhile.

Ray: CoreWorker::Get and Wait, TaskBlocked in src/ray/raylet_ipc_client

A thread says what it lacks and parks; ``begin`` has what others own fetched, and the thread is released when enough is
here. As long as any thread waits for the task that runs in this worker, its raylet lends the CPUs of that task to others
(G101), and nothing is queued behind it. So does a generator that is held up until more is read: its reader may wait for a
task that needs those CPUs. A thread may outlive the task that has started it: what it goes on waiting for
blocks nobody any more, least of all the next task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minray.core_worker.ownership.memory_store import Waiter
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import failure
from minray.exceptions import RaySystemError
from minray.protocol.base import Address
from minray.protocol.raylet import NotifyWorkerBlocked
from minray.rpc.connection import ignore

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker
    from minray.core_worker.records.large_object import LargeObject
    from minray.core_worker.records.received_task import ReceivedTask

LENDS_AFTER_S = 0.01
"""So long a thread may read from object stores, or wait for a reader, before that counts as waiting: most come sooner."""


class WaitingThreads:
    """Those of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self._blocking: dict[object, ReceivedTask] = {}
        """Waits that hold up a task which has not ended."""
        self._sequence = 0
        """Of the last NotifyWorkerBlocked."""

    def begin(
        self,
        wanted: Sequence[tuple[bytes, Address]],
        waiter: Waiter,
        task: ReceivedTask | None = None,
        to_fetch: Sequence[LargeObject] = (),
    ) -> None:
        """A user thread waits for these objects, or for those ``to_fetch``, which are known, to be on this node.

        ``task`` is the one that stands still meanwhile; an actor's calls lend nothing.
        """
        core = self._core
        for large in to_fetch:
            core.fetcher.fetch_for(waiter, large)
        missing = set(core.store.wait([object_id for object_id, _ in wanted], waiter))
        for object_id, owner in wanted:
            if object_id in missing and owner.worker_id != core.config.worker_id:
                reference = core.references.get(object_id)
                if reference is not None and reference.local:
                    core.futures.fetch(object_id, owner)
                else:
                    self._put_foreign(object_id, owner)
        if task is not None:
            self._hold_up(task, waiter)

    def lend_soon(self, task: ReceivedTask) -> Callable[[], None]:
        """A user thread waits for what mostly comes at once, and if not, may need the CPUs of its task in order to come.

        Call what this returns when the thread goes on.
        """
        wait = object()
        timer = asyncio.get_running_loop().call_later(LENDS_AFTER_S, self._hold_up, task, wait)

        def end() -> None:
            timer.cancel()
            self._go_on(wait)

        return end

    def _hold_up(self, task: ReceivedTask, wait: object) -> None:
        if not task.is_over:
            self._blocking[wait] = task
            if len(self._blocking) == 1:
                self._notify(True)

    def _go_on(self, wait: object) -> None:
        if self._blocking.pop(wait, None) is not None and not self._blocking:
            self._notify(False)

    def follow(
        self,
        future: concurrent.futures.Future[Any],
        object_id: bytes,
        owner: Address,
        on_known: Callable[[], None],
        task_id: bytes = b"",
    ) -> None:
        """Call ``on_known`` on the loop when this object is known, unless whoever waits for ``future`` cancels it before.

        ``task_id`` is of the task that waits, if one does.

        Safe in any thread. A future keeps its callbacks for ever, so what is called at its end must not lead back to it.
        """
        post = self._core.platform.user_code.post
        waiting: list[Waiter] = []
        """One, until the object is known or nobody waits any more; it leads to the future."""

        def on_enough() -> None:
            waiting.clear()
            on_known()

        def stop() -> None:
            while waiting:
                self.end([object_id], waiting.pop())

        def on_done(done: concurrent.futures.Future[Any]) -> None:
            if done.cancelled():
                post(stop)

        def begin() -> None:
            try:
                self.begin([(object_id, owner)], waiter)
            except Exception as error:
                waiting.clear()
                if future.set_running_or_notify_cancel():
                    future.set_exception(RaySystemError(reason=failure(error)))
                raise  # to the log

        waiting.append(waiter := Waiter(1, True, on_enough, task_id))
        post(begin)
        future.add_done_callback(on_done)

    def _put_foreign(self, object_id: bytes, owner: Address) -> None:
        """A reference that nobody here has counted: its ObjectRef is of a cluster that this process has left."""
        reason = "this process has left the cluster that it belongs to"
        self._core.store.put(object_id, self._core.objects.as_lost(object_id, owner, reason))

    def end(self, object_ids: Sequence[bytes], waiter: Waiter) -> None:
        """The thread goes on; also if it was interrupted so early that it never began to wait."""
        if waiter.needed > 0:
            self._core.store.stop_waiting(object_ids, waiter)
        self._go_on(waiter)

    def on_task_over(self, task: ReceivedTask) -> None:
        """Threads that it has left behind may wait on, but not for it."""
        left = [wait for wait, blocked in self._blocking.items() if blocked is task]
        for wait in left:
            del self._blocking[wait]
        if left and not self._blocking:
            self._notify(False)

    def begin_to_end(self) -> None:
        """Of an actor: no thread of its waits any more, but the whole of it, for tasks that may need its CPUs."""
        self._notify(True)

    def _notify(self, blocked: bool) -> None:
        core = self._core
        core.receiver.on_blocked(blocked)
        self._sequence += 1
        core.raylet.send(NotifyWorkerBlocked(core.config.worker_id, self._sequence, blocked), ignore)

    def must_fetch(self, stored: StoredObject) -> bool:
        """Whether this value is on another node, as far as this process knows; safe in any thread."""
        place = stored.place
        return place is not None and not stored.is_fetched and place.raylet.node_id != self._core.config.node_id
