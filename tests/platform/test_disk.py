"""Disks: one contract for real and simulated ones; then what only a real file system can show."""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from minray.platform.base import Disk, DiskBusy, DiskFailed, DiskFull
from minray.platform.storage import disk as real_disk
from minray.platform.storage.disk import RealDisk
from minray.platform.storage.external_storage import ExternalDisk
from minray.simulation.disk import SimDisk
from minray.simulation.faults import Oracle
from minray.simulation.loop import SimLoop
from minray.simulation.node import SimNode
from tests.helpers import turn, wait_for_condition

PIECES = [b"first", b"", bytes(100_000), bytearray(b"last")]
CONTENT = b"".join(PIECES)


@dataclass(frozen=True)
class World:
    """A directory."""

    disk: Disk
    run: Callable[[Coroutine[Any, Any, None]], None]
    names: Callable[[], list[str]]
    """Names of the files in the directory."""


@contextmanager
def real(directory: Path) -> Iterator[World]:
    disk = RealDisk(str(directory), capacity_threshold=1.0)
    yield World(disk, uvloop.run, lambda: sorted(os.listdir(directory)))
    asyncio.run(disk.close())


@contextmanager
def simulated(directory: Path) -> Iterator[World]:
    loop, node = SimLoop(), SimNode("node")
    process = loop.add_process("raylet", "node", 0)
    disk = SimDisk(node, "spill", process, Oracle(0))
    yield World(disk, loop.run_until_complete, lambda: sorted(place.partition("/")[2] for place in node.files))
    loop.close()
    assert loop.failures == []


@contextmanager
def external(directory: Path) -> Iterator[World]:
    """A file system that is a dict of this process."""
    files = pytest.importorskip("fsspec").filesystem("memory")
    disk = ExternalDisk(f"memory:/{directory}")
    yield World(disk, uvloop.run, lambda: sorted(Path(place).name for place in files.find(str(directory))))
    asyncio.run(disk.close())
    assert not files.exists(str(directory))


WORLDS: dict[str, Callable[[Path], AbstractContextManager[World]]] = {
    "real": real,
    "simulated": simulated,
    "external": external,
}


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with WORLDS[request.param](tmp_path) as made:
        yield made


# --- Every disk ---


def test_what_was_written_can_be_read_in_any_parts(world: World) -> None:
    async def story() -> None:
        assert await world.disk.write("a", PIECES) == [zlib.crc32(piece) for piece in PIECES]
        assert world.names() == ["a"]
        for start in (0, 3, 5, 100_001):
            parts = [memoryview(bytearray(2)), memoryview(bytearray(len(CONTENT) - start - 2))]
            assert await world.disk.read("a", start, parts) == [zlib.crc32(part) for part in parts]
            assert b"".join(parts) == CONTENT[start:]

    world.run(story())


def test_many_files_at_once(world: World) -> None:
    async def story() -> None:
        await asyncio.gather(*(world.disk.write(f"{i}", [bytes([i]) * 50_000]) for i in range(20)))
        targets = [memoryview(bytearray(10)) for _ in range(20)]
        await asyncio.gather(*(world.disk.read(f"{i}", i, [target]) for i, target in enumerate(targets)))
        assert [bytes(target) for target in targets] == [bytes([i]) * 10 for i in range(20)]

    world.run(story())


def test_a_file_that_is_missing_or_too_short_cannot_be_read(world: World) -> None:
    async def story() -> None:
        await world.disk.write("short", [b"12345"])
        with pytest.raises(DiskFailed, match="short could not be read: it is shorter"):
            await world.disk.read("short", 3, [memoryview(bytearray(3))])
        with pytest.raises(DiskFailed, match="(?i)none could not be read: no such file"):
            await world.disk.read("none", 0, [memoryview(bytearray(3))])

    world.run(story())


def test_a_file_can_be_removed_twice(world: World) -> None:
    async def story() -> None:
        await world.disk.write("a", [b"1"])
        await world.disk.write("b", [b"2"])
        for name in ("a", "a", "never"):
            world.disk.remove(name)

    world.run(story())
    wait_for_condition(lambda: world.names() == ["b"])


def test_after_the_end_nothing_happens(world: World) -> None:
    async def story() -> None:
        await world.disk.close()
        world.disk.remove("a")

    world.run(story())


# --- A simulated disk whose memory changes under it ---


def test_a_simulated_disk_tells_that_memory_was_given_back_too_early(tmp_path: Path) -> None:
    async def story(disk: Disk) -> None:
        piece = bytearray(100)
        writing = asyncio.get_running_loop().create_task(disk.write("a", [piece]), name="write")
        await turn()
        piece[50] = 1
        with pytest.raises(AssertionError, match="memory changed"):
            await writing

    with simulated(tmp_path) as world:
        world.run(story(world.disk))


# --- A real file system ---


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    made = RealDisk(str(tmp_path), capacity_threshold=1.0)
    yield made
    asyncio.run(made.close())


def failing_after(pieces: int, code: int, patch: pytest.MonkeyPatch) -> None:
    """Make the disk take ``pieces`` pieces, half of the next one, and no more."""
    write, count = os.write, 0

    def strike(descriptor: int, data: memoryview) -> int:
        nonlocal count
        count += 1
        if count == pieces + 1:
            return write(descriptor, data[: len(data) // 2])
        if count > pieces + 1:
            raise OSError(code, os.strerror(code))
        return write(descriptor, data)

    patch.setattr(real_disk.os, "write", strike)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_file_is_cut_after_its_last_whole_piece(disk: RealDisk, tmp_path: Path, code: int) -> None:
    pieces = [b"whole 1", b"whole 2", b"half of this"]
    with pytest.MonkeyPatch.context() as patch:
        failing_after(2, code, patch)
        with pytest.raises(DiskFailed, match=f"a could not be written: {os.strerror(code)}") as caught:
            asyncio.run(disk.write("a", pieces))
    assert isinstance(caught.value, DiskFull) == (code != errno.EIO)
    assert caught.value.checksums == [zlib.crc32(piece) for piece in pieces[:2]]
    assert (tmp_path / "a").read_bytes() == b"whole 1whole 2"


def test_a_file_without_a_whole_piece_is_removed(disk: RealDisk, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        failing_after(0, errno.EIO, patch)
        with pytest.raises(DiskFailed) as caught:
            asyncio.run(disk.write("a", [b"half of this"]))
    assert caught.value.checksums == [] and os.listdir(tmp_path) == []


def test_a_full_file_system_is_left_to_others(tmp_path: Path) -> None:
    full = RealDisk(str(tmp_path), capacity_threshold=0.0)
    with pytest.raises(DiskFull, match=r"file system is \d+\.\d % full; with \d+ bytes more it would be fuller than 0 %"):
        asyncio.run(full.write("a", [b"1"]))
    assert os.listdir(tmp_path) == []
    asyncio.run(full.close())


def test_files_are_private_and_never_replace_another(disk: RealDisk, tmp_path: Path) -> None:
    asyncio.run(disk.write("a", [b"1"]))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(DiskFailed, match="File exists"):
        asyncio.run(disk.write("a", [b"2"]))
    assert (tmp_path / "a").read_bytes() == b"1"


def test_what_was_damaged_has_other_checksums(disk: RealDisk, tmp_path: Path) -> None:
    (before,) = asyncio.run(disk.write("a", [b"12345678"]))
    (tmp_path / "a").write_bytes(b"1234\0\0\0\0")
    assert asyncio.run(disk.read("a", 0, [memoryview(bytearray(8))])) != [before]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_cannot_be_tried_says_nothing_of_the_file(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    async def story() -> None:
        await disk.write("a", [b"1"])
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", refuse)
            with pytest.raises(DiskBusy, match="a could not be read"):
                await disk.read("a", 0, [memoryview(bytearray(1))])
        assert await disk.read("a", 0, [memoryview(bytearray(1))]) == [zlib.crc32(b"1")]

    asyncio.run(story())


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    lost = RealDisk(str(tmp_path / "gone"), capacity_threshold=1.0)
    with pytest.raises(DiskFailed, match="No such file or directory"):
        asyncio.run(lost.write("a", [b"1"]))
    asyncio.run(lost.close())
