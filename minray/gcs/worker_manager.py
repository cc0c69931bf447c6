"""The table of death certificates of workers and drivers.

Ray: src/ray/gcs/gcs_worker_manager.h

A raylet reports the deaths of its workers; the gcs itself sees drivers die. The first certificate of an incarnation stands.
Certificates are stored, because a raylet does not repeat an answered report, and an owner must learn that a borrower is
dead. Their number is bounded. The table of nodes, which forgets nothing, still answers for all processes of a dead node. To
find out about any other process with an old certificate, a caller must try to reach it.
"""

from __future__ import annotations

from collections.abc import Iterable

from minray.gcs.effects import Publication
from minray.protocol.gcs import WORKER_DEATHS, WorkerDeath

MAX_WORKER_DEATHS = 10_000
"""Most death certificates that are kept; a new subscriber receives them all."""


class WorkerManager:
    """Holds the table of death certificates."""

    def __init__(self, max_worker_deaths: int = MAX_WORKER_DEATHS) -> None:
        self._max_worker_deaths = max_worker_deaths
        self._deaths: dict[bytes, WorkerDeath] = {}
        """Certificates by worker id, oldest first; those of an earlier gcs come before all others."""

    def load(self, deaths: Iterable[WorkerDeath]) -> list[Publication]:
        """Enter the certificates that an earlier gcs has stored, after a restart."""
        return [publication for death in deaths for publication in self.on_death(death)]

    def on_death(self, death: WorkerDeath) -> list[Publication]:
        """Enter a certificate, and return the publications. The oldest certificate may be dropped."""
        if death.worker_id in self._deaths:
            return []
        self._deaths[death.worker_id] = death
        publications = [Publication(WORKER_DEATHS, death.worker_id, death)]
        if len(self._deaths) > self._max_worker_deaths:
            oldest = next(iter(self._deaths))
            del self._deaths[oldest]
            publications.append(Publication(WORKER_DEATHS, oldest, None))
        return publications

    def get(self, worker_id: bytes) -> WorkerDeath | None:
        return self._deaths.get(worker_id)
