"""Closes the connections of another process, as a broken network does: the process keeps its sockets, and finds them dead.

Linux duplicates a descriptor of another process (``pidfd_getfd``) for root, and usually for the parents of that process. A
shutdown through the duplicate is a shutdown in that process, too. Other systems have no such call; no connection is closed
there.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PIDFD_GETFD = 438
"""Number of the system call, the same on every architecture."""


def close_connections(pid: int, pick: float | None = None) -> int:
    """Shut down the named connections of a process, or the one at this place (0..1) among them. Return their number.

    Connections without names are socket pairs, which no network can break. Listeners stay open.
    """
    found = list(_connections(pid))
    if pick is not None:
        found = found[int(pick * len(found)) :][:1]
    for number in found:
        with suppress(OSError), _duplicate(pid, number) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    return len(found)


def _connections(pid: int) -> Iterator[int]:
    """Descriptors of a process that are established connections with names."""
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
    """Duplicate a socket of a process. Raises OSError if the process or the descriptor is gone, or access is refused."""
    process = os.pidfd_open(pid)
    try:
        duplicate = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, number, 0)
        if duplicate < 0:
            raise OSError(ctypes.get_errno(), f"descriptor {number} of process {pid}")
    finally:
        os.close(process)
    return socket.socket(fileno=duplicate)
