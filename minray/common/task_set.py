"""Asyncio tasks that run in the background of their owner.

Ray: has no counterpart; its event loops keep what is posted to them

An event loop refers to its tasks weakly, so a task that nobody holds may be collected before it has ended. A set holds each
task until its end, and its owner cancels those that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any


class TaskSet:
    """Runs coroutines in the background."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        """Tasks that have not ended yet."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(self._tasks)

    def begin(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a coroutine as a task of this name on the running loop."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> list[asyncio.Task[Any]]:
        """Cancel the tasks that have not ended, and return them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks
