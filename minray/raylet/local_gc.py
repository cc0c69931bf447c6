"""Garbage collection for what waits: the raylet tells when its node's processes should collect.

Ray: src/ray/raylet/node_manager.cc (TriggerGlobalGC, DoLocalGC)

Unreachable actor handles and references stay alive if they are in reference cycles of an idle process, which never collects
by itself. Their actors keep their resources meanwhile, and leases may wait for these. A process that waits for long collects
its own garbage. For all others, each raylet watches the cluster. When leases wait on some node, and nothing has changed on
any node for a while, it has its own workers and drivers collect. It knows all nodes from their resource reports. Those of a
node where requests wait also come now and then without a change. So no message has to start the collection.

Unreachable references in cycles keep objects alive, too, and a full store would refuse new ones although no program needs
the old ones. So when requests wait for memory, the node's processes collect at once, and so do those of all other nodes,
which may own the objects: the next resource report counts one more shortage.

Rules
  * While requests wait for memory again and again, processes collect once in ``local_gc_min_interval_s``.
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
        self.shortages = 0
        """Number of times that this node has asked all nodes to collect."""
        self._not_before = 0.0
        """Time before which a shortage starts no further collection here."""
        self._pause_s = patience_s
        """Seconds from ``_still_since`` to the next collection."""
        self._still_since = 0.0
        """Time of the last change on any node."""
        self._reports: dict[bytes, NodeResources] = {}
        """Each living node's latest report, by node id."""
        self.drivers: dict[bytes, Address] = {}
        """Drivers of this node's running jobs, by job id."""

    def on_report(self, node_id: bytes, report: NodeResources | None, now: float) -> bool:
        """Take in a node's report (None: the node is dead), and return True if it is time to collect."""
        known = self._reports.pop(node_id, None)
        if report is not None:
            self._reports[node_id] = report
        if report is not None and known is not None and report.shortages > known.shortages:
            return self._may_collect(now)
        if report is None or known is None or (report.available, report.pending) != (known.available, known.pending):
            self._still_since, self._pause_s = now, self._patience_s
            return False
        if now < self._still_since + self._pause_s or not any(each.pending for each in self._reports.values()):
            return False
        self._pause_s *= 2
        return True

    def on_shortage(self, now: float) -> bool:
        """Note that requests wait for memory; return True if the processes of all nodes should collect now."""
        if not self._may_collect(now):
            return False
        self.shortages += 1
        return True

    def _may_collect(self, now: float) -> bool:
        if now < self._not_before:
            return False
        self._not_before = now + self._patience_s
        return True
