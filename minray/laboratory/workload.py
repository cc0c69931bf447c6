"""A workload: tasks and actors with given durations, sizes of results, inputs and resources, and failures of nodes.

Ray: has no counterpart

All readers of traces and the generator make this record, and the experiments run it. ``encode`` and ``decode`` are its own
file format: JSON with the word ``minray-workload`` in it.

Rules
  * Tasks are in an order in which each comes after all tasks whose results it uses. ``ordered`` makes such an order.
  * A task takes ``duration_s`` on a node of speed 1, and half of it on one of speed 2. A result of ``outputs`` has a size
    and no content.
  * A task with an ``actor`` is a call of that actor. An actor runs its calls in the order of their arrival.
  * A task arrives (is submitted) at ``arrival_s`` whether or not earlier ones have ended: the load is open-loop. Work that
    is submitted all at once arrives at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

FORMAT = "minray-workload"
VERSION = 1
CPU, GPU, MEMORY = "CPU", "GPU", "memory"


class TraceError(ValueError):
    """A trace cannot be used. The message says what is wrong, in which file and place, and what to do."""


class TraceTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One task of a workload."""

    id: str
    duration_s: float
    """Seconds that it runs for, without the costs of its inputs and outputs."""
    inputs: tuple[tuple[str, int], ...] = ()
    """(task, number of its output): the results that it takes as arguments."""
    outputs: tuple[int, ...] = (0,)
    """Sizes of its results in bytes; it has at least one."""
    resources: dict[str, float] = {}
    """Resources that it needs beside or instead of one CPU: ``{"CPU": 2, "GPU": 1, "memory": 1e9, "disk": 1}``."""
    arrival_s: float = 0.0
    group: str = ""
    """The user, job or workflow to which it belongs: fairness is measured between groups."""
    kind: str = ""
    """The program that it runs, such as ``align``; tasks of one kind are one remote function. Empty: all are one."""
    actor: str = ""
    """The actor of which it is a call. The actor has the resources then, and the task names none."""


class TraceActor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One actor of a workload. It lives from its arrival until its last call has ended."""

    id: str
    arrival_s: float = 0.0
    start_s: float = 0.0
    """Seconds that its constructor takes on a node of speed 1."""
    resources: dict[str, float] = {}
    """Resources that it holds as long as it lives: ``{"CPU": 1, "GPU": 1}``. Without CPU it needs none, as in Ray."""
    concurrency: int = 1
    """Largest number of its calls that run at a time."""


class NodeFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The loss of a node, which is silent as that of a machine without power."""

    node: int
    """Number of the node. Node 0 is the head, with the driver, and cannot be lost."""
    down_s: float
    """When it is lost, in seconds after the beginning."""
    up_s: float | None = None
    """When an empty machine takes its place; None: never."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tasks in an order in which each can be submitted."""

    name: str
    tasks: tuple[TraceTask, ...]
    failures: tuple[NodeFailure, ...] = ()
    actors: tuple[TraceActor, ...] = ()
    """Actors by the time of their arrival."""
    notes: tuple[str, ...] = ()
    """Sentences about what the reader of the trace has left out."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a file in minray's own format."""

    format: str
    version: int
    workload: Workload


def encode(workload: Workload) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_File(FORMAT, VERSION, workload)), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Workload:
    """Read what ``encode`` has written, or somebody like it. Raises TraceError."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where} is no workload of minray: {error}. `minray lab generate` writes such files") from None
    if file.version != VERSION:
        raise TraceError(f"{where} has version {file.version} of the format {FORMAT}; this minray reads version {VERSION}")
    return checked(file.workload, where)


def checked(workload: Workload, where: str) -> Workload:
    """Return the workload with its tasks in a possible order. Raises TraceError for one that no cluster can run."""
    if not workload.tasks:
        raise TraceError(f"{where} has no tasks; a workload has at least one")
    known: dict[str, TraceTask] = {}
    for task in workload.tasks:
        if task.id in known:
            raise TraceError(f"{where}: two tasks have the id {task.id!r}; give each its own")
        known[task.id] = task
        _check_numbers(task, where)
    actors = _checked_actors(workload, where)
    for task in workload.tasks:
        for source, number in task.inputs:
            if source not in known:
                raise TraceError(f"{where}: task {task.id!r} takes a result of {source!r}, but there is no such task")
            if not 0 <= number < len(known[source].outputs):
                has = len(known[source].outputs)
                raise TraceError(f"{where}: task {task.id!r} takes output {number} of {source!r}; it has {has}, from 0")
    _check_failures(workload.failures, where)
    return msgspec.structs.replace(workload, tasks=tuple(ordered(workload.tasks, where)), actors=actors)


def _checked_actors(workload: Workload, where: str) -> tuple[TraceActor, ...]:
    """Return the actors by arrival, each no later than its first call. Raises TraceError."""
    known: dict[str, TraceActor] = {}
    for actor in workload.actors:
        if actor.id in known:
            raise TraceError(f"{where}: two actors have the id {actor.id!r}; give each its own")
        known[actor.id] = actor
        times = {"start_s": actor.start_s, "arrival_s": actor.arrival_s}
        _check_finite(times, actor.resources, f"{where}: actor {actor.id!r}")
        if actor.concurrency < 1:
            raise TraceError(f"{where}: actor {actor.id!r} has concurrency {actor.concurrency}; give a number from 1")
    first_s: dict[str, float] = {}
    for task in workload.tasks:
        if task.actor:
            if task.actor not in known:
                raise TraceError(f"{where}: task {task.id!r} is a call of {task.actor!r}, but there is no such actor")
            if task.resources:
                raise TraceError(f"{where}: task {task.id!r} is a call and names resources; give them to its actor")
            first_s[task.actor] = min(first_s.get(task.actor, math.inf), task.arrival_s)
    for id in (id for id in known if id not in first_s):
        raise TraceError(f"{where}: actor {id!r} has no calls; remove it, or add a task with this actor")
    actors = [msgspec.structs.replace(one, arrival_s=min(one.arrival_s, first_s[one.id])) for one in workload.actors]
    return tuple(sorted(actors, key=lambda actor: actor.arrival_s))


def _check_finite(numbers: Mapping[str, float], resources: Mapping[str, float], who: str) -> None:
    for name, value in {**numbers, **{f"resource {name}": amount for name, amount in resources.items()}}.items():
        if not 0 <= value < math.inf:
            raise TraceError(f"{who} has {name} = {value}; it must be a finite number from 0")


def _check_numbers(task: TraceTask, where: str) -> None:
    numbers = {"duration_s": task.duration_s, "arrival_s": task.arrival_s}
    numbers |= {f"output {index}": size for index, size in enumerate(task.outputs)}
    _check_finite(numbers, task.resources, f"{where}: task {task.id!r}")
    if not task.outputs:
        raise TraceError(f"{where}: task {task.id!r} has no outputs; write one of 0 bytes")


def _check_failure(failure: NodeFailure, where: str) -> None:
    if failure.node < 1:
        raise TraceError(f"{where}: node {failure.node} cannot fail; give a number from 1, since node 0 has the driver")
    if not 0 <= failure.down_s < math.inf or (failure.up_s is not None and not failure.down_s < failure.up_s < math.inf):
        raise TraceError(
            f"{where}: node {failure.node} goes down at {failure.down_s} and up at {failure.up_s};"
            " give seconds from 0, the second after the first"
        )


def _check_failures(failures: Sequence[NodeFailure], where: str) -> None:
    for failure in failures:
        _check_failure(failure, where)
    by_node = sorted(failures, key=lambda failure: (failure.node, failure.down_s))
    for one, other in zip(by_node, by_node[1:], strict=False):
        if one.node == other.node and (one.up_s is None or one.up_s > other.down_s):
            until = "for ever" if one.up_s is None else f"until {one.up_s}"
            raise TraceError(
                f"{where}: node {one.node} goes down at {other.down_s}, but it is already down from {one.down_s} {until};"
                " let it come up before, or remove one of the failures"
            )


def ordered(tasks: Sequence[TraceTask], where: str) -> list[TraceTask]:
    """Return tasks by arrival, each after those whose results it uses; a task arrives no earlier than these.

    Raises TraceError for a circle.
    """
    by_id = {task.id: task for task in tasks}
    waits_for = {task.id: {source for source, _ in task.inputs} for task in tasks}
    users: dict[str, list[str]] = {task.id: [] for task in tasks}
    for user, sources in waits_for.items():
        for source in sources:
            users[source].append(user)
    arrivals = {task.id: task.arrival_s for task in tasks}
    free = [task.id for task in tasks if not waits_for[task.id]]
    order: list[str] = []
    for id in free:  # grows meanwhile
        order.append(id)
        for user in users[id]:
            arrivals[user] = max(arrivals[user], arrivals[id])
            waits_for[user].discard(id)
            if not waits_for[user]:
                free.append(user)
    if len(order) < len(tasks):
        circle = _a_circle(waits_for)
        raise TraceError(f"{where}: tasks wait for each other, {' <- '.join(circle)}; remove one of these inputs")
    order.sort(key=lambda id: arrivals[id])  # stable, and no task arrives before its inputs
    return [msgspec.structs.replace(by_id[id], arrival_s=arrivals[id]) for id in order]


def _a_circle(waits_for: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the ids of one circle among tasks that wait, the first one again at the end."""
    id = next(id for id, sources in waits_for.items() if sources)
    way: list[str] = []
    while id not in way:
        way.append(id)
        id = min(waits_for[id])
    return [*way[way.index(id) :], id]


def cpus_of(workload: Workload) -> dict[str, float]:
    """Return for each task how many CPUs it uses while it runs; a call uses those of its actor."""
    actors = {actor.id: actor.resources.get(CPU, 0.0) for actor in workload.actors}
    return {task.id: actors[task.actor] if task.actor else task.resources.get(CPU, 1.0) for task in workload.tasks}


def work_s(workload: Workload) -> float:
    """Return the CPU seconds of all tasks, on nodes of speed 1."""
    cpus = cpus_of(workload)
    return math.fsum(task.duration_s * cpus[task.id] for task in workload.tasks)


def critical_path_s(tasks: Iterable[TraceTask]) -> float:
    """Return the length of the longest chain of inputs, counting durations alone. Tasks must be in order."""
    return earliest_end_s([msgspec.structs.replace(task, arrival_s=0.0) for task in tasks])


def earliest_end_s(tasks: Iterable[TraceTask], speed: float = 1.0) -> float:
    """Return when the last task would end if none ever waited, on nodes of this speed. Tasks must be in order."""
    ends: dict[str, float] = {}
    for task in tasks:
        ends[task.id] = task.duration_s / speed + max([task.arrival_s, *(ends[source] for source, _ in task.inputs)])
    return max(ends.values())
