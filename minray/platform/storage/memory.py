"""Memory that the processes of one node share: the raylet makes an arena and hands it out, all other processes map it.

Ray: src/ray/object_manager/plasma/fling.h (descriptors over sockets), dlmalloc.cc (the file behind the memory)

An arena is a file without a name: ``memfd_create``, or where that is missing a temporary file that is removed at once. So
it ends with the last process that has mapped it, however processes die. Its descriptor travels over a unix socket.
``multiprocessing.shared_memory`` gives names instead. To clean up after them it starts a tracker process, 13 MB on each
node, which removes memory that other processes still use.

Rules
  * The raylet hands the arena to every process of its own user that connects. It sends size and descriptor and closes. It
    does not read from clients and waits for none. A client accepts nothing from a process of another user. Other users
    cannot reach the socket anyhow: its directory is private.
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
import threading
from contextlib import suppress
from typing import BinaryIO, cast

from minray.platform.base import AuthenticationFailed, MemoryFailed, PlatformError
from minray.platform.storage.disk import check_capacity, failure
from minray.platform.storage.private_paths import PrivateDirectory
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
"""The data sent with the descriptor: the arena's size in bytes."""
DESCRIPTOR = struct.Struct("i")
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class RealArena:
    """Implements ``base.Arena`` with a nameless file that is mapped into memory."""

    def __init__(self, endpoint: endpoints.UnixEndpoint, file: BinaryIO, size: int) -> None:
        self._endpoint = endpoint
        self._file = file
        """The file that is handed out; ``close`` closes it, but not the mapping."""
        self._listener: socket.socket | None = None
        """None before ``listen`` and after ``close``."""
        self._inode = 0
        """Identifies the socket file, so that only our own is removed."""
        self._pause: asyncio.TimerHandle | None = None
        """The timer that ends a pause in accepting connections; None if there is no pause."""
        try:
            self._file.truncate(size)
            self._mapping = mmap.mmap(self._file.fileno(), size)
            self.view = memoryview(self._mapping)
        except BaseException:
            self._file.close()
            raise

    def listen(self) -> None:
        """Begin to hand out the arena. Raises ``PlatformError`` or OSError if the endpoint cannot be used."""
        endpoints.make_room(self._endpoint)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(self._endpoint.path)
        self._inode = endpoints.inode(self._endpoint)
        self._listener.listen(LISTEN_BACKLOG)
        self._watch()

    async def close(self) -> None:
        if self._listener is not None:
            if self._pause is not None:
                self._pause.cancel()
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            endpoints.remove(self._endpoint, self._inode)
        self._file.close()

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
            self._hand_out(connection)

    def _hand_out(self, connection: socket.socket) -> None:
        try:
            endpoints.check_peer(connection)
            socket.send_fds(connection, [WORD.pack(len(self.view))], [self._file.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            return  # The client only checked whether we listen.
        except (OSError, AuthenticationFailed) as error:
            logger.warning("unix:%s: no memory for a process that asked: %s", self._endpoint.path, error)


class RealDiskArena(RealArena):
    """Implements ``base.DiskArena`` with a sparse file in a directory."""

    def __init__(self, endpoint: endpoints.UnixEndpoint, directory: str, capacity_threshold: float) -> None:
        self._directory = directory
        self._capacity_threshold = capacity_threshold
        system = os.statvfs(directory)
        size = min(int(system.f_blocks * system.f_frsize * capacity_threshold), MOST_DISK_BYTES)
        super().__init__(endpoint, _nameless_file_in(directory), size)

    def reserve(self, start: int, size: int) -> None:
        try:
            check_capacity(self._file.fileno(), size, self._capacity_threshold)
            _allocate(self._file.fileno(), start, size)
        except OSError as error:
            self.release(start, size)
            raise failure(f"{size} bytes could not be reserved in {self._directory}", error) from error

    def release(self, start: int, size: int) -> None:
        if hasattr(mmap, "MADV_REMOVE"):
            with suppress(OSError):  # Not every file system can; the room then stays reserved for the next object here.
                self._mapping.madvise(mmap.MADV_REMOVE, start, size)


class RealMemory:
    """Implements ``base.Memory`` with arenas of this machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while mapping, so that two threads do not map twice."""
        self._views: dict[str, memoryview] = {}
        """The views of attached arenas, by endpoint."""

    async def create_arena(self, endpoint: str, size: int) -> RealArena:
        where = _parse(endpoint)
        if size <= 0:
            raise MemoryFailed(f"an arena of {size} bytes: object_store_memory must be positive")
        try:
            arena = RealArena(where, _nameless_file(), size)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryFailed(f"no arena of {size} bytes: {error}; choose a smaller object_store_memory") from error
        await _hand_out(arena, f"no arena of {size} bytes at {endpoint}")
        return arena

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> RealDiskArena:
        where = _parse(endpoint)
        try:
            arena = RealDiskArena(where, directory, capacity_threshold)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryFailed(f"no arena on disk in {directory}: {error}") from error
        await _hand_out(arena, f"no arena on disk at {endpoint}")
        return arena

    def attach(self, endpoint: str) -> memoryview:
        with self._lock:
            if endpoint not in self._views:
                try:
                    self._views[endpoint] = _map(*_receive(_parse(endpoint)))
                except TimeoutError:
                    raise MemoryFailed(f"{endpoint}: no memory was handed out within {ATTACH_TIMEOUT_S:g} s") from None
                except (ConnectionError, FileNotFoundError) as error:
                    raise MemoryFailed(f"{endpoint}: no process hands out memory there; its raylet has ended") from error
                except AuthenticationFailed as error:
                    raise MemoryFailed(f"{endpoint}: {error}") from None
                except (OSError, OverflowError, ValueError) as error:
                    raise MemoryFailed(f"{endpoint}: no memory could be mapped: {error}") from error
            return self._views[endpoint]


def _parse(endpoint: str) -> endpoints.UnixEndpoint:
    try:
        where = endpoints.parse(endpoint)
    except PlatformError as error:
        raise MemoryFailed(str(error)) from None
    if not isinstance(where, endpoints.UnixEndpoint):
        raise MemoryFailed(f"{endpoint}: memory is handed out at unix sockets alone")
    return where


async def _hand_out(arena: RealArena, trouble: str) -> None:
    try:
        arena.listen()
    except (OSError, PlatformError) as error:
        await arena.close()
        raise MemoryFailed(f"{trouble}: {error}") from error


def _nameless_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("minray"), "r+b", buffering=0)
    import tempfile

    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


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


def _receive(endpoint: endpoints.UnixEndpoint) -> tuple[int, int]:
    """Return an arena's descriptor, which the caller must close, and its size in bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ATTACH_TIMEOUT_S)
        connection.connect(endpoint.path)
        endpoints.check_peer(connection)
        # Not ``recv_fds``: a program that another thread starts just then would inherit the descriptor.
        word, control, _, _ = connection.recvmsg(WORD.size, socket.CMSG_LEN(DESCRIPTOR.size), CLOSE_ON_EXEC)
    if not control:
        reason = "this process has no descriptors left" if word else "the raylet refused, or had no descriptors left"
        raise MemoryFailed(f"unix:{endpoint.path}: {reason}")
    (descriptor,) = DESCRIPTOR.unpack(control[0][2])
    if len(word) != WORD.size:
        os.close(descriptor)
        raise MemoryFailed(f"unix:{endpoint.path}: the data sent with the descriptor is no size")
    return descriptor, WORD.unpack(word)[0]


def _map(descriptor: int, size: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(descriptor, size))
    finally:
        os.close(descriptor)
