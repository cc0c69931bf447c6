"""A client server over TLS, and a client's connection, under peers that break every rule: one line says so, others go on.

The server runs in the test's process, so that its times can be lowered and its log and memory be looked at. An honest client
is connected all the time, through a proxy, and is asked after each attack.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import minray
from minray.common.config import SystemConfig
from minray.node.discovery import session_token, with_environment
from minray.platform.base import Incoming, RemoteFailure
from minray.platform.process.host import RealHost
from minray.platform.real import client_network
from minray.platform.threads.user_code import IoThread
from minray.platform.transport import sockets, tls_acceptor
from minray.platform.transport.sockets import StreamChannel, StreamListener
from minray.platform.transport.strangers import MOST_STRANGERS
from minray.protocol.base import encode
from minray.protocol.client import Carry, OpenClient, OpenClientReply, Parcel
from minray.remote_client.link import ClientLink
from minray.remote_client.server import ClientServer
from minray.remote_client.session import FRAME_BYTES
from tests.helpers import wait_for_condition
from tests.platform.certificates import node_files
from tests.platform.test_sockets_bad_input import batch, header, hello
from tests.remote_client.head import client_head
from tests.remote_client.proxy import Proxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("MINRAY_TRANSPORT") == "grpc", reason="it speaks the stream transport"),
]


class Served:
    """A client server in this process, and an honest client of it."""

    def __init__(self, session_dir: str, system: SystemConfig) -> None:
        self.thread = IoThread("client-server")
        self.token = session_token(session_dir)
        self.system = system
        self.server = self.thread.run(self._start(session_dir))
        self.address = self.server.address
        self.proxy = Proxy(self.address)
        minray.init(f"minray://{self.proxy.address}")
        self.add = minray.remote(lambda number: number + 1)
        self.check()
        self.connections = self.proxy.connections

    async def _start(self, session_dir: str) -> ClientServer:
        server = ClientServer(session_dir, RealHost(), self.system)
        await server.listen("127.0.0.1", 0)
        return server

    @property
    def listener(self) -> StreamListener:
        assert isinstance(self.server._listener, StreamListener)
        return self.server._listener

    def check(self) -> None:
        """Check that the honest client is served."""
        assert minray.get([self.add.remote(number) for number in range(5)], timeout=30) == [1, 2, 3, 4, 5]

    def forget_peers(self) -> None:
        """Have the next peer that breaks a rule be logged, although others were logged before."""

        async def forget() -> None:
            self.listener.network.peer_log.close()

        self.thread.run(forget())

    def connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def connect_tls(self) -> ssl.SSLSocket:
        files = node_files()
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(files.cert, files.key)
        return context.wrap_socket(self.connect(), server_hostname="127.0.0.1")

    def close(self) -> None:
        minray.shutdown()
        self.proxy.close()
        self.thread.run(self.server.close())
        self.thread.stop()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    files = node_files()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cert", "key", "ca"):
            patch.setenv(f"MINRAY_TLS_{name.upper()}", getattr(files, name))
        with client_head() as node:
            served = Served(node.file.session_dir, SystemConfig.from_overrides(with_environment(None)))
            try:
                yield served
            finally:
                served.close()


@pytest.fixture(autouse=True)
def others_are_served(served: Served) -> Iterator[None]:
    served.forget_peers()
    yield
    served.check()
    assert served.proxy.connections == served.connections, "the honest client had to connect again"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("minray")]


def end_of(connected: socket.socket) -> None:
    """Read until the server ends the connection."""
    try:
        while connected.recv(65536):
            pass
    except OSError:
        pass


# --- strangers ----------------------------------------------------------------------------------------------------------

GARBAGE = {
    "bytes": (bytes(range(1, 200)), "it does not speak TLS"),
    "http": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "it does not speak TLS"),
    "broken TLS": (b"\x16\x03\x01\x00\x30" + bytes(48), "(?i)tls|ssl"),
}
INSIDE_TLS = {
    "garbage": (b"\x80\x04\x95garbage", "not a minray peer"),
    "old version": (header(version=0), "speaks protocol version 0"),
    "oversized": (header(length=65535), "a handshake message of 65535 bytes"),
    "a frame first": (hello(bytes(32), b"", bytes(16)) + batch([1, "OpenClient", b"", []]), "more than the handshake"),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_what_is_no_tls_ends_with_one_line(served: Served, caplog: pytest.LogCaptureFixture, case: str) -> None:
    data, words = GARBAGE[case]
    for _ in range(3):
        with served.connect() as stranger:
            stranger.sendall(data)
            end_of(stranger)
    (line,) = lines(caplog)
    assert re.search(words, line) and "closing the connection of 127.0.0.1:" in line


@pytest.mark.parametrize("case", INSIDE_TLS)
def test_a_stranger_inside_tls_ends_with_one_line(served: Served, caplog: pytest.LogCaptureFixture, case: str) -> None:
    data, words = INSIDE_TLS[case]
    for _ in range(3):
        with served.connect_tls() as stranger:
            stranger.sendall(data)
            end_of(stranger)
    (line,) = lines(caplog)
    assert words in line and "closing the connection of 127.0.0.1:" in line


def test_strangers_that_send_a_byte_now_and_then_are_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (tls_acceptor, sockets):
        monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 0.3)
    slow: list[Callable[[], socket.socket]] = [served.connect, served.connect, served.connect_tls]
    begins = [b"", b"\x16\x03\x01", header(length=50)]
    for connect_slowly, begin in zip(slow, begins, strict=True):
        served.forget_peers()
        with connect_slowly() as stranger:
            for position in range(len(begin)):
                stranger.sendall(begin[position : position + 1])
            end_of(stranger)
    said = lines(caplog)
    assert len(said) == 3 and all("no TLS handshake within 0.3 s" in line for line in said[:2]), said
    assert "no handshake within 0.3 s" in said[2]


def test_a_thousand_connections_are_bounded(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as open_ones:
        for _ in range(1000):
            open_ones.enter_context(served.connect())
        wait_for_condition(lambda: len(served.listener.strangers) == MOST_STRANGERS)
        assert served.listener._acceptor is not None
        wait_for_condition(lambda: len(served.listener._acceptor.greetings) <= MOST_STRANGERS + 1)  # type: ignore[union-attr]
        served.check()
    (line,) = lines(caplog)
    assert "too many connections have proven nothing" in line


# --- peers with the token -----------------------------------------------------------------------------------------------


@contextmanager
def channel_of(served: Served) -> Iterator[StreamChannel]:
    """Connect with the token, as a client does."""
    network = client_network(served.token, RealHost(), served.system, FRAME_BYTES)
    made = network.connect(f"tcp:{served.address}", b"", os.urandom(16), lambda: None)
    channel = served.thread.run(made)
    assert isinstance(channel, StreamChannel)
    try:
        yield channel
    finally:
        served.thread.loop.call_soon_threadsafe(channel.close)


def write(served: Served, channel: StreamChannel, data: bytes) -> None:
    served.thread.loop.call_soon_threadsafe(channel._transport.write, data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<I", 0xFFFFFFFF) + b"\x90", "a frame of 4294967295 bytes; at most"),
        (batch([1, "Carry", b"", [FRAME_BYTES + 1]]), f"buffers of {FRAME_BYTES + 1} bytes; at most {FRAME_BYTES}"),
        (batch([1, "Carry", b"", [2**40]]), f"buffers of {2**40} bytes; at most {FRAME_BYTES}"),
    ],
    ids=["frame", "buffer", "much larger buffer"],
)
def test_what_is_too_large_ends_the_connection_before_it_takes_memory(
    served: Served, caplog: pytest.LogCaptureFixture, data: bytes, words: str
) -> None:
    with channel_of(served) as channel:
        write(served, channel, data)
        wait_for_condition(lambda: channel.closed)
    assert [line for line in lines(caplog) if words in line]


def answer_to(served: Served, channel: StreamChannel, method: str, payload: bytes) -> str:
    """Send a request; return the kind of the failure, or the reply as text."""

    async def ask() -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_reply(error: Any, payload: bytes, _buffers: object) -> None:
            answer.set_result(error.kind if isinstance(error, RemoteFailure) else str(error or payload))

        channel.call(method, payload, (), on_reply)
        return await answer

    return served.thread.run(ask(), 30)


def test_requests_that_no_client_sends_are_refused_with_words(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with channel_of(served) as channel:
        assert answer_to(served, channel, "Nothing", b"") == "unknown-method"
        assert answer_to(served, channel, "Carry", encode(Carry(0, 1))) == "no-session"
        assert answer_to(served, channel, "OpenClient", b"\xc1") == "bad-request"
        said = answer_to(served, channel, "OpenClient", encode(OpenClient("9.9", "x" * 10_000, False)))
        assert "the client has minray '9.9' and the cluster has minray" in said
    (line,) = lines(caplog)
    assert "refused a malformed OpenClient" in line
    assert len(served.server._clients) == 1


# --- a client's connection ----------------------------------------------------------------------------------------------


def test_garbage_in_a_clients_connection_breaks_it_and_loses_nothing(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    refs = [served.add.remote(number) for number in range(100)]
    served.proxy.inject(b"\x17\x03\x03\x00\x40" + bytes(64))
    refs += [served.add.remote(number) for number in range(100, 200)]
    assert minray.get(refs, timeout=60) == list(range(1, 201))
    wait_for_condition(lambda: served.proxy.connections > served.connections)
    assert [line for line in lines(caplog) if "was lost; connecting again" in line]
    served.connections = served.proxy.connections


class BrokenServer:
    """Lets a client in, and answers each of its messages with the same thing."""

    def __init__(self, served: Served, payload: bytes, buffers: list[bytes]) -> None:
        self.answer = payload, buffers
        self.opened = 0
        self.network = client_network(served.token, RealHost(), served.system, FRAME_BYTES)
        self.listener = served.thread.run(self.network.listen("tcp:127.0.0.1:0", os.urandom(16), self._on_incoming))

    def _on_incoming(self, incoming: Incoming) -> None:
        if incoming.method == "OpenClient":
            self.opened += 1
            incoming.reply(encode(OpenClientReply("")))
        else:
            incoming.reply(*self.answer)


@pytest.mark.parametrize(
    ("payload", "buffers", "words"),
    [
        (b"\xc1", [], "its driver process answers Carry wrongly"),
        (encode(Parcel(0, 1, True, b"garbage")), [], "its driver process has broken the session: a malformed batch"),
        (encode(Parcel(99)), [], "its driver process has broken the session: frame 99 was acknowledged"),
        (encode(Parcel(0, 1, True)), [bytes(FRAME_BYTES + 1)], ""),
    ],
    ids=["no answer", "no records", "no frame", "too large"],
)
def test_a_server_that_breaks_the_rules_ends_the_link_and_takes_no_memory(
    served: Served, caplog: pytest.LogCaptureFixture, payload: bytes, buffers: list[bytes], words: str
) -> None:
    broken, lost = BrokenServer(served, payload, buffers), list[str]()

    async def connected() -> ClientLink:
        network = client_network(served.token, RealHost(), served.system, FRAME_BYTES)
        link = ClientLink(network, broken.listener.endpoint, os.urandom(16), lambda record: None, lost.append)
        await link.open()
        return link

    link = served.thread.run(connected(), 30)
    if words:
        wait_for_condition(lambda: lost)
        assert words in lost[0]
    else:  # the connection alone is broken, and the client connects again, with a pause
        wait_for_condition(lambda: broken.opened == 2)
        assert [line for line in lines(caplog) if f"buffers of {FRAME_BYTES + 1} bytes; at most {FRAME_BYTES}" in line]
    served.thread.run(link.close())
    served.thread.run(broken.listener.close())
