"""Brings large objects to this node for those who wait for that: ``wait(fetch_local=True)`` (G9).

Ray: CoreWorker::Wait in src/ray/core_worker/core_worker.cc, src/ray/raylet/wait_manager.h

Who waits knows the object already, and where its first copy is; what it waits for is a copy on this node. There is one
question to the raylet for each object, however many wait, and however often somebody polls: a time-out ends a wait, but not
the question. Whether it was answered with a copy, or with the reason why there is none, a ``get`` is told again.
"""

from __future__ import annotations

from minray.core_worker.memory_store import MemoryStore, StoredObject, Waiter
from minray.core_worker.store_provider import LargeObject, StoreProvider
from minray.exceptions import RayError
from minray.protocol.object_store import WAIT


class LocalCopies:
    """The questions of one process."""

    def __init__(self, store: MemoryStore, provider: StoreProvider) -> None:
        self._store = store
        self._provider = provider
        self._fetching: dict[bytes, list[Waiter]] = {}
        """Objects that are asked for, and who waits for them."""

    def fetch_for(self, waiter: Waiter, large: LargeObject) -> None:
        """Count this object for the waiter when it is here."""
        waiters = self._fetching.get(large.object_id)
        if waiters is not None:
            waiters[:] = [*(other for other in waiters if not other.released), waiter]
            return
        self._fetching[large.object_id] = [waiter]

        def on_fetched(_values: list[StoredObject | RayError | None]) -> None:
            stored = self._store.objects.get(large.object_id)
            for waiting in self._fetching.pop(large.object_id):
                if stored is not None:
                    stored.is_fetched = True
                    waiting.on_object(stored)

        self._provider.fetch([large], on_fetched, purpose=WAIT)
