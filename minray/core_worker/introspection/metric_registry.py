"""Keeps the values of a process's metrics: counters, gauges and histograms that its tasks have recorded.

Ray: src/ray/stats/metric.h, src/ray/observability/open_telemetry_metric_recorder.h

Ray's processes send their values to an agent on each node. Here each process keeps its values, and is asked for them. A
worker also reports them to its raylet now and then (``metric_reporter``), so that counters outlive it. Metrics of the same
name in a process are one metric, however often they were made or unpickled there.

Rules
  * A name has one kind and one set of boundaries in a process. The first definition holds; values recorded under a different
    one are ignored.
  * Values can be recorded in any thread, with or without a cluster. A destructor can record, too, and it may interrupt any
    line of this file.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from minray.protocol.state import COUNTER, GAUGE, MetricFamily, MetricSample

HOLDS_LOCKS = True
"""See ``common/package.py``: these frames may hold a lock."""

MOST_SERIES = 10_000
"""Number of series (values of one name and one set of tags) in one answer, which must fit into a message."""

Tags = tuple[tuple[str, str], ...]
"""Sorted pairs of tag and value, so that equal tags are equal keys."""


class MetricDefinition(NamedTuple):
    """The kind, name, description and boundaries of a metric."""

    kind: str
    name: str
    description: str
    boundaries: tuple[float, ...] = ()
    """Highest value of each bucket of a histogram, in increasing order."""


class _Series:
    """The values under one name with the same tags."""

    __slots__ = ("value", "counts")

    def __init__(self, buckets: int) -> None:
        self.value = 0.0
        """The count of a counter, the last value of a gauge, or the sum of a histogram's values."""
        self.counts = [0] * buckets
        """The number of values in each bucket of a histogram; the last bucket is above all boundaries."""


class MetricRegistry:
    """Records and returns all metric values of one process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Reentrant lock: a destructor may record while its own thread holds the lock."""
        self._families: dict[str, tuple[MetricDefinition, dict[Tags, _Series]]] = {}
        """First definition and values of each metric, by name."""
        self._on_change: Callable[[], None] | None = None
        """Called, in any thread, by the next ``record``, and then set to None."""

    def fits(self, metric: MetricDefinition) -> bool:
        """Whether no metric of another kind, or with other boundaries, has this name."""
        known = self._families.get(metric.name)
        return known is None or _is_same(known[0], metric)

    def call_on_change(self, on_change: Callable[[], None] | None) -> None:
        """Have the next ``record`` call this function once, in whichever thread that is."""
        self._on_change = on_change

    def record(self, metric: MetricDefinition, tags: dict[str, str], value: float) -> None:
        on_change = self._on_change
        if on_change is not None:
            self._on_change = None
            on_change()
        with self._lock:
            known, family = self._families.setdefault(metric.name, (metric, {}))
            if not _is_same(known, metric):
                return
            key = tuple(sorted(tags.items()))
            series = family.get(key)
            if series is None:
                series = family.setdefault(key, _Series(len(metric.boundaries) + 1 if metric.boundaries else 0))
            if metric.kind == GAUGE:
                series.value = value
                return
            series.value += value
            if metric.kind != COUNTER:
                series.counts[bisect_left(metric.boundaries, value)] += 1

    def families(self, most: int | None = None, with_gauges: bool = True) -> tuple[list[MetricFamily], int]:
        """Return all values, and the number of series that are left out because there are more than ``most``.

        Without ``most`` the bound is ``MOST_SERIES``.
        """
        found, total = [], 0
        most = MOST_SERIES if most is None else most
        with self._lock:
            for metric, family in list(self._families.values()):
                if metric.kind == GAUGE and not with_gauges:
                    continue
                room = max(0, most - total)
                series = list(family.copy().items())
                samples = [MetricSample(dict(key), one.value, list(one.counts)) for key, one in series[:room]]
                total += len(series)
                found.append(
                    MetricFamily(
                        name=metric.name,
                        kind=metric.kind,
                        description=metric.description,
                        boundaries=list(metric.boundaries),
                        samples=samples,
                    )
                )
        return found, max(0, total - most)


def _is_same(one: MetricDefinition, other: MetricDefinition) -> bool:
    """Whether two definitions of a name agree, so that their values belong to one metric."""
    return (one.kind, one.boundaries) == (other.kind, other.boundaries)


_of_process = MetricRegistry()
of_context: ContextVar[MetricRegistry] = ContextVar("minray_metrics")
"""Registry of a simulated process; not set in real processes."""


def registry() -> MetricRegistry:
    """Return the registry of this process."""
    return of_context.get(_of_process)
