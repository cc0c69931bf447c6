"""A report of a node's store for the state API: the largest copies, their owners and their readers.

Ray: the half of NodeManager::HandleGetObjectsInfo (src/ray/raylet/node_manager.cc) that is about plasma

Pure, and only reads. An answer names at most ``MOST_ENTRIES`` copies, so that it fits into one message, and their total.
"""

from __future__ import annotations

import heapq

from minray.object_store.object_entry import ObjectEntry
from minray.object_store.object_table import ObjectTable
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
    return ObjectsInfo(
        node_id=node_id,
        capacity=allocator.capacity,
        used=used,
        largest_hole=hole,
        total=len(entries),
        copies=copies,
        spill=spill,
        fallback_used=table.fallback.used,
    )


def _copy_info(table: ObjectTable, entry: ObjectEntry) -> CopyInfo:
    return CopyInfo(
        object_id=entry.object_id,
        attempt=entry.attempt,
        size=entry.size,
        owner_id=entry.owner.worker_id,
        state=table.states.get(entry.key),
        is_primary=entry.is_primary,
        use_count=len(entry.pins),
        readers=[reader for reader in dict.fromkeys(entry.pins.values()) if reader],
        is_on_disk=entry.spilled is not None,
        is_in_fallback=table.fallback.has(entry.offset),
    )
