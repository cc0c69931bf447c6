"""Endpoints such as ``unix:/path`` and ``tcp:host:port``: how all real transports parse, check and clean them up.

Ray: src/ray/common/network_util.h and src/ray/util/network_util.h (ParseUrlEndpoint, BuildAddress)

Rules
  * The caller makes the directory of a unix socket, private to one user; the listener makes and removes the file in it.
  * A socket file without a listener is left over from a killed process, and is replaced. One with a listener, or a file of
    any other kind, is not touched.
  * Nothing is said on a unix socket unless the other end is a process of this user. The kernel names that process's user.
    On macOS Python cannot ask for it, so there only the private directory protects.

Left out: abstract unix sockets, which any user of the machine could take.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import ssl
import stat
import struct
import sys
from typing import Protocol

import msgspec

from minray.platform.base import AuthenticationFailed, ConnectFailed, ConnectRefused, PlatformError

MAX_UNIX_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""The kernel's limit for the path of a unix socket, without the final zero byte."""
PORTS = (10_000, 32_768)
"""The range in which ``free_port`` looks: below the ports of outgoing connections (from 32768 on Linux, 49152 on macOS)."""
PORT_ATTEMPTS = 100


class UnixEndpoint(msgspec.Struct, frozen=True):
    path: str


class TcpEndpoint(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


def check_unix_sockets() -> None:
    """Raise RuntimeError, with what to do, on a system where processes of minray cannot reach each other (Windows)."""
    if not hasattr(socket, "AF_UNIX"):
        raise RuntimeError(
            f"processes of minray need unix sockets, which this system ({sys.platform}) lacks:"
            " use minray.init(local_mode=True), a cluster inside this process, or minray.simulation"
        )


def parse(endpoint: str) -> UnixEndpoint | TcpEndpoint:
    """Parse an endpoint. Raises ``PlatformError`` for other text, or for a path too long for a unix socket."""
    scheme, _, rest = endpoint.partition(":")
    if scheme == "unix" and rest:
        if len(os.fsencode(rest)) > MAX_UNIX_PATH_BYTES:
            raise PlatformError(f"{endpoint}: longer than the {MAX_UNIX_PATH_BYTES} bytes a unix socket's path may have")
        return UnixEndpoint(rest)
    host, colon, port = rest.rpartition(":")
    if scheme == "tcp" and colon and host and port.isdecimal() and int(port) < 65536:
        return TcpEndpoint(host.removeprefix("[").removesuffix("]"), int(port))
    raise PlatformError(f"{endpoint}: not an endpoint; it looks like unix:/path or tcp:host:port")


def free_port(host: str) -> int:
    """Return a TCP port that no process listens on now, for a listener that must come back to it after a crash.

    The port is below those that the kernel gives to outgoing connections, so that none of those takes it meanwhile. (A
    connection to the port could even be given that port, and connect to itself.) Raises ``PlatformError`` if ``host`` is no
    address of this machine, or if ``PORT_ATTEMPTS`` random ports are all in use.
    """
    for port in random.SystemRandom().sample(range(*PORTS), PORT_ATTEMPTS):
        try:
            check_free(host, port)
            return port
        except PortInUse:
            continue
    raise PlatformError(f"tcp:{host}: none of {PORT_ATTEMPTS} ports is free")


class PortInUse(PlatformError):
    """Another process listens on the port."""


def check_free(host: str, port: int) -> None:
    """Check that a process can listen on the port. Raises ``PortInUse``, or another ``PlatformError``."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            kind = PortInUse if error.errno == errno.EADDRINUSE else PlatformError
            raise kind(f"tcp:{host}:{port}: {error.strerror or error}") from None


def own_address(host: str) -> str:
    """Return the address by which ``host`` reaches this machine; loopback if it is this machine. Raises
    ``PlatformError``."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # Nothing is sent; the kernel only chooses the route.
            return str(probe.getsockname()[0])
    except OSError as error:
        raise PlatformError(f"{host}: {error.strerror or error}") from None


def make_room(endpoint: UnixEndpoint) -> None:
    """Remove the socket file of a listener that is gone; raises ``PlatformError`` if the path is taken."""
    try:
        if not stat.S_ISSOCK(os.stat(endpoint.path, follow_symlinks=False).st_mode):
            raise PlatformError(f"unix:{endpoint.path}: the file is there and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(endpoint.path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(endpoint.path)
        return
    except BlockingIOError:  # a listener with a full backlog
        pass
    except OSError as error:
        raise PlatformError(f"unix:{endpoint.path}: {error.strerror or error}") from error
    raise PlatformError(f"unix:{endpoint.path}: another process listens there")


def is_listening(endpoint: str) -> bool:
    """Tell whether a process listens at a unix endpoint of this machine."""
    parsed = parse(endpoint)
    assert isinstance(parsed, UnixEndpoint), endpoint
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(parsed.path)
        except BlockingIOError:  # a listener with a full backlog
            return True
        except OSError:
            return False
    return True


class Connected(Protocol):
    """A socket, or the substitute that an event loop gives for it."""

    def getsockopt(self, level: int, option: int, buffer_bytes: int, /) -> bytes: ...


def peer(connected: Connected) -> tuple[int, int] | None:
    """Return (pid, uid) of the process at the other end of a unix socket; None where Python cannot ask for them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


def check_peer(connected: Connected) -> None:
    """Raise ``AuthenticationFailed`` if a process of another user is at the other end of a unix socket."""
    other = peer(connected)
    if other is not None and other[1] != os.geteuid():
        raise AuthenticationFailed(f"process {other[0]} there belongs to another user (uid {other[1]})")


def check_listener(endpoint: UnixEndpoint) -> None:
    """Check the listener with ``check_peer``, for transports that hide their sockets. Raises OSError if there is none."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        probe.connect(endpoint.path)
        check_peer(probe)


def inode(endpoint: UnixEndpoint) -> int:
    """Return the inode of the socket file that was just made, by which ``remove`` recognizes it."""
    return os.stat(endpoint.path).st_ino


def remove(endpoint: UnixEndpoint, made: int) -> None:
    """Remove the socket file, unless it is gone or another process has replaced it."""
    try:
        if os.stat(endpoint.path).st_ino == made:
            os.unlink(endpoint.path)
    except FileNotFoundError:
        return


def connect_error(endpoint: str, error: BaseException) -> BaseException:
    """Return the error that reports a failed connect above the seam. An error of another kind (a cancellation) is returned
    unchanged."""
    if isinstance(error, ConnectFailed):
        return type(error)(f"{endpoint}: {error}")
    if isinstance(error, PlatformError):  # The files of TLS are wrong, or the address is.
        return ConnectFailed(f"{endpoint}: {error}")
    if isinstance(error, TimeoutError):
        return ConnectFailed(f"{endpoint}: no answer in time")
    if isinstance(error, ssl.SSLError):
        from minray.platform.transport.tls import describe  # which only processes with TLS load

        return AuthenticationFailed(f"{endpoint}: {describe(error)}")
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return ConnectRefused(f"{endpoint}: {error.strerror or error}")
    if isinstance(error, OSError):
        return ConnectFailed(f"{endpoint}: {error.strerror or error}")
    return error
