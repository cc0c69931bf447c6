"""The death certificates of workers and drivers.

Ray: src/ray/gcs/gcs_worker_manager.h

A raylet reports the death of its workers; the gcs itself sees drivers die. The first certificate of an incarnation stands.
They are stored, for a raylet that was answered says nothing twice, and an owner who has lent to the dead must hear of it;
and bounded in number. Who asks later about a process of a dead node is told so by the table of nodes, which forgets nothing;
about any other process it must be tried whether it answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from minray.gcs.effects import Publication
from minray.protocol.gcs import WORKER_DEATHS, WorkerDeath

MAX_WORKER_DEATHS = 10_000


class WorkerManager:
    """The table of certificates."""

    def __init__(self, max_worker_deaths: int = MAX_WORKER_DEATHS) -> None:
        self._max_worker_deaths = max_worker_deaths
        self._deaths: dict[bytes, WorkerDeath] = {}
        """By worker id, oldest first; those of an earlier gcs before all others."""

    def load(self, deaths: Iterable[WorkerDeath]) -> list[Publication]:
        """After a restart."""
        return [publication for death in deaths for publication in self.on_death(death)]

    def on_death(self, death: WorkerDeath) -> list[Publication]:
        """A process has died. May make the table forget its oldest certificate."""
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
