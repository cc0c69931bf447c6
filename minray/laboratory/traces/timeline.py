"""Reads the timeline of a real run: a Chrome trace that ``minray timeline`` or ``ray timeline`` has written.

Ray: python/ray/_private/state.py (chrome_tracing_dump), which writes the format

An event of a task has the category ``task::NAME``, in Ray too, a start and a duration in microseconds. A task arrives when
it has started in the real run, and takes as long as it took then. Phases of tasks, names of rows and events of other
categories are skipped.

Left out, and said in the notes: dependencies, sizes and resources, which a timeline does not have. Each task needs one CPU.
So the trace shows the load of a run as it was admitted, not the queue before it. Calls of actors are tasks here.
"""

from __future__ import annotations

from typing import Any

from minray.laboratory.traces.objects import JsonPlace
from minray.laboratory.workload import TraceError, TraceTask, Workload

CATEGORY = "task::"
"""Beginning of the category of a task's event."""
NOTE = "a timeline has neither dependencies nor sizes nor resources; tasks arrive when they had started"


def is_one(decoded: Any) -> bool:
    return isinstance(decoded, list) or (isinstance(decoded, dict) and "traceEvents" in decoded)


def events_of(decoded: Any, file: str) -> list[JsonPlace]:
    """Return the events of tasks, in the order of their start. Raises TraceError."""
    whole = JsonPlace({"traceEvents": decoded} if isinstance(decoded, list) else decoded, file)
    events = [event for event in whole.items("traceEvents") if event.text("cat", "").startswith(CATEGORY)]
    return sorted(events, key=lambda event: event.number("ts"))


def read(decoded: Any, file: str) -> Workload:
    """Read a decoded file. Raises TraceError."""
    events = events_of(decoded, file)
    if not events:
        raise TraceError(f"{file} has no events of the category {CATEGORY}NAME; write it with `minray timeline -o FILE`")
    begin_us = events[0].number("ts")
    tasks = []
    for index, event in enumerate(events):
        if not event.has("dur"):
            raise event.wrong("dur", None, "a number: the duration of the task in microseconds")
        task = TraceTask(
            id=str(index),
            duration_s=event.number("dur") / 1e6,
            arrival_s=(event.number("ts") - begin_us) / 1e6,
            kind=event.text("cat").removeprefix(CATEGORY),
        )
        tasks.append(task)
    return Workload("timeline", tuple(tasks), notes=(NOTE,))
