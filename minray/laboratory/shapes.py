"""The shapes of generated workflows: which task of an instance uses the results of which others.

Ray: has no counterpart

A shape is a function of a width and a depth. It returns the tasks of one instance as a list of ``ShapeTask``; inputs are
numbers of earlier ones in the list. ``generator`` gives them durations, sizes and times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ShapeTask:
    """One task of a shape."""

    kind: str
    inputs: tuple[int, ...] = ()
    actor: int | None = None
    """The number of the actor of which it is a call; None: a plain task."""


def single(width: int, depth: int) -> list[ShapeTask]:
    """Make one task alone: the plain open-loop load."""
    return [ShapeTask("task")]


def chain(width: int, depth: int) -> list[ShapeTask]:
    """Make ``depth`` tasks, each of which uses the result of the one before."""
    return [ShapeTask("link", (index - 1,) if index else ()) for index in range(depth)]


def fan_out(width: int, depth: int) -> list[ShapeTask]:
    """Make one task whose result ``width`` others use."""
    return [ShapeTask("root"), *(ShapeTask("leaf", (0,)) for _ in range(width))]


def map_reduce(width: int, depth: int) -> list[ShapeTask]:
    """Make ``width`` maps and ``depth`` reduces; each reduce uses the results of all maps."""
    return [ShapeTask("map")] * width + [ShapeTask("reduce", tuple(range(width)))] * depth


def fft(width: int, depth: int) -> list[ShapeTask]:
    """Make a butterfly of ``width`` points, a power of two. Each task of a rank uses two of the rank before."""
    places, before, distance = [ShapeTask("point")] * width, 0, 1
    while distance < width:
        places += [ShapeTask("butterfly", (before + index, before + (index ^ distance))) for index in range(width)]
        before, distance = before + width, distance * 2
    return places


def tree(width: int, depth: int) -> list[ShapeTask]:
    """Make a reduction: ``width ** (depth - 1)`` leaves, and ``depth - 1`` ranks that each combine ``width`` results."""
    rank = list(range(width ** (depth - 1)))
    places = [ShapeTask("leaf")] * len(rank)
    while len(rank) > 1:
        above = range(len(places), len(places) + len(rank) // width)
        places += [ShapeTask("combine", tuple(rank[index * width : (index + 1) * width])) for index in range(len(above))]
        rank = list(above)
    return places


def actors(width: int, depth: int) -> list[ShapeTask]:
    """Make ``width`` actors with ``depth`` calls each, and one task that uses the result of each actor's last call."""
    calls = [ShapeTask("call", actor=actor) for _ in range(depth) for actor in range(width)]
    return [*calls, ShapeTask("gather", tuple(range(len(calls) - width, len(calls))))]


SHAPES: dict[str, Callable[[int, int], list[ShapeTask]]] = {
    "single": single,
    "chain": chain,
    "fan-out": fan_out,
    "map-reduce": map_reduce,
    "fft": fft,
    "tree": tree,
    "actors": actors,
}
"""The shapes by the names that the command line has for them."""
