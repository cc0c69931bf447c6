"""When the processes of this node are to collect garbage: what a reference cycle keeps may be what somebody waits for.

Ray: src/ray/raylet/node_manager.cc (TriggerGlobalGC, DoLocalGC)

Handles of actors and references that nobody can reach any more live on if they keep each other, in a process that rests and
so never collects by itself; their actors keep their resources meanwhile. Who waits for long collects in his own process. For
all others there is this: when leases wait somewhere, and nothing has changed on any node for a while, every raylet has its
own workers and drivers collect. It knows of all nodes from their reports, which come now and then without a change, too;
so nobody has to tell it when.

Rules
  * As long as nothing changes it is done again, each time after twice as long: it costs every process a moment, and may not
    help.
  * It is no promise: who is not reached is asked the next time.
"""

from __future__ import annotations

from minray.protocol.base import Address
from minray.protocol.gcs import NodeResources


class LocalGc:
    """What one raylet knows of it."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._pause_s = patience_s
        """From ``_still_since`` to the next collection."""
        self._still_since = 0.0
        """Nothing has changed since then."""
        self._reports: dict[bytes, NodeResources] = {}
        """The latest of each living node."""
        self.drivers: dict[bytes, Address] = {}
        """Those of this node, by their jobs, which go on."""

    def on_report(self, node_id: bytes, report: NodeResources | None, now: float) -> bool:
        """What a node has free and what waits there; None: it is dead. True: it is time to collect."""
        known = self._reports.pop(node_id, None)
        if report is not None:
            self._reports[node_id] = report
        if report is None or known is None or (report.available, report.pending) != (known.available, known.pending):
            self._still_since, self._pause_s = now, self._patience_s
            return False
        if now < self._still_since + self._pause_s or not any(report.pending for report in self._reports.values()):
            return False
        self._pause_s *= 2
        return True
