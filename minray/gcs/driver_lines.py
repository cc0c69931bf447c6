"""Lines that the gcs shows at a driver: what its actors need and no node has.

Ray: the warnings of the autoscaler about infeasible requests, python/ray/autoscaler/_private/event_summarizer.py

They travel like the output of workers. A line is for people: it is sent once, and nothing waits for it.
"""

from __future__ import annotations

from minray.common.shown import cut
from minray.protocol.actor import ActorInfo
from minray.protocol.core_worker import PrintLines
from minray.rpc.connection import Peers, ignore


def warn_owner(peers: Peers, actor: ActorInfo, why: str, now: float) -> None:
    """Tell an actor's owner why no node can hold the actor; ``now`` is the wall clock's time, which orders the lines."""
    text = f"an actor of class {cut(actor.class_name)} waits for a node to join: {why}"
    lines = PrintLines(
        node_id=b"gcs", node_ip="", pid=0, is_stderr=True, lines=[("gcs", text, "")], sequence=round(now * 1_000_000)
    )
    peers.to(actor.owner).send(lines, ignore)
