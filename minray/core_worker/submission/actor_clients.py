"""The actors that one process calls: one ``ActorClient`` for all handles of an actor.

Ray: src/ray/core_worker/actor_manager.h (the table of actor handles)

User threads make handles, several at once, and two clients of one actor would take each other for one caller with two
streams. A ``WeakValueDictionary`` has no ``setdefault`` that is atomic: Python code runs between its look and its change.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.pending_task import ActorClient, PendingTask
from minray.protocol.base import Address

HOLDS_LOCKS = True
"""See ``common/package.py``: these frames may hold a lock."""


class ActorClients:
    """Clients by actor, kept by handles and calls. ``get`` and ``get_or_make`` may be used in any thread."""

    def __init__(self, references: ReferenceCounter, borrowing: Borrowing) -> None:
        self._references = references
        self._borrowing = borrowing
        self._clients: weakref.WeakValueDictionary[bytes, ActorClient] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        """Destructors may run while it is held, and look for a client, too."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._clients))

    def get(self, actor_id: bytes) -> ActorClient | None:
        return self._clients.get(actor_id)

    def get_or_make(self, actor_id: bytes, owner: Address, in_order: bool) -> tuple[ActorClient, bool]:
        """Returns the client of an actor, and whether it is new."""
        with self._lock:
            client = self._clients.get(actor_id)
            if client is not None:
                return client, False
            client = self._clients[actor_id] = ActorClient(actor_id, owner, in_order)
            return client, True

    def keep(self, task: PendingTask) -> None:
        """Keep an actor alive: a call begins that was made with a handle."""
        client = task.prepared.client
        assert client is not None, task
        if not client.keeping:
            self._references.add_submitted([task.handle_id], [None])
        client.keeping += 1

    def let_go(self, task: PendingTask) -> None:
        """The call has ended."""
        client = task.prepared.client
        assert client is not None, task
        client.keeping -= 1
        if not client.keeping:
            effects = Effects()
            self._references.remove_submitted([task.handle_id], effects)
            self._borrowing.apply(effects)
