"""Tasks that stand still: the raylet lends their CPUs to other tasks until they go on.

Ray: NotifyWorkerBlocked and NotifyWorkerUnblocked in src/ray/raylet_ipc_client

While any thread waits for the task that runs in this worker, its raylet lends the CPUs of that task to others (G101), and
nothing is queued behind it. The same holds for a generator that back-pressure holds up: its reader may wait for a task that
needs those CPUs. A thread may outlive the task that has started it. What such a thread waits for blocks no task, least of
all the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import ReceivedTask
from minray.protocol.raylet import NotifyWorkerBlocked
from minray.rpc.connection import ignore

LENDS_AFTER_S = 0.01
"""Seconds for which a thread reads from object stores, or waits for a reader, before its task lends CPUs: most need less."""


class BlockedTasks:
    """The tasks of one process that stand still."""

    def __init__(self, process: Process, on_blocked: Callable[[bool], None]) -> None:
        self._own_id = process.config.worker_id
        self._raylet = process.raylet
        self._on_blocked = on_blocked
        """Told whether this worker lends its CPUs, before the raylet is."""
        self._blocking: dict[object, ReceivedTask] = {}
        """The task that each wait holds up, until the wait or the task ends."""
        self._sequence = 0
        """The number of the last NotifyWorkerBlocked."""

    def lend_soon(self, task: ReceivedTask) -> Callable[[], None]:
        """A user thread waits for what mostly comes at once, and if not, may need the CPUs of its task in order to come.

        Call what this returns when the thread goes on.
        """
        wait = object()
        timer = asyncio.get_running_loop().call_later(LENDS_AFTER_S, self.hold_up, task, wait)

        def end() -> None:
            timer.cancel()
            self.go_on(wait)

        return end

    def hold_up(self, task: ReceivedTask, wait: object) -> None:
        """Lend the CPUs of a task, unless it is over, until ``go_on`` is called with the same wait."""
        if not task.is_over:
            self._blocking[wait] = task
            if len(self._blocking) == 1:
                self._notify(True)

    def go_on(self, wait: object) -> None:
        """End a wait; do nothing if it holds up no task."""
        if self._blocking.pop(wait, None) is not None and not self._blocking:
            self._notify(False)

    def on_task_over(self, task: ReceivedTask) -> None:
        """Threads that the task has left behind may wait on, but hold it up no more."""
        left = [wait for wait, blocked in self._blocking.items() if blocked is task]
        for wait in left:
            del self._blocking[wait]
        if left and not self._blocking:
            self._notify(False)

    def begin_to_end(self) -> None:
        """Lend the CPUs of an actor that ends: no thread of it waits, but tasks that it waits for may need them."""
        self._notify(True)

    def _notify(self, blocked: bool) -> None:
        self._on_blocked(blocked)
        self._sequence += 1
        self._raylet.send(NotifyWorkerBlocked(self._own_id, self._sequence, blocked), ignore)
