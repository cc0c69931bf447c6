"""Segments of shared memory: whose they are, how large they may be, who removes them (test_memory.py: their contract)."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from minray.common.config import SystemConfig
from minray.common.resources import OBJECT_STORE_MEMORY, to_floats
from minray.node.node import NodeOptions, node_resources
from minray.platform.base import MemoryFailed
from minray.platform.process.host import RealHost
from minray.platform.process.session import SOCKETS, hold_lock, remove_session, sweep_sessions
from minray.platform.storage import memory, shared_memory
from minray.platform.storage.memory import RealMemory
from minray.platform.storage.shared_memory import (
    DIRECTORY,
    Segment,
    map_segment,
    name_of_segment,
    remove_segment,
    room,
)
from tests import leaks
from tests.platform.second_user import NOBODY, needs_second_user, second_user

pytestmark = pytest.mark.skipif(not Path(DIRECTORY).is_dir(), reason="this system does not show its shared memory as files")
SIZE = 1_000_000


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = leaks.shared_memory()
    yield
    assert leaks.shared_memory() == before


@pytest.fixture
def socket_path() -> Iterator[str]:
    with TemporaryDirectory(prefix="minray-") as directory:
        yield f"{directory}/arena"


@contextmanager
def segment(socket_path: str, size: int = SIZE) -> Iterator[Path]:
    """A segment of this socket, as the kernel shows it."""
    made = Segment(socket_path, size)
    try:
        yield Path(DIRECTORY, name_of_segment(socket_path))
    finally:
        made.close()


# --- Whose it is ---


def test_nobody_else_may_open_a_segment(socket_path: str) -> None:
    before = os.umask(0)
    try:
        with segment(socket_path) as entry:
            assert (entry.stat().st_mode & 0o777, entry.stat().st_uid) == (0o600, os.geteuid())
    finally:
        os.umask(before)


def test_a_segment_that_others_may_open_is_left_alone(socket_path: str) -> None:
    with segment(socket_path) as entry:
        entry.chmod(0o640)
        with pytest.raises(MemoryFailed, match=f"{entry.name} is open to other users .mode 640"):
            map_segment(entry.name, SIZE)


PLANTS = """
import _posixshmem
os.umask(0)
become()
planted = _posixshmem.shm_open("/" + sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o666)
os.truncate(planted, 1000)
ready()
sys.stdin.read()
_posixshmem.shm_unlink("/" + sys.argv[1])
"""


@needs_second_user
def test_a_segment_that_another_user_has_planted_is_neither_mapped_nor_removed(socket_path: str) -> None:
    name = name_of_segment(socket_path)
    with second_user(PLANTS, name):
        with pytest.raises(MemoryFailed, match=f"{name} belongs to another user .uid {NOBODY}"):
            map_segment(name, 1000)
        remove_segment(name)
        with pytest.raises(MemoryFailed, match=f"arena of {SIZE} bytes: .*File exists"):
            asyncio.run(RealMemory("shared_memory").create_arena(f"unix:{socket_path}", SIZE))
        assert Path(DIRECTORY, name).stat().st_uid == NOBODY


@pytest.mark.parametrize(
    "name", ["minray-", "psm_12345678", "minray-0123456789abcdeg", "../minray-0123456789abcdef", "\xff"]
)
def test_a_raylet_that_names_something_else(socket_path: str, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path)
        listener.listen()

        async def story() -> None:
            attached = asyncio.to_thread(RealMemory().attach, f"unix:{socket_path}")
            task = asyncio.create_task(attached)
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                connection.sendall(memory.WORD.pack(SIZE) + name.encode("latin-1"))
                with pytest.raises(MemoryFailed, match="no memory could be mapped: .* is not the name of a segment"):
                    await task

        asyncio.run(story())


def test_a_segment_shorter_than_said(socket_path: str) -> None:
    with segment(socket_path) as entry:
        with pytest.raises(ValueError, match=f"has {SIZE} bytes instead of {SIZE + 1}"):
            map_segment(entry.name, SIZE + 1)


# --- The resource tracker ---


def test_no_resource_tracker_is_started_or_told() -> None:
    source = """
        import os, sys, psutil
        from multiprocessing import resource_tracker
        from minray.platform.storage.shared_memory import Segment, map_segment, name_of_segment
        made = Segment(sys.argv[1], 1000)
        view = map_segment(name_of_segment(sys.argv[1]), 1000)
        made.view[0] = 7
        assert view[0] == 7
        made.close()
        assert resource_tracker._resource_tracker._pid is None and psutil.Process().children() == []
        print("fine")
    """
    program = "\n".join(line.strip() for line in source.splitlines())
    done = subprocess.run([sys.executable, "-c", program, "/tmp/tracked"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="nothing needs to be replaced")
def test_the_tracker_hears_of_others_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(resource_tracker, "register", lambda name, kind: told.append((name, kind)))
    before = resource_tracker.register
    with shared_memory._untracked("minray-1"):
        resource_tracker.register("/minray-1", "shared_memory")
        resource_tracker.register("/psm_1", "shared_memory")
    assert told == [("/psm_1", "shared_memory")] and resource_tracker.register is before


# --- Room ---


def test_an_arena_larger_than_the_room_is_refused(socket_path: str) -> None:
    free = room()
    assert free is not None

    async def story() -> None:
        size = 2 * free
        with pytest.raises(MemoryFailed) as caught:
            await RealMemory("shared_memory").create_arena(f"unix:{socket_path}", size)
        assert str(caught.value).startswith(f"no arena of {size} bytes: /dev/shm has room for ")
        assert "object_store_memory" in str(caught.value) and "--shm-size" in str(caught.value)
        assert not os.path.exists(socket_path)

    asyncio.run(story())


def test_room_that_is_promised_is_not_free(socket_path: str) -> None:
    before = room()
    assert before is not None
    size = before // 2
    with segment(socket_path, size):
        during = room()
        assert during is not None and before - during > size * 0.9
        with pytest.raises(MemoryFailed, match="has room for"):
            Segment(f"{socket_path}-2", int(before * 0.6))


def test_only_this_users_promises_count(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = room()
    assert before is not None
    with segment(socket_path, before // 2):
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        other = room()
        monkeypatch.undo()
    assert other is not None and other > before * 0.9


@pytest.mark.parametrize("blocks", [0, 10])
def test_a_place_without_a_limit(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    system = os.statvfs_result((1 << 40, 1 << 40, blocks, blocks, blocks, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: system)
    assert (room() is None) == (blocks == 0)


def test_a_system_that_does_not_show_its_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "DIRECTORY", "/not/there")
    assert room() is None


@pytest.mark.parametrize("size", [1000, 10**7])
def test_the_default_size_of_a_store_is_bounded_by_the_room(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda: size)
    sizes = {}
    for arena in ("memfd", "shared_memory"):
        options = NodeOptions(system_config=SystemConfig(arena=arena))
        sizes[arena] = to_floats(node_resources(options, RealHost()))[OBJECT_STORE_MEMORY]
    assert sizes["shared_memory"] == size < sizes["memfd"]


# --- The default ---


def test_segments_are_the_default_where_there_is_no_memfd(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)

    async def story() -> None:
        arena = await RealMemory().create_arena(f"unix:{socket_path}", SIZE)
        assert Path(DIRECTORY, name_of_segment(socket_path)).stat().st_size == SIZE
        await arena.close()

    asyncio.run(story())
    assert memory.most_arena_bytes("") == room()
    memory.check_arena("shared_memory")
    with pytest.raises(RuntimeError, match="'memfd' needs os.memfd_create, which this system .* lacks; use .*shared_memory"):
        memory.check_arena("memfd")


# --- Failures ---


def fail(*_: Any) -> Any:
    raise OSError(24, "Too many open files")


def test_who_cannot_map_a_segment_does_not_take_it_from_others(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own class would unlink it."""
    with segment(socket_path) as entry:
        monkeypatch.setattr(mmap, "mmap", fail)
        with pytest.raises(OSError, match="Too many open files"):
            map_segment(entry.name, SIZE)
        monkeypatch.undo()
        assert len(map_segment(entry.name, SIZE)) == SIZE


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), OverflowError("too large")])
def test_a_segment_that_cannot_be_mapped_leaves_no_name(
    socket_path: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(mmap, "mmap", fail)
    with pytest.raises(type(error)):
        Segment(socket_path, SIZE)
    monkeypatch.undo()
    assert not Path(DIRECTORY, name_of_segment(socket_path)).exists()


def test_a_segment_of_a_successor_stays(socket_path: str) -> None:
    """The first raylet's socket was removed, and another raylet has taken its endpoint."""
    first = Segment(socket_path, SIZE)
    with segment(socket_path) as entry:
        first.close()
        assert entry.exists()


def test_the_end_of_an_interpreter_says_nothing_of_views_that_are_left(socket_path: str) -> None:
    source = """
        import sys, numpy
        from minray.platform.storage.shared_memory import Segment, map_segment, name_of_segment
        made = Segment(sys.argv[1], 1000)
        array = numpy.frombuffer(map_segment(name_of_segment(sys.argv[1]), 1000), "u1")
        sys.kept = [array, array[5:], made.view]
        made.close()
    """
    program = "\n".join(line.strip() for line in source.splitlines())
    done = subprocess.run([sys.executable, "-c", program, socket_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- Remains ---

RAYLET = """
import asyncio, sys
from minray.platform.storage.memory import RealMemory

async def main():
    await RealMemory("shared_memory").create_arena(f"unix:{sys.argv[1]}", 1000)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def session() -> Iterator[Path]:
    """A session that has begun, in a directory of its own."""
    with TemporaryDirectory(prefix="minray-") as root:
        made = Path(root, "session_1")
        (made / SOCKETS).mkdir(parents=True)
        yield made


def kill_raylet(session: Path) -> Path:
    """Let a raylet make the session's arena and kill it; return the segment that is left."""
    path = f"{session / SOCKETS}/s-0123456789abcdef"
    with subprocess.Popen([sys.executable, "-c", RAYLET, path], stdout=subprocess.PIPE) as raylet:
        assert raylet.stdout is not None and raylet.stdout.readline() == b"ready\n"
        raylet.send_signal(signal.SIGKILL)
    left = Path(DIRECTORY, name_of_segment(path))
    assert left.exists()
    return left


def test_a_segment_goes_with_its_session(session: Path) -> None:
    left = kill_raylet(session)
    remove_session(str(session))
    assert not left.exists() and not session.exists()


def test_the_next_start_sweeps_segments_of_sessions_that_are_over_alone(session: Path, socket_path: str) -> None:
    left = kill_raylet(session)
    lock = hold_lock(str(session))
    with segment(socket_path) as other:
        assert sweep_sessions(str(session.parent)) == [] and left.exists()
        os.close(lock)
        assert sweep_sessions(str(session.parent)) == [str(session)]
        assert not left.exists() and other.exists()


def test_a_segment_without_a_size_is_swept_too(session: Path) -> None:
    """The raylet was killed between two system calls."""
    path = session / SOCKETS / "s-0123456789abcdef"
    path.touch()
    unfinished = Path(DIRECTORY, name_of_segment(str(path)))
    unfinished.touch(0o600)
    remove_session(str(session))
    assert not unfinished.exists()


def test_the_name_does_not_depend_on_how_the_path_is_spelled(session: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(session)
    places = session, tmp_path / "link", session / SOCKETS / ".."
    assert len({name_of_segment(str(place / SOCKETS / "s-1")) for place in places}) == 1
