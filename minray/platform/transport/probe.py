"""Finds out, without the token, what listens at a TCP port: minray, another version of it, or something else.

Ray: has no counterpart

The probe sends the first message of the handshake, which has only a random number, and reads the first bytes of the answer
(``handshake``). It never sends a proof, so a stranger at that port learns nothing. Each step has a time-out.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from minray.platform.base import PROTOCOL_VERSION, PlatformError
from minray.platform.transport.handshake import NONCE_BYTES, Hello, encode, speaks_http_2

MOST_ANSWER_BYTES = 300
_HEADER = struct.Struct("<6sHH")
_MAGIC = b"minray"


class ProbeFailed(PlatformError):
    """A step has failed; ``advice`` says what to do."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


def resolve(host: str, timeout_s: float) -> list[str]:
    """Return the addresses of a name. Raises ProbeFailed if it has none, or the name service does not answer in time."""
    pool = ThreadPoolExecutor(1)
    try:
        found = pool.submit(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM).result(timeout_s)
    except TimeoutError:
        raise ProbeFailed(f"the name service does not answer within {timeout_s:g} s", "give an IP address") from None
    except OSError as error:
        raise ProbeFailed(f"{host} has no address: {error.strerror}", "check the name, or give an IP address") from None
    finally:
        pool.shutdown(wait=False)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to a port. Raises ProbeFailed."""
    try:
        return socket.create_connection((host, port), timeout_s)
    except TimeoutError:
        raise ProbeFailed(
            f"nothing answers at {host}:{port} within {timeout_s:g} s",
            "check that the head's machine is up, and that no firewall drops connections to this port",
        ) from None
    except ConnectionRefusedError:
        raise ProbeFailed(
            f"no process listens at {host}:{port}",
            "check the address that `minray start --head` has printed, and that the head runs and does not listen on"
            " loopback only (--node-ip-address)",
        ) from None
    except OSError as error:
        raise ProbeFailed(f"{host}:{port} cannot be reached: {error.strerror or error}", "check the network") from None


def recognize(connection: socket.socket, timeout_s: float) -> None:
    """Return if minray of this protocol version listens at the other end; raise ProbeFailed with what it is otherwise.

    The connection is closed. ``timeout_s`` holds for the whole answer, also of a listener that sends byte by byte.
    """
    deadline = time.monotonic() + timeout_s
    answer = b""
    connection.settimeout(timeout_s)
    try:
        connection.sendall(encode(Hello(os.urandom(NONCE_BYTES), b"", b"")))
        while len(answer) < _HEADER.size and (more := connection.recv(MOST_ANSWER_BYTES)):
            answer += more
            connection.settimeout(max(0.001, deadline - time.monotonic()))
    except TimeoutError:
        raise ProbeFailed(
            "the listener says nothing", "another program listens at this port; check the port of the head"
        ) from None
    except OSError:
        answer = b""
    finally:
        with suppress(OSError):
            connection.close()
    _judge(answer)


def _judge(answer: bytes) -> None:
    other = "another program listens at this port; check the port of the head"
    if not answer:
        advice = f"{other}, and whether the head wants TLS (--tls-cert, --tls-key, --tls-ca) or another transport"
        raise ProbeFailed("the listener closes the connection at once", advice)
    if answer.startswith(b"HTTP/"):
        raise ProbeFailed("an HTTP server listens there", f"{other}; a dashboard has a port of its own")
    if answer[:2] == b"\x15\x03":
        raise ProbeFailed("the listener speaks TLS", "give --tls-cert, --tls-key and --tls-ca, as on the head")
    if speaks_http_2(answer):
        raise ProbeFailed("the listener speaks HTTP/2", "if it is minray over gRPC, set MINRAY_TRANSPORT=grpc here too")
    if not answer.startswith(_MAGIC) or len(answer) < _HEADER.size:
        raise ProbeFailed(f"the listener does not speak minray: it begins with {answer[:16]!r}", other)
    version = _HEADER.unpack_from(answer)[1]
    if version != PROTOCOL_VERSION:
        raise ProbeFailed(
            f"the head speaks protocol version {version}, this machine version {PROTOCOL_VERSION}",
            "install the same version of minray on both machines",
        )
