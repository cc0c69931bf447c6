"""Arenas in ``multiprocessing.shared_memory``: memory that processes find by its name, where systems lack ``memfd_create``.

Ray: python/ray/_private/services.py (determine_plasma_store_config, which also compares the store with /dev/shm)

A segment is a file in memory with a name. It stays until it is unlinked, however many processes die. So its name is derived
from the path of the socket where the raylet names it to other processes. The socket's file is made first and removed last.
So the process that cleans up after a dead raylet finds the file, and by it the segment.

Rules
  * A segment belongs to one user, with mode 0600. A process maps only what the raylet has named, and leaves it alone if it
    is another user's or if others may open it. Nothing of another user's is unlinked, also not by root.
  * The raylet unlinks its segment when it closes; its zygote does that if the raylet was killed; if both were killed, the
    next start of a node does, once the session's lock is free (``session.remove_session``).
  * The resource tracker of ``multiprocessing`` knows nothing of segments. It would cost a process of 13 MB on each node, and
    unlink memory that other processes still use.
  * A segment larger than the free room of /dev/shm is refused, since the kernel kills a process that writes to a mapping
    without room (SIGBUS). What other arenas of this user may still write to counts as used.
  * A mapping lasts as long as a view of it. ``SharedMemory`` would close it earlier, or print that it cannot.

What we do not like about it yet: room is compared once, not reserved. Another program, or another user's arena, may fill
/dev/shm later. A session directory that was removed by hand no longer tells of its segment. And systemd unlinks the segments
of a user who logs out, unless ``loginctl enable-linger`` was called; then no new worker can map the arena.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from minray.platform.base import MemoryFailed

PREFIX = "minray-"
DIRECTORY = "/dev/shm"
"""The place of segments on Linux; other systems show them nowhere."""
NAME = re.compile(PREFIX + "[0-9a-f]{16}")
"""Names of segments. With its slash a name has 24 characters; macOS allows 31."""
MOST_NAME_BYTES = 64
"""Most bytes of a name that a raylet sends."""
BLOCK_BYTES = 512
"""The unit, in bytes, of ``st_blocks``."""
_opening = threading.Lock()
"""Held while the function that tells the resource tracker is replaced."""


class Segment:
    """Memory of a new segment. Implements ``memory.Backing``."""

    def __init__(self, socket_path: str, size: int) -> None:
        """Create the segment of the raylet that has bound this socket.

        Replaces the segment of a killed raylet that had the same endpoint. Raises MemoryFailed for lack of room, or OSError.
        """
        self._name = name_of_segment(socket_path)
        self._inode: int | None = None
        remove_segment(self._name)
        check_room(size)
        try:
            whole, status = _open(self._name, size)
        except BaseException:
            self.close()  # for the errors after which the constructor leaves the name: ValueError, OverflowError
            raise
        self.view = whole[:size]  # macOS rounds up to whole pages
        self._inode = status.st_ino

    def introduce(self) -> tuple[bytes, list[int]]:
        return self._name.encode(), []

    def close(self) -> None:
        """Unlink the segment."""
        remove_segment(self._name, self._inode)


def name_of_segment(socket_path: str) -> str:
    """Return the name of the segment that is handed out at this socket."""
    path = os.fsencode(os.path.realpath(socket_path))
    return PREFIX + hashlib.blake2s(path, digest_size=8).hexdigest()


def map_segment(name: str, size: int) -> memoryview:
    """Map a segment that this user's raylet has named.

    Raises MemoryFailed if the segment is another user's, ValueError for a wrong name or size, OSError if it is gone.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a segment")
    view, status = _open(name)
    if status.st_uid != os.geteuid():
        raise MemoryFailed(f"segment {name} belongs to another user (uid {status.st_uid})")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise MemoryFailed(f"segment {name} is open to other users (mode {stat.S_IMODE(status.st_mode):o})")
    if len(view) < size:
        raise ValueError(f"segment {name} has {len(view)} bytes instead of {size}")
    return view[:size]


def remove_segments(socket_dir: str) -> None:
    """Unlink the segments of this user that were handed out at the sockets of a directory. Never raises."""
    with suppress(OSError):
        for socket_name in os.listdir(socket_dir):
            remove_segment(name_of_segment(os.path.join(socket_dir, socket_name)))


def remove_segment(name: str, inode: int | None = None) -> None:
    """Unlink a segment of this user, if there is one, and if it has this inode (None: any). Never raises."""
    calls = _system_calls()
    with suppress(OSError):
        descriptor = calls.shm_open(f"/{name}", os.O_RDONLY, mode=0)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if status.st_uid == os.geteuid() and inode in (None, status.st_ino):
            calls.shm_unlink(f"/{name}")


def room() -> int | None:
    """Return the bytes of /dev/shm that are neither used nor promised to this user's arenas; None where that is unknown."""
    try:
        system = os.statvfs(DIRECTORY)
    except OSError:
        return None
    if not system.f_blocks:
        return None  # mounted without a limit
    return max(0, system.f_bavail * system.f_frsize - _promised())


def _promised() -> int:
    """Return the bytes of this user's segments that nobody has written to yet."""
    promised = 0
    for entry in os.scandir(DIRECTORY):
        if NAME.fullmatch(entry.name):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid():
                    promised += max(0, status.st_size - status.st_blocks * BLOCK_BYTES)
    return promised


def check_room(size: int) -> None:
    """Raise MemoryFailed if /dev/shm has no room for ``size`` more bytes."""
    free = room()
    if free is not None and size > free:
        raise MemoryFailed(
            f"no arena of {size} bytes: {DIRECTORY} has room for {free}; choose a smaller object_store_memory, enlarge"
            f" {DIRECTORY} (docker run --shm-size=...), or use the arena that needs none of it:"
            ' _system_config={"arena": "memfd"}'
        )


def _system_calls() -> Any:
    """Return the module below ``SharedMemory``, which can only unlink what can be mapped, and so no unfinished segment."""
    import _posixshmem  # type: ignore[import-not-found, unused-ignore]

    return _posixshmem


def _open(name: str, size: int = 0) -> tuple[memoryview, os.stat_result]:
    """Open a segment, or create one of ``size`` bytes; return all of its memory, and its status. Raises OSError."""
    from multiprocessing.shared_memory import SharedMemory

    class Opened(SharedMemory):
        def unlink(self) -> None:
            """Called by the constructor when it cannot map a segment: unlink only what this process has created."""
            if size:
                _system_calls().shm_unlink(f"/{name}")

    with _untracked(name) as options:
        segment: Any = Opened(name, create=size > 0, size=size, **options)
    # The parts are taken out of the object, so that its destructor has nothing to close.
    descriptor, mapping = segment._fd, segment._mmap
    segment._fd, segment._mmap, segment._buf = -1, None, None
    try:
        return memoryview(mapping), os.fstat(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _untracked(own: str) -> Iterator[dict[str, Any]]:
    """Keep the resource tracker from hearing of one segment; yields further arguments of ``SharedMemory``.

    Before Python 3.13, which has ``track=False``, the function that tells the tracker is replaced as long as the block
    lasts. For other names it does what it always does.
    """
    if sys.version_info >= (3, 13):
        yield {"track": False}
        return
    from multiprocessing import resource_tracker

    def register_others(name: Any, rtype: str) -> None:
        if name != f"/{own}":
            register(name, rtype)

    with _opening:
        register = resource_tracker.register
        resource_tracker.register = register_others
        try:
            yield {}
        finally:
            resource_tracker.register = register
