"""What Ray keeps for those who know what they are doing: freeing values by hand, and a look at all of them.

Ray: python/ray/_private/internal_api.py (free, memory_summary)

The counting of references frees a value when nobody refers to it any more. Who knows earlier that a large value is not
needed, although references to it are still about, may say so here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minray.object_ref import ObjectRef
from minray.worker import current_api

TIMEOUT_S = 10.0
"""Whoever does not answer in time is named as silent."""

__all__ = ["free", "memory_summary"]


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Free these values wherever they are, although there are references to them.

    A ``get`` of one of them raises ObjectFreedError afterwards, in every process but one that has a small value already. Any
    process may free; the owners do it. Values that the program has got stay valid. With ``local_only`` just the copies on
    this node go, and of these only such as are neither the first one of their object nor being read: a ``get`` brings them
    here again. TypeError for anything but references.
    """
    refs = [object_refs] if isinstance(object_refs, ObjectRef) else list(object_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"free takes ObjectRefs, but got a {type(ref).__name__}")
    if refs:
        current_api().free(refs, local_only)


def memory_summary(
    group_by: str = "NODE_ADDRESS", sort_by: str = "OBJECT_SIZE", units: str = "B", stats_only: bool = False
) -> str:
    """What ``minray memory`` shows: what the object stores hold, and who refers to which objects; the options mean the same.

    ValueError for a grouping, an order or a unit that does not exist.
    """
    from minray import memory_summary as summary

    for name, value, known in (
        ("group_by", group_by, summary.GROUPS),
        ("sort_by", sort_by, summary.ORDERS),
        ("units", units, summary.UNITS),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    view = summary.View(group_by, sort_by, units, None, stats_only)
    return summary.memory_summary(current_api().objects_of_cluster(TIMEOUT_S), view)
