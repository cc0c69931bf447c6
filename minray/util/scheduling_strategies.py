"""Where a task may run, as users say it in ``scheduling_strategy=``.

Ray: python/ray/util/scheduling_strategies.py, docs "Scheduling"

Beside the strings "DEFAULT" and "SPREAD" there is node affinity. Strategies for placement groups and labels come with them.
"""

from __future__ import annotations


class NodeAffinitySchedulingStrategy:
    """Run on one node (G102).

    ``node_id`` is the hexadecimal id from ``minray.nodes()`` or ``get_runtime_context().get_node_id()``. With ``soft=True``
    the task goes elsewhere if that node is dead or can never hold it; otherwise ``get`` raises TaskUnschedulableError.
    """

    def __init__(self, node_id: str, soft: bool) -> None:
        if not isinstance(node_id, str):
            raise TypeError(f"node_id must be a hexadecimal string, not {type(node_id).__name__}")
        try:
            binary = bytes.fromhex(node_id)
        except ValueError:
            binary = b""
        if len(binary) != 16:
            raise ValueError(f"node_id must be 32 hexadecimal digits, as in minray.nodes()[0]['NodeID'], not {node_id!r}")
        if not isinstance(soft, bool):
            raise TypeError(f"soft must be True or False, not {type(soft).__name__}")
        self.node_id = node_id
        self.soft = soft

    def __repr__(self) -> str:
        return f"NodeAffinitySchedulingStrategy(node_id={self.node_id!r}, soft={self.soft})"
