"""Watches of the zoo's scenarios: they check the invariants, and the first that is broken ends the run."""

from __future__ import annotations

from minray.simulation.trace import LIFE
from tests.simulation.invariants import Watch


class StoppingWatch(Watch):
    """Stops the world when a property is broken; looks for leases of dead owners (L3) when asked."""

    def on_broken(self, prop: str, text: str) -> None:
        if not self.problems:
            self.stop(prop, text)
        super().on_broken(prop, text)

    def leases_of_the_dead(self) -> str:
        """Leases of living raylets whose owners have ended; after a while there should be none. Empty: there is none."""
        ended = self._ended()
        dead = {core.process.address.worker_id: name for name, core in self.cluster.cores.items() if name in ended}
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
