"""Keeps one ``ActorClient`` for each actor that a process calls, shared by all handles of the actor.

Ray: src/ray/core_worker/actor_manager.h (the table of actor handles)

Several user threads may make handles at once. Two clients of one actor would open two streams, and the actor would take
them for one caller. Hence a lock: ``WeakValueDictionary.setdefault`` is not atomic, since Python code runs between its look
and its change.
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
    """Finds and makes the clients of actors. ``get`` and ``get_or_make`` may be used in any thread.

    A client lives as long as a handle or a call refers to it.
    """

    def __init__(self, references: ReferenceCounter, borrowing: Borrowing) -> None:
        self._references = references
        self._borrowing = borrowing
        self._clients: weakref.WeakValueDictionary[bytes, ActorClient] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        """Reentrant lock: a destructor may look for a client while its own thread holds the lock."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._clients))

    def client_of(self, actor_id: bytes) -> ActorClient | None:
        return self._clients.get(actor_id)

    def get_or_make(self, actor_id: bytes, owner: Address, in_order: bool) -> tuple[ActorClient, bool]:
        """Return the client of an actor, and whether it is new."""
        with self._lock:
            client = self._clients.get(actor_id)
            if client is not None:
                return client, False
            client = self._clients[actor_id] = ActorClient(actor_id, owner, in_order)
            return client, True

    def keep_handle(self, task: PendingTask) -> None:
        """Hold the handle with which a call was made, so that the actor lives until the call ends."""
        client = task.prepared.client
        assert client is not None, task
        if not client.keeping:
            self._references.add_submitted([task.handle_id], [None])
        client.keeping += 1

    def let_go(self, task: PendingTask) -> None:
        """Release the handle of a call that has ended."""
        client = task.prepared.client
        assert client is not None, task
        client.keeping -= 1
        if not client.keeping:
            effects = Effects()
            self._references.remove_submitted([task.handle_id], effects)
            self._borrowing.apply(effects)
