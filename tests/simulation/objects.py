"""Invariants of the object stores at every moment of a simulated run; a part of the ``Watch`` (see ``invariants``).

S5: a copy does not change between the moment in which it is sealed and that in which its memory is given back, and all
copies of one attempt are equal. S6: what the copies of a node take is what its allocators have given out, never more than
there is, and the free memory between two copies is one piece; whatever is evicted is neither the first copy of its object
nor in use. G79: memory on disk is for what nothing else makes room for, and requests for memory are decided in their order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from minray.common.ids import short
from minray.object_store.allocator import ALIGNMENT
from minray.object_store.fallback import PAGE_BYTES


class Objects:
    """All object stores of one cluster."""

    def __init__(self, on_broken: Callable[[str, str], None]) -> None:
        self.seals = 0
        """How many copies were looked at."""
        self._on_broken = on_broken
        self._sums: dict[tuple[bytes, int], int] = {}
        """Checksum of the copies that each attempt has made of an object."""

    def add(self, name: str, raylet: Any) -> None:
        """A node has started."""
        store, table = raylet.store, raylet.store.table
        seal, free, create, on_evicted = table.seal, table._free, table.create, table._on_evicted
        end_restore, allocate = table.end_restore, table._allocate
        sealed: dict[int, tuple[Any, int]] = {}

        def sum_of(entry: Any) -> int:
            return zlib.crc32(store.view(entry))

        def watched_seal(entry: Any) -> bool:
            if entry.is_written:  # the message has come twice, perhaps when there is no memory any more
                again: bool = seal(entry)
                return again
            self.seals += 1
            found = sum_of(entry)
            if self._sums.setdefault((entry.object_id, entry.attempt), found) != found:
                self._on_broken("S5", f"{name} seals a copy of {short(entry.object_id)} that differs from another one")
            sealed[entry.offset] = entry, found
            done: bool = seal(entry)
            return done

        def watched_end_restore(entry: Any) -> bool:
            done: bool = end_restore(entry)
            if done:
                sealed[entry.offset] = entry, sum_of(entry)
                if self._sums.get((entry.object_id, entry.attempt)) != sealed[entry.offset][1]:
                    self._on_broken("S5", f"{name} restores a copy of {short(entry.object_id)} that is another one")
            return done

        def watched_free(entry: Any) -> None:
            known, found = sealed.pop(entry.offset, (None, 0))
            if known is not None and sum_of(known) != found:
                self._on_broken("S5", f"{name}: a copy of {short(known.object_id)} has changed since it was sealed")
            free(entry)
            self._expect_joined(name, table.allocator)

        def watched_create(*args: Any) -> Any:
            entry = create(*args)
            in_arena = [one for one in table.entries() if not table.fallback.has(one.offset)]
            used = sum(max(one.size + -one.size % ALIGNMENT, ALIGNMENT) for one in in_arena)
            on_disk = sum(one.size + -one.size % PAGE_BYTES for one in table.entries() if table.fallback.has(one.offset))
            if on_disk != table.fallback.used:
                self._on_broken("S6", f"{name}: {table.fallback.used} bytes on disk are given out, not {on_disk}")
            if used != table.allocator.used or used > table.allocator.capacity:
                self._on_broken("S6", f"{name}: {table.allocator.used} bytes are given out, and the copies take {used}")
            return entry

        def watched_allocation(size: int, in_fallback: bool) -> Any:
            workers = raylet.io_workers
            can_be_spilled = table.spillable_bytes and not workers.trouble and not workers._manager._pauses
            offset = allocate(size, in_fallback)
            if in_fallback and offset is not None and size <= table.allocator.capacity and can_be_spilled:
                self._on_broken("G79", f"{name} takes memory on disk, though {table.spillable_bytes} bytes could be spilled")
            return offset

        def watched_eviction(entry: Any) -> None:
            if entry.is_primary or entry.in_use():
                self._on_broken("S6", f"{name} evicts {short(entry.object_id)}, which must stay")
            on_evicted(entry)

        self._watch_queue(name, store._queue)
        table.seal, table._free, table.create = watched_seal, watched_free, watched_create
        table._on_evicted, table.end_restore, table._allocate = watched_eviction, watched_end_restore, watched_allocation

    def _expect_joined(self, name: str, allocator: Any) -> None:
        """Whether blocks and holes lie side by side, without a gap, and no two holes touch."""
        parts = [(offset, size, "block") for offset, size in allocator._blocks.items()]
        parts += [(offset, hole[0], "hole") for offset, hole in allocator._holes.items()]
        end, last = 0, "block"
        for offset, size, kind in sorted(parts):
            if offset != end or (kind, last) == ("hole", "hole"):
                text = f"{name}: a {last} of its memory ends at {end}, and the next {kind} begins at {offset}"
                self._on_broken("S6", text)
                return
            end, last = offset + size, kind

    def _watch_queue(self, name: str, queue: Any) -> None:
        """Requests for memory are decided in the order in which they came."""
        add_request, waiting = queue.add_request, []

        def watched(creation: Any, on_created: Callable[..., None], *args: Any, **options: Any) -> None:
            def decided(entry: Any, is_unwanted: bool) -> None:
                if waiting[0] is not creation:
                    self._on_broken("G79", f"{name} decides on {creation} before {waiting[0]}, which came earlier")
                waiting[:] = [each for each in waiting if each is not creation]
                on_created(entry, is_unwanted)

            waiting.append(creation)
            add_request(creation, decided, *args, **options)

        queue.add_request = watched
