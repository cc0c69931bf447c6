"""A trace of the tasks that each worker has run, for Perfetto (ui.perfetto.dev) and chrome://tracing.

Ray: python/ray/_private/state.py (chrome_tracing_dump), python/ray/_private/profiling.py

The format's process is a node, and its thread is a worker of that node. A row of these viewers cannot show two events at the
same time. So a worker whose calls overlap (an actor with threads or coroutines) has as many rows as it needs. The viewers
require numbers for nodes and rows; events of kind "M" give them names.

With the entry ``record_task_phases`` of the system config, or ``RAY_PROFILING=1``, an event of a task contains events of its
phases.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from minray.common.ids import job_of, short
from minray.protocol.state import ProfileEvent, ProfileEvents, func_or_class_name

COLOURS = {"FINISHED": "generic_work", "FAILED": "terrible", "CANCELLED": "grey"}
"""Colour of an event by the task's state; the viewers know colours by these names."""
PHASES = {
    "task:deserialize_arguments": "rail_load",
    "task:execute": "rail_animation",
    "task:store_outputs": "rail_idle",
}
"""Phases of a task in their order, with their colours; these are Ray's names."""

PIECE_BYTES = 256 * 1024
"""Least bytes of a piece of a trace, but for the last: large enough that a piece costs little beside its events."""

TraceEvent = dict[str, Any]


def write_trace(filename: str, events: list[TraceEvent]) -> None:
    import json

    Path(filename).write_text(json.dumps(events))


def trace_events(workers: Sequence[ProfileEvents]) -> list[TraceEvent]:
    """Return the trace: the events of each worker, row by row in the order of their start, and then the names."""
    return [event for part in trace_parts(workers) for event in part]


def trace_parts(workers: Sequence[ProfileEvents]) -> Iterator[list[TraceEvent]]:
    """Return the trace in parts, a worker's events each, so that a large one need not be in memory as a whole."""
    nodes: dict[bytes, int] = {}
    names: list[TraceEvent] = []
    rows = 0
    for worker in sorted(workers, key=lambda worker: (worker.node_id, worker.worker_id)):
        if worker.node_id not in nodes:
            nodes[worker.node_id] = len(nodes)
            names.append(_name("process_name", f"Node {worker.node_ip} {short(worker.node_id)}", pid=len(nodes) - 1))
        node = nodes[worker.node_id]
        for number, row in enumerate(in_rows(worker.events), 1):
            row_name = f"worker:{worker.worker_id.hex()}" + (f" ({number})" if number > 1 else "")
            names.append(_name("thread_name", row_name, pid=node, tid=rows))
            yield [part for event in row for part in _describe(event, node, rows)]
            rows += 1
    yield names


def trace_pieces(workers: Sequence[ProfileEvents], begin: bytes, end: bytes) -> Iterator[bytes]:
    """Return a trace as JSON in pieces of about ``PIECE_BYTES``, between two texts."""
    piece, separator = bytearray(begin), b""
    for events in trace_parts(workers):
        if events:
            piece += separator + msgspec.json.encode(events)[1:-1]
            separator = b","
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + end)


def newest(workers: Sequence[ProfileEvents], most: int) -> list[ProfileEvents]:
    """Return the workers with the tasks that ended last, at most this number of all workers together."""
    if sum(len(worker.events) for worker in workers) <= most:
        return list(workers)
    every = ((_end_of(event), number) for number, worker in enumerate(workers) for event in worker.events)
    kept = Counter(number for _, number in heapq.nlargest(most, every))
    return [
        msgspec.structs.replace(worker, events=heapq.nlargest(kept[number], worker.events, key=_end_of))
        for number, worker in enumerate(workers)
        if number in kept
    ]


def _end_of(event: ProfileEvent) -> int:
    return event.start_us + event.duration_us


def in_rows(events: Sequence[ProfileEvent]) -> list[list[ProfileEvent]]:
    """Distribute events over as few rows as possible, so that events of one row do not overlap."""
    rows: list[list[ProfileEvent]] = []
    for event in sorted(events, key=lambda event: event.start_us):
        free = next((row for row in rows if row[-1].start_us + row[-1].duration_us <= event.start_us), None)
        if free is None:
            rows.append([event])
        else:
            free.append(event)
    return rows


def _describe(event: ProfileEvent, node: int, row: int) -> list[TraceEvent]:
    """Return the event of a task, and inside it those of its phases, if they were recorded."""
    args = {
        "task_id": event.task_id.hex(),
        "job_id": job_of(event.task_id).hex(),
        "attempt_number": event.attempt,
        "func_or_class_name": func_or_class_name(event),
        "actor_id": event.actor_id.hex() or None,
        "type": event.kind,
        "state": event.state,
    }
    parts = [(f"task::{event.name}", event.name, COLOURS[event.state], event.start_us, event.duration_us)]
    ends_us = [min(end_us, event.duration_us) for end_us in event.phase_ends_us]
    if ends_us:
        times = zip(PHASES.items(), [0, *ends_us], [*ends_us, event.duration_us], strict=False)
        parts += [(name, name, colour, event.start_us + begin, end - begin) for (name, colour), begin, end in times]
    return [
        {"cat": cat, "name": name, "pid": node, "tid": row, "ts": ts, "dur": dur, "ph": "X", "cname": colour, "args": args}
        for cat, name, colour, ts, dur in parts
    ]


def _name(kind: str, name: str, **where: int) -> TraceEvent:
    return {"name": kind, "ph": "M", "args": {"name": name}, **where}
