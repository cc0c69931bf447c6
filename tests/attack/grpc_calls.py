"""An attacker that speaks the gRPC transport: calls without a ticket, broken handshakes, and spoiled calls with a ticket."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import msgspec

from minray.platform.process.host import RealHost
from minray.platform.transport import grpc_wire
from minray.platform.transport.grpc_transport import GrpcChannel, GrpcNetwork
from minray.platform.transport.handshake import Hello, Proof, encode
from tests.attack.messages import HARMLESS, MESSAGES, spoiled_message, true_message
from tests.attack.stream import spoil

PATIENCE_S = 5.0
CALLS_AT_ONCE = 40
TURNED_AWAY = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""How calls without a ticket may end; the second is that of a worker which has ended."""


def raw_channel(endpoint: str) -> grpc.aio.Channel:
    scheme, _, rest = endpoint.partition(":")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    return grpc.aio.insecure_channel(f"unix:{quote(rest)}" if scheme == "unix" else rest, options=options)


async def _ask(call: Any) -> grpc.StatusCode:
    """The status with which a call has failed, or OK."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    except TimeoutError:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.OK


async def as_a_stranger(endpoint: str, chance: random.Random, forbidden: bytes, forbidden_words: list[bytes]) -> int:
    """Calls of one connection without a ticket; any that is answered appears in ``forbidden_words``."""
    sent = 0
    async with raw_channel(endpoint) as raw:
        calls = []
        for _ in range(CALLS_AT_ONCE):
            method = chance.choice(["/minray.Rpc/KvPut", "/minray.Session/Upload", "/minray.Session/Close", "/a.B/C"])
            ticket = chance.choice([(), ((grpc_wire.TICKET, chance.randbytes(32)),), ((grpc_wire.TICKET, b""),)])
            calls.append(_ask(raw.unary_unary(method)(forbidden, metadata=ticket)))
        for status in await asyncio.gather(*calls):
            if status not in TURNED_AWAY:
                forbidden_words.append(b"without a ticket: " + str(status).encode())
        sent += CALLS_AT_ONCE
        for _ in range(3):
            hello = encode(Hello(chance.randbytes(32), b"", chance.randbytes(16)))
            words = [hello, encode(Proof(chance.randbytes(32))), spoil(hello, chance), chance.randbytes(100), forbidden]
            first, second = chance.sample(words, 2)
            stream = raw.stream_stream(grpc_wire.OPEN)(metadata=((grpc_wire.SAID, first),))
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    challenge = await stream.read()
                    named = challenge if isinstance(challenge, bytes) else b""
                    answers = ((grpc_wire.CHALLENGE, named), (grpc_wire.SAID, second))
                    await raw.stream_stream(grpc_wire.PROVE)(metadata=answers).read()
                    await stream.write(forbidden)
                    sent += 3
                    await stream.read()
            stream.cancel()
    return sent


async def with_a_ticket(
    endpoint: str, token: bytes, chance: random.Random, forbidden_words: list[bytes]
) -> int:
    """Calls of one connection with a ticket that break every rule; a spoiled message that is obeyed is forbidden."""
    network = GrpcNetwork(token, RealHost())
    channel = await network.connect(endpoint, b"", chance.randbytes(16), lambda: None)
    assert isinstance(channel, GrpcChannel)
    sent = 0
    async with raw_channel(endpoint) as raw:
        calls = []
        for number in range(1, CALLS_AT_ONCE + 1):
            calls.append(_check(raw, channel._metadata, number, chance, forbidden_words))
            sent += 1
        await asyncio.gather(*calls)
        # What breaks the rules of the session itself ends it.
        bad = [
            ("/minray.Rpc/CheckAlive", chance.randbytes(30)),
            ("/minray.Rpc/CheckAlive", msgspec.msgpack.encode((1, 1, b"\x90", ()))),
            ("/minray.Session/Exchange", msgspec.msgpack.encode([("CheckAlive", 1, b"\x90"), ("CheckAlive", 1, b"")])),
            ("/minray.Session/Exchange", chance.randbytes(30)),
            ("/minray.Session/Close", b"\xc0"),
            ("/minray.Session/Download", b"\x91" * 200_000 + b"\xc0"),
            (grpc_wire.UPLOAD, msgspec.msgpack.encode((1, (2**62, 2**62)))),
        ]
        for method, request in chance.sample(bad, 2):
            await _ask(raw.unary_unary(method)(request, metadata=channel._metadata))
            sent += 1
    channel.close()
    return sent


async def _check(
    raw: grpc.aio.Channel, metadata: Any, number: int, chance: random.Random, forbidden_words: list[bytes]
) -> None:
    if chance.random() < 0.2:
        name = chance.choice(HARMLESS)
        payload = true_message(name, chance)
    else:
        name = chance.choice(list(MESSAGES))
        payload = spoiled_message(name, chance)
    request = msgspec.msgpack.encode((number, number, payload, ()))
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await raw.unary_unary(f"/minray.Rpc/{name}")(request, metadata=metadata)
    except (grpc.aio.AioRpcError, TimeoutError):
        return
    failure = msgspec.msgpack.decode(answer)[0]
    if name not in HARMLESS and failure not in ("bad-request", "unknown-method"):
        forbidden_words.append(f"{name}: {failure or 'obeyed'}".encode())
