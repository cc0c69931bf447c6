"""Brings values to this process: from their owners, from the object stores of other nodes, and after they were lost.

Ray: CoreWorker::Get, WaitForObjects; src/ray/core_worker/store_provider/

The place of a large object, as this process knows it, may be out of date. If the object was lost and made again, its bytes
are those of another attempt, and the references inside have other names. It may even be an error or a small value now. The
store of this node sees the difference (``CHANGED``). Then the old place is forgotten, the owner is asked for the current
value or place, and the object is fetched once more.

A task never waits at a worker for an argument that is being made again. Making it may take as long as any task, and need
the very resources that the waiting task would hold. The task is told (``on_missing``, or None instead of a value) and given
back. An actor call with a place in an order (G49) does wait (``waits``): its process serves no other actor, and no call
behind it may begin earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from minray.common.ids import short
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.core_worker.fetching.store_provider import Changed, Fetched, LargeValues, OnFetched
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import call_for
from minray.exceptions import ObjectLostError, RayError
from minray.protocol.base import Address
from minray.protocol.object_store import GET, TASK_ARGUMENTS, WAIT

AGAIN_S = 0.05
"""Seconds between two looks at an object whose copy here and whose owner do not agree yet: most do within one round trip."""
RAYLET_PATIENCE_S = 1.0
"""Seconds that a thread gives its raylet, which watches the time-out, beyond the time-out."""
LendSoon = Callable[[ReceivedTask], Callable[[], None]]
"""Function that lends the CPUs of a waiting task, unless the function that it returns is called soon."""


class ValueFetcher:
    """Fetches values for the user threads, the waiters and the tasks of one process."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        objects: Objects,
        futures: FutureResolver,
        provider: LargeValues,
        lend_soon: LendSoon,
    ) -> None:
        self._process = process
        self._own_id = process.config.worker_id
        self._user_code = process.platform.user_code
        self._references = references
        self._store = store
        self._borrowing = borrowing
        self._as_error = objects.as_error
        self._futures = futures
        self._provider = provider
        self._lend_soon = lend_soon
        self._fetching: dict[bytes, list[Waiter]] = {}
        """Waiters for each large object that is being brought to this node, by object id."""

    # --- large values

    def get(
        self, objects: Sequence[LargeObject], timeout_s: float | None, task: ReceivedTask | None = None
    ) -> list[StoredObject | None]:
        """Return values, which may be errors, to a user thread; None for each that does not come in time.

        ``task`` is the thread's task; its CPUs are lent if the wait is long.
        """
        parker = self._user_code.parker()
        fetched: list[Fetched] = []
        lent = ExitStack()

        def begin() -> None:
            if task is not None:  # if the values are lost, the tasks that make them again may need its CPUs
                lent.callback(self._lend_soon(task))
            self.fetch(objects, on_fetched, timeout_s)

        def on_fetched(values: list[Fetched]) -> None:
            lent.close()
            fetched.extend(values)
            parker.release()

        self._user_code.post(call_for, parker, begin)
        try:
            parker.wait(None if timeout_s is None else timeout_s + RAYLET_PATIENCE_S)
        finally:
            if not fetched:  # interrupted, or the raylet has not said in time what is here
                self._user_code.post(lent.close)
        return [None if value is None else self.as_stored(value) for value in fetched or [None] * len(objects)]

    def fetch(
        self, objects: Sequence[LargeObject], on_fetched: OnFetched, timeout_s: float | None = None, purpose: int = GET
    ) -> None:
        """Bring objects to this node; each result is a value, an error, or None if it did not come in time.

        An object that was made again meanwhile is followed to its new value.
        """
        deadline = None if timeout_s is None else self._process.now() + timeout_s

        def on_first(values: list[Fetched]) -> None:
            if any(isinstance(value, Changed) for value in values):
                name = f"follow({short(objects[0].object_id)})"
                self._process.begin(self._follow(objects, values, on_fetched, deadline, purpose), name)
            else:
                on_fetched(values)

        self._provider.fetch(objects, on_first, timeout_s, purpose)

    def as_stored(self, value: Fetched) -> StoredObject:
        """Turn a fetched result that came in time into a value or an error value; for any thread."""
        assert value is not None and not isinstance(value, Changed)
        return self._as_error(value) if isinstance(value, RayError) else value

    async def _follow(
        self,
        objects: Sequence[LargeObject],
        values: list[Fetched],
        on_fetched: OnFetched,
        deadline: float | None,
        purpose: int,
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                for index, known in enumerate(objects):
                    if isinstance(values[index], Changed):
                        values[index] = await self._fetch_again(known, purpose)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            lost = ObjectLostError(reason="this process has left its cluster")
            values = [lost if isinstance(value, Changed) else value for value in values]
            raise
        finally:
            on_fetched([None if isinstance(value, Changed) else value for value in values])

    async def _fetch_again(self, known: LargeObject, purpose: int) -> Fetched:
        while True:
            self.forget_place(known.object_id, known.attempt)
            stored = await self._now_there(known.object_id, known.owner, purpose)
            if stored is None or stored.place is None:
                return stored
            known = LargeObject.known(known.object_id, known.owner, stored)
            value = await self._fetch_once(known, purpose)
            if not isinstance(value, Changed):
                return value
            await asyncio.sleep(AGAIN_S)

    async def _fetch_once(self, known: LargeObject, purpose: int) -> Fetched:
        fetched: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()

        def on_fetched(values: list[Fetched]) -> None:
            if not fetched.done():
                fetched.set_result(values[0])

        self._provider.fetch([known], on_fetched, None, purpose)
        return await fetched

    async def _now_there(self, object_id: bytes, owner: Address, purpose: int) -> StoredObject | None:
        """Ask the owner for the current value or place of an object.

        None if no reference to it is left here, or if it is an argument that does not exist now.
        """
        if self._references.reference_of(object_id) is None:
            return None
        arrived = asyncio.Event()
        waiter = Waiter(1, False, arrived.set)
        if purpose == TASK_ARGUMENTS:
            self.fetch_argument(object_id, owner, arrived.set, arrived.set)
        elif self._store.wait([object_id], waiter) and owner.worker_id != self._own_id:
            self._futures.fetch(object_id, owner)
        try:
            await arrived.wait()
        finally:
            self._store.stop_waiting([object_id], waiter)
        return self._store.objects.get(object_id)

    def forget_place(self, object_id: bytes, attempt: int | None = None) -> None:
        """Forget the place of a borrowed large object, so that its owner is asked again.

        With ``attempt``, forget only the place of that attempt's copy.
        """
        stored, reference = self._store.objects.get(object_id), self._references.reference_of(object_id)
        if stored is None or stored.place is None or reference is None or reference.owner is None:
            return
        if attempt is None or stored.place.attempt == attempt:
            effects = Effects()
            self._references.forget_value(object_id, effects)
            self._store.delete([object_id])
            self._borrowing.apply(effects)

    # --- for waiters

    def fetch_for(self, waiter: Waiter, large: LargeObject) -> None:
        """Bring a large object to this node for a waiter; all waiters for the object share one request."""
        waiters = self._fetching.get(large.object_id)
        if waiters is not None:
            waiters[:] = [*(other for other in waiters if not other.released), waiter]
            return
        self._fetching[large.object_id] = [waiter]

        def on_fetched(_values: list[Fetched]) -> None:
            stored = self._store.objects.get(large.object_id)
            for waiting in self._fetching.pop(large.object_id):
                if stored is not None:
                    stored.is_fetched = True
                    waiting.on_object(stored)

        self.fetch([large], on_fetched, purpose=WAIT)

    # --- for tasks

    def fetch_argument(
        self,
        object_id: bytes,
        owner: Address,
        on_here: Callable[[], None],
        on_missing: Callable[[], None],
        waits: bool = False,
    ) -> None:
        """Get the value of an argument, or its place, then call ``on_here``.

        ``on_missing`` is called instead if the object is being made again and the task does not wait (``waits``) for that.
        """
        waiter = Waiter(1, False, on_here)

        def give_up() -> None:
            if not waiter.released:
                self._store.stop_waiting([object_id], waiter)
                on_missing()

        if not self._store.wait([object_id], waiter):
            return
        is_own = owner.worker_id == self._own_id
        if waits and not is_own:
            self._futures.fetch(object_id, owner)
        elif not waits and is_own:
            give_up()
        elif not waits:
            self._futures.look(object_id, owner, give_up)

    def fetch_arguments(
        self,
        objects: list[LargeObject],
        on_fetched: Callable[[list[StoredObject | None]], None],
        waits: bool = False,
    ) -> None:
        """Bring a task's large arguments, whose places are known, to this node; None for one that is being made again."""

        def on_here(values: list[Fetched]) -> None:
            on_fetched([None if value is None else self.as_stored(value) for value in values])

        self.fetch(objects, on_here, purpose=GET if waits else TASK_ARGUMENTS)
