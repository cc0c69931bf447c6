"""Actors and words that the tests of actors' guarantees share.

What a method prints says that it has run: ``printed`` (see ``judge``) counts it, also when nobody hears its answer.
"""

from __future__ import annotations

import time
from typing import Any

import minray
from minray.simulation import SimCluster

DEAD = "ActorDiedError"
UNAVAILABLE = "ActorUnavailableError"


@minray.remote
class Counter:
    """Counts its calls; prints what it does."""

    def __init__(self, start: int = 0) -> None:
        self.count = start
        print(f"made {start}")

    def add(self, name: Any = "", seconds: float = 0.0) -> int:
        print(f"begin {name}")
        if seconds:
            time.sleep(seconds)
        self.count += 1
        print(f"end {name}")
        return self.count

    def get(self) -> int:
        return self.count

    def fail(self) -> None:
        self.count += 1
        raise ValueError(f"failed {self.count}")

    def make_child(self, name: str = "", **options: Any) -> Any:
        """A child whose handle this actor keeps."""
        self.child = Counter.options(**options).remote(100)
        return self.child

    def call(self, handle: Any, times: int) -> list[int]:
        return minray.get([handle.add.remote() for _ in range(times)])

    def keep(self, value: Any) -> None:
        self.kept = value

    def own_handle(self) -> Any:
        return minray.get_runtime_context().current_actor

    def exit(self) -> None:
        minray.actor.exit_actor()

    def __ray_shutdown__(self) -> None:
        print(f"shut down after {self.count}")


def gcs_states(cluster: SimCluster) -> list[str]:
    """States of all actors that the gcs knows, oldest first."""
    gcs: Any = cluster.gcs
    return [row.info.state for row in gcs._actors.rows()]


def actor_process(cluster: SimCluster, index: int = 0) -> str:
    """The name of the process of the so manieth living actor."""
    return [name for name, core in living(cluster) if core.execution.actor_receiver.actor is not None][index]


def living(cluster: SimCluster) -> list[tuple[str, Any]]:
    alive = {process.name for process in cluster.workers()}
    return [(name, core) for name, core in cluster.cores.items() if name in alive]


def deaths(cluster: SimCluster) -> list[int]:
    """Why the actors that are dead have died, oldest first."""
    gcs: Any = cluster.gcs
    return [row.info.death.kind for row in gcs._actors.rows() if row.info.state == "DEAD"]
