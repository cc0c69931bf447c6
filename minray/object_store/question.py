"""A request to pin objects together, which waits in the store until all of them are complete, or its time is up.

Ray: GetRequest in src/ray/object_manager/plasma/get_request_queue.h

The store tells it of each object that has come, or will not come. It answers once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from minray.protocol.object_store import NOT_HERE, Pinned, Wanted


class Order(NamedTuple):
    """Names objects that are wanted together, and sorts by the order in which they are pulled: purpose, then arrival."""

    purpose: int
    number: int


class Question:
    """A request to pin objects together, some of which have not come yet."""

    def __init__(
        self,
        client: bytes,
        wanted: list[Wanted],
        order: Order,
        on_answer: Callable[[list[Pinned]], None],
        on_one: Callable[[], None] | None = None,
    ) -> None:
        self.client = client
        self.wanted = wanted
        self.order = order
        self.timer: asyncio.TimerHandle | None = None
        self._pinned: list[Pinned | None] = [None] * len(wanted)
        self._missing = len(wanted)
        self._on_answer = on_answer
        self._on_one = on_one

    def set(self, index: int, pinned: Pinned) -> None:
        self._pinned[index] = pinned
        self._missing -= 1
        if self._on_one is not None:
            self._on_one()
        if not self._missing:
            self.answer()

    def is_open(self) -> bool:
        return self._missing > 0

    def close(self) -> None:
        """Cancel the timer, so that the time of this request does not run out any more."""
        if self.timer is not None:
            self.timer.cancel()

    def answer(self) -> None:
        """Answer the request with the objects that are here by now."""
        self.close()
        self._on_answer([one or Pinned(NOT_HERE) for one in self._pinned])
