"""Shared memory: one contract for real and simulated arenas; then what only real processes and sockets can show."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvloop

from minray.in_process.memory import LocalMemory
from minray.in_process.process import LocalLoop, LocalProcess
from minray.platform.base import Arena, DiskArena, DiskFull, Memory, MemoryFailed
from minray.platform.storage import memory as real_memory
from minray.platform.storage.listed_arena import ListedArena
from minray.platform.storage.memory import RealMemory
from minray.simulation.faults import Oracle
from minray.simulation.loop import SimLoop
from minray.simulation.memory import SimArena, SimMemory
from minray.simulation.node import SimNode
from tests import leaks
from tests.platform.transports import run_asyncio, until

SIZE = 1_000_000
"""Not a whole number of pages."""
FD = Path("/proc/self/fd")
needs_proc = pytest.mark.skipif(not FD.is_dir(), reason="no /proc")


@dataclass(frozen=True)
class World:
    """A raylet and two clients on one node, here in one process."""

    raylet: Memory
    client: Memory
    another: Memory
    endpoint: str
    kind: str
    """Kind of a real arena; empty for simulated ones."""
    run: Callable[[Coroutine[Any, Any, None]], None]
    attach: Callable[[Memory, str], Coroutine[Any, Any, memoryview]]
    """Attaches as another process would, without standing in the raylet's way."""

    @asynccontextmanager
    async def arena(self, name: str = "", size: int = SIZE) -> AsyncIterator[Arena]:
        """An arena that is handed out as long as the block lasts."""
        arena = await self.raylet.create_arena(self.endpoint + name, size)
        try:
            yield arena
        finally:
            await arena.close()


async def attach_in_thread(memory: Memory, endpoint: str) -> memoryview:
    return await asyncio.to_thread(memory.attach, endpoint)


async def attach_here(memory: Memory, endpoint: str) -> memoryview:
    return memory.attach(endpoint)


@contextmanager
def real(directory: Path, run: Callable[[Any], None], kind: str) -> Iterator[World]:
    """A world of real processes, which must leave no shared memory."""
    before = leaks.shared_memory()
    memories = RealMemory(kind), RealMemory(), RealMemory()
    yield World(*memories, f"unix:{directory}/arena", kind, run, attach_in_thread)
    assert leaks.shared_memory() == before


@contextmanager
def simulated(directory: Path) -> Iterator[World]:
    loop = SimLoop()
    arenas: dict[str, SimArena] = {}
    processes = [loop.add_process(name, "node", i) for i, name in enumerate(("raylet", "client", "another"))]
    machine = SimNode("node")
    raylet, client, another = (SimMemory(arenas, process, machine, Oracle(0)) for process in processes)
    yield World(raylet, client, another, "sim:arena", "", loop.run_until_complete, attach_here)
    loop.close()
    assert loop.failures == []


@contextmanager
def in_process(directory: Path) -> Iterator[World]:
    loop = LocalLoop()
    arenas: dict[str, ListedArena] = {}
    raylet, client, another = (LocalMemory(arenas, LocalProcess(loop, name, "node")) for name in ("a", "b", "c"))
    yield World(raylet, client, another, "local:arena", "", loop.run_until_complete, attach_here)
    loop.close()


WORLDS: dict[str, Callable[[Path], AbstractContextManager[World]]] = {
    "memfd": partial(real, run=uvloop.run, kind="memfd"),
    "memfd-asyncio": partial(real, run=run_asyncio, kind="memfd"),
    "shared-memory": partial(real, run=uvloop.run, kind="shared_memory"),
    "shared-memory-asyncio": partial(real, run=run_asyncio, kind="shared_memory"),
    "simulated": simulated,
    "in-process": in_process,
}
MARKS = {"memfd": "/memfd:minray", "shared_memory": "/dev/shm/minray-"}
"""Texts by which the kernel names arenas of each kind among the files of a process."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, because the path of a unix socket below it may have about 100 characters."""
    with TemporaryDirectory(prefix="minray-") as path:
        yield Path(path)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, directory: Path) -> Iterator[World]:
    with WORLDS[request.param](directory) as made:
        yield made


@pytest.fixture(params=["memfd", "shared_memory"])
def real_world(request: pytest.FixtureRequest, directory: Path) -> Iterator[World]:
    with real(directory, uvloop.run, request.param) as made:
        yield made


# --- Every world ---


def test_all_see_what_one_has_written(world: World) -> None:
    async def story() -> None:
        async with world.arena() as arena:
            views = [arena.view, *[await world.attach(memory, world.endpoint) for memory in (world.client, world.another)]]
            for number, writer in enumerate(views):
                writer[number] = writer[-1 - number] = number + 1
            for view in views:
                assert (len(view), view.readonly, view.format) == (SIZE, False, "B")
                assert bytes(view) == b"\1\2\3" + bytes(SIZE - 6) + b"\3\2\1"

    world.run(story())


def test_attaching_again_gives_the_same_view(world: World) -> None:
    async def story() -> None:
        async with world.arena():
            first = await world.attach(world.client, world.endpoint)
            assert await world.attach(world.client, world.endpoint) is first
        assert await world.attach(world.client, world.endpoint) is first

    world.run(story())


def test_a_closed_arena_is_not_handed_out_but_its_views_stay(world: World) -> None:
    async def story() -> None:
        async with world.arena() as arena:
            view = await world.attach(world.client, world.endpoint)
        await arena.close()
        with pytest.raises(MemoryFailed, match=f"{world.endpoint}: no process hands out memory there"):
            await world.attach(world.another, world.endpoint)
        arena.view[0] = 1
        view[1] = 2
        assert bytes(view[:3]) == bytes(arena.view[:3]) == b"\1\2\0"

    world.run(story())


def test_views_outlive_all_that_made_them(world: World) -> None:
    parts: list[memoryview] = []

    async def story() -> None:
        async with world.arena() as arena:
            view = await world.attach(RealMemory() if world.endpoint.startswith("unix:") else world.client, world.endpoint)
            view[:5] = b"hello"
            parts.extend([arena.view[:5], view[:5]])

    world.run(story())
    gc.collect()
    assert [bytes(part) for part in parts] == [b"hello", b"hello"]


def test_nobody_hands_out_memory(world: World) -> None:
    """And a failure is not remembered."""

    async def story() -> None:
        with pytest.raises(MemoryFailed, match=f"{world.endpoint}: no process hands out memory there"):
            await world.attach(world.client, world.endpoint)
        async with world.arena():
            assert len(await world.attach(world.client, world.endpoint)) == SIZE

    world.run(story())


def test_an_endpoint_that_is_taken(world: World) -> None:
    async def story() -> None:
        async with world.arena() as arena:
            with pytest.raises(MemoryFailed, match=f"{world.endpoint}: another process listens there"):
                await world.raylet.create_arena(world.endpoint, SIZE)
            arena.view[0] = 7
            assert (await world.attach(world.client, world.endpoint))[0] == 7

    world.run(story())


def test_who_comes_later_gets_the_later_arena(world: World) -> None:
    async def story() -> None:
        async with world.arena() as arena:
            arena.view[0] = 1
            first = await world.attach(world.client, world.endpoint)
        async with world.arena(size=50) as later:
            await arena.close()
            later.view[0] = 2
            assert bytes(await world.attach(world.another, world.endpoint)) == b"\2" + bytes(49)
            assert (len(first), first[0]) == (SIZE, 1)

    world.run(story())


def test_arenas_are_independent(world: World) -> None:
    async def story() -> None:
        async with world.arena("1", 10) as one, world.arena("2", 20) as two:
            one.view[0], two.view[0] = 1, 2
            assert bytes(await world.attach(world.client, world.endpoint + "1")) == b"\1" + bytes(9)
            assert bytes(await world.attach(world.client, world.endpoint + "2")) == b"\2" + bytes(19)

    world.run(story())


@pytest.mark.parametrize("size", [0, -1, 1 << 60, 1 << 70])
def test_a_size_that_cannot_be(world: World, size: int) -> None:
    async def story() -> None:
        with pytest.raises(MemoryFailed, match=rf"arena of {size} bytes: .*object_store_memory"):
            await world.raylet.create_arena(world.endpoint, size)
        with pytest.raises(MemoryFailed):
            await world.attach(world.client, world.endpoint)

    world.run(story())


@pytest.mark.parametrize("endpoint", ["nonsense", "unix:", "sim:", "tcp:127.0.0.1:1", "unix:/" + "long" * 50])
def test_an_endpoint_that_cannot_be(world: World, endpoint: str) -> None:
    async def story() -> None:
        with pytest.raises(MemoryFailed, match=endpoint):
            await world.raylet.create_arena(endpoint, SIZE)
        with pytest.raises(MemoryFailed, match=endpoint):
            await world.attach(world.client, endpoint)

    world.run(story())


def test_a_large_arena_takes_no_memory_before_it_is_written(world: World) -> None:
    async def story() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        async with world.arena(size=1 << 30):
            view = await world.attach(world.client, world.endpoint)
            view[-1] = 1
            touched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            assert touched < (1 << 30) / resource.getpagesize() / 10

    world.run(story())


# --- On disk, in every world ---


@asynccontextmanager
async def disk_arena(world: World, directory: Path) -> AsyncIterator[DiskArena]:
    arena = await world.raylet.create_disk_arena(world.endpoint, str(directory), 1.0)
    try:
        yield arena
    finally:
        await arena.close()


def test_what_is_reserved_on_disk_is_shared_and_what_is_released_is_forgotten(world: World, directory: Path) -> None:
    async def story() -> None:
        async with disk_arena(world, directory) as arena:
            view = await world.attach(world.client, world.endpoint)
            assert len(view) == len(arena.view) > 1 << 20
            for start in (0, 1 << 19):
                arena.reserve(start, 1 << 14)
                view[start : start + 5] = b"hello"
            arena.release(0, 1 << 14)
            assert bytes(arena.view[:5]) == bytes(5) and bytes(arena.view[1 << 19 : (1 << 19) + 5]) == b"hello"
            arena.reserve(0, 1 << 12)
            arena.view[0] = 1
            assert view[0] == 1
        view[1 << 19] = 7
        assert arena.view[1 << 19] == 7, "views stay"

    world.run(story())


def test_a_disk_that_has_no_room_says_so(world: World, directory: Path) -> None:
    async def story() -> None:
        async with disk_arena(world, directory) as arena:
            with pytest.raises(DiskFull, match="bytes could not be reserved in"):
                arena.reserve(0, 1 << 60)

    world.run(story())


def test_an_endpoint_on_disk_that_is_taken(world: World, directory: Path) -> None:
    async def story() -> None:
        async with world.arena():
            with pytest.raises(MemoryFailed, match=f"{world.endpoint}: another process listens there"):
                await world.raylet.create_disk_arena(world.endpoint, str(directory), 1.0)

    world.run(story())


def test_an_arena_on_disk_does_not_need_its_directory_any_more(real_world: World, directory: Path) -> None:
    places = directory / "disk"
    places.mkdir()

    async def story() -> None:
        async with disk_arena(real_world, places) as arena:
            places.rmdir()
            arena.reserve(0, 1 << 14)

    real_world.run(story())


@needs_proc
def test_an_arena_on_disk_takes_what_is_reserved_and_leaves_no_file(real_world: World, directory: Path) -> None:
    places = directory / "disk"
    places.mkdir()

    async def story() -> None:
        before = len(_open_files())
        async with disk_arena(real_world, places) as arena:
            file = vars(arena)["_backing"].file
            arena.reserve(1 << 30, 1 << 22)
            assert 1 << 22 <= os.fstat(file.fileno()).st_blocks * 512 < 1 << 23
            arena.release(1 << 30, 1 << 22)
            assert os.fstat(file.fileno()).st_blocks * 512 < 1 << 16
            assert os.listdir(places) == []
        with pytest.raises(MemoryFailed, match="no arena on disk in /not/there: .*No such file"):
            await real_world.raylet.create_disk_arena(real_world.endpoint, "/not/there", 1.0)
        del arena
        gc.collect()
        assert len(_open_files()) == before

    real_world.run(story())


# --- The simulation ---


def test_simulated_memory_ends_for_others_with_its_creator_and_its_node() -> None:
    loop = SimLoop()
    arenas: dict[str, SimArena] = {}
    raylet = loop.add_process("raylet", "node", 0)
    driver, late, stranger = (
        SimMemory(arenas, loop.add_process(name, node, 0), SimNode(node), Oracle(0))
        for name, node in (("driver", "node"), ("late", "node"), ("stranger", "another node"))
    )

    async def story() -> None:
        arena = await SimMemory(arenas, raylet, SimNode("node"), Oracle(0)).create_arena("sim:arena", 100)
        with pytest.raises(MemoryFailed, match="no process"):
            stranger.attach("sim:arena")
        view = driver.attach("sim:arena")
        raylet.exit(None, 9)
        with pytest.raises(MemoryFailed, match="no process"):
            late.attach("sim:arena")
        view[0] = 1
        assert driver.attach("sim:arena") is view and arena.view[0] == 1

    loop.run_until_complete(story())
    loop.close()


# --- Processes ---


def start(source: str, kind: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Run a program that has ``memory``, whose new arenas are of this kind."""
    before = (
        f"import asyncio, os, sys\nfrom minray.platform.storage.memory import RealMemory\nmemory = RealMemory('{kind}')\n"
    )
    words = [sys.executable, "-c", before + textwrap.dedent(source), *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


CLIENT = """
view = memory.attach(sys.argv[1])
view[1] = view[0] + 1
print(len(view), flush=True)
sys.stdin.read()
view[2] = view[1] + 1
"""
RAYLET = """
async def main():
    arena = await memory.create_arena(sys.argv[1], int(sys.argv[2]))
    arena.view[:5] = b"hello"
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_another_process_reads_and_writes(real_world: World) -> None:
    async def story() -> None:
        async with real_world.arena() as arena:
            arena.view[0] = 1
            with start(CLIENT, "", real_world.endpoint) as client:
                assert client.stdout is not None
                assert await asyncio.to_thread(client.stdout.readline) == b"%d\n" % SIZE
                assert bytes(arena.view[:3]) == b"\1\2\0"
                await arena.close()
                client.communicate()
            assert client.returncode == 0 and bytes(arena.view[:3]) == b"\1\2\3"

    real_world.run(story())


def test_a_raylet_that_is_killed_leaves_views_and_a_place_for_its_successor(real_world: World, directory: Path) -> None:
    before = leaks.shared_memory()
    with start(RAYLET, real_world.kind, real_world.endpoint, SIZE) as raylet:
        assert raylet.stdout is not None and raylet.stdout.readline() == b"ready\n"
        view = real_world.client.attach(real_world.endpoint)
        raylet.send_signal(signal.SIGKILL)
    assert len(leaks.shared_memory() - before) == (real_world.kind == "shared_memory")
    assert bytes(view[:6]) == b"hello\0"
    with pytest.raises(MemoryFailed, match="no process hands out memory there"):
        real_world.another.attach(real_world.endpoint)

    async def succeed() -> None:
        async with real_world.arena():
            assert (await real_world.attach(real_world.another, real_world.endpoint))[0] == 0

    real_world.run(succeed())
    assert os.listdir(directory) == []


@needs_proc
def test_nothing_is_left_in_the_process_either(real_world: World) -> None:
    async def story() -> None:
        async with real_world.arena():
            await real_world.attach(RealMemory(), real_world.endpoint)

    def held() -> list[str]:
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in [*lines, *_open_files()] if MARKS[real_world.kind] in line or "socket" in line]

    before = held()
    real_world.run(story())
    assert held() == before


def _open_files() -> list[str]:
    found = []
    for name in os.listdir(FD):
        try:
            found.append(os.readlink(FD / name))
        except FileNotFoundError:
            continue  # the listing's own
    return found


@needs_proc
def test_programs_do_not_inherit_the_arena(real_world: World) -> None:
    async def story() -> None:
        async with real_world.arena():
            await real_world.attach(real_world.client, real_world.endpoint)
            mark = MARKS[real_world.kind]
            assert any(path.startswith(mark) for path in _open_files())
            listing = subprocess.run(["ls", "-l", "/proc/self/fd/"], close_fds=False, capture_output=True, check=True)
            assert b"pipe" in listing.stdout and mark.encode() not in listing.stdout

    real_world.run(story())


def test_threads_that_attach_at_once_get_one_view(real_world: World) -> None:
    async def story() -> None:
        barrier = threading.Barrier(20)

        def attach() -> memoryview:
            barrier.wait()
            return real_world.client.attach(real_world.endpoint)

        loop = asyncio.get_running_loop()
        async with real_world.arena():
            with ThreadPoolExecutor(20) as threads:
                views = await asyncio.gather(*[loop.run_in_executor(threads, attach) for _ in range(20)])
        assert len({id(view) for view in views}) == 1

    real_world.run(story())


# --- Trouble ---


def connect(endpoint: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(endpoint.removeprefix("unix:"))
    return connection


def test_clients_that_say_something_else_or_nothing_harm_nobody(real_world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with real_world.arena():
            silent = [connect(real_world.endpoint) for _ in range(50)]
            for number in range(50):
                with connect(real_world.endpoint) as visitor:
                    if number % 2:
                        visitor.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
            assert len(await real_world.attach(real_world.client, real_world.endpoint)) == SIZE
            for connection in silent:
                connection.close()

    real_world.run(story())
    assert caplog.text == ""


def test_another_user_gets_nothing(
    real_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        pytest.skip("the kernel does not say who connects")
    user = os.geteuid()

    async def story() -> None:
        async with real_world.arena():
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)
            with connect(real_world.endpoint) as visitor:
                assert await asyncio.to_thread(visitor.recvmsg, 100, 100) == (b"", [], 0, None)
            monkeypatch.undo()
            await real_world.attach(real_world.client, real_world.endpoint)

    real_world.run(story())
    assert f"no memory for a process that asked: process {os.getpid()} there belongs to another user" in caplog.text


def answering(endpoint: str, answer: Callable[[socket.socket], object]) -> threading.Thread:
    """Listen at the endpoint as a process that is no raylet, and answer one connection."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(endpoint.removeprefix("unix:"))
    listener.listen()

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def send_file_shorter_than_said(connection: socket.socket) -> None:
    with open(__file__, "rb") as file:
        socket.send_fds(connection, [(1 << 40).to_bytes(8, "little")], [file.fileno()])


def send_no_size(connection: socket.socket) -> None:
    with open(__file__, "rb") as file:
        socket.send_fds(connection, [b"1"], [file.fileno()])


@needs_proc
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda connection: None, "the raylet refused"),
        (lambda connection: connection.sendall(bytes(8)), "no descriptors left"),
        (send_no_size, "is no size"),
        (send_file_shorter_than_said, "no memory could be mapped"),
    ],
)
def test_somebody_who_is_no_raylet(real_world: World, answer: Callable[[socket.socket], object], reason: str) -> None:
    before = len(_open_files())
    thread = answering(real_world.endpoint, answer)
    with pytest.raises(MemoryFailed, match=f"{real_world.endpoint}: .*{reason}"):
        real_world.client.attach(real_world.endpoint)
    thread.join()
    assert len(_open_files()) == before


def test_a_raylet_that_does_not_answer(real_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_memory, "ATTACH_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(real_world.endpoint.removeprefix("unix:"))
        listener.listen()
        with pytest.raises(MemoryFailed, match="no memory was handed out within 0.05 s"):
            real_world.client.attach(real_world.endpoint)


def test_a_raylet_that_ends_while_a_client_waits(real_world: World) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(real_world.endpoint.removeprefix("unix:"))
    listener.listen()
    with ThreadPoolExecutor(1) as threads:
        attached = threads.submit(real_world.client.attach, real_world.endpoint)
        select.select([listener], [], [], 30)
        listener.close()
        with pytest.raises(MemoryFailed, match="no process hands out memory there|the raylet refused"):
            attached.result()


def test_a_raylet_without_descriptors_lets_clients_in_later(
    real_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(real_memory, "PAUSE_S", 0.01)

    async def story() -> None:
        async with real_world.arena():
            with socket.socket(socket.AF_UNIX) as client:
                with no_more_descriptors():
                    client.connect(real_world.endpoint.removeprefix("unix:"))
                    await until(lambda: caplog.text.count("no process gets memory for 0.01 s: Too many open files") > 1)
                word, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, client, 8, 1)
                for descriptor in descriptors:
                    os.close(descriptor)
                assert int.from_bytes(word, "little") == SIZE

    real_world.run(story())


def test_closing_while_nobody_is_let_in(
    real_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, directory: Path
) -> None:
    monkeypatch.setattr(real_memory, "PAUSE_S", 3600.0)

    async def story() -> None:
        async with real_world.arena() as arena:
            with socket.socket(socket.AF_UNIX) as client, no_more_descriptors():
                client.connect(real_world.endpoint.removeprefix("unix:"))
                turns = iter(range(5))
                await until(lambda: "no process gets memory" in caplog.text and next(turns, None) is None)
        pause: Any = vars(arena)["_pause"]
        assert pause.cancelled() and os.listdir(directory) == []
        assert caplog.text.count("no process gets memory") == 1, "it tries again and again"

    real_world.run(story())


@contextmanager
def no_more_descriptors(spare: int = 0) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(spare + 1)]
    for descriptor in free:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_proc
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_too_few_descriptors(real_world: World, directory: Path, spare: int) -> None:
    """An arena needs one for the file, one for the mapping and one for the socket."""

    async def story() -> None:
        before = len(_open_files())
        with no_more_descriptors(spare), pytest.raises(MemoryFailed, match=f"arena of {SIZE} bytes.*Too many open files"):
            await real_world.raylet.create_arena(real_world.endpoint, SIZE)
        with no_more_descriptors(), pytest.raises(MemoryFailed, match="Too many open files"):
            real_world.client.attach(real_world.endpoint)
        gc.collect()
        assert os.listdir(directory) == [] and len(_open_files()) == before

    real_world.run(story())


def test_a_file_in_the_way(real_world: World, directory: Path) -> None:
    (directory / "arena").write_text("precious")

    async def story() -> None:
        with pytest.raises(MemoryFailed, match="the file is there and is not a socket"):
            await real_world.raylet.create_arena(real_world.endpoint, SIZE)

    real_world.run(story())
    assert (directory / "arena").read_text() == "precious"
