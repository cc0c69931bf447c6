"""What goes to disk when memory runs short, in which files, and which files nobody needs any more.

Ray: src/ray/raylet/local_object_manager.h

Pure: ``assign`` is asked after every change and says what is to be written; ``IoWorkers`` writes. Spilling begins when
primary copies that are nowhere else take 80 % of the arena (G85), and whenever somebody waits for memory that is not being
made free already. What nobody reads goes, the least recently used first (G80).

Rules
  * Small objects are fused: a batch is one file of at least ``min_spilling_size``. A smaller one is written only when no
    other is being written, so that there is nothing to wait for.
  * A spilled copy keeps its memory until that is needed, and its place on disk until it is forgotten: reading it again
    does not mean writing it again.
  * A file is removed when the last object in it was (G81). What is freed while it is written has no place in it (G82).
  * If a batch fails in the middle, what was written before is spilled, and the rest is in memory as it was (G83).
  * Directories take turns; one that has failed is left alone for a while, or until a file of it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minray.common.config import SystemConfig
from minray.object_store.object_table import Entry, ObjectTable, Spilled, SpillFile

PAUSE_S = 10.0
"""Longer than anybody waits for memory, so that a broken disk makes nobody wait for it again and again."""


class Batch(NamedTuple):
    """What is written into one file."""

    file: SpillFile
    entries: list[Entry]


class LocalObjectManager:
    """The spilling of one node."""

    def __init__(self, table: ObjectTable, directories: int, config: SystemConfig) -> None:
        self._table = table
        self._directories = directories
        self._config = config
        self._threshold_bytes = config.object_spilling_threshold * table.allocator.capacity
        self._files: dict[SpillFile, int] = {}
        """How many objects of each file somebody may still need."""
        self._file_count = 0
        self._pauses: dict[int, float] = {}
        """Directories that have failed, and until when nothing is written there."""
        self.writing = 0
        """Batches that are being written."""
        self._writing_bytes = 0

    def can_write(self, now: float) -> bool:
        """Whether what is spillable is written when memory runs short."""
        return self._config.automatic_object_spilling_enabled and self._next_directory(now) is not None

    def assign(self, wanted_bytes: int, now: float) -> list[Batch]:
        """What is to be written, if so many bytes are waited for; ``on_written`` must follow for each."""
        batches: list[Batch] = []
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
            batches.append(Batch(SpillFile(directory, f"objects-{self._file_count}"), entries))
        return batches

    def _is_short(self, wanted_bytes: int) -> bool:
        staying = self._table.unspilled_bytes - self._writing_bytes
        return staying > self._threshold_bytes or wanted_bytes > self._writing_bytes

    def _choose(self) -> list[Entry]:
        """The next batch; none if there is nothing, or too little to begin another."""
        entries: list[Entry] = []
        enough, most = self._config.min_spilling_size, self._config.max_fused_object_count
        if self.writing and self._table.spillable_bytes < enough and self._table.spillable_count() < most:
            return entries
        size = 0
        for entry in self._table.spillable():
            entries.append(entry)
            size += entry.size
            if size >= enough or len(entries) >= most:
                break
        return entries

    def _next_directory(self, now: float) -> int | None:
        """They take turns; None if all have failed."""
        for turn in range(self._directories):
            directory = (self._file_count + turn) % self._directories
            if self._pauses.get(directory, now) <= now:
                return directory
        return None

    def on_written(self, batch: Batch, checksums: Sequence[list[int]], has_failed: bool, now: float) -> bool:
        """The first entries are on disk, as many as there are checksums; False if nobody needs their file."""
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
        """An object of it is not needed any more; True if that was the last one, and the file shall go."""
        self._files[file] -= 1
        if self._files[file]:
            return False
        del self._files[file]
        self._pauses.pop(file.directory, None)
        return True


def _size(entries: Sequence[Entry]) -> int:
    return sum(entry.size for entry in entries)
