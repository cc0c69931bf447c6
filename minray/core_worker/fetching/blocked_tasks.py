"""Has the raylet lend the CPUs of blocked tasks to other tasks until the blocked ones go on.

Ray: NotifyWorkerBlocked and NotifyWorkerUnblocked in src/ray/raylet_ipc_client

While any thread of the task that runs in this worker waits, the raylet lends the CPUs of that task to others (G101), and no
task is queued behind it. The same holds for a generator that back-pressure holds up: its reader may wait for a task that
needs those CPUs. A call of an actor lends nothing (``WaitingThreads.begin_wait``). A thread may outlive the task that has
started it. The waits of such a thread block no task, in particular not the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import ReceivedTask
from minray.protocol.raylet import NotifyWorkerBlocked
from minray.rpc.connection import ignore

LENDS_AFTER_S = 0.01
"""A wait for a store or a reader lends CPUs only after this many seconds; most end earlier."""


class BlockedTasks:
    """Knows the blocked tasks of one process, and tells the raylet to lend their CPUs."""

    def __init__(self, process: Process, on_blocked: Callable[[bool], None]) -> None:
        self._own_id = process.config.worker_id
        self._raylet = process.raylet
        self._on_blocked = on_blocked
        """Function that is told whether this worker lends its CPUs, before the raylet is told."""
        self._blocking: dict[object, ReceivedTask] = {}
        """The task that each wait holds up, until the wait or the task ends."""
        self._sequence = 0
        """Number of the last NotifyWorkerBlocked message."""

    def lend_soon(self, task: ReceivedTask) -> Callable[[], None]:
        """Lend the CPUs of a task whose thread waits, but only if the wait takes longer than ``LENDS_AFTER_S``.

        The caller calls the returned function when the thread goes on. Such waits mostly end at once; a longer one may need
        the task's CPUs to end.
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
        """End all waits of a task that is over, though threads that it has left behind may still wait."""
        left = [wait for wait, blocked in self._blocking.items() if blocked is task]
        for wait in left:
            del self._blocking[wait]
        if left and not self._blocking:
            self._notify(False)

    def begin_to_end(self) -> None:
        """Lend the CPUs of an actor that ends: none of its threads waits, but tasks that it waits for may need them."""
        self._notify(True)

    def _notify(self, blocked: bool) -> None:
        self._on_blocked(blocked)
        self._sequence += 1
        self._raylet.send(NotifyWorkerBlocked(self._own_id, self._sequence, blocked), ignore)
