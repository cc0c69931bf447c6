"""Records when this process has run which task: the last ten thousand, for ``minray.timeline``.

Ray: src/ray/core_worker/profile_event.h, task_event_buffer.h

Ray's workers send the times of every task to the gcs, which keeps them. Here each process keeps its own, and they are lost
when it ends.

Rules
  * ``note`` packs a row into memory that is allocated already, in the thread that has run the task. It keeps no object of
    the task: ten thousand small objects, each freed when it has left the CPU's cache, made n:n calls a fifth slower.
  * Times are noted by the clock that measures durations. Wall-clock times are computed from what both clocks say when
    the events are read. If the wall clock was set meanwhile, all times of a process are off by as much, and still in order.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from minray.common.clock import Clock
from minray.common.task_spec import TaskTemplate, kind_of
from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import Execution, ReceivedTask
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.protocol.state import ProfileEvent, ProfileEvents

HOLDS_LOCKS = True
"""See ``common/package.py``: these frames may hold a lock."""

MOST_EVENTS = 10_000
"""Number of finished tasks remembered; a bound on memory (about 0.6 MB of rows)."""
STATES = {OK: "FINISHED", FAILED: "FAILED", CANCELLED: "CANCELLED"}

ROW = struct.Struct("<24s16sQQIB3x")
"""Layout of a row: task id, actor id, beginning (``perf_counter_ns``), duration in microseconds, attempt, status."""


class TaskProfile:
    """Records the tasks that one process has run."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        """Counter whose next number, modulo ``MOST_EVENTS``, is the row to write; ``next`` is atomic."""
        self._rows: mmap.mmap | None = None
        """The rows, made when the first task is over, by one thread (``_lock``); memory is used as rows are filled."""
        self._lock = threading.Lock()
        self._templates: list[TaskTemplate | None] = [None] * MOST_EVENTS
        """The template of each row's task; None: the row is empty or is being written."""
        self._phases: deque[tuple[bytes, int, int]] = deque(maxlen=2 * MOST_EVENTS)
        """Task id, attempt and time (``perf_counter_ns``) of each phase that has ended; ``append`` is atomic."""

    def note(self, task: ReceivedTask, started: int, execution: Execution) -> None:
        """Record a task that is over; called from any thread."""
        place = next(self._numbers) % MOST_EVENTS
        rows = self._rows
        if rows is None:
            with self._lock:
                rows = self._rows = self._rows or mmap.mmap(-1, MOST_EVENTS * ROW.size)
        templates = self._templates
        templates[place] = None
        took_us, status = execution.duration_us, execution.status
        ROW.pack_into(rows, place * ROW.size, task.task_id, task.actor_id, started, took_us, task.attempt, status)
        templates[place] = task.header.template

    def note_phase(self, task: ReceivedTask) -> None:
        """Record that a task has its arguments, or the second time that its function has returned (``TimedExecutor``)."""
        self._phases.append((task.task_id, task.attempt, Clock.perf_counter_ns()))

    def events(self, process: Process) -> ProfileEvents:
        """Return this process's answer to a request for events, without rows that are being written at this moment."""
        zero_us = int(process.platform.host.time() * 1e6) - Clock.perf_counter_ns() // 1000
        config, pid = process.config, process.platform.processes.pid
        before, rows, after = list(self._templates), self._rows[:] if self._rows is not None else b"", self._templates
        phases: dict[tuple[bytes, int], list[int]] = {}
        for task_id, attempt, ended in list(self._phases):
            phases.setdefault((task_id, attempt), []).append(ended)
        events = [
            _event(template, ROW.unpack_from(rows, place * ROW.size), zero_us, phases)
            for place, template in enumerate(before)
            if template is not None and template is after[place]
        ]
        events.sort(key=lambda event: event.start_us)
        return ProfileEvents(
            node_id=config.node_id, node_ip=config.node_ip, worker_id=config.worker_id, pid=pid, events=events
        )


def _event(
    template: TaskTemplate, row: tuple[Any, ...], zero_us: int, phases: Mapping[tuple[bytes, int], Sequence[int]]
) -> ProfileEvent:
    """Unpack a row; ``zero_us`` is the wall clock's time in microseconds when ``perf_counter_ns`` was 0."""
    task_id, actor_id, started, duration_us, attempt, status = row
    began_us = zero_us + started // 1000
    actor = actor_id if any(actor_id) else b""
    name, kind, state = template.name, kind_of(template), STATES[status]
    return ProfileEvent(
        task_id=task_id,
        attempt=attempt,
        name=name,
        kind=kind,
        actor_id=actor,
        start_us=began_us,
        duration_us=duration_us,
        state=state,
        function_name=template.function_name,
        phase_ends_us=[(ended - started) // 1000 for ended in phases.get((task_id, attempt), ())],
    )
