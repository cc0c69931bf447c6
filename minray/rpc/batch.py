"""Batching of notifications: one message per receiver is under way, and the next one carries all that came meanwhile.

Ray: the batching of free and location updates in src/ray/raylet/local_object_manager.h and ownership_object_directory.h

The first item leaves at once, so no item waits for others; under load many items share a message. Because at most one
message is under way, the receiver gets all items in the order in which they were added, even if messages are repeated. Items
for a dead receiver are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from minray.common.bounds import BOUNDS
from minray.platform.base import PlatformError
from minray.protocol.base import Address, Done, Request
from minray.rpc.connection import OnAnswer

T = TypeVar("T")


def by_receiver(items: Iterable[tuple[T, Address]]) -> list[tuple[Address, list[T]]]:
    """Group (item, receiver) pairs by receiver, and keep the order of the items."""
    groups: dict[bytes, tuple[Address, list[T]]] = {}
    for item, to in items:
        groups.setdefault(to.worker_id, (to, []))[1].append(item)
    return list(groups.values())


def portions(items: Sequence[T], most: int = BOUNDS.max_items_per_batch) -> Iterator[Sequence[T]]:
    """Split items into lists that one message can carry."""
    return (items[start : start + most] for start in range(0, len(items), most))


Send = Callable[[Request[Done], OnAnswer[Done]], None]
"""Function that sends one request and does not give up while the receiver may be alive."""


class Batch(Generic[T]):
    """Queues items for one receiver and sends them, one message at a time."""

    def __init__(
        self,
        send: Send,
        make: Callable[[list[T]], Request[Done]],
        on_idle: Callable[[], None] | None = None,
        max_items: int = BOUNDS.max_items_per_batch,
    ) -> None:
        self._send = send
        self._max_items = max_items
        """Most items in one message."""
        self._make = make
        """Builds the message that carries some items."""
        self._on_idle = on_idle
        """Called when every item was delivered, or was dropped because the receiver is dead."""
        self._waiting: list[T] = []
        self._is_open = False
        """Whether a message is under way, not yet answered."""

    def add(self, items: Iterable[T]) -> None:
        self._waiting.extend(items)
        if not self._is_open and self._waiting:
            self._send_next()

    def _send_next(self) -> None:
        items, self._waiting = self._waiting[: self._max_items], self._waiting[self._max_items :]
        self._is_open = True
        self._send(self._make(items), self._on_answer)

    def _on_answer(self, reply: Done | None, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
        self._is_open = False
        if reply is None:
            self._waiting.clear()
        if self._waiting:
            self._send_next()
        elif self._on_idle is not None:
            self._on_idle()


class Batches(Generic[T]):
    """Keeps one ``Batch`` per receiver, by incarnation."""

    def __init__(
        self,
        send: Callable[[Address, Request[Done], OnAnswer[Done]], None],
        make: Callable[[list[T]], Request[Done]],
        max_items: int = BOUNDS.max_items_per_batch,
    ) -> None:
        self._send = send
        self._max_items = max_items
        self._make = make
        self._batches: dict[bytes, Batch[T]] = {}
        """Batches by worker id, only of receivers with undelivered items."""

    def add(self, to: Address, items: Iterable[T]) -> None:
        items = list(items)
        if not items:
            return
        batch = self._batches.get(to.worker_id)
        if batch is None:

            def send(request: Request[Done], on_answer: OnAnswer[Done]) -> None:
                self._send(to, request, on_answer)

            batch = Batch(send, self._make, lambda: self._forget(to.worker_id), self._max_items)
            self._batches[to.worker_id] = batch
        batch.add(items)

    def _forget(self, worker_id: bytes) -> None:
        self._batches.pop(worker_id, None)

    def __len__(self) -> int:
        return len(self._batches)
