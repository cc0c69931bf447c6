"""Closing the connections of another process, as a broken network does: it keeps its sockets, and finds them dead.

Linux gives a duplicate of a descriptor of another process (``pidfd_getfd``) to whoever may trace it: root, and usually its
parents. What is shut down through the duplicate is shut down in that process too. Elsewhere there is no such thing, and no
connection is closed.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PIDFD_GETFD = 438
"""The number of the system call, on every architecture."""


def close_connections(pid: int, pick: float | None = None) -> int:
    """Shut down the named connections of a process, or the one at this place (0..1) among them; returns how many.

    Those without names are socket pairs, which no network can break; listeners stay.
    """
    found = list(_connections(pid))
    if pick is not None:
        found = found[int(pick * len(found)) :][:1]
    for number in found:
        with suppress(OSError), _duplicate(pid, number) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    return len(found)


def _connections(pid: int) -> Iterator[int]:
    """The descriptors of a process that are established connections with names."""
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return
    for number in numbers:
        with suppress(OSError):
            if Path(f"/proc/{pid}/fd/{number}").readlink().name.startswith("socket:"):
                with _duplicate(pid, number) as candidate:
                    if _is_named_connection(candidate):
                        yield number


def _is_named_connection(candidate: socket.socket) -> bool:
    if candidate.type != socket.SOCK_STREAM or candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    return bool(candidate.getpeername() or candidate.getsockname())


def _duplicate(pid: int, number: int) -> socket.socket:
    """Raises OSError if the process or its descriptor is gone, or is not ours to touch."""
    process = os.pidfd_open(pid)
    try:
        duplicate = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, number, 0)
        if duplicate < 0:
            raise OSError(ctypes.get_errno(), f"descriptor {number} of process {pid}")
    finally:
        os.close(process)
    return socket.socket(fileno=duplicate)
