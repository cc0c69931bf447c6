"""The values of a process's metrics: what its tasks have counted, set and observed.

Ray: src/ray/stats/metric.h, src/ray/observability/open_telemetry_metric_recorder.h

Ray's processes send their values to an agent on each node. Here they stay, and whoever wants them asks. So they end with
their process, and metrics of the same name in a process are one, however often they have been made or unpickled there.

Rules
  * A name is of one kind in a process, and has one set of boundaries. What comes first holds; what differs is not recorded.
  * Recording is possible in any thread, with or without a cluster; also in a destructor, which may interrupt any of this.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from contextvars import ContextVar
from typing import NamedTuple

from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.protocol.state import COUNTER, GAUGE, MetricFamily, MetricSample, ProcessMetrics

HOLDS_LOCKS = True
"""See ``common/package.py``: these frames may hold a lock."""

MOST_SERIES = 10_000
"""Number of series in one answer."""

Tags = tuple[tuple[str, str], ...]
"""Sorted, so that equal tags are equal keys."""


class Definition(NamedTuple):
    """The kind, name and description of a metric."""

    kind: str
    name: str
    description: str
    boundaries: tuple[float, ...] = ()
    """The highest value of each bucket of a histogram, in increasing order."""


class _Series:
    """The values under one name with the same tags."""

    __slots__ = ("value", "counts")

    def __init__(self, buckets: int) -> None:
        self.value = 0.0
        """The count of a counter, the last value of a gauge, or the sum of a histogram's values."""
        self.counts = [0] * buckets
        """The number of values in each bucket of a histogram; the last bucket is above all boundaries."""


class MetricRegistry:
    """All values of one process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """One that its own thread may take again, for destructors."""
        self._families: dict[str, tuple[Definition, dict[Tags, _Series]]] = {}
        """By name: the first definition, and the values."""

    def fits(self, metric: Definition) -> bool:
        """Whether nothing else has this name."""
        known = self._families.get(metric.name)
        return known is None or _is_same(known[0], metric)

    def record(self, metric: Definition, tags: dict[str, str], value: float) -> None:
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

    def families(self) -> tuple[list[MetricFamily], int]:
        """All values, and how many series are left out."""
        found, total = [], 0
        with self._lock:
            for metric, family in list(self._families.values()):
                room = max(0, MOST_SERIES - total)
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
        return found, max(0, total - MOST_SERIES)


def _is_same(one: Definition, other: Definition) -> bool:
    """Whether values of both belong together."""
    return (one.kind, one.boundaries) == (other.kind, other.boundaries)


_of_process = MetricRegistry()
of_context: ContextVar[MetricRegistry] = ContextVar("minray_metrics")
"""Set in simulated processes."""


def registry() -> MetricRegistry:
    """The registry of this process."""
    return of_context.get(_of_process)


def metrics_of(process: Process, context: JobContext) -> ProcessMetrics:
    """The answer of this process."""
    families, left_out = registry().families()
    config = process.config
    return ProcessMetrics(
        node_ip=config.node_ip, worker_id=config.worker_id, job_id=context.job_id, families=families, left_out=left_out
    )
