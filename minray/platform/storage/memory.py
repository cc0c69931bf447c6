"""Memory that the processes of one node share: the raylet makes an arena and hands it out, all other processes map it.

Ray: src/ray/object_manager/plasma/fling.h (descriptors over sockets), dlmalloc.cc (the file behind the memory)

An arena is a file without a name (``memfd_create``). So it ends with the last process that has mapped it, however processes
die. Its descriptor travels over a unix socket. Where ``memfd_create`` is missing, or by choice (``arena`` of the system
config), it is a segment of ``multiprocessing.shared_memory`` instead, whose name travels (``shared_memory``).

Rules
  * The raylet hands the arena to every process of its own user that connects. It sends size and descriptor or name, and
    closes. It does not read from clients and waits for none. A client accepts nothing from a process of another user. Other
    users cannot reach the socket anyhow: its directory is private.
  * The socket's file is made before the arena and removed after it, since the name of a segment is derived from its path.
  * No program that users start inherits the arena: every descriptor of it is closed on exec.
  * Only pages that have been written take memory.
  * A mapping lasts as long as a view of it: ``close`` does not affect readers.
  * An arena on disk is also a nameless file, but in a given directory. The file is sparse. Room for data is reserved before
    it is written, since the kernel kills a process that writes to a mapping when the disk is full (SIGBUS).

What we do not like about it yet: the kernel promises more memory than there is. An arena too large for the machine is not
refused here; when it fills up, the kernel kills a process. Giving a gigabyte back to a disk holds up the loop for a tenth of
a second. And Python keeps a descriptor open for each mapping.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Protocol

from minray.platform.base import AuthenticationFailed, Buffer, MemoryFailed, PlatformError
from minray.platform.storage.copier import Copier
from minray.platform.storage.disk import check_capacity, failure
from minray.platform.storage.private_paths import PrivateDirectory
from minray.platform.storage.shared_memory import MOST_NAME_BYTES, Segment, map_segment, room
from minray.platform.transport import endpoints

logger = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 5.0
LISTEN_BACKLOG = 1024
PAUSE_S = 1.0
"""Seconds without accepting connections after ``accept`` has failed: that is for lack of descriptors, and would repeat."""
MOST_DISK_BYTES = 1 << 40
"""The largest arena on disk, in bytes: every address space and file system can have it."""
ZEROS = 1 << 20
"""Bytes of zeros per write, on systems where room can be reserved only by writing."""
WORD = struct.Struct("<Q")
"""The arena's size in bytes, which is sent first: with the descriptor, or before the name."""
DESCRIPTOR = struct.Struct("i")
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Backing(Protocol):
    """The memory of an arena, as its creator has it."""

    view: memoryview

    def introduce(self) -> tuple[bytes, list[int]]:
        """Return the name or the descriptors by which another process maps the memory."""

    def close(self) -> None:
        """Let no further process map the memory. Mappings stay."""


class NamelessFile:
    """Implements ``Backing`` with a file that ends with its last mapping."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        """Map this file, which belongs to this object from now on. Raises OSError, OverflowError or ValueError."""
        self.file = file
        """The file that is handed out; ``close`` closes it, but not the mapping."""
        try:
            self.file.truncate(size)
            self.mapping = mmap.mmap(self.file.fileno(), size)
            self.view = memoryview(self.mapping)
        except BaseException:
            self.file.close()
            raise

    def introduce(self) -> tuple[bytes, list[int]]:
        return b"", [self.file.fileno()]

    def close(self) -> None:
        self.file.close()


class RealArena:
    """Implements ``base.Arena`` with memory that is handed out at a unix socket."""

    view: memoryview
    """Set by ``hand_out``, as ``_backing`` is."""
    _backing: Backing

    def __init__(self, endpoint: endpoints.UnixEndpoint) -> None:
        self._endpoint = endpoint
        self._listener: socket.socket | None = None
        """None before ``bind`` and after ``close``."""
        self._inode = 0
        """Identifies the socket file, so that only our own is removed."""
        self._pause: asyncio.TimerHandle | None = None
        """The timer that ends a pause in accepting connections; None if there is no pause."""

    def bind(self) -> None:
        """Take the endpoint. Raises ``PlatformError`` or OSError if it cannot be used."""
        endpoints.make_room(self._endpoint)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(self._endpoint.path)
        self._inode = endpoints.inode(self._endpoint)

    def hand_out(self, backing: Backing) -> None:
        """Begin to hand out this memory at the endpoint. Raises OSError."""
        assert self._listener is not None
        self._backing = backing
        self.view = backing.view
        self._listener.listen(LISTEN_BACKLOG)
        self._watch()

    async def close(self) -> None:
        if self._listener is None:
            return
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        if hasattr(self, "_backing"):
            self._backing.close()
        endpoints.remove(self._endpoint, self._inode)

    def _watch(self) -> None:
        assert self._listener is not None
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client was gone before it was accepted.
        except OSError as error:
            logger.warning("unix:%s: no process gets memory for %g s: %s", self._endpoint.path, PAUSE_S, error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            self._pause = loop.call_later(PAUSE_S, self._watch)
            return
        with connection:
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        name, descriptors = self._backing.introduce()
        try:
            endpoints.check_peer(connection)
            socket.send_fds(connection, [WORD.pack(len(self.view)) + name], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # The client only checked whether we listen.
        except (OSError, AuthenticationFailed) as error:
            logger.warning("unix:%s: no memory for a process that asked: %s", self._endpoint.path, error)


class RealDiskArena(RealArena):
    """Implements ``base.DiskArena`` with a sparse file in a directory."""

    _backing: NamelessFile

    def __init__(self, endpoint: endpoints.UnixEndpoint, directory: str, capacity_threshold: float) -> None:
        super().__init__(endpoint)
        self._directory = directory
        self._capacity_threshold = capacity_threshold

    def make_file(self) -> NamelessFile:
        """Make the file of this arena. Raises OSError."""
        system = os.statvfs(self._directory)
        size = min(int(system.f_blocks * system.f_frsize * self._capacity_threshold), MOST_DISK_BYTES)
        return NamelessFile(_nameless_file_in(self._directory), size)

    def reserve(self, start: int, size: int) -> None:
        try:
            check_capacity(self._backing.file.fileno(), size, self._capacity_threshold)
            _allocate(self._backing.file.fileno(), start, size)
        except OSError as error:
            self.release(start, size)
            raise failure(f"{size} bytes could not be reserved in {self._directory}", error) from error

    def release(self, start: int, size: int) -> None:
        if hasattr(mmap, "MADV_REMOVE"):
            with suppress(OSError):  # Not every file system can; the room then stays reserved for the next object here.
                self._backing.mapping.madvise(mmap.MADV_REMOVE, start, size)


class RealMemory:
    """Implements ``base.Memory`` with arenas of this machine."""

    def __init__(self, kind: str = "", copier: Copier | None = None) -> None:
        self._copier = copier or Copier()
        self._makes_segments = _is_shared_memory(kind)
        """Whether arenas created here are segments; any kind can be attached."""
        self._lock = threading.Lock()
        """Held while mapping, so that two threads do not map twice."""
        self._views: dict[str, memoryview] = {}
        """The views of attached arenas, by endpoint."""

    async def create_arena(self, endpoint: str, size: int) -> RealArena:
        where = _parse(endpoint)
        if size <= 0:
            raise MemoryFailed(f"an arena of {size} bytes: object_store_memory must be positive")
        arena = RealArena(where)

        def make() -> Backing:
            try:
                return Segment(where.path, size) if self._makes_segments else NamelessFile(_nameless_file(), size)
            except (OSError, OverflowError, ValueError) as error:
                raise MemoryFailed(f"no arena of {size} bytes: {error}; choose a smaller object_store_memory") from error

        await _open(arena, make, f"no arena of {size} bytes at {endpoint}")
        return arena

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> RealDiskArena:
        arena = RealDiskArena(_parse(endpoint), directory, capacity_threshold)

        def make() -> Backing:
            try:
                return arena.make_file()
            except (OSError, OverflowError, ValueError) as error:
                raise MemoryFailed(f"no arena on disk in {directory}: {error}") from error

        await _open(arena, make, f"no arena on disk at {endpoint}")
        return arena

    def attach(self, endpoint: str) -> memoryview:
        with self._lock:
            if endpoint not in self._views:
                where = _parse(endpoint)
                try:
                    self._views[endpoint] = _receive(where)
                except TimeoutError:
                    raise MemoryFailed(f"{endpoint}: no memory was handed out within {ATTACH_TIMEOUT_S:g} s") from None
                except (ConnectionError, FileNotFoundError) as error:
                    raise MemoryFailed(f"{endpoint}: no process hands out memory there; its raylet has ended") from error
                except (AuthenticationFailed, MemoryFailed) as error:
                    raise MemoryFailed(f"{endpoint}: {error}") from None
                except (OSError, OverflowError, ValueError) as error:
                    raise MemoryFailed(f"{endpoint}: no memory could be mapped: {error}") from error
            return self._views[endpoint]

    def copy(self, target: memoryview, source: Buffer) -> None:
        self._copier.copy(target, source)


def check_arena(kind: str) -> None:
    """Raise RuntimeError if this system has no memory of this kind (``arena`` of the system config)."""
    if kind == "memfd" and not hasattr(os, "memfd_create"):
        advice = '_system_config={"arena": "shared_memory"}'
        raise RuntimeError(f"arena 'memfd' needs os.memfd_create, which this system ({sys.platform}) lacks; use {advice}")


def most_arena_bytes(kind: str) -> int | None:
    """Return the size in bytes that a new arena of this kind can have at most; None if only memory limits it."""
    return room() if _is_shared_memory(kind) else None


def prepare_children() -> None:
    """Import once, in a zygote, what its children need for arenas of the default kind."""
    if _is_shared_memory(""):
        import multiprocessing.shared_memory  # noqa: F401


def _is_shared_memory(kind: str) -> bool:
    """Tell whether arenas of this kind are segments; "" stands for the best kind that this system has."""
    return kind == "shared_memory" or not hasattr(os, "memfd_create")


def _parse(endpoint: str) -> endpoints.UnixEndpoint:
    try:
        where = endpoints.parse(endpoint)
    except PlatformError as error:
        raise MemoryFailed(str(error)) from None
    if not isinstance(where, endpoints.UnixEndpoint):
        raise MemoryFailed(f"{endpoint}: memory is handed out at unix sockets alone")
    return where


async def _open(arena: RealArena, make: Callable[[], Backing], trouble: str) -> None:
    """Take the arena's endpoint, make its memory and hand it out. Raises MemoryFailed; then nothing is left."""
    try:
        arena.bind()
        arena.hand_out(make())
    except (OSError, PlatformError) as error:
        await arena.close()
        if isinstance(error, MemoryFailed):
            raise
        raise MemoryFailed(f"{trouble}: {error}") from error


def _nameless_file() -> BinaryIO:
    return open(os.memfd_create("minray"), "r+b", buffering=0)


def _nameless_file_in(directory: str) -> BinaryIO:
    place, name = PrivateDirectory(directory), f"minray-{os.urandom(8).hex()}"
    descriptor = place.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    place.unlink(name)
    return open(descriptor, "r+b", buffering=0)


def _allocate(descriptor: int, start: int, size: int) -> None:
    """Reserve disk space for ``size`` bytes of a sparse file. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    for place in range(start, start + size, ZEROS):
        os.pwrite(descriptor, bytes(min(ZEROS, start + size - place)), place)


def _receive(endpoint: endpoints.UnixEndpoint) -> memoryview:
    """Return the memory that is handed out at an endpoint."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ATTACH_TIMEOUT_S)
        connection.connect(endpoint.path)
        endpoints.check_peer(connection)
        # Not ``recv_fds``: a program that another thread starts just then would inherit the descriptor.
        data, control, _, _ = connection.recvmsg(
            WORD.size + MOST_NAME_BYTES, socket.CMSG_LEN(DESCRIPTOR.size), CLOSE_ON_EXEC
        )
    word, name = data[: WORD.size], data[WORD.size :]
    if name and not control:
        return map_segment(name.decode("ascii", "replace"), WORD.unpack(word)[0])
    if not control:
        reason = "this process has no descriptors left" if word else "the raylet refused, or had no descriptors left"
        raise MemoryFailed(reason)
    (descriptor,) = DESCRIPTOR.unpack(control[0][2])
    if len(data) != WORD.size:
        os.close(descriptor)
        raise MemoryFailed("the data sent with the descriptor is no size")
    return _map(descriptor, WORD.unpack(word)[0])


def _map(descriptor: int, size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(descriptor, size))
    finally:
        os.close(descriptor)
