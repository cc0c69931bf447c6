"""The nouns of the benchmarks: a document has parts, a process measures a part on one system, and samples fill tables.

A *document* is one of the six texts whose workloads are repeated here. A *part* is the workload that one process measures
on one *system* (minray, Ray, Dask, ...). It yields samples, and each sample belongs to a row of a *table*. A table with an
axis has one row for each line of its plot, and each sample has a place on the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

MINRAY, RAY, DASK = "minray", "Ray", "Dask"
DASK_THREADS = "Dask, threads"
HYPERQUEUE = "HyperQueue"
DASK_ON_MINRAY, DASK_ON_RAY = "Dask on minray", "Dask on Ray"
OURS = (MINRAY, DASK_ON_MINRAY)
"""Systems that use minray. Other systems are compared with the one of the two that a row has."""


class Size(StrEnum):
    """The size of a run: full, a few minutes, or only a test that it runs."""

    FULL = "full"
    QUICK = "quick"
    TINY = "tiny"

    def pick(self, full: Any, quick: Any, tiny: Any) -> Any:
        return {Size.FULL: full, Size.QUICK: quick, Size.TINY: tiny}[self]


class Sample(NamedTuple):
    """One measurement: a number in a row of a table."""

    table: str
    row: str
    value: float
    x: float | None = None
    """Place on the axis of the table; None if the table has no axis."""
    system: str = ""
    """Measured system, if it is not that of the process."""


@dataclass(frozen=True)
class Target:
    """The result that minray must reach: a multiple of a peer's speed, or a limit in the table's unit."""

    peer: str = RAY
    ratio: float = 0.0
    """Multiple of the peer's speed; 0 means no such target."""
    limit: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows of samples that are drawn in one plot."""

    name: str
    """Name of the table in samples."""
    title: str
    unit: str
    more_is_better: bool = False
    axis: str = ""
    """Name of the plot's horizontal axis; empty for a plot with bars."""
    original: str = ""
    """Results of the document itself, with their conditions, in words."""
    original_rows: dict[str, dict[float | None, float]] = field(default_factory=dict)
    """Numbers of the document in this table's unit: line or row -> place on the axis -> number."""
    targets: dict[str, Target] = field(default_factory=dict)
    """Targets by row; the row ``""`` stands for all other rows."""

    def target(self, row: str) -> Target | None:
        return self.targets.get(row, self.targets.get(""))


Measure = Callable[[str, Size], Iterator[Sample]]


@dataclass(frozen=True)
class Part:
    """A workload that one process measures on one system."""

    name: str
    systems: tuple[str, ...]
    measure: Measure
    seconds: dict[Size, float]
    """Approximate seconds of one process: for the progress bar, and for the time limit, which is far longer."""
    rounds: int = 3
    """Number of turns of each system in a full run; other runs have one turn."""
    is_quick: bool = True
    """Whether a quick run includes the part; a part that is named with ``--only`` is always included."""


@dataclass(frozen=True)
class Document:
    """One of the six documents whose workloads are repeated."""

    title: str
    source: str
    """Authors, year, and machines of the document."""
    parts: tuple[Part, ...]
    tables: tuple[Table, ...]
