"""Ends of processes that a fault has to explain: of raylets, of drivers, and of the gcs as drivers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from minray.simulation import SimCluster
from minray.simulation.cluster import GCS, HEAD, DriverDied
from minray.simulation.faults import Key
from minray.simulation.trace import LIFE
from tests.spec.charges import Blows
from tests.spec.losses import crashed_by
from tests.spec.stage import has_lost_its_node

SILENCING = ("long_delay", "reset", "cut", "rift", "last_words")
"""Faults after which one process may hear nothing of another."""
ENDS_WORD = ("ends",)
HEAD_ENDS = ("raylet/head", ENDS_WORD)
"""Process and details of the ``LIFE`` event in a trace that says that the head's raylet has ended."""


def head_has_ended(cluster: SimCluster) -> bool:
    """Whether the head's raylet has ended, so that the run is over for all drivers."""
    return any(event.kind == LIFE and (event.process, event.details) == HEAD_ENDS for event in cluster.trace.events)


def unexplained_end_of_head(answers: Iterable[Key]) -> list[str]:
    """The end of the head's raylet, unless one of these faults can have caused it (G108)."""
    if any(map(_may_end_the_head, answers)):
        return []
    return ["G108: the head's raylet has ended, and nothing that has struck can have ended it"]


def _may_end_the_head(key: Key) -> bool:
    """Whether this fault may have ended the head's raylet: the raylet or the gcs died, or heard too little of the other."""
    is_end = key[0] in ("crash", "posthumous", "long_stall") and key[1].partition(">")[0] in ("raylet/head", GCS)
    return is_end or key[0] in SILENCING


def killed_drivers(cluster: SimCluster) -> set[int]:
    """Numbers of the drivers that a crash has struck. They end without a history."""
    crashed = crashed_by(cluster.oracle.answers)
    return {int(name.removeprefix("driver/")) for name in crashed if name.startswith("driver/")}


def unexplained_ends(cluster: SimCluster, blows: Blows) -> list[str]:
    """Nodes that have ended although nothing has struck them, and nobody has told them to leave (G108).

    Without a gcs that comes back every node ends (G111).
    """
    if GCS not in cluster.alive():
        return []
    ended = {f"raylet/{name}": name for name in cluster.raylets if f"raylet/{name}" not in cluster.alive()}
    return [
        f"G108: {raylet} has ended, and nothing that has struck can have ended it"
        for raylet, name in ended.items()
        if name != HEAD and name not in blows.leaving_nodes and not blows.explain_loss_of(name)
    ]


def lost_drivers(cluster: SimCluster, drivers: Sequence[asyncio.Future[Any]], blows: Blows) -> set[int]:
    """Numbers of the drivers that have died with their nodes or lost their raylets. Their histories do not count."""
    lost = set()
    node_of = cluster.trace.nodes()
    for number, driver in enumerate(drivers):
        if not blows.explain_loss_of(node_of[f"driver/{number}"], f"driver/{number}"):
            continue
        core = cluster.cores.get(f"driver/{number}")
        error = driver.exception() if driver.done() else None
        is_homeless = isinstance(error, DriverDied) or has_lost_its_node(error)
        if is_homeless or (core is not None and core.raylet.death is not None):
            lost.add(number)
    return lost


def has_left(driver: asyncio.Future[Any]) -> bool:
    """Whether a driver that leaves or exits has ended in that way, and not by another error."""
    return driver.exception() is None or isinstance(driver.exception(), DriverDied)


def has_lost_gcs(cluster: SimCluster, blows: Blows) -> bool:
    """Whether a driver has given up the gcs, for a reason, so that all is over for that driver."""
    node_of = cluster.trace.nodes()
    given_up = [name for name, core in cluster.cores.items() if name.startswith("driver/") and core.gcs.death]
    return any(blows.explain_loss_of(node_of[name], name) for name in given_up)
