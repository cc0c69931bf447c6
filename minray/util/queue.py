"""A first-in, first-out queue that tasks, actors and drivers share, in an async actor of its own.

Ray: python/ray/util/queue.py

This file uses the public API alone, so that it also runs on Ray. The interface is that of ``queue.Queue``, plus methods for
coroutines and for batches. A queue can be passed like any value. It ends with its last copy, or by ``shutdown``. A waiting
``put`` or ``get`` is a call that the actor has not answered yet, so that no process polls. As many calls can wait as an
async actor runs at once (``actor_options={"max_concurrency": ...}``).
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from minray.actor import kill
from minray.api import calls
from minray.common.shown import shown
from minray.remote_function import remote

__all__ = ["Empty", "Full", "Queue"]


class Empty(queue.Empty):
    """``get`` found no item, or found none before its timeout."""


class Full(queue.Full):
    """``put`` found no room, or found none before its timeout."""


class Queue:
    """A first-in, first-out queue between processes."""

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        """``maxsize``: the largest number of items; 0 or less: no limit. ``actor_options``: options of the queue's actor."""
        if not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be an int, not {type(maxsize).__name__}")
        self.maxsize = maxsize
        actor_class = remote(_QueueActor)
        self.actor: Any = actor_class.options(**(actor_options or {})).remote(maxsize)

    @property
    def _open_actor(self) -> Any:
        if self.actor is None:
            raise ValueError("this queue was shut down")
        return self.actor

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Return the number of items, which may have changed when the caller reads it."""
        size: int = calls.get(self._open_actor.qsize.remote())
        return size

    def qsize(self) -> int:
        return self.size()

    def empty(self) -> bool:
        return self.size() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.size()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item. Waits for room, at most ``timeout`` seconds (None: for ever), or not at all with ``block=False``.

        Raises Full if there is no room (in time), ValueError for a negative ``timeout``.
        """
        _check(timeout, block)
        answer = self._open_actor.put.remote(item, timeout if block else 0)
        with _given_up_together(answer):
            if not calls.get(answer):
                raise Full

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item: ``put`` for coroutines."""
        _check(timeout, block)
        answer = self._open_actor.put.remote(item, timeout if block else 0)
        with _given_up_together(answer):
            if not await answer:
                raise Full

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item. Waits for one, at most ``timeout`` seconds (None: for ever), or not with ``block=False``.

        Raises Empty if there is none (in time), ValueError for a negative ``timeout``.
        """
        _check(timeout, block)
        answer = self._open_actor.get.remote(timeout if block else 0)
        with _given_up_together(answer):
            return _first(calls.get(answer))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item: ``get`` for coroutines."""
        _check(timeout, block)
        answer = self._open_actor.get.remote(timeout if block else 0)
        with _given_up_together(answer):
            return _first(await answer)

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all of the items, or none: raises Full if there is no room for all of them."""
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch takes an iterable of items, not {type(items).__name__}")
        batch = list(items)
        size: int = calls.get(self._open_actor.put_batch.remote(batch))
        if size >= 0:
            raise Full(f"{len(batch)} items do not fit into a queue that has {size} of {self.maxsize}")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take exactly ``num_items`` items, or none: raises Empty if there are fewer."""
        if not isinstance(num_items, int):
            raise TypeError(f"num_items must be an int, not {type(num_items).__name__}")
        if num_items < 0:
            raise ValueError(f"num_items must not be negative, but is {shown(num_items)}")
        size, batch = calls.get(self._open_actor.get_batch.remote(num_items))
        if batch is None:
            raise Empty(f"{num_items} items were wanted from a queue that has {size}")
        items: list[Any] = batch
        return items

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue and drop its items. Later use of this handle raises ValueError.

        Waiting calls may still be served for ``grace_period_s`` seconds (with ``force``: not at all), then they fail with
        RayActorError.
        """
        if self.actor is None:
            return
        if not force:
            calls.wait([self.actor.until_unused.remote()], timeout=grace_period_s)
        kill(self.actor, no_restart=True)
        self.actor = None


@contextmanager
def _given_up_together(answer: Any) -> Iterator[None]:
    """Cancel the actor's call if its caller is interrupted or cancelled, so that no item is taken or put later."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        calls.cancel(answer)
        raise


def _check(timeout: float | None, block: bool) -> None:
    if block and timeout is not None and timeout < 0:
        raise ValueError(f"timeout must not be negative, but is {shown(timeout)}")


def _first(items: list[Any]) -> Any:
    if not items:
        raise Empty
    return items[0]


class _QueueActor:
    """The actor of a queue. A full or empty queue is reported by values, because it is no error of the actor."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)
        self._waiting = 0
        """Number of calls that wait for an item, or for room."""
        self._unused = asyncio.Event()
        """Set while no call waits."""
        self._unused.set()

    async def until_unused(self) -> None:
        """Return when no call waits any more."""
        await self._unused.wait()

    async def _wait_for(self, step: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
        self._waiting += 1
        self._unused.clear()
        try:
            return await asyncio.wait_for(step, timeout)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._unused.set()

    async def qsize(self) -> int:
        return self._queue.qsize()

    async def put(self, item: Any, timeout: float | None) -> bool:
        """Add an item; return False if there was no room in time."""
        try:
            if timeout == 0:
                self._queue.put_nowait(item)
            else:
                await self._wait_for(self._queue.put(item), timeout)
        except (asyncio.QueueFull, TimeoutError):
            return False
        return True

    async def get(self, timeout: float | None) -> list[Any]:
        """Return a list of one item; empty if there was none in time."""
        try:
            if timeout == 0:
                return [self._queue.get_nowait()]
            return [await self._wait_for(self._queue.get(), timeout)]
        except (asyncio.QueueEmpty, TimeoutError):
            return []

    async def put_batch(self, items: list[Any]) -> int:
        """Add all items and return -1; if they do not fit, add none and return the number of items in the queue."""
        size = self._queue.qsize()
        if 0 < self._maxsize < size + len(items):
            return size
        for item in items:
            self._queue.put_nowait(item)
        return -1

    async def get_batch(self, num_items: int) -> tuple[int, list[Any] | None]:
        """Return the number of items in the queue, and the first ``num_items`` of them, or None if there are fewer."""
        size = self._queue.qsize()
        if size < num_items:
            return size, None
        return size, [self._queue.get_nowait() for _ in range(num_items)]
