"""Counts the workers of a node that were killed for memory, or that ended although nobody asked them to.

Ray: the metrics memory_manager_worker_eviction_total and node_manager_unexpected_worker_failure_total of
src/ray/raylet/metrics.h

Pure. Each count has a kind and the name of the task that the worker had begun last. Programs choose names, so their number
is bounded; what does not fit counts without a name.
"""

from __future__ import annotations

from collections import Counter

MOST_NAMES = 1000
"""Most pairs of kind and name in one table; a bound on memory, and on the series of a metric."""
TASK, ACTOR, IDLE = (
    "MemoryManager.TaskEviction.Total",
    "MemoryManager.ActorEviction.Total",
    "MemoryManager.IdleWorkerEviction.Total",
)
"""Ray's names for what a worker that was killed for memory had served."""

Counts = Counter[tuple[str, str]]


class WorkerDeaths:
    """The counts of one node since its raylet began."""

    def __init__(self) -> None:
        self.evictions = Counts()
        """Workers killed for memory: TASK, ACTOR or IDLE, and the name of the task."""
        self.failures = Counts()
        """Workers that ended by themselves and not in order: the cause, and the name of the task."""

    def on_eviction(self, kind: str, name: str) -> None:
        _count(self.evictions, kind, name)

    def on_failure(self, cause: str, name: str) -> None:
        _count(self.failures, cause, name)


def _count(counts: Counts, kind: str, name: str) -> None:
    key = kind, name
    counts[key if key in counts or len(counts) < MOST_NAMES else (kind, "")] += 1
