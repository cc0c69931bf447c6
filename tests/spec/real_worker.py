"""Leftovers of a worker whose driver has let go of everything: asked by a task, for workers answer nobody else."""

from __future__ import annotations

import os
import time
from typing import Any

import minray
from minray.api import calls as worker
from minray.protocol.actor import ALIVE, ListActors
from tests.simulation.needs import Needs, needs_of_detached

STAY_S = 0.02
"""So long is each of several such tasks that every one needs a worker of its own."""


async def needs_here(core: Any) -> Needs:
    """What this process keeps for the detached actors that live, as the gcs says."""
    actors = (await core.gcs.call(ListActors())).actors
    return needs_of_detached({each.actor_id: each for each in actors if each.detached and each.state == ALIVE}, [core])


@minray.remote(num_cpus=1)
def look_into_worker() -> tuple[int, list[str]]:
    """The pid, and a line for each table that is not empty, but for what detached actors need.

    It has no arguments: where all values are in object stores, they would be found here.
    """
    time.sleep(STAY_S)
    core: Any = worker.current_api().port.submission

    async def look() -> list[str]:
        needs = await needs_here(core)
        tables = {
            "references": {key: value for key, value in core.references.items() if key not in needs.objects},
            "stored objects": {key: value for key, value in core.store.objects.items() if key not in needs.objects},
            "tasks": {key: value for key, value in core.tasks.tasks.items() if key not in needs.constructors},
            "leased workers": core.submitter.leased_workers(),
        }
        return [f"{len(table)} {name}: {str(table)[:300]}" for name, table in tables.items() if table]

    return os.getpid(), worker.current_api().run_on_loop(look)
