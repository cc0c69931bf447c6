"""A probe tells without the token who listens at a port: minray, another version of it, or something else."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from minray.platform.base import PROTOCOL_VERSION
from minray.platform.transport.handshake import NONCE_BYTES, Challenge, Refusal, encode
from minray.platform.transport.probe import ProbeFailed, connect, recognize, resolve

TIMEOUT_S = 0.2
OTHER_VERSION = struct.pack("<6sHH", b"minray", PROTOCOL_VERSION + 1, 0)


@contextlib.contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve one connection in a thread, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def saying(answer: bytes, heard: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    """Answer the first message, and wait until the other end has closed."""

    def serve(connection: socket.socket) -> None:
        received = connection.recv(1000)
        connection.sendall(answer)
        while more := connection.recv(1000):
            received += more
        if heard is not None:
            heard.append(received)

    return serve


def probed(serve: Callable[[socket.socket], None]) -> None:
    with server(serve) as port:
        recognize(connect("127.0.0.1", port, 5.0), 5.0)


def silent(connection: socket.socket) -> None:
    connection.settimeout(5.0)
    while connection.recv(1000):
        pass


def test_minray_is_recognized_and_hears_nothing_but_a_nonce() -> None:
    heard: list[bytes] = []
    probed(saying(encode(Challenge(bytes(NONCE_BYTES))), heard))
    assert len(heard[0]) < 60 and heard[0].startswith(b"minray")


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server listens there"),
        (saying(b"\x15\x03\x01\x00\x02\x02\x46 and more"), "the listener speaks TLS"),
        (saying(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00"), "the listener speaks HTTP/2"),
        (saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "does not speak minray: it begins with b'SSH-2.0-OpenSSH_"),
        (saying(OTHER_VERSION), f"version {PROTOCOL_VERSION + 1}, this machine version {PROTOCOL_VERSION}"),
        (saying(encode(Refusal("version")).replace(b"\x01", b"\x07", 1)), "speaks protocol version 7"),
        (lambda connection: None, "closes the connection at once"),
    ],
    ids=["http", "tls", "http2", "ssh", "version", "refusal", "closing"],
)
def test_other_listeners_are_named(serve: Callable[[socket.socket], None], words: str) -> None:
    with pytest.raises(ProbeFailed) as raised:
        probed(serve)
    assert words in str(raised.value) and raised.value.advice


def test_a_listener_that_says_nothing_is_given_up() -> None:
    with server(silent) as port, pytest.raises(ProbeFailed, match="says nothing"):
        recognize(connect("127.0.0.1", port, 5.0), TIMEOUT_S)


def test_a_listener_that_dribbles_is_given_up_after_the_time_for_the_whole_answer() -> None:
    def dribble(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"min")
        silent(connection)

    with server(dribble) as port, pytest.raises(ProbeFailed, match="says nothing"):
        recognize(connect("127.0.0.1", port, 5.0), TIMEOUT_S)


def test_a_port_without_a_listener_and_a_name_without_an_address_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ProbeFailed, match="no process listens") as raised:
        connect("127.0.0.1", port, 5.0)
    assert "minray start --head" in raised.value.advice
    assert "127.0.0.1" in resolve("localhost", 5.0) and resolve("10.0.0.1", 5.0) == ["10.0.0.1"]
    with pytest.raises(ProbeFailed, match="has no address"):
        resolve("no such host.invalid", 5.0)
