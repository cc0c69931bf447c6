"""TLS between machines: which files are accepted, who may connect, and what both sides say if something is wrong.

What a connection does once it is open, the network contract says for every transport, with TLS too.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import socket
import ssl
import warnings
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from minray.common.config import SystemConfig
from minray.platform.base import AuthenticationFailed, ConnectFailed, Incoming, Network
from minray.platform.threads.user_code import IoThread
from minray.platform.transport import grpc_server, handshake, tls_acceptor
from minray.platform.transport.grpc_transport import GrpcNetwork
from minray.platform.transport.sockets import StreamListener, StreamNetwork
from minray.platform.transport.tls import Tls, TlsFiles, TlsFilesWrong, check, files_of, is_reachable
from tests.platform.certificates import Authority, authority, node_files
from tests.platform.transports import (
    CLIENT,
    SERVER,
    TIMEOUT_S,
    RealHost,
    ask,
    echo,
    listening,
    run_asyncio,
    run_grpc,
    until,
)

TOKEN = b"token"
ANYWHERE = "tcp:127.0.0.1:0"
Story = Callable[[], Coroutine[Any, Any, None]]


def run(story: Story, runner: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run) -> None:
    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await story()

    runner(limited())


def stream(files: TlsFiles | None) -> StreamNetwork:
    return StreamNetwork(TOKEN, RealHost(), tls=None if files is None else Tls(files))


def grpc(files: TlsFiles | None) -> GrpcNetwork:
    return GrpcNetwork(TOKEN, RealHost(), tls=None if files is None else Tls(files))


KINDS: dict[str, tuple[Callable[[TlsFiles | None], Network], Callable[[Coroutine[Any, Any, None]], None]]] = {
    "stream": (stream, uvloop.run),
    "stream-asyncio": (stream, run_asyncio),
    "grpc": (grpc, run_grpc),
}


# --- the files ----------------------------------------------------------------------------------------------------------


def test_a_node_accepts_its_own_certificate() -> None:
    check(node_files())


def test_all_three_files_are_named_or_none() -> None:
    assert files_of(SystemConfig()) is None
    assert files_of(SystemConfig(tls_cert="a", tls_key="b", tls_ca="c")) == TlsFiles("a", "b", "c")
    with pytest.raises(TlsFilesWrong, match="TLS needs three files: --tls-key, --tls-ca is missing"):
        files_of(SystemConfig(tls_cert="a"))


def copy_of_files(directory: Path) -> TlsFiles:
    files = TlsFiles(*(str(directory / name) for name in ("cert", "key", "ca")))
    for kept, copy in zip((node_files().cert, node_files().key, node_files().ca), _paths(files), strict=True):
        shutil.copy(kept, copy)
    return files


def _paths(files: TlsFiles) -> tuple[str, str, str]:
    return files.cert, files.key, files.ca


def _other_key(files: TlsFiles) -> None:
    shutil.copy(authority().sign("other").key, files.key)


def _other_ca(files: TlsFiles) -> None:
    shutil.copy(Authority(Path(files.ca).parent / "other").cert, files.ca)


def _expired(files: TlsFiles) -> None:
    old = authority().sign("old", days=-1)
    shutil.copy(old.cert, files.cert)
    shutil.copy(old.key, files.key)


def _for_servers_only(files: TlsFiles) -> None:
    other = authority().sign("for-servers", extensions="extendedKeyUsage=serverAuth\n")
    shutil.copy(other.cert, files.cert)
    shutil.copy(other.key, files.key)


def _encrypted(files: TlsFiles) -> None:
    Path(files.key).write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")


def _directory(files: TlsFiles) -> None:
    os.unlink(files.ca)
    os.mkdir(files.ca)


SPOILED: dict[str, tuple[Callable[[TlsFiles], object], str]] = {
    "missing": (lambda files: os.unlink(files.cert), "cannot read .*cert \\(--tls-cert\\): No such file"),
    "a directory": (_directory, "cannot read .*ca \\(--tls-ca\\): Is a directory"),
    "open to all": (lambda files: os.chmod(files.key, 0o644), "every user .* can read .*mode 644: chmod 600"),
    "no certificate": (lambda files: Path(files.cert).write_text("nothing"), "cert .* contains no certificate in PEM"),
    "no CA": (lambda files: Path(files.ca).write_bytes(bytes(range(256))), "ca .* contains no certificate in PEM"),
    "half a certificate": (lambda files: os.truncate(files.cert, 200), "cert .* contains no certificate in PEM"),
    "no key": (lambda files: shutil.copyfile(files.cert, files.key), "key .* contains no private key"),
    "encrypted key": (_encrypted, "is encrypted, and nobody is there to type its password"),
    "another key": (_other_key, "key \\(--tls-key\\) is not the key of .*cert"),
    "another CA": (_other_ca, "cert .* is not valid for .*ca .*: a CA has signed it that is not in --tls-ca"),
    "expired": (_expired, "is not valid for .*: certificate has expired"),
    "for servers only": (_for_servers_only, "is not valid for .*: un(suitable|supported) certificate purpose"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_files_that_cannot_be_used(case: str, tmp_path: Path) -> None:
    spoil, words = SPOILED[case]
    files = copy_of_files(tmp_path)
    spoil(files)
    with pytest.raises(TlsFilesWrong, match=words):
        check(files)


@pytest.mark.parametrize(
    ("host", "wanted"), [("", False), ("127.0.0.1", False), ("localhost", False), ("::1", False), ("10.0.0.1", True)]
)
def test_which_listeners_other_machines_reach(host: str, wanted: bool) -> None:
    assert is_reachable(host) == wanted


# --- who may connect ----------------------------------------------------------------------------------------------------


def refusal(kind: str, client: TlsFiles | None, server: TlsFiles | None, host: str = "127.0.0.1") -> str:
    """Return the error of a client that a server must not let in; nothing may reach the server."""
    make, runner = KINDS[kind]
    errors: list[str] = []

    async def story() -> None:
        heard: list[Incoming] = []
        async with listening(make(server), ANYWHERE, heard.append) as listener:
            with pytest.raises(ConnectFailed) as caught:
                await make(client).connect(listener.endpoint.replace("127.0.0.1", host), SERVER, CLIENT, lambda: None)
            errors.append(str(caught.value))
            await make(server).connect(listener.endpoint, SERVER, CLIENT, lambda: None)
        assert heard == []

    run(story, runner)
    return errors[0]


@pytest.fixture
def foreign(tmp_path: Path) -> TlsFiles:
    """A certificate of another authority."""
    return Authority(tmp_path, "foreign").sign("node")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_without_tls_at_a_cluster_with_tls(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    said = refusal(kind, None, node_files())
    assert "speaks TLS" in said and "give --tls-cert, --tls-key and --tls-ca" in said
    if kind != "grpc":  # gRPC logs nothing
        (line,) = caplog.messages
        assert "it does not speak TLS, and this process does" in line and "127.0.0.1:" in line


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_with_tls_at_a_cluster_without(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "it does not speak TLS, and this process does" in refusal(kind, node_files(), None)
    if kind != "grpc":
        (line,) = caplog.messages
        assert "it speaks TLS, and this process does not: give --tls-cert" in line


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_another_authority(kind: str, foreign: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    assert "is not accepted: a CA has signed it that is not in --tls-ca" in refusal(kind, node_files(), foreign)
    if kind != "grpc":
        (line,) = caplog.messages
        assert "perhaps since it does not accept this process's certificate" in line


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_another_authority(kind: str, foreign: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    trusting = TlsFiles(foreign.cert, foreign.key, node_files().ca)
    assert "it ended the connection when this process had shown its certificate" in refusal(kind, trusting, node_files())
    if kind != "grpc":
        (line,) = caplog.messages
        assert "its certificate is not accepted: a CA has signed it that is not in --tls-ca" in line


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_whose_certificate_has_expired(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "it ended the connection when" in refusal(kind, authority().sign("late", days=-1), node_files())
    if kind != "grpc":
        assert "its certificate is not accepted: certificate has expired" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_must_have_the_name_by_which_it_was_called(kind: str) -> None:
    named = authority().sign("elsewhere", extensions="subjectAltName=DNS:elsewhere.example\n")
    assert "ostname mismatch" in refusal(kind, node_files(), named, host="localhost")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extensions", [f"subjectAltName={name}" for name in ("IP:192.0.2.7", "DNS:*.example.org", "")])
def test_an_address_need_not_be_in_the_certificate(kind: str, extensions: str) -> None:
    make, runner = KINDS[kind]

    async def story() -> None:
        network = make(authority().sign("moved", extensions=extensions.removesuffix("subjectAltName=")))
        async with listening(network, ANYWHERE, echo) as listener:
            channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            assert await ask(channel, "Ping", b"1") == (b"1", ())
            channel.close()

    run(story, runner)


@pytest.mark.parametrize("kind", KINDS)
def test_the_token_is_asked_for_inside_tls(kind: str) -> None:
    make, runner = KINDS[kind]

    async def story() -> None:
        stranger = make(node_files())
        stranger.token = b"another"  # type: ignore[attr-defined]
        async with listening(make(node_files()), ANYWHERE, echo) as listener:
            with pytest.raises(AuthenticationFailed, match="does not know its cluster token"):
                await stranger.connect(listener.endpoint, SERVER, CLIENT, lambda: None)

    run(story, runner)


def test_no_older_version_is_spoken() -> None:
    contexts = Tls(node_files()).server(), Tls(node_files()).client("10.0.0.1")
    assert {context.minimum_version for context in contexts} == {ssl.TLSVersion.TLSv1_2}
    assert all(context.verify_mode == ssl.CERT_REQUIRED for context in contexts)


def test_a_node_in_the_middle_cannot_pass_the_proof_on(caplog: pytest.LogCaptureFixture) -> None:
    """The node in the middle has a certificate of the cluster's CA and not the token. Two that have it talk through it."""
    middle = Tls(authority().sign("middle"))
    tasks: list[asyncio.Future[None]] = []

    async def story() -> None:
        heard: list[Incoming] = []
        async with listening(stream(node_files()), ANYWHERE, heard.append) as listener:
            port = int(listener.endpoint.rpartition(":")[2])

            def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tasks.append(asyncio.ensure_future(pass_on(reader, writer)))

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner_reader, inner_writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=middle.client("127.0.0.1"), server_hostname="127.0.0.1"
                )
                with suppress(OSError):
                    await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

            server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=middle.server())
            between = f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(AuthenticationFailed, match="it refused: this process does not know its cluster token"):
                await stream(node_files()).connect(between, SERVER, CLIENT, lambda: None)
            server.close()
            await asyncio.gather(*tasks)
        assert heard == []

    run(story)
    assert [line.rpartition(": ")[2] for line in caplog.messages] == ["it does not know the cluster token"]


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


def test_the_proof_covers_the_clients_certificate() -> None:
    """Without IO, for both transports: the handshake fails when the two sides saw different certificates."""
    nonce = bytes(32)
    for seen, is_accepted in ((b"a" * 32, True), (b"b" * 32, False), (b"", False)):
        client = handshake.ClientHandshake(TOKEN, SERVER, CLIENT, nonce, b"a" * 32)
        server = handshake.ServerHandshake(TOKEN, SERVER, nonce, seen)
        proof = client.receive(bytearray(server.receive(bytearray(client.hello))))
        if is_accepted:
            client.receive(bytearray(server.receive(bytearray(proof))))
            assert (client.peer, server.peer) == (SERVER, CLIENT)
        else:
            with pytest.raises(handshake.HandshakeRefused, match="cluster token"):
                server.receive(bytearray(proof))


# --- new files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_new_files_count_for_new_connections_and_old_ones_go_on(kind: str, tmp_path: Path) -> None:
    """Both authorities are trusted for a while, then the old one is dropped, as docs/security.md tells."""
    make, runner = KINDS[kind]
    files, renewed = copy_of_files(tmp_path), Authority(tmp_path / "new").sign("node")

    def replace(path: str, text: str) -> None:
        Path(f"{path}.part").write_text(text)
        os.chmod(f"{path}.part", 0o600)
        os.rename(f"{path}.part", path)

    async def story() -> None:
        network, closed = make(files), list[bool]()
        async with listening(make(files), ANYWHERE, echo) as listener:
            first = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: closed.append(True))
            replace(files.ca, Path(renewed.ca).read_text() + Path(files.ca).read_text())
            second = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            replace(files.key, Path(renewed.key).read_text())
            replace(files.cert, Path(renewed.cert).read_text())
            replace(files.ca, Path(renewed.ca).read_text())
            third = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            for channel in (first, second, third):
                assert await ask(channel, "Ping", b"1") == (b"1", ())
            assert closed == []
            with pytest.raises(AuthenticationFailed):
                await make(node_files()).connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            for channel in (first, second, third):
                channel.close()

    run(story, runner)


def test_new_files_that_cannot_be_used_are_reported_once_and_the_former_ones_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = copy_of_files(tmp_path)

    async def story() -> None:
        network = stream(files)
        async with listening(stream(node_files()), ANYWHERE, echo) as listener:
            (await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)).close()
            _other_key(files)
            for _ in range(3):
                (await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)).close()

    run(story)
    (line,) = caplog.messages
    assert "the former ones stay in use" in line and "is not the key of" in line


# --- bad input ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def undisturbed() -> Any:
    """Give a listener with TLS, and check that a channel of an honest peer works before and afterwards."""
    network = stream(node_files())
    async with listening(network, ANYWHERE, echo) as listener:
        assert isinstance(listener, StreamListener)
        channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
        await ask(channel, "Before")
        yield listener
        await until(lambda: len(listener.strangers) == 0 and len(listener.connections) == 1)
        await ask(channel, "After")
        newer = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
        await ask(newer, "After")
        newer.close()
        channel.close()


async def raw(listener: StreamListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(listener.endpoint.rpartition(":")[2]))


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read()
    return b""


CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303")
"""The beginning of a ClientHello."""
GARBAGE = {
    "garbage": (b"\x80\x04\x95garbage", "it does not speak TLS"),
    "http": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "it does not speak TLS"),
    "a megabyte": (b"\0" * 2**20, "it does not speak TLS"),
    "a record that is none": (b"\x16garbage, and much more of it", "TLS handshake|does not speak TLS"),
    "a hello that is none": (CLIENT_HELLO + bytes(200), "the TLS handshake has failed"),
    "an oversized record": (b"\x16\x03\x03\xff\xff" + bytes(70_000), "it does not speak TLS"),
}


@pytest.mark.parametrize("runner", [uvloop.run, run_asyncio], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_in_the_tls_handshake(case: str, runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    text, words = GARBAGE[case]

    async def story() -> None:
        async with undisturbed() as listener:
            reader, writer = await raw(listener)
            writer.write(text)
            await read_to_the_end(reader)
            writer.transport.abort()

    run(story, runner)
    (line,) = caplog.messages
    assert re.search(words, line) and "closing the connection of 127.0.0.1:" in line


@pytest.mark.parametrize("runner", [uvloop.run, run_asyncio], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("sent", [b"", b"\x16", CLIENT_HELLO], ids=["nothing", "one byte", "half a hello"])
def test_a_handshake_that_takes_too_long(
    sent: bytes, runner: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with undisturbed() as listener:
            monkeypatch.setattr(tls_acceptor, "HANDSHAKE_TIMEOUT_S", 0.1)
            reader, writer = await raw(listener)
            writer.write(sent)
            await read_to_the_end(reader)
            writer.transport.abort()
            monkeypatch.undo()

    run(story, runner)
    assert [line.rpartition(": ")[2] for line in caplog.messages] == ["no TLS handshake within 0.1 s"]


def test_a_peer_that_leaves_in_the_middle_is_logged_and_one_that_only_looked_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with undisturbed() as listener:
            for sent in (b"", CLIENT_HELLO):
                _, writer = await raw(listener)
                writer.write(sent)
                writer.write_eof()
                await until(lambda: len(listener.strangers) == 0)
                writer.transport.abort()

    run(story)
    (line,) = caplog.messages
    assert "it ended the connection in the TLS handshake" in line


@pytest.mark.parametrize("sent", [b"", CLIENT_HELLO], ids=["nothing", "half a hello"])
def test_200_half_open_handshakes_harm_nobody_and_leave_nothing(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with undisturbed() as listener:
            monkeypatch.setattr(tls_acceptor, "HANDSHAKE_TIMEOUT_S", 1.0)
            before = len(os.listdir("/proc/self/fd"))
            opened = [await raw(listener) for _ in range(200)]
            for _, writer in opened:
                writer.write(sent)
            await until(lambda: len(listener.strangers) == 200)
            channel = await stream(node_files()).connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            assert await ask(channel, "Meanwhile", b"1") == (b"1", ())
            channel.close()
            await until(lambda: len(listener.strangers) == 0)
            for _, writer in opened:
                writer.transport.abort()
            monkeypatch.undo()
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(story)
    (line,) = caplog.messages
    assert "no TLS handshake within" in line


def test_200_half_open_handshakes_at_a_listener_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_server.SERVER_OPTIONS) | {"grpc.server_handshake_timeout_ms": 500}
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", [*options.items()])

    async def story() -> None:
        network = grpc(node_files())
        async with listening(network, ANYWHERE, echo) as listener:
            port = int(listener.endpoint.rpartition(":")[2])
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
            for _, writer in opened:
                writer.write(CLIENT_HELLO)
            channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            await asyncio.gather(*(read_to_the_end(reader) for reader, _ in opened))
            assert await ask(channel, "Meanwhile", b"1") == (b"1", ())
            channel.close()
            for _, writer in opened:
                writer.transport.abort()

    run(story, run_grpc)


def test_accepting_pauses_without_descriptors_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_acceptor, "PAUSE_S", 0.01)

    class Refusing:
        """A listening socket of a process that has no more descriptors, for a while."""

        def __init__(self, listening: socket.socket) -> None:
            self._listening = listening
            self.refusals = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(self._listening, name)

        def accept(self) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise OSError(24, "Too many open files")
            return self._listening.accept()

    async def story() -> None:
        async with undisturbed() as listener:
            acceptor = listener._acceptor
            refusing = Refusing(acceptor.sockets[0])
            acceptor._stop()
            acceptor.sockets = [refusing]
            acceptor._start()
            network = stream(node_files())
            (await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)).close()
            assert refusing.refusals == 0

    run(story)


# --- the end ------------------------------------------------------------------------------------------------------------


def test_a_thread_that_ends_leaves_no_connection_open_for_which_uvloop_warns() -> None:
    """The peer of a closed channel has not said goodbye yet, as when a driver leaves its cluster."""
    thread, network = IoThread(), stream(node_files())
    thread.before_end = network.cut_off
    held: list[object] = []

    async def leave() -> None:
        listener = await network.listen(ANYWHERE, SERVER, lambda incoming: None)
        channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
        (its_side,) = listener.connections
        its_side._transport.pause_reading()  # so it answers no goodbye
        channel.close()
        held.append(channel)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread.run(leave(), TIMEOUT_S)
        thread.stop()
        held.clear()
        gc.collect()
    assert [str(each.message) for each in warned if "transport" in str(each.message)] == []


# --- large values -------------------------------------------------------------------------------------------------------


def test_large_values_go_through_lanes_with_bounded_memory() -> None:
    """The sender holds one write beside the value; a receiver that is slow makes it wait."""
    from minray.platform.base import CHUNK_BYTES

    value = os.urandom(2**20) * 64
    largest: list[int] = []

    async def story() -> None:
        sender = StreamNetwork(TOKEN, RealHost(), tls=Tls(node_files()), write_bytes=CHUNK_BYTES)

        async with listening(stream(node_files()), ANYWHERE, lambda incoming: incoming.reply(b"")) as listener:
            channel = await sender.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            done = ask(channel, "Put", b"", [value])
            await until(lambda: largest.append(channel._transport.get_write_buffer_size()) or done.done())
            await done
            channel.close()

    run(story)
    assert 0 < max(largest) <= 3 * CHUNK_BYTES
