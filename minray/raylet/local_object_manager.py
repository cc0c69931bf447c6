"""Spilling decisions: which objects go to disk when memory runs short, in which files, and when a file is removed.

Ray: src/ray/raylet/local_object_manager.h

Pure: ``assign`` is called after every change and returns the batches to write; ``IoWorkers`` writes them. Spilling begins
when primary copies that are only in the arena take 80 % of it (G85), and whenever requests wait for more memory than is
being freed already. Copies that no process reads are spilled, the least recently used first (G80).

Rules
  * Small objects are fused: a batch is one file of at least ``min_spilling_size``. A smaller batch is written only when no
    other is being written, so that there is nothing to wait for.
  * A copy that was written to disk keeps its memory until another needs it; only then is it SPILLED. It keeps its place on
    disk until it is forgotten. So a restored copy is never written again.
  * A file is removed with its last object (G81). An object that is freed while it is being written gets no place in the
    file (G82).
  * If a batch fails in the middle, the objects written before are spilled, and the rest stays in memory (G83).
  * Directories take turns. A directory that has failed is not used for a while, or until one of its files is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minray.common.config import SystemConfig
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.object_store.object_table import ObjectTable
from minray.policies import asking, protocols

PAUSE_S = 10.0
"""Seconds that a failed directory is not used. It exceeds ``oom_grace_period_s``, so no request waits for it repeatedly."""


class SpillBatch(NamedTuple):
    """Objects that are written into one spill file."""

    file: SpillFile
    entries: list[ObjectEntry]


class LocalObjectManager:
    """Decides about the spilling of one node."""

    def __init__(
        self, table: ObjectTable, directories: int, config: SystemConfig, own_policy: protocols.SpillPolicy | None = None
    ) -> None:
        """``own_policy`` is a program's; it sorts the copies to spill, unless it answers None."""
        self._table = table
        self._directories = directories
        self._config = config
        self._own_policy = own_policy
        self._threshold_bytes = config.object_spilling_threshold * table.allocator.capacity
        self._files: dict[SpillFile, int] = {}
        """Number of objects in each file that are still needed."""
        self._file_count = 0
        self._pauses: dict[int, float] = {}
        """Time until which nothing is written to a failed directory."""
        self.writing = 0
        """Number of batches that are being written."""
        self._writing_bytes = 0

    def can_write(self, now: float) -> bool:
        """Tell whether spillable copies will be written when memory runs short."""
        return self._config.automatic_object_spilling_enabled and self._next_directory(now) is not None

    def assign(self, wanted_bytes: int, now: float) -> list[SpillBatch]:
        """Return the batches to write while requests wait for ``wanted_bytes``; ``on_written`` must follow for each."""
        batches: list[SpillBatch] = []
        if not self._config.automatic_object_spilling_enabled:
            return batches
        while self.writing < self._config.max_io_workers and self._is_short(wanted_bytes):
            directory = self._next_directory(now)
            entries = self._choose() if directory is not None else []
            if directory is None or not entries:
                break
            for entry in entries:
                self._table.begin_spill(entry)
            self.writing += 1
            self._writing_bytes += _size(entries)
            self._file_count += 1
            batches.append(SpillBatch(SpillFile(directory, f"objects-{self._file_count}"), entries))
        return batches

    def _is_short(self, wanted_bytes: int) -> bool:
        staying = self._table.unspilled_bytes - self._writing_bytes
        return staying > self._threshold_bytes or wanted_bytes > self._writing_bytes

    def _choose(self) -> list[ObjectEntry]:
        """Choose the next batch; it is empty if there is nothing to spill, or too little for one more file."""
        entries: list[ObjectEntry] = []
        enough, most = self._config.min_spilling_size, self._config.max_fused_object_count
        if self.writing and self._table.spillable_bytes < enough and self._table.spillable_count() < most:
            return entries
        size = 0
        for entry in asking.sorted_copies(self._own_policy, self._table.spillable()):
            entries.append(entry)
            size += entry.size
            if size >= enough or len(entries) >= most:
                break
        return entries

    def _next_directory(self, now: float) -> int | None:
        """Return the directory whose turn it is; None if all have failed."""
        for turn in range(self._directories):
            directory = (self._file_count + turn) % self._directories
            if self._pauses.get(directory, now) <= now:
                return directory
        return None

    def on_written(self, batch: SpillBatch, checksums: Sequence[list[int]], has_failed: bool, now: float) -> bool:
        """End a batch of which the first ``len(checksums)`` entries are on disk; return False if the file is not needed."""
        self.writing -= 1
        self._writing_bytes -= _size(batch.entries)
        if has_failed:
            self._pauses[batch.file.directory] = now + PAUSE_S
        else:
            self._pauses.pop(batch.file.directory, None)
        start = needed = 0
        for entry, sums in zip(batch.entries, checksums, strict=False):
            needed += self._table.end_spill(entry, Spilled(batch.file, start, sums))
            start += entry.size
        for entry in batch.entries[len(checksums) :]:
            self._table.end_spill(entry, None)
        if needed:
            self._files[batch.file] = needed
        return needed > 0

    def release(self, file: SpillFile) -> bool:
        """Note that a file holds one needed object less; return True if it was the last: the file must be removed."""
        self._files[file] -= 1
        if self._files[file]:
            return False
        del self._files[file]
        self._pauses.pop(file.directory, None)
        return True


def _size(entries: Sequence[ObjectEntry]) -> int:
    return sum(entry.size for entry in entries)
