"""A report of a node's store for the state API: the largest copies, their owners and their readers.

Ray: the half of NodeManager::HandleGetObjectsInfo (src/ray/raylet/node_manager.cc) that is about plasma

Pure, and only reads. An answer names at most ``MOST_ENTRIES`` copies, so that it fits into one message, and their total.
"""

from __future__ import annotations

import heapq

from minray.object_store.object_table import Entry, ObjectTable
from minray.protocol.object_store import MOST_ENTRIES, CopyInfo, GetObjectsInfo, ObjectsInfo, SpillStats


def objects_info(node_id: bytes, table: ObjectTable, spill: SpillStats, request: GetObjectsInfo) -> ObjectsInfo:
    """Build a node's answer to ``GetObjectsInfo`` from its object table."""
    entries = table.copies()
    if request.object_ids is not None:
        wanted = set(request.object_ids)
        entries = [entry for entry in entries if entry.object_id in wanted]
    largest = heapq.nlargest(min(request.limit, MOST_ENTRIES), entries, key=lambda entry: entry.size)
    allocator = table.allocator
    copies = [_copy_info(table, entry) for entry in largest]
    used, hole = allocator.used, allocator.largest_hole()
    return ObjectsInfo(node_id, allocator.capacity, used, hole, len(entries), copies, spill, table.fallback.used)


def _copy_info(table: ObjectTable, entry: Entry) -> CopyInfo:
    return CopyInfo(
        entry.object_id,
        entry.attempt,
        entry.size,
        entry.owner.worker_id,
        table.states.get(entry.key),
        entry.is_primary,
        len(entry.pins),
        [reader for reader in dict.fromkeys(entry.pins.values()) if reader],
        entry.spilled is not None,
        table.fallback.has(entry.offset),
    )
