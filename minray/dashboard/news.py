"""News for the pages that are open: which tables have changed.

Ray: has no counterpart; its page asks for everything every few seconds

A page subscribes to the tables that it shows. While somebody subscribes, these tables are read again and again, once for all
subscribers, and compared. A change reaches each subscriber as a short event, and the page asks for what it shows. A table
that takes long to read is read less often.

Rules
  * A subscriber has a set of changed tables, not a queue. One that reads slowly, or never, has one entry for each table.
  * Without subscribers nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from minray.dashboard.cluster_state import DashboardState, in_thread
from minray.dashboard.tables import COLUMNS
from minray.platform.base import PlatformError

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Seconds between two looks at the tables."""
SHARE = 4
"""Part of the time that may be spent on reading tables, as a divisor: a quarter."""
VOLATILE = {"uptime_s"}
"""Entries of the summary whose change alone is no news."""


class Subscriber:
    """One page that is open."""

    def __init__(self, tables: frozenset[str]) -> None:
        self.tables = tables
        self.changed: set[str] = set()
        """Tables that have changed since the page was last told."""
        self.is_told = asyncio.Event()
        """Set when there is something to tell."""

    def note(self, changed: set[str], always: bool) -> None:
        """Note what has changed; ``always``: the summary has, of which everybody is told."""
        mine = changed & self.tables
        self.changed |= mine
        if mine or always:
            self.is_told.set()

    async def wait_news(self, timeout_s: float) -> list[str] | None:
        """Wait for news and return the changed tables; None if there are none in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.is_told.wait()
        except TimeoutError:
            return None
        self.is_told.clear()
        changed, self.changed = sorted(self.changed), set()
        return changed


class News:
    """All subscribers, and the task that looks at the tables for them."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        self._subscribers: set[Subscriber] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[str, Any] = {}
        """Rows of each watched table when it was last read."""
        self.summary: dict[str, Any] = {}
        """Newest summary of the cluster."""

    def subscribe(self, tables: frozenset[str]) -> Subscriber:
        """Add a subscriber, which is told the summary at once. Raises ValueError for a table that is not there."""
        if unknown := sorted(tables - COLUMNS.keys()):
            raise ValueError(f"there is no table {unknown[0][:50]!r}; there are {', '.join(COLUMNS)}")
        subscriber = Subscriber(tables)
        if self.summary:
            subscriber.is_told.set()
        self._subscribers.add(subscriber)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="news")
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def __len__(self) -> int:
        return len(self._subscribers)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._subscribers:
                began = loop.time()
                try:
                    await self._look()
                except Exception:  # A bug of minray; the pages must still learn what comes later.
                    logger.exception("the tables could not be compared")
                await asyncio.sleep(max(PERIOD_S, (SHARE - 1) * (loop.time() - began)))
        finally:
            self._task = None
            self._seen.clear()

    async def _look(self) -> None:
        summary = await self._state.cluster()
        is_new = _without_volatile(summary) != _without_volatile(self.summary)
        self.summary = summary
        changed = set()
        if summary["is_connected"]:
            watched = frozenset().union(*(one.tables for one in self._subscribers))
            self._seen = {name: seen for name, seen in self._seen.items() if name in watched}
            for name in sorted(watched):
                if await self._has_changed(name):
                    changed.add(name)
        for subscriber in self._subscribers:
            subscriber.note(changed, is_new)

    async def _has_changed(self, name: str) -> bool:
        try:
            table = (await self._state.table(name)).value
        except (PlatformError, ConnectionError, TimeoutError):
            return False  # The next look at the summary tells it.
        rows = (table.rows, table.left_out, table.silent)
        is_first = name not in self._seen
        is_other = not is_first and await in_thread(lambda: self._seen[name] != rows, len(table.rows))
        self._seen[name] = rows
        return is_other

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _without_volatile(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in VOLATILE}
