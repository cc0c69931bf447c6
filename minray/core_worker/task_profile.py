"""When this process has run which task: the last ten thousand, for whoever asks for a timeline.

Ray: src/ray/core_worker/profile_event.h, task_event_buffer.h

Ray's workers send the times of every task to the gcs, which keeps them. Here each process remembers its own, and forgets
them when it ends.

Rules
  * Noting is one append of a tuple, in whatever thread the task has run. All else is done when somebody asks.
  * Times are noted by the clock that measures durations. What the wall clock said then is known from what both say now; if
    somebody has set it meanwhile, all times of a process are wrong by as much, and still in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from minray.common.task_spec import TaskTemplate
from minray.core_worker.task_account import kind_of
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.protocol.state import ProfileEvent, ProfileEvents

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

MOST_EVENTS = 10_000
STATES = {OK: "FINISHED", FAILED: "FAILED", CANCELLED: "CANCELLED"}

Note = tuple[TaskTemplate, bytes, int, bytes, int, int, int]
"""What was run: template, task id, attempt, actor id; when it began (``perf_counter_ns``), how many microseconds it took,
how it ended."""


class TaskProfile:
    """What one process has run."""

    def __init__(self) -> None:
        self._notes: deque[Note] = deque(maxlen=MOST_EVENTS)
        self.note: Callable[[Note], None] = self._notes.append
        """From any thread, when a task is over."""

    def events(self, core: CoreWorker) -> ProfileEvents:
        """The answer of this process."""
        zero_us = int(core.platform.host.time() * 1e6) - time.perf_counter_ns() // 1000
        config, pid = core.config, core.platform.processes.pid
        events = [_event(note, zero_us) for note in list(self._notes)]
        return ProfileEvents(config.node_id, config.node_ip, config.worker_id, pid, events)


def _event(note: Note, zero_us: int) -> ProfileEvent:
    """``zero_us``: what the wall clock said when the other one began."""
    template, task_id, attempt, actor_id, started, duration_us, status = note
    began_us = zero_us + started // 1000
    kind = kind_of(template)
    return ProfileEvent(task_id, attempt, template.name, kind, actor_id, began_us, duration_us, STATES[status])
