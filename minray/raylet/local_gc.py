"""Garbage collection for waiting leases: the raylet tells when its node's processes should collect.

Ray: src/ray/raylet/node_manager.cc (TriggerGlobalGC, DoLocalGC)

Unreachable actor handles and references stay alive if they are in reference cycles of an idle process, which never collects
by itself. Their actors keep their resources meanwhile, and leases may wait for these. A process that waits for long collects
its own garbage. For all others, each raylet watches the cluster. When leases wait on some node, and nothing has changed on
any node for a while, it has its own workers and drivers collect. It knows all nodes from their resource reports, which also
come now and then without a change. So no message has to start the collection.

Rules
  * As long as nothing changes, the collection is repeated, each time after twice as long: it costs every process a moment,
    and may not help.
  * It is best effort: a process that is not reached is asked the next time.
"""

from __future__ import annotations

from minray.protocol.base import Address
from minray.protocol.gcs import NodeResources


class LocalGc:
    """Decides when the processes of one node should collect garbage."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._pause_s = patience_s
        """Seconds from ``_still_since`` to the next collection."""
        self._still_since = 0.0
        """Time of the last change on any node."""
        self._reports: dict[bytes, NodeResources] = {}
        """Latest report of each living node."""
        self.drivers: dict[bytes, Address] = {}
        """Drivers of this node's running jobs, by job id."""

    def on_report(self, node_id: bytes, report: NodeResources | None, now: float) -> bool:
        """Take in a node's report (None: the node is dead), and return True if it is time to collect."""
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
