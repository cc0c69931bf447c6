"""Disks work beside the loop: their failures stay their own, and work that no caller waits for is not done."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minray.platform.base import Disk, DiskBusy, DiskFailed
from minray.platform.storage.compressed_disk import CompressedDisk
from minray.platform.storage.disk import RealDisk
from minray.platform.storage.disk_threads import THREADS, DiskThreads
from minray.platform.storage.external_storage import ExternalDisk
from tests.helpers import turn


@pytest.fixture
def threads() -> Iterator[DiskThreads]:
    made = DiskThreads("test")
    yield made
    made.close()


def no_more_threads(patch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


def real(directory: Path) -> Disk:
    return RealDisk(str(directory), capacity_threshold=1.0)


def compressed(directory: Path) -> Disk:
    return CompressedDisk(real(directory))


def external(directory: Path) -> Disk:
    pytest.importorskip("fsspec")
    return ExternalDisk(f"file://{directory}")


@pytest.mark.parametrize("open_disk", [real, compressed, external])
def test_a_disk_without_threads_fails_and_writes_nothing_later(open_disk: Callable[[Path], Disk], tmp_path: Path) -> None:
    async def story() -> None:
        disk = open_disk(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            no_more_threads(patch)
            with pytest.raises(DiskBusy, match="a could not be written: can't start new thread"):
                await disk.write("a", [b"1"])
            disk.remove("a")
        assert await disk.write("b", [b"2"]) == [zlib.crc32(b"2")]
        assert os.listdir(tmp_path) == ["b"]
        await disk.close()

    asyncio.run(story())


def test_work_for_which_there_is_no_memory_fails_also_if_there_are_threads(threads: DiskThreads) -> None:
    async def story() -> None:
        assert await threads.run("1 could not be read", lambda: 1) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threads._pool, "submit", lambda work: bytearray(1 << 62))
            with pytest.raises(DiskBusy, match="2 could not be read: MemoryError"):
                await threads.run("2 could not be read", lambda: 2)

    asyncio.run(story())


@pytest.mark.parametrize("error", [MemoryError(), ValueError("MemoryError")])
def test_whatever_fails_in_a_thread_is_a_failure_of_the_disk(threads: DiskThreads, error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(DiskFailed, match="a could not be written: MemoryError") as caught:
        asyncio.run(threads.run("a could not be written", fail))
    assert caught.value.__cause__ is error and isinstance(caught.value, DiskBusy) is isinstance(error, MemoryError)


def test_what_says_itself_that_the_disk_failed_is_left_as_it_is(threads: DiskThreads) -> None:
    error = DiskFailed("half of it", [1])

    def fail() -> None:
        raise error

    with pytest.raises(DiskFailed) as caught:
        asyncio.run(threads.run("it failed", fail))
    assert caught.value is error


def test_threads_that_are_there_do_the_work_of_those_that_cannot_be_started(threads: DiskThreads) -> None:
    async def story() -> None:
        gate = threading.Event()
        first = asyncio.ensure_future(threads.run("", partial(gate.wait, 10)))
        await turn()
        with pytest.MonkeyPatch.context() as patch:
            no_more_threads(patch)
            others = [asyncio.ensure_future(threads.run("", partial(int, index))) for index in range(THREADS)]
            await turn()
        assert not any(other.done() for other in others)
        gate.set()
        assert await asyncio.gather(first, *others) == [True, *range(THREADS)]

    asyncio.run(story())


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_what_was_given_up_is_not_begun(threads: DiskThreads, how: str) -> None:
    done: list[int] = []

    async def story() -> None:
        gate = threading.Event()
        busy = [asyncio.ensure_future(threads.run("", partial(gate.wait, 10))) for _ in range(THREADS)]
        given_up: asyncio.Future[Any] = asyncio.ensure_future(threads.run("", partial(done.append, 1)))
        await turn()
        if how == "closed":
            threads.close()
        else:
            given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        gate.set()
        assert await asyncio.gather(*busy) == [True] * THREADS
        with pytest.raises(DiskFailed, match="too late") if how == "closed" else pytest.MonkeyPatch.context():
            await threads.run("too late", partial(done.append, 2))

    asyncio.run(story())
    assert done == ([] if how == "closed" else [2])
