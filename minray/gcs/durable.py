"""Storing before telling: how the services of the gcs change what must outlive them.

Ray: the callbacks that follow each write in src/ray/gcs/ (a ``StatusCallback`` per table)

A handler decides, commits, and only then makes its decision true and replies. When a write fails the request is refused;
nobody sees anything of it, and whoever wants it asks again. A death, or what else has happened, is no request that could be
refused: its write is tried again until it succeeds, and until then it is not told. Changes of one thing wait for each
other, those of different things share one sync.
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
"""How long what has happened waits before its write is tried again."""

S = TypeVar("S")
Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)
T = TypeVar("T")


def durable(
    handler: Callable[[S, Q, Call], Awaitable[R]],
) -> Callable[[S, Q, Call], Coroutine[Any, Any, R | None]]:
    """A handler that commits: if that fails, the caller hears ``storage-failed``, and may try again."""

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
    """Who is changing what."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[bytes, asyncio.Lock] = weakref.WeakValueDictionary()
        """A lock is gone when nobody holds or awaits it."""

    def of(self, key: bytes) -> asyncio.Lock:
        """Hold this from deciding about a thing until the decision is committed and true."""
        return self._locks.setdefault(key, asyncio.Lock())


async def until_stored(change: Callable[..., Awaitable[T]], *args: Any) -> T:
    """For what has happened, whether it can be stored at once or not."""
    while True:
        try:
            return await change(*args)
        except StorageFailed as error:
            logger.error("what has happened cannot be stored; trying again in %g s: %s", STORAGE_RETRY_S, error)
            await asyncio.sleep(STORAGE_RETRY_S)
