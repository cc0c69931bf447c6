"""Disks that compress: what they give back, how much they write, and what becomes of damage and of full disks."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from minray.platform.base import Buffer, DiskFailed, DiskFull
from minray.platform.storage.compressed_disk import CompressedDisk
from minray.platform.storage.disk import RealDisk
from tests.rpc.fake_network import in_virtual_time, pass_time

PIECES = [bytes(100_000), b"a few words", os.urandom(5000), bytearray(b"last")]
STARTS = [0, 100_000, 100_011, 105_011]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[CompressedDisk]:
    made = CompressedDisk(RealDisk(str(tmp_path), capacity_threshold=1.0))
    yield made
    asyncio.run(made.close())


def read(disk: CompressedDisk, start: int, *sizes: int) -> list[bytes]:
    pieces = [memoryview(bytearray(size)) for size in sizes]
    checksums = asyncio.run(disk.read("a", start, pieces))
    assert checksums == [zlib.crc32(piece) for piece in pieces]
    return [bytes(piece) for piece in pieces]


def test_pieces_come_back_one_by_one_or_together_and_take_less_room(disk: CompressedDisk, tmp_path: Path) -> None:
    assert asyncio.run(disk.write("a", PIECES)) == [zlib.crc32(piece) for piece in PIECES]
    sizes = [len(piece) for piece in PIECES]
    for index, start in enumerate(STARTS):
        assert read(disk, start, *sizes[index:]) == PIECES[index:]
        assert read(disk, start, sizes[index]) == [PIECES[index]]
    assert (tmp_path / "a").stat().st_size < 6000


def test_what_was_never_written_or_is_removed_cannot_be_read(disk: CompressedDisk) -> None:
    asyncio.run(disk.write("a", PIECES))
    with pytest.raises(DiskFailed, match="no piece of it begins at byte 5"):
        read(disk, 5, 10)
    disk.remove("a")
    with pytest.raises(DiskFailed, match="a could not be read: no such file"):
        read(disk, 0, 100_000)


@pytest.mark.parametrize("where", [0, 60, -1])
def test_damage_is_told(disk: CompressedDisk, tmp_path: Path, where: int) -> None:
    asyncio.run(disk.write("a", PIECES[:1]))
    content = bytearray((tmp_path / "a").read_bytes())
    content[where] ^= 0xFF
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DiskFailed, match="a could not be read: it is damaged"):
        read(disk, 0, 100_000)


def test_what_fails_has_not_ended_before_all_its_pieces_have(disk: CompressedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the others belongs to somebody else afterwards."""

    async def story() -> None:
        gate = asyncio.Event()

        async def run(failing: str, size: int) -> int:
            if not size:
                raise DiskFailed(failing)
            await gate.wait()
            return size

        monkeypatch.setattr(vars(disk)["_threads"], "run", run)
        works: Any = [1, 0, 2]
        all_of_them = asyncio.ensure_future(disk._in_threads("one of them", works))
        await pass_time(0)
        assert not all_of_them.done()
        gate.set()
        with pytest.raises(DiskFailed, match="one of them"):
            await all_of_them

    in_virtual_time(story)()


class Half:
    """A disk that takes the first pieces only."""

    def __init__(self, whole: int) -> None:
        self._whole = whole

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        raise DiskFull(f"{name} could not be written", [zlib.crc32(piece) for piece in pieces[: self._whole]])

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("whole", [0, 2])
def test_a_full_disk_says_how_many_pieces_are_there(whole: int) -> None:
    disk = CompressedDisk(Half(whole))  # type: ignore[arg-type]
    with pytest.raises(DiskFull, match="a could not be written") as caught:
        asyncio.run(disk.write("a", PIECES))
    assert caught.value.checksums == [zlib.crc32(piece) for piece in PIECES[:whole]]
    assert ("a" in disk._files) == (whole > 0)
    asyncio.run(disk.close())
