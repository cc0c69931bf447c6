"""HEFT: a static schedule for a graph of tasks whose times are known before it runs.

Ray: none; it schedules each task when its arguments exist

Topcuoglu, Hariri, Wu: Performance-Effective and Low-Complexity Task Scheduling for Heterogeneous Computing (2002).

  1. Rank each task by the longest way from it to the end, in mean times of tasks and transfers (the *upward rank*).
  2. In the order of falling ranks give each task to the processor on which it ends first. It may go into a gap between two
     tasks that were placed before.

This is no policy of a raylet, and cannot be one. A raylet is asked about lease requests. Such a request stands for any
waiting task of its shape, and the graph behind it is not known. But a program that knows its graph can carry out the places
of a schedule: it gives each task a ``NodeAffinitySchedulingStrategy``, and submits tasks in the order of their starts. For
each result that another node needs, it submits a task there that needs no CPU and takes the result. So the result travels
when it is made, as HEFT assumes, and not when the last argument of the same task is made. Gaps are not kept: a node runs
what is ready, first come, first served. docs/policy_lab.md says more. ``minray.laboratory.plan`` does it for a trace.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Slot(NamedTuple):
    """Place and time of one task."""

    processor: int
    start: float
    finish: float


def upward_ranks(costs: Mapping[T, Sequence[float]], transfers: Mapping[tuple[T, T], float]) -> dict[T, float]:
    """Return of each task the longest way to the end of the graph, its own mean time included.

    Raises ValueError for a graph with a circle or with an unknown task.
    """
    followers: dict[T, list[tuple[T, float]]] = {task: [] for task in costs}
    for (before, after), transfer in transfers.items():
        if before not in costs or after not in costs:
            raise ValueError(f"the transfer from {before!r} to {after!r} is between tasks of which one has no costs")
        followers[before].append((after, transfer))
    ranks: dict[T, float] = {}
    for task in reversed(_sorted_by_arrows(followers)):
        way = max((transfer + ranks[after] for after, transfer in followers[task]), default=0.0)
        ranks[task] = sum(costs[task]) / len(costs[task]) + way
    return ranks


def _sorted_by_arrows(followers: Mapping[T, Sequence[tuple[T, float]]]) -> list[T]:
    """Return the tasks, each after those that it needs. Raises ValueError for a circle."""
    missing = dict.fromkeys(followers, 0)
    for arrows in followers.values():
        for after, _ in arrows:
            missing[after] += 1
    order = [task for task, count in missing.items() if not count]
    for task in order:
        for after, _ in followers[task]:
            missing[after] -= 1
            if not missing[after]:
                order.append(after)
    if len(order) < len(missing):
        raise ValueError(f"the tasks {[task for task, count in missing.items() if count]!r} need each other in a circle")
    return order


def times_on(durations: Mapping[T, float], speeds: Sequence[float]) -> dict[T, tuple[float, ...]]:
    """Return the time of each task on each processor, given durations at speed 1. Raises ValueError for a speed of none.

    The speeds of a cluster's nodes are their labels ``minray.io/speed`` (``minray.common.labels.speed_of``).
    """
    if not all(0 < speed < math.inf for speed in speeds):
        raise ValueError(f"speeds must be finite numbers above 0, got {list(speeds)}")
    return {task: tuple(duration / speed for speed in speeds) for task, duration in durations.items()}


def heft(
    costs: Mapping[T, Sequence[float]], transfers: Mapping[tuple[T, T], float], nodes: Sequence[Hashable] | None = None
) -> dict[T, Slot]:
    """Return a schedule of a graph, its tasks in the order in which they were placed.

    ``costs`` has the time of each task on each processor. ``transfers`` has the time that the result of one task takes to
    another one on another node. ``nodes`` names the node of each processor; without it each processor is a node.
    """
    ranks = upward_ranks(costs, transfers)
    processors = range(len(next(iter(costs.values()), ())))
    node_of = list(processors) if nodes is None else nodes
    needed: dict[T, list[tuple[T, float]]] = {task: [] for task in costs}
    for (before, after), transfer in transfers.items():
        needed[after].append((before, transfer))
    busy: list[list[tuple[float, float]]] = [[] for _ in processors]
    schedule: dict[T, Slot] = {}
    for task in sorted(costs, key=lambda task: -ranks[task]):
        slots = []
        for processor in processors:
            arrivals = [
                schedule[before].finish + (transfer if node_of[schedule[before].processor] != node_of[processor] else 0)
                for before, transfer in needed[task]
            ]
            start = _first_gap(busy[processor], max(arrivals, default=0.0), costs[task][processor])
            slots.append(Slot(processor, start, start + costs[task][processor]))
        best = min(slots, key=lambda slot: slot.finish)
        schedule[task] = best
        busy[best.processor] = sorted([*busy[best.processor], (best.start, best.finish)])
    return schedule


def _first_gap(busy: Sequence[tuple[float, float]], ready: float, duration: float) -> float:
    """Return the earliest time from ``ready`` on at which a processor is free for that duration."""
    start = ready
    for begin, end in busy:
        if start + duration <= begin:
            break
        start = max(start, end)
    return start
