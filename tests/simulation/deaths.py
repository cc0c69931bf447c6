"""Deaths and want of memory, judged when they are told or found; a part of the ``Watch`` (see ``invariants``).

| | looked at when | |
|---|---|---|
| L6 | a raylet reports the death of a worker | its process has ended |
| L5 | a process asks the gcs about a death | it does not know of that for certain |
| L6 | the gcs tells that an actor has lost its worker | the process has ended, or its node counts as dead |
| S3 | the gcs tells of a restart | the actor begins one incarnation more, and no earlier one comes back |
| G21, G35 | the gcs tells that a loss has ended an actor | no restart was left; those on preempted nodes cost none |
| G108 | the gcs tells that a node is dead because it is silent | it has not answered a check for as long as that takes |
| G89 | a raylet looks at its memory | after a look that found too much in use, it has killed a worker, if it had one |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from minray.common.config import SystemConfig
from minray.common.ids import short
from minray.protocol.actor import (
    ALIVE,
    DEAD,
    DEPENDENCIES_UNREADY,
    NODE_DIED,
    OUT_OF_MEMORY,
    RESTARTING,
    WORKER_DIED,
    ActorInfo,
)
from minray.protocol.base import decode
from minray.protocol.gcs import NODES, GetWorkerDeath, NodeInfo, ReportWorkerDeath
from minray.simulation.loop import SimLoop

MOST_IN_USE = SystemConfig().memory_usage_threshold
"""Share of a node's memory above which a worker is killed."""
ACTORS_CHANNEL = "actors:"
LOSSES = (WORKER_DIED, NODE_DIED, OUT_OF_MEMORY)
"""Kinds of death after which an actor is restarted, if it may be."""
SILENT = "no answer to "
"""Beginning of the cause of death of a node that was silent."""
MOMENT_S = 0.1
"""Virtual seconds that a check may end earlier than its time-out, because steps take time on slow nodes."""


class Deaths:
    """Looks at the deaths in one cluster."""

    def __init__(self, on_broken: Callable[[str, str], None], loop: SimLoop) -> None:
        self._on_broken = on_broken
        self._loop = loop
        self._told: dict[bytes, ActorInfo] = {}
        """Last record of each actor that a gcs has told."""
        self._free: Counter[bytes] = Counter()
        """Actor -> its incarnations that have ended with preempted nodes."""
        self._answered: dict[bytes, float] = {}
        """Raylet -> the time of its last answer to a check in time."""

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
            elif value is not None and channel == NODES:
                self._on_node(gcs._health, decode(NodeInfo, value))
            publish(channel, key, value)

        gcs._publisher.publish = watched
        watch = gcs._health.watch

        def watched_watch(address: Any, **options: Any) -> None:
            is_new = address.worker_id not in gcs._health._watches
            watch(address, **options)
            if is_new:
                self._hear_answers(address.worker_id, gcs._health._watches[address.worker_id].peer)

        gcs._health.watch = watched_watch

    def _hear_answers(self, worker_id: bytes, peer: Any) -> None:
        call = peer.call

        async def heard(request: Any) -> Any:
            answer = await call(request)
            self._answered[worker_id] = self._loop.time()
            return answer

        peer.call = heard

    def _on_node(self, health: Any, node: NodeInfo) -> None:
        """Did a node that counts as dead for its silence say nothing while that many checks were sent?"""
        answered = self._answered.get(node.node_id)
        if node.alive or answered is None or not node.death_cause.startswith(SILENT):
            return
        silent_s = self._loop.time() - answered
        if silent_s < health._threshold * health._timeout_s - MOMENT_S:
            self._on_broken("G108", f"node {short(node.node_id)} is silent for {silent_s:.2f} s, and counts as dead")

    def _on_actor(self, gcs: Any, info: ActorInfo) -> None:
        before = self._told.get(info.actor_id)
        self._told[info.actor_id] = info
        if before is None:
            return
        what = f"actor {short(info.actor_id)}"
        if info.restarts not in (before.restarts, before.restarts + 1):
            self._on_broken("S3", f"the gcs tells restart {info.restarts} of {what} after restart {before.restarts}")
        if info.death is not None and info.restarts > before.restarts or info.state == DEAD != before.state:
            self._on_loss(before, info)
        has_lost = info.state == RESTARTING or (info.state == DEAD and info.death is not None)
        is_loss = has_lost and info.death is not None and info.death.kind in (WORKER_DIED, OUT_OF_MEMORY)
        if before.state == ALIVE and before.address is not None and is_loss and self._lives(before.address.worker_id):
            node = gcs.node(before.address.node_id)
            if node is not None and node.alive:
                self._on_broken("L6", f"the gcs tells that the worker of {what} has died, which lives")

    def _on_loss(self, before: ActorInfo, info: ActorInfo) -> None:
        """Was a restart left, when a loss has ended an actor for good, and was one left when it was restarted?"""
        assert info.death is not None
        is_free, used, most = info.death.preempted, before.restarts - self._free[info.actor_id], info.max_restarts
        self._free[info.actor_id] += is_free
        what = f"{used} of {most} restarts of actor {short(info.actor_id)} are used up"
        is_left = most != 0 if is_free else used < most or most < 0
        is_mortal = before.is_ending or before.state == DEPENDENCIES_UNREADY
        if info.state == DEAD and info.death.kind in LOSSES and is_left and not is_mortal:
            self._on_broken("G35", f"{what}, and a loss has ended it: {info.death.message}")
        elif info.state == RESTARTING and not is_left:
            self._on_broken("G35", f"{what}, and it is restarted")

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
