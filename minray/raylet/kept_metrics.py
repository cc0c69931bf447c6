"""Keeps the counters and histograms of a node's workers, so that sums do not shrink when a worker ends.

Ray: has no counterpart; values in the agent of a node (python/ray/_private/metrics_agent.py) vanish with their process

Pure. A worker reports its values now and then, and once more when it ends in order. Until its job is over they are told to
each reader that could not ask the worker itself.

Rules
  * A reader that sums over all processes must never count a value twice. So a value stays under the id of its worker.
  * Series and bytes are bounded. When there are too many, those of the workers that ended first are added up by job, with
    the node's id in place of the worker's. A report that does not fit even then is counted as left out.
  * A repeated or late report changes nothing: reports have numbers, and a worker whose values were added up is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from minray.common.tombstones import remember
from minray.protocol.metrics import EndedMetrics, ReportMetrics
from minray.protocol.state import MetricFamily, MetricSample, ProcessMetrics, SystemValue

MOST_SERIES = 10_000
"""Most series (values of one name and one set of tags) that a node keeps."""
MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of names and tags that a node keeps; an answer to a reader must fit into a message."""

Tags = tuple[tuple[str, str], ...]
"""Sorted pairs, so that equal tags are equal keys."""


class _Kept(NamedTuple):
    """The last report of a worker, or the sum of several."""

    number: int
    metrics: ProcessMetrics
    series: int
    size: int
    """Estimated bytes."""


def _kept(number: int, metrics: ProcessMetrics) -> _Kept:
    return _Kept(number, metrics, _series(metrics), _size(metrics))


class KeptMetrics:
    """The values of one node's workers, living and ended."""

    def __init__(
        self,
        node_id: bytes,
        is_over: Callable[[bytes], bool],
        most_series: int = MOST_SERIES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """``is_over(job_id)`` tells whether a job has finished."""
        self._node_id = node_id
        self._is_over = is_over
        self._most_series = most_series
        self._most_bytes = most_bytes
        self._living: dict[bytes, _Kept] = {}
        """Last report of each worker that has not ended, by worker id."""
        self._ended: dict[bytes, _Kept] = {}
        """Last report of each worker that has ended, by worker id, in the order of their ends."""
        self._sums: dict[bytes, _Kept] = {}
        """Values of forgotten workers, added up by job id."""
        self._summed: OrderedDict[bytes, None] = OrderedDict()
        """Workers that are part of ``_sums``."""
        self._refused: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        """Job, and number of values, of each worker whose last report does not fit."""
        self.series = 0
        self.size = 0
        """Number of series of all reports and sums, and their estimated bytes."""

    def on_report(self, report: ReportMetrics, is_living: bool) -> None:
        """Take a report; that of an ended worker may still arrive after its end was seen."""
        metrics = report.metrics
        worker_id = metrics.worker_id
        table = self._living if is_living else self._ended
        known = table.get(worker_id)
        if worker_id in self._summed or self._is_over(metrics.job_id) or (known and known.number >= report.number):
            return
        self._refused.pop(worker_id, None)
        self._remove(table, worker_id)
        self._add(table, worker_id, _kept(report.number, metrics))
        while self._is_too_much() and any(one != worker_id for one in self._ended):
            self._sum_up(next(one for one in self._ended if one != worker_id))
        if self._is_too_much():
            refused = self._remove(table, worker_id)
            remember(self._refused, worker_id, (metrics.job_id, refused.series if refused else 0))

    def on_exit(self, worker_id: bytes) -> None:
        """Note that a worker has ended: its last report stays."""
        kept = self._living.pop(worker_id, None)
        if kept is not None:
            self._ended[worker_id] = kept

    def on_job_finished(self, job_id: bytes) -> None:
        """Drop all values of a job."""
        for table in (self._living, self._ended, self._sums):
            for key in [key for key, kept in table.items() if kept.metrics.job_id == job_id]:
                self._remove(table, key)
        for worker_id in [one for one, (job, _) in self._refused.items() if job == job_id]:
            del self._refused[worker_id]

    def ended(self, told: list[bytes]) -> EndedMetrics:
        """Return all values but those of the workers in ``told``."""
        known = set(told)
        reports = {**self._ended, **self._living}
        found = [kept.metrics for worker_id, kept in reports.items() if worker_id not in known]
        left_out = sum(series for worker_id, (_, series) in self._refused.items() if worker_id not in known)
        return EndedMetrics([*found, *(kept.metrics for kept in self._sums.values())], left_out)

    def _sum_up(self, worker_id: bytes) -> None:
        """Add the values of an ended worker to the sum of its job."""
        kept = self._ended[worker_id]
        job_id = kept.metrics.job_id
        known = self._remove(self._sums, job_id)
        self._remove(self._ended, worker_id)
        remember(self._summed, worker_id, None)
        added = msgspec.structs.replace(kept.metrics, worker_id=self._node_id)
        self._add(self._sums, job_id, _kept(0, added if known is None else sum_of(known.metrics, added)))

    def _add(self, table: dict[bytes, _Kept], key: bytes, kept: _Kept) -> None:
        table[key] = kept
        self.series += kept.series
        self.size += kept.size

    def _remove(self, table: dict[bytes, _Kept], key: bytes) -> _Kept | None:
        kept = table.pop(key, None)
        if kept is not None:
            self.series -= kept.series
            self.size -= kept.size
        return kept

    def _is_too_much(self) -> bool:
        return self.series > self._most_series or self.size > self._most_bytes


def sum_of(one: ProcessMetrics, other: ProcessMetrics) -> ProcessMetrics:
    """Add up the values of two processes. A metric that means something else in ``other`` is left out and counted."""
    families = {family.name: family for family in one.families}
    left_out = one.left_out + other.left_out
    for family in other.families:
        known = families.get(family.name)
        if known is None:
            families[family.name] = family
        elif (known.kind, known.boundaries) == (family.kind, family.boundaries):
            families[family.name] = _sum_of_families(known, family)
        else:
            left_out += len(family.samples)
    system: dict[tuple[str, Tags], float] = {}
    for value in (*one.system, *other.system):
        key = value.name, _key(value.labels)
        system[key] = system.get(key, 0.0) + value.value
    values = [SystemValue(name, count, dict(labels)) for (name, labels), count in system.items()]
    return msgspec.structs.replace(one, families=list(families.values()), left_out=left_out, system=values)


def _sum_of_families(one: MetricFamily, other: MetricFamily) -> MetricFamily:
    samples = {_key(sample.tags): sample for sample in one.samples}
    for sample in other.samples:
        known = samples.get(_key(sample.tags))
        if known is None:
            samples[_key(sample.tags)] = sample
        else:
            counts = [first + second for first, second in zip(known.counts, sample.counts, strict=True)]
            samples[_key(sample.tags)] = MetricSample(sample.tags, known.value + sample.value, counts)
    return msgspec.structs.replace(one, samples=list(samples.values()))


def _key(tags: dict[str, str]) -> Tags:
    return tuple(sorted(tags.items()))


def _series(metrics: ProcessMetrics) -> int:
    return sum(len(family.samples) for family in metrics.families) + len(metrics.system)


def _size(metrics: ProcessMetrics) -> int:
    """Return the bytes of the texts in a report, and of 8 bytes for each number: an estimate."""
    size = 0
    for family in metrics.families:
        size += len(family.name) + len(family.description) + 8 * len(family.boundaries)
        for sample in family.samples:
            size += 8 + 8 * len(sample.counts) + sum(len(key) + len(text) for key, text in sample.tags.items())
    return size + sum(16 + sum(len(key) + len(text) for key, text in value.labels.items()) for value in metrics.system)
