"""What the zoo's scenarios look at while they run, beyond what the judge looks at when they are over."""

from __future__ import annotations

from typing import Any

from minray.simulation import Deadlock, SimCluster
from minray.simulation.trace import LIFE
from tests.simulation.interference import watch_sends

MOST_MESSAGES = 30_000
"""Ten times what the longest scenario sends."""


class Broken(Deadlock):
    """A property that did not hold; raised inside the world, it stops it at once."""

    def __init__(self, prop: str, text: str) -> None:
        super().__init__(text)
        self.prop = prop


class Watch:
    """Looks at one cluster from its start: S2 whenever a worker is granted, L5 always, L3 of dead owners when asked."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self._messages = 0
        self._is_broken = False
        watch_sends(cluster, self._on_send)

    def _on_send(self, end: Any, message: Any, word: str) -> bool:
        self._messages += 1
        if self._messages == MOST_MESSAGES:
            self._break("L5", f"{MOST_MESSAGES} messages; the last one is {word}")
        if word == "RequestWorkerLease reply":
            twice = self._leased_twice()
            if twice:
                self._break("S2", twice)
        return True

    def _break(self, prop: str, text: str) -> None:
        if not self._is_broken:
            self._is_broken = True
            self.cluster.world.loop.world.call_soon(_raise, Broken(prop, text))

    def _leased_twice(self) -> str:
        """A worker that some raylet has granted by one lease, and that a living owner holds by another."""
        alive = {process.name for process in self.cluster.world.loop.processes if process.alive}
        granted: dict[bytes, bytes] = {}
        for raylet in self.cluster.raylets.values():
            for lease_id, entry in raylet._broker.entries.items():
                if entry.worker is not None:
                    granted[entry.worker.worker_id] = lease_id
        for name, core in self.cluster.cores.items():
            for worker in core.submitter.leased_workers() if name in alive else ():
                lease_id = granted.get(worker.address.worker_id, worker.lease_id)
                if lease_id != worker.lease_id:
                    return f"{name} holds a worker by lease {worker.lease_id.hex()}, and {lease_id.hex()} was granted"
        return ""

    def leases_of_the_dead(self) -> str:
        """Leases of living raylets whose owners have ended; after a while there should be none. Empty: there is none."""
        ended = self._ended()
        dead = {core.address.worker_id: name for name, core in self.cluster.cores.items() if name in ended}
        for node, raylet in self.cluster.raylets.items():
            for entry in raylet._broker.entries.values():
                if f"raylet/{node}" not in ended and entry.owner.worker_id in dead:
                    return f"raylet/{node}: a lease of {dead[entry.owner.worker_id]}, which is dead"
        return ""

    def has_lost_a_raylet(self) -> bool:
        """Then the requests that its driver had open are nobody's to answer."""
        return any(name.startswith("raylet/") for name in self._ended())

    def _ended(self) -> set[str]:
        return {event.process for event in self.cluster.trace.events if event.kind == LIFE and event.details[0] == "ends"}


def _raise(error: Broken) -> None:
    raise error
