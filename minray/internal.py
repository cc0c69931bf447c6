"""Calls of Ray for expert users: free values by hand, and list all objects of the cluster.

Ray: python/ray/_private/internal_api.py (free, memory_summary)

Reference counting frees a value when no reference to it is left. A program that no longer needs a large value, although
references to it remain, can free it earlier with ``free``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minray.api.calls import current_api, objects_of_cluster
from minray.common.shown import a, shown
from minray.values.object_ref import ObjectRef

TIMEOUT_S = 10.0
"""Seconds that a process has to answer ``memory_summary`` before the text names it as silent."""

__all__ = ["free", "memory_summary"]


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Free all copies of these values, although references to them remain.

    A later ``get`` of one of them raises ObjectFreedError, except in a process that already has a small value. Any process
    may call this; the owners free the values. Values that a program already got stay valid.

    With ``local_only`` only copies on this node are freed, and of these no primary copy and none that is being read. A
    ``get`` fetches such a value again. Raises TypeError for anything but references.
    """
    if not isinstance(object_refs, ObjectRef | Iterable):
        raise TypeError(f"free takes an ObjectRef or a list of them, not {type(object_refs).__name__}")
    refs = [object_refs] if isinstance(object_refs, ObjectRef) else list(object_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"free takes ObjectRefs, but got {a(ref)}")
    if refs:
        api = current_api()
        objects, deletion = [(ref._id, ref._owner) for ref in refs], api.port.deletion
        api.run_on_loop(lambda: deletion.evict([ref._id for ref in refs]) if local_only else deletion.delete(objects))


def memory_summary(
    group_by: str = "NODE_ADDRESS", sort_by: str = "OBJECT_SIZE", units: str = "B", stats_only: bool = False
) -> str:
    """Return the text of ``minray memory``: the contents of the object stores, and which processes refer to which objects.

    The arguments mean the same as the command's options. Raises ValueError for an unknown grouping, order or unit.
    """
    from minray.observability import memory_summary as summary

    for name, value, known in (
        ("group_by", group_by, summary.GROUPS),
        ("sort_by", sort_by, summary.ORDERS),
        ("units", units, summary.UNITS),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")
    view = summary.View(group_by=group_by, sort_by=sort_by, units=units, num_entries=None, stats_only=stats_only)
    return summary.memory_summary(objects_of_cluster(TIMEOUT_S), view)
