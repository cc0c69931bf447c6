"""The text of ``ray memory``, and ``free``.

Ray: python/ray/_private/internal_api.py

``node_stats`` is left out, because its answer is a record of Ray's protocol. So is ``global_gc``: here raylets decide when
processes collect garbage.
"""

from __future__ import annotations

from minray import internal

__all__ = ["free", "memory_summary"]

free = internal.free


def memory_summary(
    address: str | None = None,
    group_by: str = "NODE_ADDRESS",
    sort_by: str = "OBJECT_SIZE",
    units: str = "B",
    line_wrap: bool = True,
    stats_only: bool = False,
) -> str:
    """Return the contents of the object stores, and which processes refer to which objects.

    ``line_wrap`` is accepted because Ray has it: the lines here are whole. Raises ValueError for an ``address``, since this
    reads the cluster of this process, and for an unknown grouping, order or unit.
    """
    if address not in (None, "auto"):
        raise ValueError(f"memory_summary reads the cluster of this process, not {address!r}; try: minray memory --address")
    return internal.memory_summary(group_by, sort_by, units, stats_only)
