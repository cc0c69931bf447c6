"""Spilling and restoring: writes objects to disk and reads them back, as ``LocalObjectManager`` decides.

Ray: src/ray/raylet/worker_pool.h (IO workers), python/ray/_private/external_storage.py

Ray has processes for this. Here a disk has threads, and the raylet has a coroutine for each batch and each object that is
read. A spill file holds the objects of a batch, one after the other, as they lie in the arena. Damage is found by checksums
of its pieces, which never leave the raylet's memory. An object that cannot be read, or whose checksums differ, is lost: its
owner learns that this node has no copy, and waiting requests pull another one. A read that cannot even be tried, for lack of
a thread, memory or a file descriptor, is repeated for a while.

Rules
  * Memory that a disk reads or fills is not freed meanwhile (``ObjectEntry.is_moving``).
  * An object is read into the arena for the processes of this node; other nodes get its chunks from the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from minray.common.config import RayletConfig
from minray.common.ids import short
from minray.common.task_set import TaskSet
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.object_store.store import ObjectStore
from minray.platform.base import Disk, DiskBusy, DiskFailed, Platform
from minray.policies.protocols import SpillPolicy
from minray.protocol.object_store import SpillStats
from minray.raylet.local_object_manager import LocalObjectManager, SpillBatch

PAUSES_S = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Seconds before each new try to read from a busy disk; after the last one, one more try decides."""

logger = logging.getLogger(__name__)


class IoWorkers:
    """Spills and restores the objects of one node; see ``object_store.store.Spilling``."""

    def __init__(
        self, platform: Platform, config: RayletConfig, store: ObjectStore, on_shortage: Callable[[], None],
        policy: SpillPolicy | None = None,
    ) -> None:  # fmt: skip
        """``on_shortage`` is called, perhaps often, while requests wait for memory."""
        self._disks = [platform.open_disk(directory) for directory in config.spill_directories]
        self._manager = LocalObjectManager(store.table, len(self._disks), config.system_config, policy)
        self._piece_bytes = config.system_config.spill_checksum_bytes
        """Bytes of a piece. Each has a checksum, so that a chunk of an object can be read and trusted without the rest."""
        self._store = store
        self._on_shortage = on_shortage
        self._tasks = TaskSet()
        self._is_closed = False
        self.trouble: DiskFailed | None = None
        self.spilled_bytes = self.spilled_objects = 0
        self.restored_bytes = self.restored_objects = 0
        self.streamed_bytes = 0

    async def close(self) -> None:
        self._is_closed = True
        self._tasks.cancel()
        for disk in self._disks:
            await disk.close()

    def stats(self) -> SpillStats:
        return SpillStats(
            spilled_bytes=self.spilled_bytes,
            spilled_objects=self.spilled_objects,
            restored_bytes=self.restored_bytes,
            restored_objects=self.restored_objects,
            streamed_bytes=self.streamed_bytes,
        )

    # --- spilling

    @property
    def is_progressing(self) -> bool:
        return self._manager.writing > 0

    @property
    def can_spill(self) -> bool:
        return self._manager.can_write(asyncio.get_running_loop().time())

    def maybe_spill(self, wanted_bytes: int) -> None:
        if wanted_bytes:
            self._on_shortage()
        if not self._is_closed:
            for batch in self._manager.assign(wanted_bytes, asyncio.get_running_loop().time()):
                self._tasks.begin(self._spill(batch), f"spill({batch.file.name})")

    async def _spill(self, batch: SpillBatch) -> None:
        pieces = [list(self._pieces(self._store.view(entry))) for entry in batch.entries]
        disk = self._disks[batch.file.directory]
        failure: DiskFailed | None = None
        try:
            sums = await disk.write(batch.file.name, [piece for of_entry in pieces for piece in of_entry])
        except DiskFailed as error:
            sums, failure = error.checksums, error
            logger.warning("spilling failed; objects stay in memory: %s", error)
        self.trouble = failure
        checksums = _of_whole_objects(sums, [len(of_entry) for of_entry in pieces])
        self.spilled_objects += len(checksums)
        self.spilled_bytes += sum(entry.size for entry in batch.entries[: len(checksums)])
        now = asyncio.get_running_loop().time()
        if not self._manager.on_written(batch, checksums, failure is not None, now):
            disk.remove(batch.file.name)
        self._store.on_spilled(bool(checksums))

    def release(self, files: list[SpillFile]) -> None:
        for file in files:
            if self._manager.release(file):
                self._disks[file.directory].remove(file.name)

    # --- restoring and reading

    def restore(self, entry: ObjectEntry) -> None:
        if not self._is_closed:
            self._tasks.begin(self._restore(entry), f"restore({short(entry.object_id)})")

    async def _restore(self, entry: ObjectEntry) -> None:
        spilled = entry.spilled
        assert spilled is not None, "only a copy that is on disk is restored"
        if await self._read(entry, spilled, 0, list(self._pieces(self._store.view(entry)))):
            self.restored_objects += 1
            self.restored_bytes += entry.size
        self._store.on_restored(entry)

    async def read(self, entry: ObjectEntry, start: int, size: int) -> memoryview | None:
        """Read some bytes of a copy on disk; return None if there is no memory for them, or if they cannot be read.

        In the second case the copy is given up.
        """
        spilled = entry.spilled
        assert spilled is not None, "only a copy that is on disk is read from there"
        first = start // self._piece_bytes
        begin = first * self._piece_bytes
        end = min(-(-(start + size) // self._piece_bytes) * self._piece_bytes, entry.size)
        try:
            data = memoryview(bytearray(end - begin))
        except MemoryError:
            logger.warning("a part of object %s is not read: no memory for %d bytes", short(entry.object_id), end - begin)
            return None
        if not await self._read(entry, spilled, first, list(self._pieces(data))):
            return None
        self.streamed_bytes += size
        return data[start - begin : start - begin + size]

    async def _read(self, entry: ObjectEntry, spilled: Spilled, first: int, pieces: list[memoryview]) -> bool:
        """Fill ``pieces`` with those of a copy, from number ``first`` on; if that fails, give it up and return False."""
        file = spilled.file
        start = spilled.start + first * self._piece_bytes
        try:
            checksums = await _read_patiently(self._disks[file.directory], file.name, start, pieces)
        except DiskFailed as error:
            reason = str(error)
        else:
            if checksums == spilled.checksums[first : first + len(pieces)]:
                return True
            reason = f"{file.name} is damaged: a checksum is wrong"
        if self._store.lose(entry):
            logger.warning("the copy of object %s on disk is lost: %s", short(entry.object_id), reason)
        return False

    def _pieces(self, memory: memoryview) -> Iterator[memoryview]:
        size = self._piece_bytes
        return (memory[start : start + size] for start in range(0, len(memory), size))


async def _read_patiently(disk: Disk, name: str, start: int, pieces: list[memoryview]) -> list[int]:
    for pause_s in PAUSES_S:
        with suppress(DiskBusy):
            return await disk.read(name, start, pieces)
        await asyncio.sleep(pause_s)
    return await disk.read(name, start, pieces)


def _of_whole_objects(checksums: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """Divide the pieces' checksums among objects with ``counts`` pieces; those of an incomplete object are dropped."""
    divided: list[list[int]] = []
    start = 0
    for count in counts:
        if start + count > len(checksums):
            break
        divided.append(list(checksums[start : start + count]))
        start += count
    return divided
