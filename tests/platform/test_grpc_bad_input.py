"""A gRPC listener under calls that no peer of ours makes. Bytes that are not HTTP/2 end in gRPC itself.

In every case: the call fails or its session ends, one log line says why, nothing reaches ``on_incoming``, and a channel
that was open all along works as before.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from minray.platform.base import ChannelBroken, Counters, Incoming, Listener
from minray.platform.transport import grpc_server, grpc_wire, handshake, strangers
from minray.platform.transport.grpc_server import GrpcListener
from minray.platform.transport.grpc_transport import GrpcChannel, GrpcNetwork
from tests.platform.transports import CLIENT, SERVER, TIMEOUT_S, RealHost, ask, listening, run_grpc, until

TOKEN = b"token"
Attack = Callable[[Listener, grpc.aio.Channel, GrpcChannel], Awaitable[None]]
"""Receives the listener, a raw gRPC channel to it, and an authenticated channel to misuse."""


def attack(story: Attack) -> None:
    """Run the attack, and check that another channel worked before and works after."""

    async def run(directory: Path) -> None:
        heard: list[Incoming] = []
        closed: list[bool] = []

        def on_incoming(incoming: Incoming) -> None:
            heard.append(incoming)
            incoming.reply(incoming.payload)

        network = GrpcNetwork(TOKEN, RealHost())
        async with (
            asyncio.timeout(TIMEOUT_S),
            listening(network, f"unix:{directory}/listener", on_incoming) as listener,
            grpc.aio.insecure_channel(listener.endpoint) as raw,
        ):
            channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: closed.append(True))
            misused = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            await ask(channel, "StillThere")
            await story(listener, raw, misused)
            await ask(channel, "StillThere")
            assert closed == []
            assert [incoming.method for incoming in heard] == ["StillThere"] * 2
            channel.close()
            misused.close()

    with tempfile.TemporaryDirectory(prefix="minray-") as directory:
        run_grpc(run(Path(directory)))


def request(call_id: Any = 1, sequence: Any = 1, payload: Any = b"", sizes: Any = ()) -> bytes:
    return msgspec.msgpack.encode((call_id, sequence, payload, sizes))


async def fails(call: Awaitable[Any], code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == code


@pytest.mark.parametrize("ticket", [None, b"", bytes(32)])
@pytest.mark.parametrize(
    "method",
    ["/minray.Rpc/Ping", "/minray.Session/Exchange", "/minray.Session/Upload", "/minray.Session/Close", "/a.B/C"],
)
def test_a_call_without_a_ticket(method: str, ticket: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        metadata = () if ticket is None else ((grpc_wire.TICKET, ticket),)
        await fails(raw.unary_unary(method)(request(), metadata=metadata), grpc.StatusCode.UNAUTHENTICATED)

    attack(story)
    (line,) = caplog.messages
    assert method in line and "no ticket" in line


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"garbage", "not a minray peer"),
        (b"", "malformed"),
        (b"m" * 4000, "not a minray peer"),
        (handshake.encode(handshake.Hello(bytes(32), b"", CLIENT))[:-1], "malformed"),
        (handshake.encode(handshake.Hello(bytes(32), b"", CLIENT)) * 2, "malformed"),
        (handshake.encode(handshake.Proof(bytes(32))), "unexpected"),
        (b"minray\0\0\0\0", "protocol version 0"),
    ],
)
def test_a_bad_handshake(message: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        stream = raw.stream_stream(grpc_wire.OPEN)(metadata=((grpc_wire.SAID, message),))
        answers = [answer async for answer in stream]
        assert len(answers) == 1 and b"refusal" in answers[0]

    attack(story)
    (line,) = caplog.messages
    assert reason in line


def test_a_handshake_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        monkeypatch.setattr(grpc_server, "HANDSHAKE_TIMEOUT_S", 0.05)
        hello = handshake.encode(handshake.Hello(bytes(32), b"", CLIENT))
        stream = raw.stream_stream(grpc_wire.OPEN)(metadata=((grpc_wire.SAID, hello),))
        assert len([answer async for answer in stream]) == 1, "the challenge"

    attack(story)
    (line,) = caplog.messages
    assert "no handshake within 0.05 s" in line


def test_a_message_before_the_handshake_is_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise strangers could have a listener hold 64 MiB for each of their streams."""

    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        monkeypatch.setattr(grpc_server, "HANDSHAKE_TIMEOUT_S", 600.0)  # a busy machine takes seconds for the calls below
        hello = handshake.encode(handshake.Hello(bytes(32), b"", CLIENT))
        stream = raw.stream_stream(grpc_wire.OPEN)(metadata=((grpc_wire.SAID, hello),))
        assert len(await stream.read()) > 0, "the challenge"
        written = asyncio.ensure_future(stream.write(bytes(8 * 2**20)))
        for _ in range(100):  # time in which the listener would have read it
            with suppress(grpc.aio.AioRpcError):
                await raw.unary_unary("/minray.Rpc/Ping")(b"", metadata=misused._metadata)
        assert not written.done()
        stream.cancel()
        await asyncio.wait([written])

    attack(story)


def test_a_proof_that_answers_no_challenge(caplog: pytest.LogCaptureFixture) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        metadata = ((grpc_wire.CHALLENGE, bytes(32)), (grpc_wire.SAID, b""))
        with pytest.raises(grpc.aio.AioRpcError, match="no challenge"):
            await raw.stream_stream(grpc_wire.PROVE)(metadata=metadata).read()

    attack(story)
    (line,) = caplog.messages
    assert "it answers no challenge" in line


def test_1000_handshakes_that_do_not_go_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 100)
    monkeypatch.setattr(grpc_server, "HANDSHAKE_TIMEOUT_S", TIMEOUT_S)  # longer than the test

    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        assert isinstance(listener, GrpcListener)
        hello = handshake.encode(handshake.Hello(bytes(32), b"", CLIENT))
        streams = [raw.stream_stream(grpc_wire.OPEN)(metadata=((grpc_wire.SAID, hello),)) for _ in range(1000)]
        reading = [asyncio.create_task(read_all(stream)) for stream in streams]
        await until(lambda: sum(task.done() for task in reading) == 900)
        assert len(listener.strangers) == 100
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await until(lambda: not listener.strangers)

    attack(story)
    first, counted = caplog.messages
    assert strangers.CROWDED in first and "899 more" in counted


async def read_all(stream: Any) -> None:
    async for _ in stream:
        pass


PREFACE, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0"


@pytest.mark.parametrize("words", [b"", PREFACE, PREFACE + SETTINGS])
def test_a_stranger_who_opens_no_session_is_let_go(words: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_server.SERVER_OPTIONS)
    times = ["grpc.server_handshake_timeout_ms", "grpc.max_connection_idle_ms"]
    assert [options[name] for name in times] == [10_000, 10_000]
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", [*(options | dict.fromkeys(times, 50)).items()])

    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        reader, writer = await asyncio.open_unix_connection(listener.endpoint.removeprefix("unix:"))
        writer.write(words)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()

    attack(story)


@pytest.mark.parametrize(
    ("method", "message", "reason"),
    [
        ("Rpc/Ping", b"\xc1", "malformed|truncated|invalid"),
        ("Rpc/Ping", request(call_id="1"), "Expected `int`"),
        ("Rpc/Ping", request(call_id=-1), ">= 0"),
        ("Rpc/Ping", request(sequence=0), "came twice"),
        ("Rpc/Ping", request(sizes=(5,)), "were not uploaded"),
        ("Rpc/Ping", request() + b"\0", "trailing"),
        ("Session/Close", b"\xc0", "Expected `int`"),
        ("Session/Download", b"\xc0", "Expected `int`"),
    ],
)
def test_a_malformed_message_ends_its_session(
    method: str, message: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        call = raw.unary_unary(f"/minray.{method}")(message, metadata=misused._metadata)
        await fails(call, grpc.StatusCode.INVALID_ARGUMENT)
        await until(lambda: misused.closed)
        with pytest.raises(ChannelBroken):
            await ask(misused, "Ping")

    attack(story)
    (line,) = caplog.messages
    assert any(word in line for word in reason.split("|")), line


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        (b"\xc1", "malformed|truncated|invalid"),
        ([("Ping", 1)], "length 3"),
        ([("Ping", -1, b"")], ">= 0"),
        ([(b"Ping", 1, b"")], "Expected `str`"),
    ],
)
def test_a_malformed_exchange_ends_its_session(requests: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        stream = raw.stream_stream(grpc_wire.EXCHANGE)(metadata=misused._metadata)
        await stream.write(requests if isinstance(requests, bytes) else msgspec.msgpack.encode(requests))
        await fails(stream.read(), grpc.StatusCode.INVALID_ARGUMENT)
        await until(lambda: misused.closed)

    attack(story)
    (line,) = caplog.messages
    assert any(word in line for word in reason.split("|")), line


def test_the_number_of_an_open_call_ends_its_session(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory(prefix="minray-") as directory:
            network = GrpcNetwork(TOKEN, RealHost(), exchanges=True)
            async with (
                listening(network, f"unix:{directory}/listener", lambda incoming: None) as listener,
                grpc.aio.insecure_channel(listener.endpoint) as raw,
            ):
                channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
                waiting = ask(channel, "Wait")
                stream = raw.stream_stream(grpc_wire.EXCHANGE)(metadata=channel._metadata)
                await stream.write(msgspec.msgpack.encode([("Wait", 1, b"")] * 2))
                await fails(stream.read(), grpc.StatusCode.INVALID_ARGUMENT)
                with pytest.raises(ChannelBroken):
                    await waiting

    run_grpc(story())
    (line,) = caplog.messages
    assert "call 1 came twice" in line


def test_what_is_sent_while_a_message_is_on_its_way_leaves_in_one() -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory(prefix="minray-") as directory:
            network = GrpcNetwork(TOKEN, RealHost(), exchanges=True)
            async with listening(network, f"unix:{directory}/listener", lambda incoming: incoming.reply(b"")) as listener:
                channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
                await ask(channel, "Ping")
                before = network.counters.frames
                await asyncio.gather(*(ask(channel, "Ping") for _ in range(1000)))
                assert network.counters.frames - before < 50
                assert network.counters.requests == network.counters.replies == 1001
                channel.close()

    run_grpc(story())


def test_a_batch_has_an_end() -> None:
    async def story() -> None:
        written: list[list[Any]] = []

        async def write(message: bytes) -> None:
            written.append(msgspec.msgpack.decode(message))

        writer = grpc_wire.BatchWriter(write, Counters())
        for size in (100, 2 * grpc_wire.BATCH_BYTES, 100, 100):
            writer.add(("Ping", 0, b""), size)
        await writer.finish()
        assert [len(batch) for batch in written] == [1, 1, 2]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "closing"),
        ([b"\xc0"], "Expected `array`"),
        ([msgspec.msgpack.encode((1, (4,))), b"12345"], "more bytes"),
        ([msgspec.msgpack.encode((1, (4,))), b"123"], "fewer bytes"),
        ([msgspec.msgpack.encode((1, (2**40, 2**41)))], "buffers of 3298534883328 bytes"),
    ],
)
def test_a_malformed_upload_ends_its_session(messages: list[bytes], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        call = raw.stream_unary(grpc_wire.UPLOAD)(iter(messages), metadata=misused._metadata)
        await fails(call, grpc.StatusCode.INVALID_ARGUMENT)
        await until(lambda: misused.closed)

    attack(story)
    (line,) = caplog.messages
    assert reason in line


def test_bytes_that_are_not_http() -> None:
    async def story(listener: Listener, raw: grpc.aio.Channel, misused: GrpcChannel) -> None:
        reader, writer = await asyncio.open_unix_connection(listener.endpoint.removeprefix("unix:"))
        writer.write(os.urandom(1000))
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass
        writer.close()

    attack(story)


@pytest.mark.slow
def test_a_burst_larger_than_what_may_be_in_flight() -> None:
    count = 3 * grpc_wire.MAX_CALLS_IN_FLIGHT

    async def story() -> None:
        with tempfile.TemporaryDirectory(prefix="minray-") as directory:
            heard: list[int] = []

            def on_incoming(incoming: Incoming) -> None:
                heard.append(int(incoming.payload))
                incoming.reply(incoming.payload)

            network = GrpcNetwork(TOKEN, RealHost())
            async with listening(network, f"unix:{directory}/listener", on_incoming) as listener:
                channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
                futures = [ask(channel, "Ping", b"%d" % i) for i in range(count)]
                assert len(channel._in_flight) == grpc_wire.MAX_CALLS_IN_FLIGHT
                replies = await asyncio.gather(*futures)
                assert [int(payload) for payload, _ in replies] == heard == list(range(count))
                channel.close()

    run_grpc(story())
