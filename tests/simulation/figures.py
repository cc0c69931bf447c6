"""Figures that a process counts for people, counted here once more; a part of the ``Watch`` (see ``invariants``).

Nothing else depends on them, so a wrong one is noticed by nobody. Each is compared when a cluster is at rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from minray.core_worker.records.ended_tasks import OTHERS
from minray.core_worker.records.pending_task import FAILED, FINISHED
from minray.scheduling.lease import SPILLBACK


class Figures:
    """Counts what happens in one cluster."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Any, Counter[str]]] = {}
        """Name of a node -> its raylet, and what has been counted there."""
        self._cores: dict[str, tuple[Any, Counter[tuple[str, bool, str]]]] = {}
        """Worker id -> its core worker, and its ended tasks by state, whether they were tried again, and name."""

    def add_raylet(self, name: str, raylet: Any) -> None:
        """Count what a raylet writes, receives, sends on and kills, beginning with what it has counted by now."""
        counts = Counter(_figures_of(raylet))
        self._nodes[name] = raylet, counts
        table, store, cluster = raylet.store.table, raylet.store, raylet._broker.cluster
        end_spill, seal, assign, kill = table.end_spill, store.seal, cluster.assign, raylet._memory_monitor._workers.kill

        def watched_spill(entry: Any, spilled: Any) -> Any:
            counts["spilled objects"] += spilled is not None
            counts["spilled bytes"] += 0 if spilled is None else entry.size
            return end_spill(entry, spilled)

        def watched_seal(entry: Any) -> None:
            counts["received bytes"] += 0 if entry.creator or entry.is_written else entry.size
            seal(entry)

        def watched_assign(now: float) -> Any:
            assignment = assign(now)
            counts["requests sent on"] += sum(placement.kind == SPILLBACK for placement in assignment.placed)
            return assignment

        def watched_kill(*args: Any) -> None:
            counts["workers killed for memory"] += 1
            kill(*args)

        table.end_spill, store.seal, cluster.assign = watched_spill, watched_seal, watched_assign
        raylet._memory_monitor._workers.kill = watched_kill

    def add_core(self, core: Any) -> None:
        """Count the ended tasks of an owner."""
        counts: Counter[tuple[str, bool, str]] = Counter()
        self._cores[core.config.worker_id.hex()] = core, counts
        move = core.tasks.move

        def watched_move(task: Any, state: str) -> None:
            if state is FINISHED or state is FAILED:
                counts[state, task.attempt > 0, task.prepared.template.name] += 1
            move(task, state)

        core.tasks.move = watched_move

    def wrong(self, living: Container[str]) -> Iterator[str]:
        """Yield the figures that are wrong; ``living``: ids of workers and names of raylets."""
        for name, (raylet, counts) in self._nodes.items():
            for what, figure in _figures_of(raylet).items() if f"raylet/{name}" in living else ():
                if figure != counts[what]:
                    yield f"state: {name} shows {figure} {what}, and it is {counts[what]}"
        for worker_id, (core, ended) in self._cores.items():
            told = core.tasks.ended
            tables = {(FINISHED, False): told.finished, (FINISHED, True): told.finished_again}
            tables |= {(FAILED, False): told.failed, (FAILED, True): told.failed_again}
            if worker_id in living and not any(OTHERS in table for table in tables.values()):
                shown = {(*key, name): count for key, table in tables.items() for name, count in table.items() if count}
                if shown != {key: count for key, count in ended.items() if count}:
                    yield f"state: worker {worker_id[:8]} shows other ended tasks than it has had"


def _figures_of(raylet: Any) -> dict[str, int]:
    """Return what a raylet has counted."""
    stats, deaths = raylet.io_workers.stats(), raylet._broker.processes.deaths
    return {
        "spilled objects": stats.spilled_objects,
        "spilled bytes": stats.spilled_bytes,
        "received bytes": raylet.objects.received_bytes,
        "requests sent on": raylet._broker.scheduler.spilled_count,
        "workers killed for memory": sum(deaths.evictions.values()),
    }
