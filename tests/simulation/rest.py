"""A cluster at rest: after faults have stopped and programs are over, it looks like a fresh one that has waited as long.

L4: no task or timer is left that a fresh cluster lacks. L5: nothing is sent but what idle processes say to each other.
L6: what the gcs and the raylets believe of the nodes is true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from minray.simulation import SimCluster
from minray.simulation.cluster import HEAD
from minray.simulation.faults import REPEATS_S
from minray.simulation.loop import TICKS_PER_SECOND
from minray.simulation.trace import SEND
from tests.simulation.views import stale_views

ANY = 1_000_000
FOLLOW_ACTORS = "follow(actors:"
TASKS = {
    "gcs": {"gcs": 1, "watch": ANY, "Poll": ANY},
    "raylet": {"raylet": 1, "follow": 5, "report_resources": 1, "worker_process": ANY, "watch_memory": 1},
    "driver": {"driver": 1, "follow": 2, FOLLOW_ACTORS: 1},
    "worker": {"worker": 1, "follow": 2, FOLLOW_ACTORS: 1},
}
"""Role -> names of the tasks that last, and how many of them there may be. A lender follows the deaths of others. A
caller of actors follows those of its job, each job once."""
TIMERS = {
    "gcs": ("Timeout._on_timeout",),
    "raylet": ("Timeout._on_timeout", "_set_result_unless_cancelled"),
    "driver": ("SimParker.wait.<locals>.expire",),
    "worker": (),
}
"""Role -> what its timers call: the ends of long polls and pauses, and of a driver's sleep."""
MESSAGE = "Pipe._look"
"""The timer of a message on its way."""
REPETITION = "SimWire._repeat"
"""The timer of a request that arrives once more."""
IDLE_WORDS = ("Poll", "CheckAlive", "ReportResources")
"""Requests of an idle cluster."""
MOST_ON_THE_WAY_S = 0.01
"""Virtual seconds that no message takes unless a fault delays it."""
WINDOW_S = 5.0
"""Virtual seconds in which nothing else was sent."""
LATE_S = 10.0
"""Messages repeated later than this may come after the end."""


def unrest(cluster: SimCluster) -> list[str]:
    """List what a cluster at rest would not show; one line each.

    A node that is to leave is not at rest: as long as somebody needs one of its workers, it asks that to go. Nor is a raylet
    that has a worker which has used up its calls, for the same reason.
    """
    staying = {raylet._config.node_name for raylet in cluster.raylets.values() if raylet._broker.leaving is None}
    resting = {process.name for process in cluster.world.loop.processes if process.node in {HEAD, *staying}}
    for name, raylet in cluster.raylets.items():
        if any(worker.retired for worker in raylet._broker.pool.workers.values()):
            resting.discard(f"raylet/{name}")
    return [
        *_lasting_tasks(cluster, resting),
        *_lasting_timers(cluster, resting),
        *_talk(cluster, resting),
        *_wrong_views(cluster),
        *stale_views(cluster),
    ]


def is_held_up(cluster: SimCluster) -> bool:
    """Tell whether faults still hold something up: a message comes later than its way takes, or a process stands still."""
    loop = cluster.world.loop
    soon = loop.ticks + int(MOST_ON_THE_WAY_S * TICKS_PER_SECOND)
    return any(process.alive and process.stalled_until > loop.ticks for process in loop.processes) or any(
        ticks > soon and not timer._cancelled and getattr(timer._callback, "__qualname__", "") in (MESSAGE, REPETITION)
        for ticks, _, timer in loop._timers
    )


def _role_of(process: str) -> str:
    return process.partition("/")[0]


def _lasting_tasks(cluster: SimCluster, resting: Container[str]) -> Iterator[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for task in cluster.world.loop.pending_tasks():
        if task.process.alive and task.process.name in resting and _role_of(task.process.name) in TASKS:
            counts[task.process.name, task.get_name()] += 1
    named: Counter[tuple[str, str]] = Counter()
    for (process, name), count in counts.items():
        follows_actors = name.startswith(FOLLOW_ACTORS)
        kind = FOLLOW_ACTORS if follows_actors else name.partition("(")[0]
        key = name if follows_actors else kind
        named[process, key] += count
        if named[process, key] > TASKS[_role_of(process)].get(kind, 0):
            yield f"L4: {process} has a task {name}"


def _lasting_timers(cluster: SimCluster, resting: Container[str]) -> Iterator[str]:
    for _, _, timer in cluster.world.loop._timers:
        role = _role_of(timer.process.name)
        if timer.process.alive and timer.process.name in resting and not timer._cancelled and role in TIMERS:
            name = getattr(timer._callback, "__qualname__", repr(timer._callback))
            if name not in (MESSAGE, *TIMERS[role]):
                yield f"L4: {timer.process.name} has a timer for {name}"


def _talk(cluster: SimCluster, resting: Container[str]) -> Iterator[str]:
    """Not judged if requests were to be repeated late: they are still answered."""
    repeats = [answer for key, answer in cluster.oracle.answers.items() if key[0] == "duplicate"]
    if any(REPEATS_S[answer] > LATE_S for answer in repeats):
        return
    since = cluster.world.loop.ticks - int(WINDOW_S * TICKS_PER_SECOND)
    for event in reversed(cluster.trace.events):
        if event.ticks < since:
            return
        is_idle = event.kind != SEND or event.details[0].partition(" ")[0] in IDLE_WORDS
        if not is_idle and event.process in resting and event.details[1] in resting:
            yield f"L5: {event.process} sends {event.details[0]} to {event.details[1]}, though all is over"


def _wrong_views(cluster: SimCluster) -> Iterator[str]:
    alive = cluster.alive()
    living = {raylet._config.node_id: raylet for name, raylet in cluster.raylets.items() if f"raylet/{name}" in alive}
    gcs: Any = cluster.gcs
    if "gcs" in alive:
        believed = {node.node_id for node in gcs._nodes.living()}
        if believed != living.keys():
            yield f"L6: the gcs believes that {len(believed)} nodes live, and {len(living)} do"
    for raylet in living.values():
        for view in raylet._broker.nodes._views.values():
            there = living.get(view.node_id)
            where = f"{raylet._config.node_name} believes that {view}"
            if view.alive != (there is not None):
                yield f"L6: {where} is {'alive' if view.alive else 'dead'}"
            elif there is not None and view.available != there._broker.local.available:
                yield f"L6: {where} has {view.available} free; it has {there._broker.local.available}"
