"""Records when this process has run which task: the last ten thousand, for ``minray.timeline``.

Ray: src/ray/core_worker/profile_event.h, task_event_buffer.h

Ray's workers send the times of every task to the gcs, which keeps them. Here each process keeps its own in its journal
(``common/task_rows``). When it is dead, its raylet reads the journal and sends the rows to the gcs.

Rules
  * ``note`` packs a row into memory that is allocated already, in the thread that has run the task. It keeps no object of
    the task: ten thousand small objects, each freed when it has left the CPU's cache, made n:n calls a fifth slower.
  * Times are noted by the clock that measures durations. Wall-clock times are computed from what both clocks say when
    the events are read. A dead process has noted that with each block of rows. If the wall clock was set meanwhile, all
    times of a process are off by as much, and still in order.
  * Phases are kept in this process alone, and end with it.
"""

from __future__ import annotations

import heapq
import itertools
import mmap
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from minray.common.clock import Clock
from minray.common.task_rows import HEADER, ROW, ROWS_BEGIN, TaskRow, label_of, row_of
from minray.common.task_spec import TaskTemplate
from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import Execution, ReceivedTask
from minray.platform.base import JOURNAL_BYTES, Platform
from minray.protocol.state import GetProfileEvents, ProfileEvent, ProfileEvents, profile_event

HOLDS_LOCKS = True
"""See ``common/package.py``: these frames may hold a lock."""

MOST_EVENTS = 10_000
"""Number of finished tasks remembered; a bound on memory (about 1.3 MB of rows)."""
BLOCK = 128
"""Number of rows by which the used part of the journal grows; its length is not written for each task."""
MOST_LABELS = 1000
"""Most templates whose labels are kept; a bound on memory."""


class TaskProfile:
    """Records the tasks that one process has run."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._numbers = itertools.count()
        """Counter whose next number, modulo ``MOST_EVENTS``, is the row to write; ``next`` is atomic."""
        journal = platform.processes.journal
        self._journal = journal if len(journal) else memoryview(mmap.mmap(-1, JOURNAL_BYTES))
        """The journal, or memory of a process without one. It is used as rows are filled."""
        self._lock = threading.Lock()
        self._templates: list[TaskTemplate | None] = []
        """The template of each row's task, whose names are whole; None: the row is empty or is being written.

        It grows with the used part of the journal."""
        self._grown = 0
        """Number of the next row for which the used part of the journal must grow, or the clock's zero be written again."""
        self._label: tuple[TaskTemplate | None, int, bytes] = None, 0, b""
        """Template and label of the task that was noted last; the next is mostly of the same template."""
        self._labels: dict[int, tuple[TaskTemplate, int, bytes]] = {}
        """Templates with their labels, by the template's ``id()``."""
        self._phases: deque[tuple[bytes, int, int]] = deque(maxlen=2 * MOST_EVENTS)
        """Task id, attempt and time (``perf_counter_ns``) of each phase that has ended; ``append`` is atomic."""

    def note(self, task: ReceivedTask, started: int, execution: Execution) -> None:
        """Record a task that is over; called from any thread."""
        number = next(self._numbers)
        if number >= self._grown:
            self._grow(number)
        place, template, templates = number % MOST_EVENTS, task.header.template, self._templates
        known, kind, text = self._label
        if known is not template:
            _, kind, text = self._label = self._label_of(template)
        templates[place] = None
        ROW.pack_into(
            self._journal,
            ROWS_BEGIN + place * ROW.size,
            task.task_id,
            task.actor_id,
            started,
            execution.duration_us,
            number + 1,
            task.attempt,
            execution.status,
            kind,
            text,
        )
        templates[place] = template

    def _grow(self, number: int) -> None:
        """Count another block of rows to the used part of the journal, and write the clock's zero there."""
        with self._lock:
            rows = min(number + BLOCK, MOST_EVENTS)
            used = max(HEADER.unpack_from(self._journal)[0], ROWS_BEGIN + rows * ROW.size)
            HEADER.pack_into(self._journal, 0, used, self._zero_us())
            self._templates += [None] * (rows - len(self._templates))
            self._grown = number + BLOCK

    def _label_of(self, template: TaskTemplate) -> tuple[TaskTemplate, int, bytes]:
        """Return the label of a template's rows; making one takes longer than all the rest of ``note``."""
        label = self._labels.get(id(template))
        if label is None:
            if len(self._labels) >= MOST_LABELS:
                self._labels.clear()
            label = self._labels[id(template)] = template, *label_of(template)
        return label

    def _zero_us(self) -> int:
        """Return the wall clock's time in microseconds when ``perf_counter_ns`` was 0."""
        return int(self._platform.host.time() * 1e6) - Clock.perf_counter_ns() // 1000

    def note_phase(self, task: ReceivedTask) -> None:
        """Record that a task has its arguments, or the second time that its function has returned (``TimedExecutor``)."""
        self._phases.append((task.task_id, task.attempt, Clock.perf_counter_ns()))

    def events(self, process: Process, request: GetProfileEvents) -> ProfileEvents:
        """Return this process's answer to a request for events, without rows that are being written at this moment."""
        zero_us = self._zero_us()
        config, pid = process.config, process.platform.processes.pid
        before, after = list(self._templates), self._templates
        used = HEADER.unpack_from(self._journal)[0]
        rows = list(ROW.iter_unpack(self._journal[ROWS_BEGIN:used])) if used else []
        phases: dict[tuple[bytes, int], list[int]] = {}
        for task_id, attempt, ended in list(self._phases):
            phases.setdefault((task_id, attempt), []).append(ended)
        whole = [
            (template, row)
            for template, row, now in zip(before, rows, after, strict=False)
            if template is not None and template is now
        ]
        newest = whole if len(whole) <= request.limit else heapq.nlargest(request.limit, whole, key=_number_of)
        events = [_event(template, row_of(*row), zero_us, phases) for template, row in newest]
        events.sort(key=lambda event: event.start_us)
        return ProfileEvents(
            node_id=config.node_id,
            node_ip=config.node_ip,
            worker_id=config.worker_id,
            pid=pid,
            total=len(whole),
            events=events,
        )


def _number_of(row: tuple[TaskTemplate, tuple[Any, ...]]) -> int:
    """Return the number of an unpacked row (``ROW``): tasks that end later have larger ones."""
    number: int = row[1][4]
    return number


def _event(
    template: TaskTemplate, row: TaskRow, zero_us: int, phases: Mapping[tuple[bytes, int], Sequence[int]]
) -> ProfileEvent:
    """Describe a row with the whole names of its template and the phases of its task."""
    row = row._replace(name=template.name, function_name=template.function_name)
    ends = phases.get((row.task_id, row.attempt), ())
    return profile_event(row, zero_us, [(ended - row.started_ns) // 1000 for ended in ends])
