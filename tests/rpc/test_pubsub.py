"""Versioned tables read by long polls: snapshots, deltas, removals, and what repairs itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.bounds import BOUNDS, Bounds
from minray.platform.base import RemoteFailure
from minray.protocol.base import decode, encode
from minray.protocol.gcs import Poll, PollReply
from minray.rpc import pubsub
from minray.rpc.connection import Peer
from minray.rpc.pubsub import NEWS_IN_A_PERIOD, Publisher, Subscription
from tests.rpc.fake_network import FakeIncoming, FakeNetwork, pass_time, run, turns

CHANNEL = "things"
ENDPOINT = "fake:gcs"
A, B, C = b"a", b"b", b"c"
Entries = list[tuple[bytes, bytes | None]]


async def poll(publisher: Publisher, epoch: bytes = b"", version: int = 0, timeout_s: float = 0.0) -> PollReply:
    return await publisher.poll(Poll(CHANNEL, epoch, version, timeout_s))


def publisher_with(bounds: Bounds = BOUNDS, **values: bytes) -> Publisher:
    publisher = Publisher(b"epoch-1", bounds)
    for key, value in values.items():
        publisher.publish(CHANNEL, key.encode(), value)
    return publisher


# --- the publisher


def test_a_new_subscriber_gets_everything() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1", b=b"2")
        publisher.publish("another", C, b"3")
        assert await poll(publisher) == PollReply(b"epoch-1", 2, True, [(A, b"1"), (B, b"2")], 2)

    run(story)


def test_an_old_subscriber_gets_what_has_changed_and_what_was_removed() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1", b=b"2", c=b"3")
        publisher.publish(CHANNEL, A, b"4")
        publisher.publish(CHANNEL, B, None)
        reply = await poll(publisher, b"epoch-1", 3)
        assert reply == PollReply(b"epoch-1", 5, False, [(A, b"4"), (B, None)])

    run(story)


def test_several_changes_of_a_key_are_told_as_one() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1")
        for value in (b"2", None, b"3"):
            publisher.publish(CHANNEL, A, value)
        assert (await poll(publisher, b"epoch-1", 1)).entries == [(A, b"3")]

    run(story)


def test_who_is_up_to_date_waits_for_news() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1")
        waiting = [asyncio.ensure_future(poll(publisher, b"epoch-1", 1, 30)) for _ in range(2)]
        await turns()
        assert not any(each.done() for each in waiting)
        publisher.publish(CHANNEL, B, b"2")
        await turns()
        assert [each.result().entries for each in waiting] == [[(B, b"2")]] * 2

    run(story)


def test_a_poll_without_news_ends_in_time_and_leaves_nothing() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1")
        assert await poll(publisher, b"epoch-1", 1, 30) == PollReply(b"epoch-1", 1, False, [])
        assert asyncio.get_running_loop().time() == pytest.approx(30)
        assert publisher._topics[CHANNEL].waiters == []

    run(story)


def test_news_in_the_very_moment_of_the_time_out_are_told() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1")
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(poll(publisher, b"epoch-1", 1, 30))
        await turns()
        loop.call_at(loop.time() + 30, publisher.publish, CHANNEL, B, b"2")
        assert (await waiting).entries == [(B, b"2")]

    run(story)


def test_another_epoch_means_everything_anew() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1")
        assert (await poll(publisher, b"epoch-0", 77)).full

    run(story)


def test_who_is_too_old_to_be_told_of_removals_gets_everything() -> None:
    async def story() -> None:
        publisher = publisher_with(Bounds(publisher_max_removals=2), a=b"1", b=b"2", c=b"3", d=b"4")
        for key in (A, B):
            publisher.publish(CHANNEL, key, None)
        assert (await poll(publisher, b"epoch-1", 4)).entries == [(A, None), (B, None)]
        publisher.publish(CHANNEL, C, None)
        reply = await poll(publisher, b"epoch-1", 4)
        assert reply.full and reply.entries == [(b"d", b"4")]
        assert (await poll(publisher, b"epoch-1", 5)).entries == [(B, None), (C, None)]
        assert len(publisher._topics[CHANNEL].changed_at) == 3

    run(story)


def test_more_than_fits_into_a_reply_is_told_in_several() -> None:
    async def story() -> None:
        publisher = publisher_with(Bounds(publisher_max_reply_bytes=20), a=bytes(9), b=bytes(9), c=bytes(30), d=b"4")
        assert await poll(publisher) == PollReply(b"epoch-1", 2, True, [(A, bytes(9)), (B, bytes(9))], 4)
        publisher.publish(CHANNEL, A, None)
        second = await publisher.poll(Poll(CHANNEL, b"epoch-1", 2, 0.0, 4))
        assert second == PollReply(b"epoch-1", 3, False, [(C, bytes(30))], 4) and not second.is_complete()
        third = await publisher.poll(Poll(CHANNEL, b"epoch-1", 3, 0.0, 4))
        assert third == PollReply(b"epoch-1", 5, False, [(b"d", b"4"), (A, None)], 4) and third.is_complete()

    run(story)


def test_a_snapshot_that_missed_a_removal_begins_anew() -> None:
    async def story() -> None:
        publisher = publisher_with(Bounds(publisher_max_reply_bytes=1, publisher_max_removals=1), a=b"1", b=b"2", c=b"3")
        publisher.publish(CHANNEL, A, None)
        publisher.publish(CHANNEL, B, None)  # the removal of a is forgotten
        first = await poll(publisher, b"epoch-1", 3)
        assert first == PollReply(b"epoch-1", 5, True, [(C, b"3")], 5)
        publisher.publish(CHANNEL, b"d", b"4")
        publisher.publish(CHANNEL, C, None)
        assert (await publisher.poll(Poll(CHANNEL, b"epoch-1", 3, 0.0, 5))).entries == [(b"d", b"4")]
        publisher.publish(CHANNEL, b"d", None)
        anew = await publisher.poll(Poll(CHANNEL, b"epoch-1", 3, 0.0, 5))
        assert anew == PollReply(b"epoch-1", 8, True, [], 8)

    run(story)


def test_a_channel_with_nothing_on_it_is_forgotten_when_nobody_waits() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1")
        waiting = asyncio.ensure_future(poll(publisher, b"epoch-1", 1, 30))
        await turns()
        publisher.publish(CHANNEL, A, None)
        assert publisher._topics == {} and (await waiting).entries == [(A, None)]
        assert await poll(publisher, b"epoch-1", 2, 30) == PollReply(b"epoch-1", 2, False, [])
        assert publisher._topics == {}

    run(story)


def test_a_channel_that_begins_anew_is_ahead_of_what_anybody_knows_of_it() -> None:
    async def story() -> None:
        publisher = publisher_with(a=b"1", b=b"2")
        for key in (A, B):
            publisher.publish(CHANNEL, key, None)
        assert await poll(publisher, b"epoch-1", 2) == PollReply(b"epoch-1", 4, True, [], 4)
        publisher.publish(CHANNEL, C, b"3")
        assert await poll(publisher, b"epoch-1", 2) == PollReply(b"epoch-1", 5, True, [(C, b"3")], 5)
        assert await poll(publisher, b"epoch-1", 4) == PollReply(b"epoch-1", 5, False, [(C, b"3")])

    run(story)


# --- a subscription


class Scene:
    """A gcs with one subscriber, which writes down what it is told."""

    bounds = BOUNDS

    def __init__(self, period_s: float = 0.0) -> None:
        self.network = FakeNetwork()
        self.polls: list[Poll] = []
        self.told: Entries = []
        self.view: dict[bytes, bytes] = {}
        self.answering: set[asyncio.Task[None]] = set()
        self.fail_next = False
        self.start_gcs(b"epoch-1")
        peer = Peer(self.network.platform, ENDPOINT, b"", 60, may_restart=True)
        self.told_after_each_reply: list[int] = []
        """Length of ``told`` after each reply that brought changes."""
        self.subscription = Subscription(peer, CHANNEL, self.on_change, period_s, self.on_changed)

    def start_gcs(self, epoch: bytes) -> None:
        self.publisher = Publisher(epoch, self.bounds)
        self.network.listen_at(ENDPOINT, epoch, self.on_incoming)

    def on_incoming(self, incoming: FakeIncoming) -> None:
        request = decode(Poll, incoming.payload)
        self.polls.append(request)
        if self.fail_next:
            self.fail_next = False
            incoming.fail(RemoteFailure("internal", "oops"))
            return
        task = asyncio.ensure_future(self.answer(incoming, request))
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)

    async def answer(self, incoming: FakeIncoming, request: Poll) -> None:
        incoming.reply(encode(await self.publisher.poll(request)))

    def on_change(self, key: bytes, value: bytes | None) -> None:
        self.told.append((key, value))
        if value is None:
            del self.view[key]
        else:
            self.view[key] = value

    def on_changed(self) -> None:
        self.told_after_each_reply.append(len(self.told))

    def publish(self, key: bytes, value: bytes | None) -> None:
        self.publisher.publish(CHANNEL, key, value)

    def restart_gcs(self, epoch: bytes) -> None:
        self.start_gcs(epoch)
        self.network.break_channels()


def tell(story: Any, period_s: float = 0.0) -> None:
    async def whole() -> None:
        scene = Scene(period_s)
        await story(scene)
        scene.subscription.close()
        for task in list(scene.answering):
            task.cancel()
        await turns()

    run(whole)


def test_a_subscriber_is_told_of_everything_once() -> None:
    async def story(scene: Scene) -> None:
        scene.publish(A, b"1")
        scene.subscription.start()
        await scene.subscription.synchronised.wait()
        assert scene.told == [(A, b"1")]
        scene.publish(B, b"2")
        scene.publish(A, None)
        await turns()
        assert scene.told == [(A, b"1"), (B, b"2"), (A, None)]

    tell(story)


def test_news_that_cannot_be_taken_in_keep_no_others_back(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        def on_change(key: bytes, value: bytes | None) -> None:
            if key == A:
                raise KeyError("oops")
            scene.on_change(key, value)

        scene.subscription._on_change = on_change
        scene.publish(A, b"1")
        scene.publish(B, b"2")
        scene.subscription.start()
        await scene.subscription.synchronised.wait()
        scene.publish(C, b"3")
        await turns()
        assert scene.told == [(B, b"2"), (C, b"3")]

    tell(story)
    assert "oops" in caplog.text and CHANNEL in caplog.text


def test_an_empty_table_is_a_snapshot_too() -> None:
    async def story(scene: Scene) -> None:
        scene.subscription.start()
        await scene.subscription.synchronised.wait()
        assert scene.told == []

    tell(story)


def test_what_is_published_again_unchanged_is_no_news() -> None:
    async def story(scene: Scene) -> None:
        scene.subscription.start()
        await turns()
        for _ in range(3):
            scene.publish(A, b"1")
            await turns()
        assert scene.told == [(A, b"1")]

    tell(story)


def test_what_was_removed_and_published_again_is_news() -> None:
    async def story(scene: Scene) -> None:
        scene.subscription.start()
        await turns()
        for value in (b"1", None, b"1"):
            scene.publish(A, value)
            await turns()
        assert scene.told == [(A, b"1"), (A, None), (A, b"1")]

    tell(story)


def test_a_broken_channel_is_repaired_by_the_next_poll() -> None:
    async def story(scene: Scene) -> None:
        scene.publish(A, b"1")
        scene.subscription.start()
        await turns()
        scene.network.break_channels()
        scene.publish(B, b"2")
        await pass_time(1)
        assert scene.told == [(A, b"1"), (B, b"2")]

    tell(story)


def test_after_a_restart_of_the_gcs_only_the_differences_are_told() -> None:
    async def story(scene: Scene) -> None:
        for key in (A, B, C):
            scene.publish(key, b"1")
        scene.subscription.start()
        await turns()
        scene.told.clear()
        scene.restart_gcs(b"epoch-2")
        scene.publish(A, b"1")
        scene.publish(B, b"2")
        await pass_time(1)
        assert sorted(scene.told) == [(B, b"2"), (C, None)] and scene.view == {A: b"1", B: b"2"}

    tell(story)


def test_a_failing_gcs_is_asked_again_after_a_pause() -> None:
    async def story(scene: Scene) -> None:
        scene.fail_next = True
        scene.publish(A, b"1")
        scene.subscription.start()
        await turns()
        assert len(scene.polls) == 1
        await pass_time(2)
        assert scene.told == [(A, b"1")]

    tell(story)


def test_when_the_gcs_is_gone_for_good_nobody_asks_any_more() -> None:
    async def story(scene: Scene) -> None:
        scene.publish(A, b"1")
        scene.subscription.start()
        await turns()
        scene.subscription._peer.give_up("it is gone")
        scene.network.break_channels()
        await turns()
        following = scene.subscription._task
        assert following is not None and following.done() and following.exception() is None and len(scene.polls) == 2

    tell(story)


def test_a_closed_subscription_is_told_nothing() -> None:
    async def story(scene: Scene) -> None:
        scene.subscription.start()
        await turns()
        scene.subscription.close()
        scene.publish(A, b"1")
        await turns()
        assert scene.told == []

    tell(story)


def test_an_idle_subscription_costs_two_polls_a_minute() -> None:
    async def story(scene: Scene) -> None:
        scene.subscription.start()
        await pass_time(600)
        assert len(scene.polls) <= 22

    tell(story)


def test_what_changes_within_a_period_is_told_at_once_and_together() -> None:
    async def story(scene: Scene) -> None:
        scene.subscription.start()
        await pass_time(1)
        before = len(scene.polls)
        scene.publish(A, b"0")
        await turns()
        assert scene.told == [(A, b"0")]
        for number in b"1234":
            scene.publish(A, bytes([number]))
            scene.publish(B, bytes([number]))
            await pass_time(0.02)
        assert scene.told == [(A, b"0")]
        await pass_time(0.1)
        assert scene.told[1:] == [(A, b"4"), (B, b"4")]
        assert len(scene.polls) - before == 1

    tell(story, 0.1)


def test_a_subscriber_pauses_for_longer_after_much_news() -> None:
    """All of many nodes report all the time: what one of them is told in a second does not grow with their number."""

    async def story(scene: Scene) -> None:
        keys = [bytes([number]) * 4 for number in range(3 * NEWS_IN_A_PERIOD)]
        scene.subscription.start()
        for number in range(60):
            for key in keys:
                scene.publish(key, bytes([number]))
            await pass_time(0.1)
        assert len(scene.told) <= 60 * NEWS_IN_A_PERIOD + 2 * len(keys)
        await pass_time(0.5)
        assert scene.view == dict.fromkeys(keys, bytes([59]))
        before = len(scene.polls)
        for number in range(60):
            scene.publish(A, bytes([number]))
            await pass_time(0.1)
        assert len(scene.polls) - before >= 29, "few news come as soon as they did"

    tell(story, 0.1)


def test_a_subscriber_hears_after_which_change_a_reply_ends() -> None:
    async def story(scene: Scene) -> None:
        scene.publish(A, b"1")
        scene.publish(B, b"2")
        scene.subscription.start()
        await scene.subscription.synchronised.wait()
        scene.publish(A, b"3")
        await turns()
        await pass_time(31)  # A poll without news follows.
        assert scene.told_after_each_reply == [2, 3]

    tell(story)


def test_a_table_larger_than_a_record_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake network carries no more than 10,000 bytes."""
    monkeypatch.setattr(Scene, "bounds", Bounds(publisher_max_reply_bytes=9_000))

    async def story(scene: Scene) -> None:
        for key in (A, B, C):
            scene.publish(key, bytes(6_000))
        scene.subscription.start()
        await scene.subscription.synchronised.wait()
        assert scene.view == dict.fromkeys((A, B, C), bytes(6_000))
        scene.told.clear()
        scene.restart_gcs(b"epoch-2")
        for key in (B, C):
            scene.publish(key, bytes(6_000))
        await pass_time(1)
        assert scene.told == [(A, None)]
        peer = scene.subscription._peer
        assert await pubsub.read_table(peer, CHANNEL) == [bytes(6_000)] * 2
        assert await pubsub.read_table(peer, "another") == []

    tell(story)


KEYS = st.sampled_from([A, B, C])
STEPS = st.one_of(
    st.tuples(st.just("publish"), KEYS, st.none() | st.sampled_from([b"1", b"2"])),
    st.tuples(st.sampled_from(["break", "restart", "another", "turns", "second"]), st.none(), st.none()),
)


@pytest.mark.parametrize(("max_reply_bytes", "max_removals"), [(1000, 1000), (1, 1000), (1, 1)])
@given(steps=st.lists(STEPS, max_size=25))
def test_whatever_happens_the_subscriber_ends_with_the_publishers_table(
    max_reply_bytes: int, max_removals: int, steps: list[tuple[str, Any, Any]]
) -> None:
    """The subscriber is never told the same twice in a row, nor the removal of an unknown key."""

    async def story(scene: Scene) -> None:
        scene.subscription.start()
        for number, (what, key, value) in enumerate(steps):
            if what == "publish":
                scene.publish(key, value)
            elif what == "another":
                scene.publisher.publish("another", A, None)
            elif what == "break":
                scene.network.break_channels()
            elif what == "restart":
                scene.restart_gcs(b"epoch-%d" % (number + 2))
            elif what == "second":
                await pass_time(1)
            else:
                await turns(3)
        await pass_time(40)
        topic = scene.publisher._topics.get(CHANNEL)
        assert scene.view == (topic.values if topic is not None else {})
        for key in (A, B, C):
            of_key: list[Any] = [None, *(value for each, value in scene.told if each == key)]
            assert all(before != after for before, after in zip(of_key, of_key[1:], strict=False))

    with pytest.MonkeyPatch.context() as limits:
        bounds = Bounds(publisher_max_reply_bytes=max_reply_bytes, publisher_max_removals=max_removals)
        limits.setattr(Scene, "bounds", bounds)
        tell(story)
