"""A census of what is under way in a cluster at rest: nothing.

``tables`` says of each table of the protocol's classes what it is for. Those for work under way must be empty when a
cluster is at rest and no program holds anything. The judge adds up the most important ones by name (``judge``). This file
finds all others by walking over the objects of a process. So a table that somebody adds tomorrow is looked at, too.

``LASTING`` names the tables of work that never ends. Left out: objects that only a running task or a closure knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

from minray.simulation import SimCluster
from tests.simulation.tables import ROOMS as ROOMS_OF_TABLES
from tests.simulation.tables import UNDER_WAY, reasons

LASTING = {
    "Peer._waiting": "long polls",
    "_Topic.waiters": "long polls",
    "WorkerProcesses._lives": "the living workers",
    "PullManager._waiting": "bundles that are over are dropped with the next one",
    "PushedTasks.tasks": "the last answers, which the next push acknowledges; the judge looks for unanswered ones",
    "WorkerProcesses._asking": "living workers that have refused to end",
    "ReceivedTask.fetching": "a part of these",
    "ClusterLeaseManager._confirmed": "nodes of which the gcs knows nothing, for requests that may come",
    "NormalTaskSubmitter._due": "queues that the end of this turn empties",
}
"""Tables of work that lasts, or is over and not dropped yet, with the reason."""
ROOMS = tuple(f"minray.{room}." for room in ROOMS_OF_TABLES)
PLAIN = (str, bytes, int, float, bool, type(None))


def unfinished(cluster: SimCluster, lost: frozenset[str] = frozenset()) -> list[str]:
    """List what is under way in living processes, one line for each table; those in ``lost`` are not asked."""
    alive = cluster.alive()
    roots: dict[str, Any] = {name: core for name, core in cluster.cores.items() if name in alive and name not in lost}
    roots |= {f"raylet/{name}": one for name, one in cluster.raylets.items() if f"raylet/{name}" in alive}
    roots |= {"gcs": cluster.gcs} if "gcs" in alive else {}
    return [f"L2: {name} has {what} in {table}" for name, root in roots.items() for table, what in _full_tables(root)]


def _full_tables(root: Any) -> Iterator[tuple[str, str]]:
    """Walk over the objects of one process, and yield the tables that should be empty and are not."""
    seen, left = {id(root)}, [root]
    while left:
        one = left.pop()
        kind = type(one)
        if kind in (dict, list, tuple, set):
            parts = one.values() if kind is dict else one
        else:
            parts = []
            for name in _attributes(kind, tuple(getattr(one, "__dict__", ()))):
                value = getattr(one, name, None)
                table = f"{kind.__name__}.{name}"
                if table in _watched() and _is_full(value):
                    yield table, f"{len(value)} things"
                parts.append(value)
        for part in parts:
            if type(part) not in PLAIN and id(part) not in seen and _is_ours(type(part)):
                seen.add(id(part))
                left.append(part)


@cache
def _watched() -> frozenset[str]:
    return frozenset(table for table, reason in reasons().items() if reason == UNDER_WAY) - LASTING.keys()


@cache
def _attributes(kind: type, own: tuple[str, ...]) -> tuple[str, ...]:
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) or ()]
    fields = list(getattr(kind, "__struct_fields__", ()))
    return tuple(dict.fromkeys([*own, *slots, *fields]))


@cache
def _is_ours(kind: type) -> bool:
    return kind in (dict, list, tuple, set) or kind.__module__.startswith(ROOMS)


def _is_full(table: Any) -> bool:
    """Tell whether a table has anything; empty tables in it, and futures that are done, are nothing. Tasks always count."""
    if not hasattr(table, "__len__"):
        return False
    return any(map(_counts, table.values() if isinstance(table, dict) else table))


def _counts(part: Any) -> bool:
    if isinstance(part, asyncio.Future) and not isinstance(part, asyncio.Task):
        return not part.done()
    return not hasattr(part, "__len__") or isinstance(part, PLAIN) or len(part) > 0
