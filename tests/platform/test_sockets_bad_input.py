"""A stream listener under bytes that no peer of ours sends.

In every case: the connection is closed, one log line says why, nothing reaches ``on_incoming``, nothing is unpickled,
and a channel that was open all along works as before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import struct
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from minray.platform.base import (
    CHUNK_BYTES,
    MAX_RECORD_BYTES,
    AuthenticationFailed,
    ChannelBroken,
    ConnectFailed,
    Incoming,
)
from minray.platform.transport import handshake, sockets, stream_connection
from minray.platform.transport.sockets import StreamNetwork
from tests.platform.transports import CLIENT, SERVER, TIMEOUT_S, RealHost, ask, listening, until

TOKEN = b"token"
DETONATED: list[str] = []


class Bomb:
    """Betrays a process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return DETONATED.append, ("boom",)


def header(version: int = 1, magic: bytes = b"minray", length: int = 0) -> bytes:
    return struct.pack("<6sHH", magic, version, length)


def hello(*fields: Any) -> bytes:
    record = msgspec.msgpack.encode(["hello", *fields])
    return header(length=len(record)) + record


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def batch(*messages: Any) -> bytes:
    return frame(msgspec.msgpack.encode(messages))


def chunk(call_id: int, index: int, body: bytes) -> bytes:
    return frame(struct.pack("<BQI", 0xC1, call_id, index) + body)


NONCE = bytes(32)
BEFORE_THE_HANDSHAKE = {
    "garbage": (b"\x80\x04\x95garbage", "not a minray peer"),
    "http": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a minray peer"),
    "tls": (bytes.fromhex("16030100c8010000c40303"), "it speaks TLS, and this process does not: give --tls-cert"),
    "pickle": (pickle.dumps(Bomb()), "not a minray peer"),
    "wrong magic": (header(magic=b"mimray"), "not a minray peer"),
    "zeros": (bytes(1000), "not a minray peer"),
    "a megabyte": (os.urandom(1024 * 1024), "not a minray peer"),
    "old version": (header(version=0), "speaks protocol version 0"),
    "new version": (header(version=2) + bytes(100), "speaks protocol version 2"),
    "oversized": (header(length=65535), "a handshake message of 65535 bytes"),
    "not MessagePack": (header(length=3) + b"\xc1\xc1\xc1", "malformed"),
    "pickle inside": (header(length=len(pickle.dumps(Bomb()))) + pickle.dumps(Bomb()), "malformed"),
    "another record": (header(length=1) + b"\xc0", "malformed"),
    "unknown message": (header(length=5) + msgspec.msgpack.encode(["bye"]), "malformed"),
    "not text": (header(length=11) + b"\x92\xa7refusal\xa1\xff", "malformed"),
    "short nonce": (hello(b"short", b"", CLIENT), "malformed"),
    "long identity": (hello(NONCE, b"", bytes(65)), "malformed"),
    "proof first": (handshake.encode(handshake.Proof(bytes(32))), "unexpected"),
    "welcome": (handshake.encode(handshake.Welcome(SERVER, bytes(32))), "unexpected"),
    "hello twice": (2 * hello(NONCE, b"", CLIENT), "more than the handshake"),
    "a frame instead of a proof": (hello(NONCE, b"", CLIENT) + batch([1, "Ping", b"", []]), "more than the handshake"),
}
TRUNCATED_BEFORE = {
    "magic": b"minr",
    "header": header(length=50),
    "hello": hello(NONCE, b"", CLIENT)[:-1],
    "no proof": hello(NONCE, b"", CLIENT),
}
AFTER_THE_HANDSHAKE = {
    "oversized frame": (struct.pack("<I", MAX_RECORD_BYTES + 2**20) + b"x", "a frame of"),
    "largest length": (b"\xff\xff\xff\xff\x90", "a frame of 4294967295 bytes"),
    "empty frame": (bytes(5), "a frame of 0 bytes"),
    "undecodable": (frame(b"\x91\x94\x01"), "truncated"),
    "pickle": (frame(pickle.dumps(Bomb())), "Expected `array`"),
    "no batch": (frame(b"\xc0"), "Expected `array`"),
    "no message": (batch(1), "Expected `array`"),
    "too few fields": (batch([1, "Ping", b""]), "length"),
    "too many fields": (batch([1, "Ping", b"", [], 1]), "length"),
    "no call id": (batch(["1", "Ping", b"", []]), "Expected `int`"),
    "negative call id": (batch([-1, "Ping", b"", []]), ">= 0"),
    "negative size": (batch([1, "Ping", b"", [-1]]), ">= 0"),
    "method not text": (frame(b"\x91\x94\x01\xa1\xff\xc4\x00\x90"), "utf-8"),
    "payload not bytes": (batch([1, "Ping", 5, []]), "Expected `bytes`"),
    "trailing bytes": (frame(msgspec.msgpack.encode([]) + b"\x00"), "trailing"),
    "unannounced chunk": (chunk(7, 0, b"x"), "not announced"),
    "chunk of no buffer": (batch([7, "Put", b"", [4]]) + chunk(7, 1, b"x"), "not announced"),
    "chunk too large for its buffer": (batch([7, "Put", b"", [4]]) + chunk(7, 0, b"12345"), "a chunk of 5 bytes"),
    "empty chunk": (batch([7, "Put", b"", [4]]) + chunk(7, 0, b""), "a chunk of 0 bytes"),
    "short chunk": (batch([7, "Put", b"", [4]]) + frame(b"\xc1") + bytes(20), "a chunk of"),
    "huge chunk": (batch([7, "Put", b"", [2**30]]) + chunk(7, 0, bytes(CHUNK_BYTES + 1))[:99], "a chunk of"),
    "announced twice": (2 * batch([7, "Put", b"", [4]]), "announced twice"),
    "more than anybody has": (batch([7, "Put", b"", [2**40, 2**41]]), "buffers of 3298534883328 bytes"),
}
TRUNCATED_AFTER = {
    "length": b"\x10\x00",
    "batch": batch([1, "Ping", bytes(100), []])[:-1],
    "large batch": batch([1, "Ping", bytes(1_000_000), []])[:-1],
    "chunk header": batch([7, "Put", b"", [4]]) + chunk(7, 0, b"1234")[:10],
    "chunk": batch([7, "Put", b"", [4]]) + chunk(7, 0, b"1234")[:-1],
}


def attack(text: bytes, *, authenticated: bool, end: bool = False) -> tuple[list[str], list[Incoming]]:
    """Send ``text`` to a listener, and with ``end`` nothing more; returns what was logged and what the listener heard.

    Returns only when the listener has closed the connection, and a channel from before has worked before and after.
    """
    logged = _Log()
    sockets.logger.addHandler(logged)
    try:
        with tempfile.TemporaryDirectory(prefix="minray-") as directory:
            heard = uvloop_run(_attack(Path(directory), text, authenticated, end))
    finally:
        sockets.logger.removeHandler(logged)
    assert DETONATED == []
    return logged.lines, [incoming for incoming in heard if incoming.method != "StillThere"]


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert record.exc_info is None, record.getMessage()
        self.lines.append(record.getMessage())


def uvloop_run(story: Any) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await story

    return uvloop.run(run())


async def _attack(directory: Path, text: bytes, authenticated: bool, end: bool) -> list[Incoming]:
    network = StreamNetwork(TOKEN, RealHost())
    heard: list[Incoming] = []
    closed: list[bool] = []

    def on_incoming(incoming: Incoming) -> None:
        heard.append(incoming)
        incoming.reply(incoming.payload)

    async with listening(network, f"unix:{directory}/listener", on_incoming) as listener:
        channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: closed.append(True))
        await ask(channel, "StillThere")
        async with connection(f"{directory}/listener") as (reader, writer):
            if authenticated:
                await shake_hands(reader, writer)
            writer.write(text)
            if end:
                writer.write_eof()
            await read_to_the_end(reader)
        await ask(channel, "StillThere")
        assert closed == []
        channel.close()
    return heard


@asynccontextmanager
async def connection(path: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_to_the_end(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        pass  # cut off while one side had more to say


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes = TOKEN) -> None:
    client = handshake.ClientHandshake(token, SERVER, b"raw client", os.urandom(32))
    writer.write(client.hello)
    received = bytearray()
    while client.peer is None:
        received += await reader.read(1000)
        writer.write(client.receive(received))


@pytest.mark.parametrize("case", BEFORE_THE_HANDSHAKE)
def test_bad_input_before_the_handshake(case: str) -> None:
    text, reason = BEFORE_THE_HANDSHAKE[case]
    logged, heard = attack(text, authenticated=False)
    assert len(logged) == 1 and reason in logged[0], logged
    assert "listener" in logged[0] and "process" in logged[0]  # which endpoint, and who
    assert heard == []


def test_frames_after_a_wrong_proof(caplog: pytest.LogCaptureFixture) -> None:
    async def story(path: str) -> None:
        heard: list[Incoming] = []
        async with (
            listening(StreamNetwork(TOKEN, RealHost()), f"unix:{path}", heard.append),
            connection(path) as (reader, writer),
        ):
            with pytest.raises(AuthenticationFailed):
                await shake_hands(reader, writer, b"another token")
            writer.write(batch([1, "Ping", b"", []]))
            await read_to_the_end(reader)
        assert heard == []

    with tempfile.TemporaryDirectory(prefix="minray-") as directory:
        uvloop_run(story(f"{directory}/listener"))
    assert ["does not know the cluster token" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("case", TRUNCATED_BEFORE)
def test_a_handshake_that_is_cut_short(case: str) -> None:
    logged, heard = attack(TRUNCATED_BEFORE[case], authenticated=False, end=True)
    assert len(logged) == 1 and "in the middle of the handshake" in logged[0]
    assert heard == []


@pytest.mark.parametrize("case", AFTER_THE_HANDSHAKE)
def test_bad_input_after_the_handshake(case: str) -> None:
    text, reason = AFTER_THE_HANDSHAKE[case]
    logged, heard = attack(text, authenticated=True)
    assert len(logged) == 1 and reason in logged[0], logged
    assert heard == []


@pytest.mark.parametrize("case", TRUNCATED_AFTER)
def test_a_frame_that_is_cut_short(case: str) -> None:
    logged, heard = attack(TRUNCATED_AFTER[case], authenticated=True, end=True)
    assert len(logged) == 1 and "in the middle of a frame" in logged[0]
    assert heard == []


def test_what_came_before_the_bad_frame_is_delivered_and_nothing_after() -> None:
    text = batch([0, "Before", b"", []]) + frame(b"\xc0") + batch([0, "After", b"", []])
    logged, heard = attack(text, authenticated=True)
    assert [incoming.method for incoming in heard] == ["Before"]
    assert len(logged) == 1


def test_a_peer_that_does_not_stop_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def story(path: str) -> None:
        async with listening(StreamNetwork(TOKEN, RealHost()), f"unix:{path}", lambda incoming: None):
            for number in range(200):
                async with connection(path) as (reader, writer):
                    writer.write(header(magic=b"mimray") if number % 2 else hello(NONCE, b"", CLIENT)[:-1])
                    writer.write_eof()
                    await read_to_the_end(reader)

    with tempfile.TemporaryDirectory(prefix="minray-") as directory:
        uvloop_run(story(f"{directory}/listener"))
    assert len(caplog.messages) == 1 and "in the middle of the handshake" in caplog.messages[0]


def test_looking_whether_somebody_listens_is_no_reason_for_a_line() -> None:
    assert attack(b"", authenticated=False, end=True) == ([], [])


def test_a_peer_that_ends_between_frames_is_no_reason_for_a_line() -> None:
    logged, heard = attack(batch([1, "Ping", b"", []]), authenticated=True, end=True)
    assert logged == [] and len(heard) == 1


@given(st.binary(max_size=2000))
@example(handshake.encode(handshake.Hello(NONCE, b"", CLIENT)) + handshake.encode(handshake.Proof(bytes(32))))
def test_random_bytes_before_the_handshake(text: bytes) -> None:
    logged, heard = attack(text, authenticated=False, end=True)
    assert len(logged) == bool(text)
    assert heard == []


def frames_of_any_kind() -> st.SearchStrategy[bytes]:
    number = st.integers(-2, 2**64 - 1) | st.integers(0, 8)
    small = st.integers(0, 8)
    message = st.tuples(number, st.text(max_size=5), st.binary(max_size=20), st.lists(number, max_size=3))
    good_message = st.tuples(small, st.just("Ping"), st.binary(max_size=20), st.lists(small, max_size=2))
    encodable = st.lists(good_message | message, max_size=4)
    return st.one_of(
        st.binary(max_size=100),
        st.binary(max_size=100).map(frame),
        encodable.map(lambda messages: batch(*messages)),
        st.builds(chunk, small, small, st.binary(max_size=8)),
    )


@given(st.lists(frames_of_any_kind(), min_size=1, max_size=8).map(b"".join))
def test_random_frames_after_the_handshake(text: bytes) -> None:
    logged, _ = attack(text, authenticated=True, end=True)
    assert len(logged) <= 1


def test_a_handshake_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_TIMEOUT_S", 0.05)
    attack(handshake.encode(handshake.Hello(NONCE, b"", CLIENT)), authenticated=False)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["no handshake within 0.05 s"]


# The other direction: servers that are none


def meet(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any], story: Callable[[str], Any]) -> None:
    """Run ``story`` with the endpoint of a raw server that treats every connection with ``serve``."""

    async def run(path: str) -> None:
        writers = []

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await serve(reader, writer)

        server = await asyncio.start_unix_server(on_connection, path)
        try:
            await story(f"unix:{path}")
        finally:
            for writer in writers:
                writer.transport.abort()
            server.close()
            await server.wait_closed()

    with tempfile.TemporaryDirectory(prefix="minray-") as directory:
        uvloop_run(run(f"{directory}/listener"))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400\r\n", header(version=7), header(length=9999), bytes(10_000)])
def test_a_client_meets_a_server_that_is_none(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async def story(endpoint: str) -> None:
        with pytest.raises(AuthenticationFailed, match=endpoint):
            await StreamNetwork(TOKEN, RealHost()).connect(endpoint, SERVER, CLIENT, lambda: None)

    meet(serve, story)


def test_a_client_does_not_believe_an_unproven_wrong_incarnation() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(handshake.encode(handshake.Challenge(NONCE)))
        await reader.read(1000)
        writer.write(handshake.encode(handshake.Refusal("incarnation", bytes(32))))

    async def story(endpoint: str) -> None:
        with pytest.raises(AuthenticationFailed, match="does not know the cluster token"):
            await StreamNetwork(TOKEN, RealHost()).connect(endpoint, SERVER, CLIENT, lambda: None)

    meet(serve, story)


def test_a_client_meets_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_TIMEOUT_S", 0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return None

    async def story(endpoint: str) -> None:
        with pytest.raises(ConnectFailed, match="no answer in time"):
            await StreamNetwork(TOKEN, RealHost()).connect(endpoint, SERVER, CLIENT, lambda: None)

    meet(serve, story)


def test_a_client_meets_a_server_that_hangs_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def story(endpoint: str) -> None:
        with pytest.raises(ConnectFailed, match="ended in the middle of the handshake"):
            await StreamNetwork(TOKEN, RealHost()).connect(endpoint, SERVER, CLIENT, lambda: None)

    meet(serve, story)


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greet like a server of ours."""
    server = handshake.ServerHandshake(TOKEN, SERVER, os.urandom(32))
    received = bytearray()
    while server.peer is None:
        received += await reader.read(1000)
        writer.write(server.receive(received))


@pytest.mark.parametrize(
    "answer",
    [
        batch([5, "", b"", []]),
        frame(b"\xc0"),
        chunk(1, 0, b"x"),
        batch([1, "", b"", [2]]) + chunk(1, 0, b"x") + batch([1, "", b"", []]),
    ],
)
def test_a_client_cuts_off_a_server_that_breaks_the_rules(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        await reader.read(1000)
        writer.write(answer)

    async def story(endpoint: str) -> None:
        closed: list[bool] = []
        network = StreamNetwork(TOKEN, RealHost())
        channel = await network.connect(endpoint, SERVER, CLIENT, lambda: closed.append(True))
        with pytest.raises(ChannelBroken, match="broke the protocol"):
            await ask(channel, "Ping")
        await until(lambda: closed)
        assert channel.closed and len(closed) == 1

    meet(serve, story)
    assert len(caplog.records) == 1 and "unix:" in caplog.text


def test_closing_a_channel_whose_peer_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_connection, "CLOSE_TIMEOUT_S", 0.02)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()

    async def story(endpoint: str) -> None:
        channel = await StreamNetwork(TOKEN, RealHost()).connect(endpoint, SERVER, CLIENT, lambda: None)
        for _ in range(10):
            channel.notify("Tell", bytes(1024 * 1024))
        future = ask(channel, "Put", b"", [bytes(10 * 1024 * 1024)])
        channel.close()
        with pytest.raises(ChannelBroken):
            await future
        await until(channel._transport.is_closing)
        ended.set()

    meet(serve, story)
