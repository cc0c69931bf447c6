"""The network contract of minray/platform/base.py, once, for every transport of ``transports.TRANSPORTS``."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
import weakref
from collections.abc import Callable

import pytest

from minray.platform.base import (
    MAX_RECORD_BYTES,
    AuthenticationFailed,
    ChannelBroken,
    ConnectFailed,
    ConnectRefused,
    Incoming,
    PlatformError,
    RecordTooLarge,
    RemoteFailure,
    WrongIncarnation,
)
from minray.platform.transport.lanes import Lane
from tests.helpers import without_garbage_collection
from tests.platform.transports import (
    CLIENT,
    OTHER,
    SERVER,
    TRANSPORTS,
    Conversation,
    Transport,
    ask,
    converse,
    echo,
    listening,
    until,
)

MEBIBYTE = 1024 * 1024

# Calls


def test_a_call_brings_its_reply(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        assert await talk.ask("Ping", b"payload") == (b"payload", ())
        (incoming,) = talk.heard
        assert (incoming.method, incoming.payload, list(incoming.buffers)) == ("Ping", b"payload", [])
        assert type(incoming.payload) is bytes
        assert (incoming.peer, talk.channel.peer, talk.channel.closed) == (CLIENT, SERVER, False)

    converse(transport, story)


def test_an_empty_target_is_any_process_at_the_endpoint(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        channel = await transport.network_a.connect(talk.listener.endpoint, b"", OTHER, lambda: None)
        assert channel.peer == SERVER
        await ask(channel, "Ping")
        assert talk.heard[-1].peer == OTHER
        channel.close()

    converse(transport, story)


def test_calls_and_notifications_arrive_in_order(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        replies = []
        for i in range(1000):
            if i % 3:
                replies.append(talk.ask("Count", b"%d" % i))
            else:
                talk.channel.notify("Count", b"%d" % i)
        await asyncio.gather(*replies)
        heard = await talk.wait_heard(1000)
        assert [int(incoming.payload) for incoming in heard] == list(range(1000))

    converse(transport, story)


def test_replies_arrive_in_order(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        order: list[int] = []
        for i in range(100):
            talk.channel.call("Ping", b"", (), lambda *_, i=i: order.append(i))
        await until(lambda: len(order) == 100)
        assert order == list(range(100))

    converse(transport, story)


def test_replies_may_come_in_any_order(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        futures = [talk.ask("Hold", b"%d" % i) for i in range(10)]
        order: list[int] = []
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: order.append(i))
        held = await talk.wait_heard(10)
        for i in (7, 2, 9, 0, 1, 3, 4, 5, 6, 8):
            held[i].reply(b"reply %d" % i)
            await futures[i]
        assert [payload for payload, _ in await asyncio.gather(*futures)] == [b"reply %d" % i for i in range(10)]
        assert order == [7, 2, 9, 0, 1, 3, 4, 5, 6, 8]

    converse(transport, story, answer=lambda incoming: None)


def test_notifications_have_no_reply(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        talk.channel.notify("Tell", b"news")
        await talk.wait_heard(1)  # and echo has answered, which is ignored
        assert await talk.ask("Ping", b"x") == (b"x", ())

    converse(transport, story)


def test_a_refused_request_tells_its_caller_why(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        with pytest.raises(RemoteFailure) as caught:
            await talk.ask("Ping")
        assert (caught.value.kind, caught.value.message) == ("bad-request", "no such thing: \N{SNOWMAN}\n")
        assert not talk.channel.closed

    failure = RemoteFailure("bad-request", "no such thing: \N{SNOWMAN}\n")
    converse(transport, story, answer=lambda incoming: incoming.fail(failure))


@pytest.mark.slow
def test_empty_and_large_payloads(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        for size in (0, 1, MEBIBYTE - 1, MEBIBYTE, 5 * MEBIBYTE + 1, MAX_RECORD_BYTES):
            payload = bytes(size)
            assert (await talk.ask("Ping", payload))[0] == payload

    converse(transport, story)


def test_a_record_too_large_is_refused_where_it_is_sent(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        too_large = bytes(MAX_RECORD_BYTES + 1)
        for send in (talk.ask, talk.channel.notify):
            with pytest.raises(RecordTooLarge, match="67108865.*67108864"):
                send("Ping", too_large)
        future = talk.ask("Ping")
        (incoming,) = await talk.wait_heard(1)
        with pytest.raises(RecordTooLarge, match="67108865.*67108864"):
            incoming.reply(too_large)
        incoming.reply(b"small")
        assert await future == (b"small", ())

    converse(transport, story, answer=lambda incoming: None)


def test_callbacks_never_run_inside_the_call_that_takes_them(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        calls: list[PlatformError | None] = []
        talk.channel.call("Ping", b"", (), lambda error, *_: calls.append(error))
        assert calls == []
        talk.channel.close()
        talk.channel.call("Ping", b"", (), lambda error, *_: calls.append(error))
        assert calls == []
        await until(lambda: len(calls) == 2)
        assert all(isinstance(error, ChannelBroken) for error in calls)

    converse(transport, story)


# Buffers


@pytest.mark.parametrize("sizes", [[0], [1], [0, 3, 0], [5 * MEBIBYTE + 1], [7] * 300, [100, 40 * MEBIBYTE, 0, 200_000]])
def test_buffers_arrive_whole_and_read_only(transport: Transport, sizes: list[int]) -> None:
    async def story(talk: Conversation) -> None:
        sent = [bytearray(os.urandom(min(size, 64)) * (size // 64 + 1))[:size] for size in sizes]
        payload, received = await talk.ask("Put", b"with buffers", sent)
        assert payload == b"with buffers"
        for buffers in (talk.heard[0].buffers, received):
            assert [memoryview(buffer).nbytes for buffer in buffers] == sizes
            assert all(memoryview(buffer).readonly for buffer in buffers)
            assert all(bytes(one) == bytes(other) for one, other in zip(sent, buffers, strict=True))

    converse(transport, story)


def test_many_messages_with_buffers_at_once(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        sent = [[bytes([i]) * (i * 50_000), b"%d" % i] for i in range(20)]
        received = await asyncio.gather(*[talk.ask("Put", b"%d" % i, sent[i]) for i in range(20)])
        for i, (payload, buffers) in enumerate(received):
            assert payload == b"%d" % i
            assert [bytes(buffer) for buffer in buffers] == sent[i]

    converse(transport, story)


def test_a_small_call_overtakes_a_large_transfer(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        large = talk.ask("Large", b"", [bytes(64 * MEBIBYTE)])
        for _ in range(2):  # the second is sent when the transfer has begun
            await talk.ask("Small")
        assert [incoming.method for incoming in talk.heard] == ["Small", "Small"]
        assert not large.done()
        await large

    converse(transport, story)


def test_a_small_reply_overtakes_a_large_one(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        large, small = talk.ask("Large"), talk.ask("Small")
        first, second = await talk.wait_heard(2)
        first.reply(b"", [bytes(40 * MEBIBYTE)])
        second.reply(b"")
        await small
        assert not large.done()
        await large

    converse(transport, story, answer=lambda incoming: None)


# Replies into given memory


def patterned(size: int, seed: int = 1) -> bytes:
    """Bytes that are not zero, and tell their places apart."""
    return (bytes(range(seed, 251)) * (size // (251 - seed) + 1))[:size]


def answer_with(*buffers: bytes) -> Callable[[Incoming], None]:
    return lambda incoming: incoming.reply(b"reply", buffers)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([1], [1]),
        ([100], [7]),
        ([10], [0]),
        ([0, 3, 5], [0, 3]),
        ([5 * MEBIBYTE + 1], [5 * MEBIBYTE + 1]),
        ([3 * MEBIBYTE, 10, 200_000], [2 * MEBIBYTE + 5, 10, 100_000]),
    ],
)
def test_a_reply_is_received_into_given_memory(transport: Transport, given: list[int], sent: list[int]) -> None:
    buffers = [patterned(size) for size in sent]

    async def story(talk: Conversation) -> None:
        memory = [bytearray(size) for size in given]
        payload, received = await talk.ask("Get", into=[memoryview(each) for each in memory])
        assert (payload, [bytes(view) for view in received]) == (b"reply", buffers)
        assert all(view.readonly for view in received)
        for each, size, buffer in zip(memory, given, [*buffers, b"", b""], strict=False):
            assert each == buffer + bytes(size - len(buffer))
            each[:] = bytes(size)
        assert all(view == bytes(len(view)) for view in received)  # it is that memory, and no copy of it

    converse(transport, story, answer=answer_with(*buffers))


@pytest.mark.parametrize("sent", [[11], [3 * MEBIBYTE], [10, 0], [0, 0]])
def test_a_reply_that_does_not_fit_breaks_the_channel(transport: Transport, sent: list[int]) -> None:
    async def story(talk: Conversation) -> None:
        memory = bytearray(30)
        with pytest.raises(ChannelBroken):
            await talk.ask("Get", into=[memoryview(memory)[10:20]])
        await until(lambda: talk.closed)
        assert memory == bytes(30) and talk.closed == ["channel"]

    converse(transport, story, answer=answer_with(*[patterned(size) for size in sent]))


@pytest.mark.parametrize(
    "answer",
    [lambda incoming: incoming.fail(RemoteFailure("internal", "no")), lambda incoming: incoming.reply(b"nothing")],
    ids=["refused", "without buffers"],
)
def test_a_reply_without_buffers_leaves_given_memory_alone(
    transport: Transport, answer: Callable[[Incoming], None]
) -> None:
    async def story(talk: Conversation) -> None:
        memory = bytearray(100)
        (outcome,) = await asyncio.gather(talk.ask("Get", into=[memoryview(memory)]), return_exceptions=True)
        assert outcome == (b"nothing", ()) or isinstance(outcome, RemoteFailure)
        assert memory == bytes(100)

    converse(transport, story, answer=answer)


def test_two_replies_are_received_into_two_memories_at_once(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        memory = bytearray(16 * MEBIBYTE)
        halves = [memoryview(memory)[: 8 * MEBIBYTE], memoryview(memory)[8 * MEBIBYTE :]]
        futures = [talk.ask("Get", into=[half]) for half in halves]
        for seed, incoming in enumerate(await talk.wait_heard(2), 1):
            incoming.reply(b"%d" % seed, [patterned(8 * MEBIBYTE - seed, seed)])
        for seed, (payload, (view,)) in enumerate(await asyncio.gather(*futures), 1):
            assert payload == b"%d" % seed and view == patterned(8 * MEBIBYTE - seed, seed)
        assert memory[8 * MEBIBYTE - 1] == memory[16 * MEBIBYTE - 2] == 0

    converse(transport, story, answer=lambda incoming: None)


def test_nothing_is_written_into_memory_after_its_call_has_ended(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        memory, elsewhere = bytearray(40 * MEBIBYTE), bytearray(40 * MEBIBYTE)
        other, error = await talk.connect(), None
        while error is None:  # until one is closed in the middle: all of the reply may have come before
            channel = await talk.connect()
            large = ask(channel, "Large", into=[memoryview(memory)])
            elsewhere_filled = ask(other, "Large", into=[memoryview(elsewhere)])
            await ask(channel, "Small")
            channel.close()
            await asyncio.wait([large])
            error = large.exception()
        assert isinstance(error, ChannelBroken)
        memory[:] = bytes(len(memory))
        await elsewhere_filled  # meanwhile what is left of the other reply comes
        assert memory == bytes(len(memory))
        other.close()

    def answer(incoming: Incoming) -> None:
        incoming.reply(b"", [patterned(40 * MEBIBYTE)] if incoming.method == "Large" else ())

    converse(transport, story, answer=answer)


def test_a_channel_keeps_nothing_of_given_memory(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        memory = bytearray(2 * MEBIBYTE)
        received: list[int] = []
        talk.channel.call(
            "Get", b"", (), lambda error, payload, buffers: received.append(len(buffers)), [memoryview(memory)]
        )
        await until(lambda: received)
        await talk.ask("Ping")
        memory.clear()  # which is refused while there is a view of it
        assert received == [1]

    converse(transport, story, answer=answer_with(patterned(2 * MEBIBYTE)))


@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name.startswith("stream")], indirect=True)
def test_no_memory_is_taken_for_what_is_received_into_given_memory(transport: Transport) -> None:
    size = 32 * MEBIBYTE
    sent = patterned(size)

    async def story(talk: Conversation) -> None:
        memory = bytearray(size)
        peaks = []
        for into in ([], [memoryview(memory)]):
            tracemalloc.start()
            await talk.ask("Get", into=into)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[0] > size > 2 * peaks[1]
        assert memory == sent

    converse(transport, story, answer=answer_with(sent))


# Opening


def test_another_incarnation_is_told_apart(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        with pytest.raises(WrongIncarnation, match=OTHER.hex()):
            await transport.network_a.connect(talk.listener.endpoint, OTHER, CLIENT, lambda: None)

    converse(transport, story)


def test_what_keeps_the_error_of_a_connection_keeps_nothing_for_ever(transport: Transport) -> None:
    async def refuse(talk: Conversation) -> weakref.ref[Exception]:
        try:
            await transport.network_a.connect(talk.listener.endpoint, OTHER, CLIENT, lambda: None)
        except WrongIncarnation as error:
            return weakref.ref(error.__cause__ or error)
        raise AssertionError("not refused")

    async def story(talk: Conversation) -> None:
        with without_garbage_collection():
            gone = await refuse(talk)
            await until(lambda: gone() is None)

    converse(transport, story)


def test_nobody_listens(transport: Transport) -> None:
    async def story() -> None:
        async with listening(transport.network_b, transport.endpoint, echo) as listener:
            pass
        with pytest.raises(ConnectRefused) as caught:
            await transport.network_a.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
        assert not isinstance(caught.value, WrongIncarnation)
        assert listener.endpoint in str(caught.value)

    transport.run(story())


def test_a_stranger_is_not_let_in(transport: Transport) -> None:
    stranger = transport.stranger
    if stranger is None:
        pytest.skip("this transport has no tokens")

    async def story(talk: Conversation) -> None:
        for target in (SERVER, OTHER, b""):
            with pytest.raises(AuthenticationFailed, match="token"):
                await stranger.connect(talk.listener.endpoint, target, CLIENT, lambda: None)
        await talk.ask("Ping")
        assert len(talk.heard) == 1

    converse(transport, story)


def test_a_server_with_another_token_is_not_trusted(transport: Transport) -> None:
    stranger = transport.stranger
    if stranger is None:
        pytest.skip("this transport has no tokens")

    async def story() -> None:
        async with listening(stranger, transport.endpoint, echo) as listener:
            with pytest.raises(ConnectFailed):
                await transport.network_a.connect(listener.endpoint, SERVER, CLIENT, lambda: None)

    transport.run(story())


# Ending


def test_our_close_breaks_open_calls(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        futures = [talk.ask("Hold") for _ in range(10)]
        await talk.wait_heard(10)
        talk.channel.close()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ChannelBroken] * 10
        for incoming in talk.heard:
            incoming.reply(b"too late")
        assert talk.channel.closed and talk.closed == []

    converse(transport, story, answer=lambda incoming: None)


def test_what_was_sent_before_our_close_arrives(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        for i in range(100):
            talk.channel.notify("Tell", b"%d" % i)
        talk.channel.close()
        talk.channel.notify("Tell", b"ignored")
        other = await talk.connect()
        await talk.wait_heard(100)
        await ask(other, "Ping")
        assert [incoming.payload for incoming in talk.heard] == [b"%d" % i for i in range(100)] + [b""]
        other.close()

    converse(transport, story)


def test_what_was_sent_before_our_close_arrives_although_replies_still_come(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        for i in range(50):
            talk.channel.call("Tell", b"%06d" % (2 * i), (), lambda *_: None)
            talk.channel.notify("Tell", b"%06d" % (2 * i + 1) + bytes(100_000))
        await talk.wait_heard(1)
        talk.channel.close()
        await talk.wait_heard(100)
        assert [int(incoming.payload[:6]) for incoming in talk.heard] == list(range(100))

    converse(transport, story, answer=lambda incoming: incoming.reply(bytes(1_000_000)))


def test_the_end_of_the_listener_breaks_every_call_once(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        other = await talk.connect()
        futures = [talk.ask("Hold") for _ in range(10)] + [ask(other, "Hold")]
        await talk.wait_heard(11)
        await talk.listener.close()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ChannelBroken] * 11
        await until(lambda: len(talk.closed) == 2)
        assert sorted(talk.closed) == ["another", "channel"]
        assert talk.channel.closed and other.closed
        for incoming in talk.heard:
            incoming.reply(b"too late")

    converse(transport, story, answer=lambda incoming: None)


def test_a_reply_sent_before_the_listener_closes_arrives(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        last, never = talk.ask("Last"), talk.ask("Never")
        heard = await talk.wait_heard(2)
        heard[0].reply(b"goodbye")
        await talk.listener.close()
        assert await last == (b"goodbye", ())
        with pytest.raises(ChannelBroken):
            await never

    converse(transport, story, answer=lambda incoming: None)


def test_on_close_is_called_once(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        await talk.listener.close()
        await until(lambda: talk.closed)
        talk.channel.close()
        talk.channel.close()
        await talk.listener.close()
        with pytest.raises(ChannelBroken):
            await talk.ask("Ping")
        assert talk.closed == ["channel"]

    converse(transport, story)


def test_a_transfer_that_is_cut_short_breaks_its_call(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        large = talk.ask("Large", b"", [bytes(40 * MEBIBYTE)])
        await talk.ask("Small")
        await talk.listener.close()
        broken = isinstance((await asyncio.gather(large, return_exceptions=True))[0], ChannelBroken)
        whole = [sum(len(buffer) for buffer in incoming.buffers) for incoming in talk.heard[1:]]
        if isinstance(transport.network_b, Lane):  # its thread receives on while this one closes it
            assert whole in ([], [40 * MEBIBYTE]) and (broken or whole)
        else:
            assert broken and not whole

    converse(transport, story)


def test_an_endpoint_can_be_used_again(transport: Transport) -> None:
    async def story() -> None:
        for identity in (SERVER, OTHER):
            async with listening(transport.network_b, transport.endpoint, echo, identity) as listener:
                channel = await transport.network_a.connect(listener.endpoint, identity, CLIENT, lambda: None)
                assert await ask(channel, "Ping", b"x") == (b"x", ())
                channel.close()

    transport.run(story())


def test_other_channels_do_not_notice_a_close(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        other = await talk.connect()
        future = ask(other, "Ping", b"x")
        talk.channel.close()
        assert await future == (b"x", ())
        assert await ask(other, "Ping", b"y") == (b"y", ())
        other.close()

    converse(transport, story)


# Counters


def test_counters_count_where_it_happens(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        await asyncio.gather(*[talk.ask("Ping", bytes(100)) for _ in range(10)])
        talk.channel.notify("Tell", b"")
        await talk.wait_heard(11)
        asking, answering = transport.network_a.counters, transport.network_b.counters
        assert (asking.requests, asking.replies, answering.requests, answering.replies) == (11, 0, 0, 10)
        assert 0 < asking.frames <= 11 and 0 < answering.frames <= 10
        assert asking.bytes >= 1000 and answering.bytes >= 1000

    converse(transport, story)
