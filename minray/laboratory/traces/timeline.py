"""Reads the timeline of a real run: a Chrome trace that ``minray timeline`` or ``ray timeline`` has written.

Ray: python/ray/_private/state.py (chrome_tracing_dump), which writes the format

An event of a task has the category ``task::NAME``, in Ray too, a start and a duration in microseconds. A task arrives when
it has started in the real run, and takes as long as it took then. An event with an ``actor_id`` is a call of that actor, and
that of ``CLASS.__init__`` is its constructor. ``ray timeline`` leaves the ``actor_id`` out, but the ``task_id`` of a call
ends with it. An actor runs as many calls at a time as it did then. Phases of tasks, names of rows and events of other
categories are skipped.

Left out, and said in the notes: dependencies, sizes and resources, which a timeline does not have. Each task needs one CPU.
So the trace shows the load of a run as it was admitted, not the queue before it. Actors hold no resources.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import accumulate
from typing import Any

from minray.laboratory.traces.objects import JsonPlace
from minray.laboratory.workload import TraceActor, TraceError, TraceTask, Workload

CATEGORY = "task::"
"""Beginning of the category of a task's event."""
CONSTRUCTOR = ".__init__"
"""End of the category of a constructor's event."""
RAYS_TASK_ID = re.compile("[0-9a-f]{16}([0-9a-f]{32})")
"""A task's id as Ray writes it: eight bytes of its own, then the id of its actor."""
NO_ACTOR = "f" * 24
"""Beginning of that id for a task that is no call of an actor; the job's id follows."""
NOTE = "a timeline has neither dependencies nor sizes nor resources; tasks arrive when they had started"
NOTE_OF_ACTORS = "actors hold no resources, and each call needs none"


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
    tasks: list[TraceTask] = []
    constructors: dict[str, tuple[float, float]] = {}
    for index, event in enumerate(events):
        if not event.has("dur"):
            raise event.wrong("dur", None, "a number: the duration of the task in microseconds")
        arrival_s, duration_s = (event.number("ts") - begin_us) / 1e6, event.number("dur") / 1e6
        kind, actor = event.text("cat").removeprefix(CATEGORY), _actor_of(event)
        if actor and kind.endswith(CONSTRUCTOR):
            constructors.setdefault(actor, (arrival_s, duration_s))  # Later ones are restarts.
        else:
            tasks.append(TraceTask(str(index), duration_s, arrival_s=arrival_s, kind=kind, actor=actor))
    if not tasks:
        raise TraceError(f"{file} has constructors of actors alone; a workload has at least one task or call")
    calls: dict[str, list[TraceTask]] = defaultdict(list)
    for task in tasks:
        calls[task.actor].append(task)
    actors = tuple(_actor(actor, constructors, its_calls) for actor, its_calls in calls.items() if actor)
    return Workload("timeline", tuple(tasks), notes=(NOTE, NOTE_OF_ACTORS) if actors else (NOTE,), actors=actors)


def _actor_of(event: JsonPlace) -> str:
    """Return the id of the actor to which an event belongs; empty for a task."""
    if not event.has("args"):
        return ""
    facts = event.down("args")
    if facts.has("actor_id"):
        return facts.text("actor_id")
    rays = None if facts.names("actor_id") or not facts.has("task_id") else RAYS_TASK_ID.fullmatch(facts.text("task_id"))
    return "" if rays is None or rays[1].startswith(NO_ACTOR) else rays[1]


def _actor(id: str, constructors: dict[str, tuple[float, float]], calls: list[TraceTask]) -> TraceActor:
    # An actor whose constructor is not in the file was there before.
    arrival_s, start_s = constructors.get(id, (0.0, 0.0))
    return TraceActor(id, arrival_s, start_s=start_s, concurrency=_most_at_a_time(calls))


def _most_at_a_time(calls: list[TraceTask]) -> int:
    """Return the largest number of calls that ran at a time."""
    edges = [(round(call.arrival_s, 6), 1) for call in calls]
    edges += [(round(call.arrival_s + call.duration_s, 6), -1) for call in calls]
    return max(1, *accumulate(step for _, step in sorted(edges)))
