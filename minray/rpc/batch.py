"""News for one receiver, told in groups: one message at a time, and in the next one whatever has come meanwhile.

Ray: the batching of free and location updates in src/ray/raylet/local_object_manager.h and ownership_object_directory.h

The first item leaves at once, so that nobody waits for company; under load many share a message; and since there is never
more than one on its way, the receiver hears everything in the order in which it was said, whatever is repeated. Items for
a receiver that is dead are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from minray.platform.base import PlatformError
from minray.protocol.base import Address, Done, Request
from minray.rpc.connection import OnAnswer

MOST_ITEMS = 10_000
"""So many at most travel in one message: about a megabyte of tickets."""

T = TypeVar("T")


def by_receiver(items: Iterable[tuple[T, Address]]) -> list[tuple[Address, list[T]]]:
    """What each process is to be told, in the order of the items."""
    groups: dict[bytes, tuple[Address, list[T]]] = {}
    for item, to in items:
        groups.setdefault(to.worker_id, (to, []))[1].append(item)
    return list(groups.values())


def portions(items: Sequence[T], most: int = MOST_ITEMS) -> Iterator[Sequence[T]]:
    """The items in lists that one message can carry."""
    return (items[start : start + most] for start in range(0, len(items), most))


Send = Callable[[Request[Done], OnAnswer[Done]], None]
"""Sends one request; does not give up while the receiver may live."""


class Batch(Generic[T]):
    """What one receiver is told."""

    def __init__(
        self, send: Send, make: Callable[[list[T]], Request[Done]], on_idle: Callable[[], None] | None = None
    ) -> None:
        self._send = send
        self._make = make
        """A message of some items."""
        self._on_idle = on_idle
        """Told when everything was said."""
        self._waiting: list[T] = []
        self._is_open = False
        """A message has not been answered yet."""

    def add(self, items: Iterable[T]) -> None:
        self._waiting.extend(items)
        if not self._is_open and self._waiting:
            self._send_next()

    def _send_next(self) -> None:
        items, self._waiting = self._waiting[:MOST_ITEMS], self._waiting[MOST_ITEMS:]
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
    """The same for many receivers, by incarnation."""

    def __init__(
        self, send: Callable[[Address, Request[Done], OnAnswer[Done]], None], make: Callable[[list[T]], Request[Done]]
    ) -> None:
        self._send = send
        self._make = make
        self._batches: dict[bytes, Batch[T]] = {}
        """Only of receivers that have something to hear."""

    def add(self, to: Address, items: Iterable[T]) -> None:
        items = list(items)
        if not items:
            return
        batch = self._batches.get(to.worker_id)
        if batch is None:

            def send(request: Request[Done], on_answer: OnAnswer[Done]) -> None:
                self._send(to, request, on_answer)

            batch = self._batches[to.worker_id] = Batch(send, self._make, lambda: self._forget(to.worker_id))
        batch.add(items)

    def _forget(self, worker_id: bytes) -> None:
        self._batches.pop(worker_id, None)

    def __len__(self) -> int:
        return len(self._batches)
