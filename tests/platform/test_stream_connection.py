"""Frames without a network: however the bytes of a stream are cut, the same messages come out."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from minray.platform import stream_connection
from minray.platform.base import Incoming
from minray.platform.stream_connection import Outbox, ServerConnection, StreamChannel


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.written += piece

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        return None


def wire(made: Wire) -> asyncio.Transport:
    return cast(asyncio.Transport, made)


Message = tuple[str, bytes, list[bytes]]


async def written(messages: list[Message]) -> bytes:
    """The bytes that a channel writes for these calls."""
    output = Wire()
    channel = StreamChannel(wire(output), b"peer", "channel", Outbox(2**30))
    for method, payload, buffers in messages:
        channel.call(method, payload, buffers, lambda *_: None)
    while channel._flush_is_due:
        channel.flush()
    return bytes(output.written)


def feed(connection: ServerConnection, piece: bytes) -> None:
    """As a transport does."""
    connection.get_buffer(-1)[: len(piece)] = piece
    connection.buffer_updated(len(piece))


async def read(pieces: list[bytes]) -> list[Message]:
    """The messages that a listener hears when its socket brings these pieces."""
    heard: list[Message] = []

    def on_incoming(incoming: Incoming) -> None:
        heard.append((incoming.method, incoming.payload, [bytes(buffer) for buffer in incoming.buffers]))

    def on_gone(connection: Any) -> None:
        raise AssertionError("it did not end")

    connection = ServerConnection(wire(Wire()), b"peer", "connection", Outbox(2**30), on_incoming, on_gone)
    for piece in pieces:
        feed(connection, piece)
    assert not connection.closed
    return heard


messages = st.tuples(st.text(max_size=3), st.binary(max_size=30), st.lists(st.binary(max_size=40), max_size=3))


@given(st.lists(messages, max_size=8), st.lists(st.integers(0, 600), max_size=12), st.integers(1, 20))
def test_any_cut_of_the_stream_brings_the_same_messages(sent: list[Message], cuts: list[int], write_bytes: int) -> None:
    async def story() -> None:
        text = await written(sent)
        ends = sorted(min(cut, len(text)) for cut in cuts)
        pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
        whole = await read([text])
        assert await read(pieces) == whole
        assert await read([bytes([byte]) for byte in text]) == whole
        assert sorted(whole) == sorted(sent)
        without_buffers = [message for message in sent if not message[2]]
        assert [message for message in whole if not message[2]] == without_buffers

    before = stream_connection.WRITE_BYTES
    stream_connection.WRITE_BYTES = write_bytes  # small, so that buffers come in many chunks
    try:
        asyncio.run(story())
    finally:
        stream_connection.WRITE_BYTES = before


def frames(text: bytes) -> list[bytes]:
    found = []
    while text:
        length = int.from_bytes(text[:4], "little")
        found.append(text[4 : 4 + length])
        text = text[4 + length :]
    return found


def test_a_batch_is_closed_when_it_is_large() -> None:
    async def story() -> None:
        sizes = [400_000] * 5 + [3_000_000] + [100] * 10
        lengths = [len(frame) for frame in frames(await written([("m", bytes(size), []) for size in sizes]))]
        assert [round(length / 100_000) for length in lengths] == [8, 8, 4, 30, 0]

    asyncio.run(story())


def test_buffers_take_turns_and_wait_while_the_transport_is_full() -> None:
    async def story() -> None:
        output = Wire()
        channel = StreamChannel(wire(output), b"peer", "channel", Outbox(2**30))
        channel.call("large", b"", [bytes(3 * stream_connection.WRITE_BYTES)], lambda *_: None)
        channel.flush()
        channel.call("small", b"", [bytes(2 * stream_connection.WRITE_BYTES)], lambda *_: None)
        channel.flush()
        channel.pause_writing()
        before = len(output.written)
        channel.flush()
        assert len(output.written) == before
        channel.resume_writing()
        while channel._flush_is_due:
            channel.flush()
        chunk_of = [frame[1] for frame in frames(bytes(output.written)) if frame[0] == 0xC1]
        assert chunk_of == [1, 1, 2, 1, 2]

    asyncio.run(story())
