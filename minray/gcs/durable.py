"""Durable changes: the services of the gcs store a change before they publish it or reply.

Ray: the callbacks that follow each write in src/ray/gcs/ (a ``StatusCallback`` per table)

A handler decides, commits, and only then makes its decision true and replies. When a write fails, the request is refused: no
process sees any of it, and the caller may ask again. An event such as a death cannot be refused. Its write is retried until
it succeeds, and it is published only then. Changes of one thing wait for each other; changes of different things share one
sync.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from minray.platform.base import StorageFailed
from minray.protocol.base import Record
from minray.rpc.service import Call

logger = logging.getLogger(__name__)

STORAGE_RETRY_S = 1.0
"""Seconds before the write of an event is tried again."""

S = TypeVar("S")
Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)
T = TypeVar("T")


def durable(
    handler: Callable[[S, Q, Call], Awaitable[R]],
) -> Callable[[S, Q, Call], Coroutine[Any, Any, R | None]]:
    """Wrap a handler that commits: if the write fails, answer ``storage-failed``, so that the caller may try again."""

    @functools.wraps(handler)
    async def handle(self: S, request: Q, call: Call) -> R | None:
        try:
            return await handler(self, request, call)
        except StorageFailed as error:
            logger.error("refused a %s, which cannot be stored: %s", type(request).__name__, error)
            call.fail("storage-failed", str(error))
            return None

    return handle


class Changes:
    """Holds one lock per thing (actor, node, job, ...), so that only one change of it is under way."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[bytes, asyncio.Lock] = weakref.WeakValueDictionary()
        """Locks by key; a lock disappears when no coroutine holds or awaits it."""

    def of(self, key: bytes) -> asyncio.Lock:
        """Return the lock to hold from a decision about a thing until that is committed and true."""
        return self._locks.setdefault(key, asyncio.Lock())


async def until_stored(change: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a change that stores an event, and repeat it until the write succeeds."""
    while True:
        try:
            return await change(*args)
        except StorageFailed as error:
            logger.error("an event could not be stored; trying again in %g s: %s", STORAGE_RETRY_S, error)
            await asyncio.sleep(STORAGE_RETRY_S)
