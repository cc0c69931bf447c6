"""Small parts for the tests of the object store: names as ids, and tables of a few blocks."""

from __future__ import annotations

from minray.object_store.allocator import ALIGNMENT, Allocator
from minray.object_store.object_entry import ObjectEntry, SpillFile
from minray.object_store.object_table import ObjectTable
from minray.protocol.base import Address

WORKERS = [b"worker-1--------", b"worker-2--------"]
OWNERS = [
    Address(b"owner-1---------", b"near------------", "sim:1"),
    Address(b"owner-2---------", b"far-------------", "sim:2"),
    Address(b"owner-3---------", b"far-------------", "sim:3"),
]
RAYLET = b""


def object_id(name: str) -> bytes:
    return name.encode().ljust(28, b"-")


def rounded(size: int) -> int:
    """Bytes that a block of this size takes."""
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


class FakeArena:
    """Plays ``base.DiskArena``: memory whose disk is never full."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    def reserve(self, start: int, size: int) -> None:
        """There is room."""

    def release(self, start: int, size: int) -> None:
        """Accept freed memory, which this stand-in does not count."""


class FakeSpilling:
    """Plays ``store.Spilling``: it carries no copies to disk and back, and notes which it is asked for."""

    is_progressing = can_spill = False
    trouble = None

    def __init__(self) -> None:
        self.restoring: list[ObjectEntry] = []
        self.unneeded: list[SpillFile] = []

    def maybe_spill(self, wanted_bytes: int) -> None:
        pass

    def restore(self, entry: ObjectEntry) -> None:
        self.restoring.append(entry)

    def release(self, files: list[SpillFile]) -> None:
        self.unneeded += files


class SmallTable(ObjectTable):
    """A table that keeps a list of what it has evicted."""

    def __init__(self, blocks: int) -> None:
        self.evicted: list[ObjectEntry] = []
        super().__init__(Allocator(blocks * ALIGNMENT), None, self.evicted.append)

    def put(self, name: str, blocks: int = 1, attempt: int = 0, is_primary: bool = True) -> ObjectEntry:
        """A sealed copy."""
        creator = WORKERS[0] if is_primary else RAYLET
        entry = self.create(object_id(name), attempt, blocks * ALIGNMENT, OWNERS[0], creator, is_primary)
        assert entry is not None
        self.seal(entry)
        return entry
