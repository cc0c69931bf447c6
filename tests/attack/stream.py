"""An attacker that speaks the stream transport, on a blocking socket: before the handshake, instead of it, and after it."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator

import msgspec

from minray.platform.transport.handshake import Challenge, ClientHandshake, Hello, Proof, Refusal, Welcome, encode
from tests.attack.messages import HARMLESS, MESSAGES, spoiled_message, true_message

PATIENCE_S = 0.15
"""How long the attacker waits for an answer before it goes on."""
HUGE = 60 * 1024**3
"""Bytes of a buffer that is announced and does not come."""


def connect(endpoint: str) -> socket.socket:
    scheme, _, rest = endpoint.partition(":")
    if scheme == "unix":
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(5)
        end.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        end = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
    end.settimeout(PATIENCE_S)
    return end


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def batch(*messages: object) -> bytes:
    return frame(msgspec.msgpack.encode(messages))


def chunk(call_id: int, index: int, body: bytes, length: int | None = None) -> bytes:
    rest = struct.pack("<BQI", 0xC1, call_id, index) + body
    return struct.pack("<I", len(rest) if length is None else length) + rest


def log_in(end: socket.socket, token: bytes, identity: bytes) -> None:
    """Make the handshake of a peer that knows the token."""
    handshake = ClientHandshake(token, b"", identity, random.randbytes(32))
    end.sendall(handshake.hello)
    received = bytearray()
    while handshake.peer is None:
        data = end.recv(4096)
        if not data:
            raise ConnectionError("closed in the handshake")
        received += data
        while answer := handshake.receive(received):
            end.sendall(answer)
            if handshake.peer is not None:
                break


def hear(end: socket.socket) -> bytes:
    """Return the bytes that the other side sends within PATIENCE_S; empty if it closes or is silent."""
    try:
        return end.recv(65536)
    except (TimeoutError, ConnectionError):
        return b""


# --- without the token ---


def strangers_frames(chance: random.Random, forbidden: bytes) -> Iterator[bytes]:
    """Frames of one connection that does not know the token; ``forbidden`` is a frame that must not be obeyed."""
    hello = encode(Hello(chance.randbytes(32), chance.choice((b"", chance.randbytes(16))), chance.randbytes(16)))
    messages = {
        "hello": hello,
        "proof": encode(Proof(chance.randbytes(32))),
        "challenge": encode(Challenge(chance.randbytes(32))),
        "welcome": encode(Welcome(chance.randbytes(16), chance.randbytes(32))),
        "refusal": encode(Refusal("token")),
    }
    begin = chance.randrange(8)
    if begin < 4:
        yield hello  # After it, anything but a right proof is refused.
    if begin == 4:
        yield messages[chance.choice(list(messages))]
    if begin == 5:
        yield spoil(chance.choice(list(messages.values())), chance)
    for _ in range(chance.randrange(1, 8)):
        yield chance.choice(
            [
                forbidden,
                messages["proof"],
                messages[chance.choice(list(messages))],
                spoil(hello, chance),
                frame(chance.randbytes(chance.choice((1, 100, 5000)))),
                struct.pack("<I", chance.choice((0, 1, 2**31, 2**32 - 1))) + chance.randbytes(20),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"minray" + chance.randbytes(chance.randrange(300)),
                chance.randbytes(chance.choice((1, 10, 1000, 100_000))),
            ]
        )


def spoil(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.choice((len(changed), chance.randrange(len(changed)) + 1))])


def as_a_stranger(endpoint: str, chance: random.Random, forbidden: bytes) -> int:
    """One connection without the token; returns how many frames were sent."""
    sent = 0
    with connect(endpoint) as end:
        try:
            for data in strangers_frames(chance, forbidden):
                end.sendall(data)
                sent += 1
            if chance.random() < 0.3:
                end.shutdown(socket.SHUT_WR)
            if chance.random() < 0.2:
                hear(end)
        except OSError:
            pass  # it was cut off, as it should be
    return sent


# --- with the token ---


def spoiled_frames(chance: random.Random) -> bytes:
    """A frame after which the connection must end."""
    name = chance.choice(list(MESSAGES))
    kinds: list[Callable[[], bytes]] = [
        lambda: struct.pack("<I", chance.choice((0, 2**31, 2**32 - 1, 70 * 1024**2))) + chance.randbytes(10),
        lambda: frame(chance.randbytes(chance.choice((1, 7, 300)))),
        lambda: batch([-1, name, b"", []]),
        lambda: batch([1, 2, 3, 4]),
        lambda: batch([1, name, b"", [HUGE * 10]]),
        lambda: batch([1, name, b"", [-5]]),
        lambda: batch([1, name]),
        lambda: frame(b"\x91" * 200_000 + b"\xc0"),
        lambda: chunk(77, 0, b"x" * 100),
        lambda: batch([9, name, b"\xc1", [10]]) * 2,
        lambda: batch([9, name, b"\xc1", [10]]) + chunk(9, 5, b"x"),
        lambda: batch([9, name, b"\xc1", [10]]) + chunk(9, 0, b"x" * 11),
        lambda: batch([9, name, b"\xc1", [HUGE]]) + chunk(9, 0, b"", length=13),
    ]
    return chance.choice(kinds)()


def with_the_token(endpoint: str, token: bytes, chance: random.Random, forbidden_words: list[bytes]) -> int:
    """One connection that knows the token and breaks every rule; returns how many frames were sent.

    Each spoiled message must be answered with a failure: answers that are not appear in ``forbidden_words``.
    """
    sent = 0
    with connect(endpoint) as end:
        try:
            log_in(end, token, chance.randbytes(16))
            for _ in range(chance.choice((1, 5, 40))):
                end.sendall(one_frame(chance, sent + 1))
                sent += 1
            if chance.random() < 0.3:
                end.sendall(batch([sent + 1, "CheckAlive", b"\x91" * 200_000 + b"\xc0", []]))
                sent += 1
                forbidden_words += [word for word in failures(end, sent) if word != b"bad-request"]
            if chance.random() < 0.5:
                end.sendall(spoiled_frames(chance))
                sent += 1
            hear(end)
        except OSError:
            pass
    return sent


def one_frame(chance: random.Random, call_id: int) -> bytes:
    """A frame that is well formed and whose message is not, or means nothing."""
    kind = chance.randrange(8)
    name = chance.choice(list(MESSAGES))
    if kind == 0:
        harmless = chance.choice(HARMLESS)
        return batch([chance.choice((call_id, 0, 1)), harmless, true_message(harmless, chance), []])
    if kind == 1:
        return batch([call_id, chance.choice(("", "No", "x" * 3000, "__class__", "handle_CheckAlive")), b"\x90", []])
    if kind == 2:
        return batch(*[[call_id * 1000 + n, name, spoiled_message(name, chance), []] for n in range(20)])
    if kind == 3:  # A buffer beside a message that has no use for one; its chunk may come in parts.
        size = chance.choice((1, 1000))
        return batch([call_id, name, spoiled_message(name, chance), [size]]) + chunk(call_id, 0, b"b" * size)
    if kind == 4:  # The announced buffer never comes.
        return batch([call_id, name, spoiled_message(name, chance), [chance.choice((10, HUGE))]])
    return batch([call_id, name, spoiled_message(name, chance), []])


def failures(end: socket.socket, call_id: int) -> list[bytes]:
    """The kind of failure with which that call was answered; empty if the connection ended or its answer is not here."""
    received = b""
    for _ in range(50):
        data = hear(end)
        if not data:
            return []
        received += data
        start = 0
        while len(received) >= start + 4:
            (length,) = struct.unpack_from("<I", received, start)
            body = received[start + 4 : start + 4 + length]
            if len(body) < length:
                break
            start += 4 + length
            if body[:1] != b"\xc1":
                for number, word, *_ in msgspec.msgpack.decode(body):
                    if number == call_id:
                        return [word.encode()]
        received = received[start:]
    return []
