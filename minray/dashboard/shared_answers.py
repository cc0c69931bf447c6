"""Answers of the cluster that all visitors of the dashboard share, so that ten cost it as much as one.

Ray: python/ray/dashboard/ has a cache per endpoint (aiohttp_cache)

Rules
  * One question is under way at a time. Everybody who asks for it meanwhile gets the same answer.
  * An answer is kept for a second. One that took long is kept as long as it took, since asking again costs that much again.
  * An error is kept too: a cluster that does not answer is not asked more often.
  * Nothing is asked unless somebody wants to know, and nothing is kept that nobody has wanted for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

KEPT_S = 1.0
"""Least seconds for which an answer is kept."""
MOST_KEPT_S = 10.0
"""Most seconds for which an answer is kept, however long it took."""
FORGOTTEN_S = 60.0
"""Seconds after which an answer that nobody has wanted is dropped."""


class Kept(NamedTuple, Generic[T]):
    """An answer, and when it came."""

    value: T
    read_at: float
    """Time of the loop when the answer was complete."""
    number: int
    """Number of this answer among all, which names it."""


class _SharedAnswer:
    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        """The question under way; None if there is none."""
        self.kept: Kept[Any] | None = None
        self.error: Exception | None = None
        """The error of the last question, if it failed."""
        self.stale_at = 0.0
        """Time from which the next visitor's question is asked anew."""
        self.wanted_at = 0.0


class SharedAnswers:
    """The newest answer to each question, by the question's name."""

    def __init__(self) -> None:
        self._entries: dict[str, _SharedAnswer] = {}
        self.questions = 0
        """Number of questions that were asked so far."""

    async def get(self, name: str, ask: Callable[[], Awaitable[T]]) -> Kept[T]:
        """Return the kept answer, or ask. Raises the question's error."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        entry = self._entries.setdefault(name, _SharedAnswer())
        entry.wanted_at = now
        if entry.task is None and now >= entry.stale_at:
            self._forget(now)
            entry.task = loop.create_task(self._ask(entry, ask), name=f"ask({name})")
        if entry.task is not None:
            await asyncio.shield(entry.task)
        if entry.error is not None:
            raise _copy_of(entry.error)
        assert entry.kept is not None
        return entry.kept

    async def _ask(self, entry: _SharedAnswer, ask: Callable[[], Awaitable[Any]]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.questions += 1
        try:
            entry.kept, entry.error = Kept(await ask(), loop.time(), self.questions), None
        except Exception as error:  # It is raised to everybody who has asked; a bug reaches the log there.
            entry.error = error.with_traceback(None)
        finally:
            took_s = loop.time() - began
            entry.stale_at = loop.time() + min(max(KEPT_S, took_s), MOST_KEPT_S)
            entry.task = None

    def _forget(self, now: float) -> None:
        for name, entry in list(self._entries.items()):
            if entry.task is None and now - entry.wanted_at > FORGOTTEN_S:
                del self._entries[name]

    def close(self) -> None:
        """Give up all questions under way."""
        for entry in self._entries.values():
            if entry.task is not None:
                entry.task.cancel()


def _copy_of(error: Exception) -> Exception:
    """Return a copy of an error: one that is raised several times would collect the frames of all who get it."""
    try:
        return type(error)(*error.args)
    except TypeError:
        return error
