"""The workers of a node that may be killed when memory runs short.

Ray: NodeManager::CreateMemoryUsageRefreshCallback in src/ray/raylet/node_manager.cc

The memory monitor chooses among them. A worker that starts, or was asked to end, is not one of them. None is killed while
another one is dying, because that one's memory may be enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minray.raylet.lease_table import LeaseEntry
from minray.raylet.memory_monitor import Candidate
from minray.raylet.worker_deaths import ACTOR, TASK
from minray.raylet.worker_deaths import IDLE as IDLE_WORKER
from minray.raylet.worker_pool import DYING, IDLE, LEASED, Worker, WorkerPool


class KillableWorkers:
    """Lists the workers of one node for the memory monitor, and kills the one that it chooses."""

    def __init__(
        self,
        pool: WorkerPool,
        entries: Mapping[bytes, LeaseEntry],
        memory_of: Callable[[int], int],
        kill_worker: Callable[[Worker, str], None],
        on_eviction: Callable[[str, bytes], None],
    ) -> None:
        """``memory_of`` returns the bytes that the death of a process would free, by its pid.

        ``on_eviction(kind, worker_id)`` hears of each worker that is killed (``WorkerDeaths``)."""
        self._pool = pool
        self._entries = entries
        self._memory_of = memory_of
        self._kill_worker = kill_worker
        self._on_eviction = on_eviction

    def candidates(self) -> list[Candidate] | None:
        """Return the workers whose death would free memory; None while one is dying."""
        candidates = []
        for worker in self._pool.workers.values():
            state = self._pool.state(worker.worker_id)
            if state == DYING:
                return None
            if state in (IDLE, LEASED):
                entry = self._entries.get(worker.lease_id)
                candidates.append(
                    Candidate(
                        worker_id=worker.worker_id,
                        pid=worker.pid,
                        lease_id=worker.lease_id,
                        retriable=entry is None or entry.retriable,
                        leased_at=entry.granted_at if entry is not None else 0.0,
                        memory_bytes=self._memory_of(worker.pid),
                    )
                )
        return candidates

    def kill(self, victim: Candidate, reason: str, used: int, total: int) -> None:
        """Kill a candidate, because ``used`` of ``total`` bytes of memory are in use."""
        worker = self._pool.workers[victim.worker_id]
        worker.memory_usage = (used, total)
        entry = self._entries.get(worker.lease_id)
        self._on_eviction(IDLE_WORKER if entry is None else ACTOR if entry.request.for_actor else TASK, worker.worker_id)
        self._kill_worker(worker, reason)
