"""Reports of a node's store for people: the largest copies, their owners and their readers, and why the store is full.

Ray: the half of NodeManager::HandleGetObjectsInfo (src/ray/raylet/node_manager.cc) that is about plasma

Pure, and only reads. An answer names at most ``MOST_ENTRIES`` copies, so that it fits into one message, and their total.
"""

from __future__ import annotations

import heapq

from minray.object_store.object_entry import ObjectEntry
from minray.object_store.object_table import ObjectTable
from minray.platform.base import DiskFailed
from minray.protocol.object_store import MOST_ENTRIES, CopyInfo, GetObjectsInfo, ObjectsInfo, SpillStats

TOP_HOLDERS = 5
"""Number of largest objects that the explanation of a full store names."""


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


def describe_full(table: ObjectTable, size: int, disk_trouble: DiskFailed | None) -> str:
    """Explain for users why ``size`` bytes are not available: the largest objects, their users, and the trouble on disk."""
    allocator, entries = table.allocator, table.entries()
    largest = heapq.nlargest(TOP_HOLDERS, entries, key=lambda entry: entry.size)
    held = ", ".join(f"{entry.object_id.hex()} ({entry.size} bytes, {_use_of(entry)})" for entry in largest)
    in_use = sum(entry.in_use() for entry in entries)
    advice = "make room there, or choose another object_spilling_directory"
    failing = f" The disk does not help: {disk_trouble}; {advice}." if disk_trouble else ""
    on_disk = f", and {table.fallback.used} on disk" if table.fallback.used else ""
    return (
        f"{size} bytes are wanted; {allocator.used} of {allocator.capacity} are in use{on_disk}, by {len(entries)}"
        f" objects, of which {in_use} are being read or written; the largest hole has {allocator.largest_hole()}."
        f"{failing} The largest objects: {held or 'none'}"
    )


def _use_of(entry: ObjectEntry) -> str:
    """Explain for users why a copy takes memory."""
    if not entry.is_written:
        return "being written"
    readers = dict.fromkeys(client.hex()[:8] or "its node" for client in entry.pins.values())
    return f"read by {', '.join(readers)}" if readers else f"owned by {entry.owner.worker_id.hex()[:8]}"
