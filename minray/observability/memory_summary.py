"""The text of ``minray memory``: the object store of each node, and the references of each process.

Ray: python/ray/dashboard/memory_utils.py (MemoryTable, memory_summary)

The functions are pure: they turn the answers (``ClusterObjects``) into lines. As in Ray, references are grouped by the node
of the process that has them, or by the line that made them. Unlike in Ray, the largest come first, so that ``-n`` shows the
most important ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minray.common.text_table import fitted, short_ids, table
from minray.observability.state_reader import (
    CAPTURED_IN_OBJECT,
    LOCAL_REFERENCE,
    PINNED_IN_MEMORY,
    UNKNOWN_STATUS,
    USED_BY_PENDING_TASK,
    ClusterObjects,
    ObjectUse,
)
from minray.protocol.core_worker import NIL
from minray.protocol.object_store import ObjectsInfo

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
NODE_ADDRESS, STACK_TRACE = "NODE_ADDRESS", "STACK_TRACE"
GROUPS = (NODE_ADDRESS, STACK_TRACE)
ORDERS: dict[str, Callable[[ObjectUse], int | str]] = {
    "OBJECT_SIZE": lambda use: -use.size,
    "PID": lambda use: use.pid,
    "REFERENCE_TYPE": lambda use: use.reference_type,
}
COLUMNS = (
    "IP",
    "PID",
    "TYPE",
    "TASK",
    "ATTEMPT",
    "SIZE",
    "REFERENCE TYPE",
    "OWNER",
    "BORROWERS",
    "OBJECT REF",
    "CALL SITE",
)
STORE_NEEDED = ("NODE", "NAME", "ADDRESS", "USED", "CAPACITY", "FULL", "OBJECTS", "ON DISK")
NEEDED = ("PID", "TYPE", "TASK", "SIZE", "REFERENCE TYPE", "OWNER", "OBJECT REF")
"""Columns that narrow tables of stores and of references do not leave out."""
COUNTED = {
    LOCAL_REFERENCE: "as local references",
    PINNED_IN_MEMORY: "pinned",
    USED_BY_PENDING_TASK: "used by tasks",
    CAPTURED_IN_OBJECT: "captured in objects",
    UNKNOWN_STATUS: "kept for borrowers",
}


class View(NamedTuple):
    """The options of ``minray memory``: which references are shown, and how."""

    group_by: str = NODE_ADDRESS
    sort_by: str = "OBJECT_SIZE"
    units: str = "B"
    num_entries: int | None = None
    """Most references shown of each group; None means all."""
    stats_only: bool = False
    """Whether only the object stores are shown, without references."""
    is_narrow: bool = False
    """Whether the tables have short ids and fit the usual width of the command line."""

    def table(self, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], needed: Sequence[str]) -> list[str]:
        return fitted(header, rows, needed, whole=("OBJECT REF",)) if self.is_narrow else table(header, rows)

    def size(self, size: int) -> str:
        if size < 0:
            return "?"
        return f"{size / UNITS[self.units]:.15g} {self.units}"


def memory_summary(objects: ClusterObjects, view: View) -> str:
    """Return the text of ``minray memory``."""
    lines = [*_stores(objects, view)[1:], *_memory_on_disk(objects, view), *_disk_traffic(objects, view)]
    if not view.stats_only:
        groups: dict[str, list[ObjectUse]] = {}
        for use in sorted(objects.uses(), key=ORDERS[view.sort_by]):
            groups.setdefault(_group_of(objects, use, view), []).append(use)
        for name in sorted(groups):
            lines += ["", f"{name}: {_counts(groups[name], view)}"]
            lines += _references(objects, groups[name][: view.num_entries], view)
    if left_out := objects.left_out():
        lines += ["", f"{left_out} references or copies are not shown: each process and node reports only its largest ones."]
    lines += ["", *(f"{name} does not answer." for name in objects.silent)] if objects.silent else []
    return "\n".join(lines)


def memory_facts(objects: ClusterObjects, view: View) -> dict[str, Any]:
    """Return what ``memory_summary`` tells, for programs: ids whole and in hexadecimal, sizes in bytes (-1: not known)."""
    uses = [] if view.stats_only else sorted(objects.uses(), key=ORDERS[view.sort_by])[: view.num_entries]
    return {
        "stores": [
            {
                "node_id": node_id.hex(),
                "node_ip": objects.nodes[node_id].ip,
                "used": store.used,
                "capacity": store.capacity,
                "largest_hole": store.largest_hole,
                "on_disk": store.fallback_used,
                "objects": store.total,
            }
            for node_id, store in objects.stores.items()
        ],
        "references": [{name: _plain(value) for name, value in use._asdict().items()} for use in uses],
        "left_out": objects.left_out(),
        "silent": objects.silent,
    }


def _plain(value: bytes | str | int) -> str | int:
    return value.hex() if isinstance(value, bytes) else value


def _stores(objects: ClusterObjects, view: View) -> list[str]:
    def row(node_id: bytes, store: ObjectsInfo) -> tuple[str, ...]:
        node = objects.nodes[node_id]
        first = sum(copy.is_primary for copy in store.copies)
        full = f"{100 * store.used / store.capacity:.1f}%" if store.capacity else ""
        counts = str(store.total), str(first), str(sum(copy.is_on_disk for copy in store.copies))
        sizes = view.size(store.used), view.size(store.capacity), full, view.size(store.largest_hole)
        return (node_id.hex()[:8], node.name, node.ip, *sizes, *counts)

    header = ("NODE", "NAME", "ADDRESS", "USED", "CAPACITY", "FULL", "LARGEST HOLE", "OBJECTS", "FIRST COPIES", "ON DISK")
    return view.table(header, [row(*item) for item in objects.stores.items()], STORE_NEEDED)


def _memory_on_disk(objects: ClusterObjects, view: View) -> list[str]:
    """Return a line for each node with store memory in files on disk, because its store is full of objects in use."""
    return [
        f"Node {node_id.hex()[:8]} has {view.size(store.fallback_used)} of memory on disk"
        f" ({sum(copy.is_in_fallback for copy in store.copies)} objects), since its store is full of objects in use."
        for node_id, store in objects.stores.items()
        if store.fallback_used
    ]


def _disk_traffic(objects: ClusterObjects, view: View) -> list[str]:
    """Return a line with the sums of all nodes, if any object was ever spilled."""
    stats = [store.spill for store in objects.stores.values()]
    count, restored = sum(one.spilled_objects for one in stats), sum(one.restored_objects for one in stats)
    if not count:
        return []
    sizes = [sum(getattr(one, name) for one in stats) for name in ("spilled_bytes", "restored_bytes", "streamed_bytes")]
    spilled, read, sent = map(view.size, sizes)
    return ["", f"Spilled {spilled} ({count} objects), restored {read} ({restored} objects), sent {sent} from disk."]


def _group_of(objects: ClusterObjects, use: ObjectUse, view: View) -> str:
    if view.group_by == STACK_TRACE:
        return f"References made at {use.call_site or 'unknown places'}"
    node = objects.nodes[use.node_id]
    return f"References of processes at {node.ip} (node {node.name})"


def _counts(uses: Sequence[ObjectUse], view: View) -> str:
    """Return the number and size of the objects, each counted once, and the number of references of each kind."""
    sizes = {use.object_id: max(use.size, 0) for use in uses}
    counts = [(sum(use.reference_type == kind for use in uses), words) for kind, words in COUNTED.items()]
    noun = "object" if len(sizes) == 1 else "objects"
    parts = [f"{len(sizes)} {noun} of {view.size(sum(sizes.values()))}", *(f"{n} {words}" for n, words in counts if n)]
    return ", ".join(parts)


def _references(objects: ClusterObjects, uses: Sequence[ObjectUse], view: View) -> list[str]:
    names = {process.worker_id: _process_name(process.pid, process.is_driver) for process in objects.processes}
    whole = [use.object_id.hex() for use in objects.uses()]
    shown = short_ids(whole) if view.is_narrow else {one: one for one in whole}
    rows = [
        (
            objects.nodes[use.node_id].ip,
            str(use.pid),
            "Driver" if use.is_driver else "Worker",
            "-" if use.task_status == NIL else use.task_status,
            str(use.attempt + 1),
            view.size(use.size),
            use.reference_type,
            "itself" if use.owner_id == use.worker_id else names.get(use.owner_id, use.owner_id.hex()[:8]),
            str(use.borrowers or ""),
            shown[use.object_id.hex()],
            use.call_site,
        )
        for use in uses
    ]
    return view.table(COLUMNS, rows, NEEDED)[1:]


def _process_name(pid: int, is_driver: bool) -> str:
    return f"{'driver' if is_driver else 'worker'} {pid}"
