"""Leftovers of a worker whose driver has dropped all references. A task reads them, because a worker answers only tasks."""

from __future__ import annotations

import os
import time
from typing import Any

import minray
from minray.api import calls as worker
from minray.protocol.actor import ALIVE, ListActors
from tests.helpers import core_worker_of
from tests.simulation.needs import Needs, needs_of_detached

STAY_S = 0.02
"""Seconds that each of several such tasks takes, so that every one needs a worker of its own."""


async def needs_here(core: Any) -> Needs:
    """Objects and tasks that this process keeps for detached actors, which the gcs counts as living."""
    actors = (await core.gcs.call(ListActors())).actors
    return needs_of_detached({each.actor_id: each for each in actors if each.detached and each.state == ALIVE}, [core])


@minray.remote(num_cpus=1)
def look_into_worker() -> tuple[int, list[str]]:
    """Return the pid, and a line for each table that has entries which no detached actor needs.

    The task has no arguments: where all values are in object stores, they would be found here.
    """
    time.sleep(STAY_S)
    core: Any = core_worker_of(worker.current_api())

    async def look() -> list[str]:
        needs = await needs_here(core)
        tables = {
            "references": {key: value for key, value in core.references.items() if key not in needs.objects},
            "stored objects": {key: value for key, value in core.store.objects.items() if key not in needs.objects},
            "tasks": {key: value for key, value in core.submission.tasks.tasks.items() if key not in needs.constructors},
            "leased workers": core.submission.submitter.leased_workers(),
        }
        return [f"{len(table)} {name}: {str(table)[:300]}" for name, table in tables.items() if table]

    return os.getpid(), worker.current_api().run_on_loop(look)
