"""The nouns of the benchmarks: a document measures parts, a part fills tables, and a process measures one system.

A *document* is one of the five texts whose workloads are repeated here. A *part* of it is what one process measures with one
*system* (minray, Ray, Dask, ...): it yields samples, each of which belongs to a row of a *table*. A table that has an axis
has one row for each line of its plot, and a sample says where on the axis it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

MINRAY, RAY, DASK = "minray", "Ray", "Dask"
DASK_THREADS = "Dask, threads"
DASK_ON_MINRAY, DASK_ON_RAY = "Dask on minray", "Dask on Ray"
OURS = (MINRAY, DASK_ON_MINRAY)
"""What others are compared with: the one of the two that a row has."""


class Size(StrEnum):
    """How much is measured."""

    FULL = "full"
    QUICK = "quick"
    TINY = "tiny"

    def pick(self, full: Any, quick: Any, tiny: Any) -> Any:
        return {Size.FULL: full, Size.QUICK: quick, Size.TINY: tiny}[self]


class Sample(NamedTuple):
    """One measurement."""

    table: str
    row: str
    value: float
    x: float | None = None
    """Where on the axis of its table."""
    system: str = ""
    """Whose it is, if not that of the process."""


@dataclass(frozen=True)
class Target:
    """What minray must reach: so many times as fast as a peer, or an amount of its own."""

    peer: str = RAY
    ratio: float = 0.0
    """0: there is none."""
    limit: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows that are drawn together."""

    name: str
    """By which samples name it."""
    title: str
    unit: str
    more_is_better: bool = False
    axis: str = ""
    """What a line of the plot runs over; bars otherwise."""
    original: str = ""
    """What the document itself found, and where."""
    original_rows: dict[str, dict[float | None, float]] = field(default_factory=dict)
    """Its numbers, in this table's unit: line or row -> place on the axis -> number."""
    targets: dict[str, Target] = field(default_factory=dict)
    """By row; the row ``""`` stands for all others."""

    def target(self, row: str) -> Target | None:
        return self.targets.get(row, self.targets.get(""))


Measure = Callable[[str, Size], Iterator[Sample]]


@dataclass(frozen=True)
class Part:
    """What one process measures with one system."""

    name: str
    systems: tuple[str, ...]
    measure: Measure
    seconds: dict[Size, float]
    """What a process takes, roughly: for the progress bar, and to give up after far more."""
    rounds: int = 3
    """How often each system has its turn in a full run; in others once."""
    is_quick: bool = True
    """Whether a quick run has it, if it is not asked for by name."""


@dataclass(frozen=True)
class Document:
    """One of the five."""

    title: str
    source: str
    """Who wrote it, when, and on which machines it measured."""
    parts: tuple[Part, ...]
    tables: tuple[Table, ...]
