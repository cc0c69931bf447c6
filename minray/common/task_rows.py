"""The layout of a worker's journal: a row for each task that it has run, in a ring, so that the newest rows are there.

Ray: src/ray/core_worker/profile_event.h (the times of tasks, which Ray's workers report to the gcs all the time)

A worker writes a row whenever a task is over, and tells no process. A reader of the cluster's state asks the worker while
it lives. When it is dead, its raylet reads the journal (``Processes.journal``), however it died, and sends the rows to the
gcs.

Rules
  * A row has a fixed size and no object of the task, so that writing it allocates nothing. A long name loses its end.
  * Numbers of rows count from 1 and never return. A row whose number is 0 was never written.
  * A process that is killed while it writes a row may leave a mixture of two rows; its times may be wrong then.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import NamedTuple

from minray.common.task_spec import ACTOR_CREATION_TASK, ACTOR_TASK, NORMAL_TASK, TaskTemplate, kind_of

HEADER = struct.Struct("<Qq")
"""Layout of the journal's beginning: bytes in use, and the wall-clock time (microseconds) when ``perf_counter_ns`` was 0."""
ROWS_BEGIN = 64
"""Offset of the first row."""
ROW = struct.Struct("<24s16sQQQIBB2x56s")
"""Layout of a row: task id, actor id, beginning (``perf_counter_ns``), duration in microseconds, number of the row, attempt,
status, kind, label. 128 bytes, which are two lines of a CPU's cache."""
NUMBER = struct.Struct("<Q")
NUMBER_OFFSET = 24 + 16 + 8 + 8
KINDS = (NORMAL_TASK, ACTOR_CREATION_TASK, ACTOR_TASK)
BETWEEN_NAMES = "\x1f"
"""Character in a label between the name that the user chose and that of the function."""
LABEL_BYTES = 56


def label_of(template: TaskTemplate) -> tuple[int, bytes]:
    """Return the part of a row that all tasks of one template share: the number of their kind, and their names."""
    text = template.name + (BETWEEN_NAMES + template.function_name if template.function_name else "")
    return KINDS.index(kind_of(template)), text.encode(errors="replace")[:LABEL_BYTES]


class TaskRow(NamedTuple):
    """A row as it is read."""

    task_id: bytes
    actor_id: bytes
    started_ns: int
    duration_us: int
    attempt: int
    status: int
    kind: str
    name: str
    function_name: str


def rows_of(data: bytes) -> list[TaskRow]:
    """Return the rows in these bytes. Skip what was never written."""
    return [row_of(*fields) for fields in ROW.iter_unpack(data) if fields[4] and fields[7] < len(KINDS)]


def row_of(
    task_id: bytes,
    actor_id: bytes,
    started_ns: int,
    duration_us: int,
    number: int,
    attempt: int,
    status: int,
    kind: int,
    label: bytes,
) -> TaskRow:
    """Make a row of its unpacked fields."""
    name, _, function_name = label.rstrip(b"\0").decode(errors="ignore").partition(BETWEEN_NAMES)
    actor_id = actor_id if any(actor_id) else b""
    return TaskRow(
        task_id=task_id,
        actor_id=actor_id,
        started_ns=started_ns,
        duration_us=duration_us,
        attempt=attempt,
        status=status,
        kind=KINDS[kind],
        name=name,
        function_name=function_name,
    )


def read_journal(journal: memoryview) -> tuple[int, bytes, int]:
    """Return the clock's zero of a dead process's journal, its rows from the oldest to the newest, and how many are lost."""
    if len(journal) < ROWS_BEGIN + ROW.size:
        return 0, b"", 0
    rows = journal[ROWS_BEGIN:]
    most = len(rows) // ROW.size

    def number(place: int) -> int:
        found: int = NUMBER.unpack_from(rows, place * ROW.size + NUMBER_OFFSET)[0]
        return found

    count = bisect_left(range(most), True, key=lambda place: number(place) == 0)
    if not count:
        return 0, b"", 0
    oldest = bisect_left(range(count), True, key=lambda place: number(place) < number(0))
    ordered = bytes(rows[oldest * ROW.size : count * ROW.size]) + bytes(rows[: oldest * ROW.size])
    return HEADER.unpack_from(journal)[1], ordered, max(0, number((oldest or count) - 1) - count)
