"""The event loop of ``asyncio.run``, and of async actors, inside simulated user code.

It is an ordinary loop of asyncio, except that it selects no files and that its waits are borders of its thread
(``user_thread``): there virtual time passes, and other threads run. Sets of its tasks and futures have the order in which
they were made, so the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Never, TypeVar, TypeVarTuple

from minray.platform.base import ProcessGone
from minray.simulation.loop import SimFuture, SimTask, unwind
from minray.simulation.refusal import refusal
from minray.simulation.user_thread import SimParker, UserThread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimulatedUserLoop(asyncio.BaseEventLoop):
    """The event loop of ``asyncio.run`` inside simulated user code: an ordinary loop whose waits are borders."""

    def __init__(self, thread: UserThread) -> None:
        super().__init__()
        self._thread = thread
        self._selector = _BorderSelector(thread)

    def time(self) -> float:
        return self._thread.process.time()

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self, self._thread.process.loop.next_ordinal())

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        name = name or str(getattr(coro, "__qualname__", "task"))
        process = self._thread.process
        return SimTask(coro, self, process.loop.next_ordinal(), process, name, context or copy_context())

    def run_in_executor(self, executor: object, func: Callable[[*Ts], object], *args: *Ts) -> Never:
        raise refusal("run_in_executor: threads inside simulated user code; use tasks, an actor, or coroutines")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an uncaught exception, as any loop does; a process that is unwound ends at its next border instead."""
        if not isinstance(context.get("exception"), ProcessGone):
            super().call_exception_handler(context)

    def close(self) -> None:
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            unwind(task)
        super().close()

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        self._selector.parker.release()


class _BorderSelector:
    """The part of a selector that ``BaseEventLoop`` uses. It selects no files; callbacks from outside wake it."""

    def __init__(self, thread: UserThread) -> None:
        self._thread = thread
        self.parker = SimParker(thread)

    def select(self, timeout_s: float | None) -> list[object]:
        if timeout_s == 0:
            timeout_s = self._thread.poll_s()
        if timeout_s is None or timeout_s > 0:
            self.parker.wait(timeout_s)
            self.parker = SimParker(self._thread)
        return []
