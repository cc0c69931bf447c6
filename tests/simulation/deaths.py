"""Deaths and want of memory, judged when they are told or found; a part of the ``Watch`` (see ``invariants``).

| | looked at when | |
|---|---|---|
| L6 | a raylet reports the death of a worker | its process has ended |
| L5 | a process asks the gcs about a death | it does not know of that for certain |
| L6 | the gcs tells that an actor has lost its worker | the process has ended, or its node counts as dead |
| S3 | the gcs tells of a restart | the actor begins one incarnation more, and no earlier one comes back |
| G89 | a raylet looks at its memory | after a look that found too much in use, it has killed a worker, if it had one |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.config import SystemConfig
from minray.common.ids import short
from minray.protocol.actor import ALIVE, DEAD, OUT_OF_MEMORY, RESTARTING, WORKER_DIED, ActorInfo
from minray.protocol.base import decode
from minray.protocol.gcs import GetWorkerDeath, ReportWorkerDeath
from minray.simulation.loop import SimLoop

MOST_IN_USE = SystemConfig().memory_usage_threshold
"""Share of a node's memory above which a worker is killed."""
ACTORS_CHANNEL = "actors:"


class Deaths:
    """Looks at the deaths in one cluster."""

    def __init__(self, on_broken: Callable[[str, str], None], loop: SimLoop) -> None:
        self._on_broken = on_broken
        self._loop = loop
        self._told: dict[bytes, ActorInfo] = {}
        """Last record of each actor that a gcs has told."""

    def on_send(self, core: Any, message: Any, word: str) -> None:
        """Look at a message that is about to be sent; ``core``: the core worker that sends it, if one does."""
        if word == "ReportWorkerDeath":
            worker_id = decode(ReportWorkerDeath, message.payload).death.worker_id
            if self._lives(worker_id):
                self._on_broken("L6", f"a raylet reports the death of worker {short(worker_id)}, which lives")

        elif word == "GetWorkerDeath" and core is not None:
            worker_id = decode(GetWorkerDeath, message.payload).worker_id
            peer = core.peers._peers.get(worker_id)
            if peer is not None and peer.death is not None and peer.death.is_certain:
                self._on_broken("L5", f"a process asks the gcs about {short(worker_id)}, and knows that it is dead")

    def _lives(self, worker_id: bytes) -> bool:
        name = f"worker/{short(worker_id)}"
        return any(process.name == name and process.alive for process in self._loop.processes)

    # --- The gcs

    def add_gcs(self, gcs: Any) -> None:
        publish = gcs._publisher.publish

        def watched(channel: str, key: bytes, value: bytes | None) -> None:
            if value is not None and channel.startswith(ACTORS_CHANNEL):
                self._on_actor(gcs, decode(ActorInfo, value))
            publish(channel, key, value)

        gcs._publisher.publish = watched

    def _on_actor(self, gcs: Any, info: ActorInfo) -> None:
        before = self._told.get(info.actor_id)
        self._told[info.actor_id] = info
        if before is None:
            return
        what = f"actor {short(info.actor_id)}"
        if info.restarts not in (before.restarts, before.restarts + 1):
            self._on_broken("S3", f"the gcs tells restart {info.restarts} of {what} after restart {before.restarts}")
        has_lost = info.state == RESTARTING or (info.state == DEAD and info.death is not None)
        is_loss = has_lost and info.death is not None and info.death.kind in (WORKER_DIED, OUT_OF_MEMORY)
        if before.state == ALIVE and before.address is not None and is_loss and self._lives(before.address.worker_id):
            node = gcs.node(before.address.node_id)
            if node is not None and node.alive:
                self._on_broken("L6", f"the gcs tells that the worker of {what} has died, which lives")

    # --- Raylets

    def add_raylet(self, name: str, raylet: Any) -> None:
        monitor = raylet._memory_monitor
        host, workers = monitor._host, monitor._workers
        kill, usage, candidates = workers.kill, host.memory_usage, workers.candidates
        is_due = False

        def watched_kill(*args: Any) -> None:
            nonlocal is_due
            is_due = False
            kill(*args)

        def watched_usage() -> tuple[int, int]:
            nonlocal is_due
            if is_due:
                self._on_broken("G89", f"{name} had too little memory, and has killed no worker")
            used, total = usage()
            is_due = used > total * MOST_IN_USE and bool(candidates())
            return used, total

        workers.kill, host.memory_usage = watched_kill, watched_usage
