"""Frames without a network: however the bytes of a stream are cut, the same messages come out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minray.platform.base import ChannelBroken, Incoming, OnReply, PlatformError
from minray.platform.transport import chunk_writer, stream_connection
from minray.platform.transport.stream_connection import Outbox, ServerConnection, StreamChannel
from tests.platform.transports import until


class Wire:
    """A transport that keeps what is written; as if it were one that encrypts."""

    def __init__(self) -> None:
        self.written = bytearray()

    def get_extra_info(self, name: str) -> Any:
        return self if name == "ssl_object" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.written += piece

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        return None


class Kernel(Wire):
    """A transport, with a socket beneath that has room for these numbers of bytes in turn, and then for all."""

    def __init__(self, room: list[int], tells: bool) -> None:
        super().__init__()
        self.room = room
        self.tells = tells
        """Says at once that something waits."""
        self.waiting = bytearray()
        """Bytes that were given to the transport while the socket had no room."""
        self.channel: StreamChannel
        self.wakes_at = 1

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def fileno(self) -> int:
        return -7

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.wakes_at = value

    def writev(self, descriptor: int, pieces: list[bytes]) -> int:
        assert (descriptor, len(self.waiting)) == (-7, 0), "what waits is overtaken"
        text = b"".join(pieces)
        took = self.room.pop(0) if self.room else len(text)
        if not took:
            raise BlockingIOError
        self.written += text[:took]
        return len(text[:took])

    def write(self, data: bytes) -> None:
        if not self.waiting and not (self.room and self.room[0] == 0):
            super().write(data)
        else:
            self.waiting += data
            if self.tells:
                self.channel.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def drain(self) -> None:
        if self.waiting:
            self.written += self.waiting
            self.waiting.clear()
            self.room.pop(0)
            self.channel.resume_writing()


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


def feed(connection: ServerConnection | StreamChannel, text: bytes) -> None:
    """As a transport does."""
    while text:
        space = connection.get_buffer(-1)
        piece = text[: len(space)]
        space[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        text = text[len(piece) :]


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


def cut(text: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(min(each, len(text)) for each in cuts)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@contextmanager
def small(write_bytes: int, straight_bytes: int) -> Iterator[None]:
    """So that buffers of a few bytes come in many chunks, some of which are received straight into their place."""
    with patch.multiple(stream_connection, WRITE_BYTES=write_bytes, STRAIGHT_BYTES=straight_bytes):
        yield


cuts = st.lists(st.integers(0, 600), max_size=12)


@given(st.lists(messages, max_size=8), cuts, st.integers(1, 20), st.integers(1, 20))
def test_any_cut_of_the_stream_brings_the_same_messages(
    sent: list[Message], cuts: list[int], write_bytes: int, straight_bytes: int
) -> None:
    async def story() -> None:
        text = await written(sent)
        whole = await read([text])
        assert await read(cut(text, cuts)) == whole
        assert await read([bytes([byte]) for byte in text]) == whole
        assert sorted(whole) == sorted(sent)
        without_buffers = [message for message in sent if not message[2]]
        assert [message for message in whole if not message[2]] == without_buffers

    with small(write_bytes, straight_bytes):
        asyncio.run(story())


async def replies(answers: list[list[bytes]]) -> bytes:
    """The bytes that a listener writes when it answers the calls 1, 2, ... with these buffers."""
    output = Wire()
    connection = ServerConnection(
        wire(output), b"peer", "connection", Outbox(2**30), lambda incoming: None, lambda connection: None
    )
    for call_id, buffers in enumerate(answers, 1):
        connection.reply(call_id, "", b"reply", buffers)
    while connection._flush_is_due:
        connection.flush()
    return bytes(output.written)


@given(
    st.lists(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 3)), min_size=1, max_size=3), max_size=4),
    cuts,
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_any_cut_of_the_stream_fills_given_memory(
    answers: list[list[tuple[bytes, int]]], cuts: list[int], write_bytes: int, straight_bytes: int
) -> None:
    async def story() -> None:
        text = await replies([[buffer for buffer, _ in answer] for answer in answers])
        channel = StreamChannel(wire(Wire()), b"peer", "channel", Outbox(2**30))
        memories = [[bytearray(len(buffer) + spare) for buffer, spare in answer] for answer in answers]
        heard: list[int] = []
        for i, memory in enumerate(memories):
            on_reply: OnReply = lambda error, *_, i=i: heard.append(i)  # type: ignore[misc]  # noqa: E731
            channel.call("Get", b"", (), on_reply, [memoryview(each) for each in memory])
        for piece in cut(text, cuts):
            feed(channel, piece)
        assert sorted(heard) == list(range(len(answers)))
        for answer, memory in zip(answers, memories, strict=True):
            assert memory == [buffer + bytes(spare) for buffer, spare in answer]
            for each in memory:
                each.clear()  # which is refused while the channel keeps a view of it

    with small(write_bytes, straight_bytes):
        asyncio.run(story())


def ask_into(channel: StreamChannel, memory: bytearray) -> list[PlatformError | None]:
    """One call that has given its memory; returns how it ends, once it does."""
    outcomes: list[PlatformError | None] = []
    channel.call("Get", b"", (), lambda error, *_: outcomes.append(error), [memoryview(memory)])
    return outcomes


def test_what_is_missing_of_a_chunk_is_received_straight_into_its_place() -> None:
    async def story() -> None:
        size = 2 * stream_connection.STRAIGHT_BYTES
        text = await replies([[bytes(range(1, 129)) * (size // 128)]])
        channel = StreamChannel(wire(Wire()), b"peer", "channel", Outbox())
        memory = bytearray(size)
        outcomes = ask_into(channel, memory)
        begin = len(text) - size + 100
        feed(channel, text[:begin])
        space = channel.get_buffer(-1)
        assert (space.obj, len(space)) == (memory, size - 100)
        space[: size // 2] = text[begin : begin + size // 2]
        channel.buffer_updated(size // 2)
        assert channel.get_buffer(-1).obj is not memory  # too little for a call of its own
        feed(channel, text[begin + size // 2 :])
        assert outcomes == [None] and memory == text[-size:]

    asyncio.run(story())


def test_a_refusal_with_buffers_leaves_given_memory_alone() -> None:
    async def story() -> None:
        output = Wire()
        channel = StreamChannel(wire(Wire()), b"peer", "channel", Outbox())
        memory = bytearray(3)
        outcomes = ask_into(channel, memory)
        connection = ServerConnection(
            wire(output), b"peer", "connection", Outbox(), lambda incoming: None, lambda connection: None
        )
        connection.reply(1, "internal", b"no", [b"why"])
        connection.flush()
        feed(channel, bytes(output.written))
        assert [str(outcome) for outcome in outcomes] == ["internal: no"] and memory == bytes(3)

    asyncio.run(story())


@pytest.mark.parametrize("straight_bytes", [1, 1000])
@pytest.mark.parametrize("end", ["we close", "it breaks a rule"])
def test_after_the_end_nothing_is_written_into_given_memory(end: str, straight_bytes: int) -> None:
    async def story() -> None:
        text = await replies([[b"x" * 200], [b"y" * 200]])
        channel = StreamChannel(wire(Wire()), b"peer", "channel", Outbox())
        memories = bytearray(200), bytearray(200)
        outcomes = ask_into(channel, memories[0]), ask_into(channel, memories[1])
        feed(channel, text[:200])
        assert memories[0].count(b"x") > memories[1].count(b"y") == 0
        if end == "we close":
            channel.close()
        else:
            channel._refuse("any reason")
        for memory in memories:
            memory.clear()  # which is refused while there is a view through which something could be written
        for byte in text[200:]:
            feed(channel, bytes([byte]))
            assert channel.get_buffer(-1).obj is channel._outbox.receive_buffer.obj
        channel.connection_lost(None)
        assert outcomes == ([], [])
        await until(lambda: all(outcomes))
        assert [[type(each) for each in outcome] for outcome in outcomes] == [[ChannelBroken], [ChannelBroken]]

    with small(2**20, straight_bytes):
        asyncio.run(story())


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


@given(
    st.lists(messages, max_size=6),
    st.lists(st.integers(0, 60), max_size=12),
    st.booleans(),
    st.integers(1, 20),
    st.integers(1, 5),
)
@example([("a", b"", [bytes(30)]), ("b", b"", [bytes(30)])], [5, 0], False, 1, 5)
def test_whatever_the_kernel_has_room_for_the_same_messages_leave(
    said: list[Message], room: list[int], tells: bool, knock: int, most_pieces: int
) -> None:
    async def story() -> None:
        kernel = Kernel(room, tells)
        with (
            patch.object(chunk_writer.os, "writev", kernel.writev),
            patch.object(chunk_writer, "KNOCK_BYTES", knock),
            patch.object(chunk_writer, "MOST_PIECES", most_pieces),
        ):
            channel = kernel.channel = StreamChannel(wire(kernel), b"peer", "channel", Outbox(2**30))
            for method, payload, buffers in said:
                channel.call(method, payload, buffers, lambda *_: None)
                channel.flush()
            while channel._flush_is_due or kernel.waiting:
                kernel.drain()
                channel.flush()
        heard = await read([bytes(kernel.written)])
        assert sorted(heard) == sorted(said)
        assert [message for message in heard if not any(message[2])] == [
            message for message in said if not any(message[2])
        ]

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


def test_of_a_large_chunk_much_is_waited_for_but_never_more_than_will_come() -> None:
    async def story() -> None:
        wake, size = stream_connection.WAKE_BYTES, 4 * stream_connection.WAKE_BYTES
        with patch.object(stream_connection, "WRITE_BYTES", stream_connection.CHUNK_BYTES):
            text = await replies([[bytes(size)]])
        kernel = Kernel([], True)
        channel = StreamChannel(wire(kernel), b"peer", "channel", Outbox())
        ask_into(channel, bytearray(size))
        feed(channel, text[: -size + 1])
        seen = []
        for left in (size - 1, 2 * wake, wake, wake - 1, 0):
            feed(channel, text[len(text) - channel._chunk_left : len(text) - left])
            seen.append(kernel.wakes_at)
        assert seen == [wake, wake, wake, 1, 1]

    asyncio.run(story())


@pytest.mark.parametrize("ends", [StreamChannel.close, lambda channel: channel.connection_lost(None)])
def test_a_connection_that_ends_hears_of_every_byte_again(ends: Callable[[StreamChannel], None]) -> None:
    async def story() -> None:
        size = 4 * stream_connection.WAKE_BYTES
        with patch.object(stream_connection, "WRITE_BYTES", stream_connection.CHUNK_BYTES):
            text = await replies([[bytes(size)]])
        kernel = Kernel([], True)
        channel = StreamChannel(wire(kernel), b"peer", "channel", Outbox())
        ask_into(channel, bytearray(size))
        feed(channel, text[:-size])
        assert kernel.wakes_at == stream_connection.WAKE_BYTES
        ends(channel)
        assert kernel.wakes_at == 1

    asyncio.run(story())


def test_a_connection_that_breaks_while_a_message_is_written_sends_no_chunk_of_it() -> None:
    class Breaking(Kernel):
        def write(self, data: bytes) -> None:
            self.broken = True

        def get_extra_info(self, name: str) -> Any:
            return None

        def is_closing(self) -> bool:
            return hasattr(self, "broken")

    async def story() -> None:
        channel = StreamChannel(wire(Breaking([], True)), b"peer", "channel", Outbox())
        channel.call("Put", b"", [bytearray(100)], lambda *_: None)
        channel.flush()
        channel.flush()
        assert not channel._chunks

    asyncio.run(story())


def test_a_lost_connection_keeps_nothing_that_it_was_to_send() -> None:
    async def story() -> None:
        channel = StreamChannel(wire(Wire()), b"peer", "channel", Outbox())
        memory = bytearray(100)
        channel.call("Put", b"", [memory], lambda *_: None)
        with pytest.raises(BufferError):
            memory.clear()
        channel.connection_lost(None)
        memory.clear()

    asyncio.run(story())
