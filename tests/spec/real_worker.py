"""What a worker still has when its driver has let go of everything: asked by a task, for workers answer nobody else."""

from __future__ import annotations

import os
import time
from typing import Any

import minray
from minray import worker

STAY_S = 0.02
"""So long is each of several such tasks that every one needs a worker of its own."""


@minray.remote(num_cpus=1)
def look_into_worker() -> tuple[int, list[str]]:
    """The pid, and a line for each table that is not empty."""
    time.sleep(STAY_S)
    core: Any = worker.current_api().core

    async def look() -> list[str]:
        tables = {
            "references": dict(core.references.items()),
            "stored objects": core.store.objects,
            "tasks": core.tasks.tasks,
            "leased workers": core.submitter.leased_workers(),
        }
        return [f"{len(table)} {name}: {str(table)[:300]}" for name, table in tables.items() if table]

    return os.getpid(), worker.current_api().run_on_loop(look)
