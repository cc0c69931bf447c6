"""Lines that the gcs shows at a driver: what its actors and placement groups need and no node has.

Ray: the warnings of the autoscaler about infeasible requests, python/ray/autoscaler/_private/event_summarizer.py

They travel like the output of workers. A line is for people: it is sent once, and nothing waits for it.
"""

from __future__ import annotations

from minray.protocol.base import Address
from minray.protocol.core_worker import PrintLines
from minray.rpc.connection import Peers, ignore


def warn_owner(peers: Peers, owner: Address, text: str, now: float) -> None:
    """Show a line at the driver that owns something; ``now`` is the time of the wall clock, by which lines are ordered."""
    lines = PrintLines(
        node_id=b"gcs", node_ip="", pid=0, is_stderr=True, lines=[("gcs", text)], sequence=round(now * 1_000_000)
    )
    peers.to(owner).send(lines, ignore)
