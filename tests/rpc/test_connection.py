"""Calls that survive a broken channel, and peers that are dead, mute or restarting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

from minray.platform.base import AuthenticationFailed, PlatformError, RecordTooLarge, RemoteFailure
from minray.protocol.base import Address, Record, Request, decode, encode
from minray.rpc.connection import RECONNECT_FIRST_DELAY_S, Peer, Peers, PeerUnreachable, answer_of
from tests.rpc.fake_network import MAX_BYTES, FakeIncoming, FakeNetwork, pass_time, run, turns

THERE, OTHER = b"there-incarnate-", b"other-incarnate-"
ENDPOINT = "fake:there"
TIMEOUT_S = 5.0


class Answer(Record, frozen=True):
    number: int
    text: bytes = b""


class Ask(Request[Answer], frozen=True):
    number: int
    text: bytes = b""


class Scene:
    """A peer, and somebody who answers each ``Ask`` with its number."""

    def __init__(self, *, listening: bool = True, may_restart: bool = False, target: bytes = THERE) -> None:
        self.network = FakeNetwork()
        self.received: list[int] = []
        self.answers: list[tuple[int | None, PlatformError | None]] = []
        """In the order in which they came, numbers of the replies or errors."""
        if listening:
            self.listen()
        self.peer = Peer(self.network.platform, ENDPOINT, target, TIMEOUT_S, may_restart)

    def listen(self, identity: bytes = THERE) -> None:
        self.network.listen_at(ENDPOINT, identity, self.on_incoming)

    def on_incoming(self, incoming: FakeIncoming) -> None:
        ask = decode(Ask, incoming.payload)
        self.received.append(ask.number)
        incoming.reply(encode(Answer(ask.number)), incoming.buffers)

    def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.peer.send(Ask(number), lambda reply, error, _: self.answers.append((reply and reply.number, error)))

    def replies(self) -> list[int | None]:
        assert all(error is None for _, error in self.answers)
        return [number for number, _ in self.answers]

    def errors(self) -> list[PlatformError]:
        assert all(number is None for number, _ in self.answers)
        return [error for _, error in self.answers if error is not None]


def test_a_call_is_answered() -> None:
    async def story() -> None:
        scene = Scene()
        assert await scene.peer.call(Ask(7)) == Answer(7)
        answer, buffers = await scene.peer.call_with_buffers(Ask(8))
        assert answer == Answer(8) and buffers == ()

    run(story)


def test_buffers_travel_with_the_call() -> None:
    async def story() -> None:
        scene = Scene()
        heard: list[Any] = []
        scene.peer.send(Ask(1), lambda reply, error, buffers: heard.extend(buffers), [b"buffer"])
        await turns()
        assert heard == [b"buffer"]

    run(story)


def test_memory_that_a_call_has_given_serves_its_next_try_too() -> None:
    async def story() -> None:
        scene = Scene()
        memory = bytearray(10)
        heard: list[Any] = []
        scene.network.held = True
        scene.peer.send(Ask(1), lambda reply, error, buffers: heard.extend(buffers), [b"buffer"], [memoryview(memory)])
        await turns()
        scene.network.held = False
        scene.network.break_channels(still_arrive=1)
        await pass_time(1.0)
        assert scene.received == [1, 1] and heard == [b"buffer"] and memory == b"buffer" + bytes(4)

    run(story)


def test_one_channel_serves_all_calls_and_opens_when_it_is_needed() -> None:
    async def story() -> None:
        scene = Scene()
        assert scene.network.channels == []
        scene.ask(1, 2, 3)
        await turns()
        scene.ask(4)
        await turns()
        assert len(scene.network.attempts) == 1 and scene.replies() == [1, 2, 3, 4]

    run(story)


def test_a_refusal_is_the_callers_and_is_not_tried_again() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.listen_at(ENDPOINT, THERE, lambda incoming: incoming.fail(RemoteFailure("internal", "no")))
        with pytest.raises(RemoteFailure, match="internal: no"):
            await scene.peer.call(Ask(1))

    run(story)


def test_a_reply_that_does_not_decode_is_an_error() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.listen_at(ENDPOINT, THERE, lambda incoming: incoming.reply(b"\xc1garbage"))
        with pytest.raises(RemoteFailure, match="bad-reply: Ask"):
            await scene.peer.call(Ask(1))

    run(story)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_record_that_is_too_large_fails_its_call_alone(is_open: bool) -> None:
    async def story() -> None:
        scene = Scene()
        if is_open:
            await scene.peer.call(Ask(0))
        scene.ask(1)
        large = asyncio.ensure_future(scene.peer.call(Ask(2, b"x" * MAX_BYTES)))
        await turns(1)
        scene.ask(3)
        with pytest.raises(RecordTooLarge):
            await large
        await turns()
        assert scene.replies() == [1, 3]

    run(story)


def test_nobody_minds_a_reply_that_comes_after_its_caller_has_gone() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.held = True
        asking = asyncio.ensure_future(scene.peer.call(Ask(1)))
        await turns()
        asking.cancel()
        scene.network.held = False
        scene.network.break_channels()
        await turns()
        await pass_time(1)
        assert asking.cancelled() and scene.received == [1]

    run(story)


# --- broken channels


@pytest.mark.parametrize("close_is_told_first", [True, False])
@pytest.mark.parametrize("still_arrive", [0, 1, 3])
def test_g112_calls_of_a_broken_channel_are_sent_again_in_their_order(still_arrive: int, close_is_told_first: bool) -> None:
    """Those that were asked between the break and its news come after them; some may have run already."""

    async def story() -> None:
        scene = Scene()
        await scene.peer.call(Ask(0))
        scene.network.held = True
        scene.ask(1, 2, 3)
        await turns()
        scene.network.held = False
        scene.network.break_channels(still_arrive, close_is_told_first)
        scene.ask(4, 5)
        await pass_time(1)
        assert scene.received == [0, *range(1, still_arrive + 1), 1, 2, 3, 4, 5]
        assert scene.replies() == [1, 2, 3, 4, 5]
        assert len(scene.network.attempts) == 2

    run(story)


@pytest.mark.parametrize("close_is_told_first", [True, False])
def test_g112_calls_that_have_waited_for_their_channel_are_sent_again_in_their_order(close_is_told_first: bool) -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.held = True
        scene.ask(1, 2)
        await turns()
        scene.network.held = False
        scene.network.break_channels(0, close_is_told_first)
        scene.ask(3)
        await pass_time(1)
        assert scene.received == [1, 2, 3] and scene.replies() == [1, 2, 3]

    run(story)


def test_a_channel_that_breaks_again_and_again_is_opened_again_and_again() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.held = True
        scene.ask(1, 2)
        for _ in range(10):
            await pass_time(0.1)
            scene.network.break_channels()
        scene.network.held = False
        await pass_time(0.1)
        scene.network.break_channels()
        await pass_time(1)
        assert scene.replies() == [1, 2]

    run(story)


def test_a_channel_that_is_broken_before_it_is_open_does_not_count() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.stillborn = 3
        scene.ask(1, 2)
        await pass_time(1)
        assert scene.replies() == [1, 2] and len(scene.network.attempts) == 4

    run(story)


def test_channels_that_never_live_are_given_up() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.stillborn = 1000
        with pytest.raises(PeerUnreachable, match="broke at once"):
            await scene.peer.call(Ask(1))

    run(story)


# --- dead peers


def assert_dead_at_once(scene: Scene, reason: str) -> None:
    async def story() -> None:
        scene.ask(1, 2)
        await turns()
        scene.ask(3)
        await turns()
        await pass_time(2 * TIMEOUT_S)
        assert len(scene.network.attempts) == 1 and scene.peer._waiting == []
        for error in scene.errors():
            assert isinstance(error, PeerUnreachable) and error.is_certain and reason in str(error)
        assert str(scene.peer.death) == str(scene.errors()[0])
        one_each = {*map(id, scene.errors()), id(scene.peer.death)}
        assert len(scene.answers) == 3 and len(one_each) == 4  # each raise adds frames to its error, and they must go

    run(story)


def test_a_peer_where_nobody_listens_is_dead_for_ever() -> None:
    assert_dead_at_once(Scene(listening=False), "nobody listens there")


def test_a_peer_where_somebody_else_listens_is_dead_for_ever() -> None:
    scene = Scene(listening=False)
    scene.listen(OTHER)
    assert_dead_at_once(scene, "somebody else listens there")


def test_a_peer_that_does_not_share_our_token_is_dead_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()

    async def connect(*_: Any) -> Any:
        scene.network.attempts.append(0)
        raise AuthenticationFailed("it does not know the token")

    monkeypatch.setattr(scene.network, "connect", connect)
    assert_dead_at_once(scene, "it does not know the token")


def test_a_peer_that_merely_does_not_answer_is_tried_for_a_while() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.unreachable = True
        began = asyncio.get_running_loop().time()
        with pytest.raises(PeerUnreachable, match="no answer") as caught:
            await scene.peer.call(Ask(1))
        assert not caught.value.is_certain
        assert TIMEOUT_S / 2 < asyncio.get_running_loop().time() - began <= TIMEOUT_S
        pauses = [after - before for before, after in zip(scene.network.attempts, scene.network.attempts[1:], strict=False)]
        assert pauses == sorted(pauses) and 5 <= len(pauses) <= 20, "slower and slower"
        assert pauses[:3] == pytest.approx([factor * RECONNECT_FIRST_DELAY_S for factor in (1, 2, 4)], rel=0.01)

    run(story)


def test_who_has_stood_still_while_it_connected_tries_once_more() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.stands_still_s = 2 * TIMEOUT_S
        assert (await scene.peer.call(Ask(1))).number == 1 and len(scene.network.attempts) == 2
        scene.network.break_channels()
        scene.network.unreachable, scene.network.stands_still_s = True, 2 * TIMEOUT_S
        with pytest.raises(PeerUnreachable):
            await scene.peer.call(Ask(2))
        assert len(scene.network.attempts) == 4

    run(story)


def test_a_peer_that_answers_again_in_time_has_missed_nothing() -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.unreachable = True
        scene.ask(1, 2)
        await pass_time(TIMEOUT_S / 2)
        scene.network.unreachable = False
        await pass_time(TIMEOUT_S)
        assert scene.replies() == [1, 2]

    run(story)


def test_g110_a_gcs_that_restarts_is_waited_for() -> None:
    """Refused means "not yet", and the next process that listens there is the gcs."""

    async def story() -> None:
        scene = Scene(may_restart=True, target=b"")
        await scene.peer.call(Ask(1))
        scene.network.held = True
        scene.ask(2)
        await turns()
        scene.network.held = False
        del scene.network.listeners[ENDPOINT]
        scene.network.break_channels()
        scene.ask(3)
        await pass_time(TIMEOUT_S / 2)
        assert scene.answers == []
        scene.listen(OTHER)
        await pass_time(TIMEOUT_S)
        assert scene.replies() == [2, 3]

    run(story)


def test_g111_a_gcs_that_does_not_come_back_is_given_up() -> None:
    async def story() -> None:
        scene = Scene(listening=False, may_restart=True, target=b"")
        with pytest.raises(PeerUnreachable, match="incarnation any"):
            await scene.peer.call(Ask(1))

    run(story)


@pytest.mark.parametrize("connected", [True, False])
def test_a_reported_death_fails_everything_that_is_open_and_later(connected: bool) -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.held, scene.network.unreachable = True, not connected
        scene.ask(1, 2)
        await turns()
        scene.peer.give_up("it is reported dead")
        scene.ask(3)
        await turns()
        assert [str(error).partition("): ")[2] for error in scene.errors()] == ["it is reported dead"] * 3
        await pass_time(2 * TIMEOUT_S)
        assert scene.received == [] and len(scene.answers) == 3 and len(scene.network.attempts) == 1

    run(story)


def test_who_watches_a_peer_hears_of_its_death_unasked() -> None:
    async def story() -> None:
        scene = Scene()
        deaths: list[PeerUnreachable] = []
        scene.peer.on_death = deaths.append
        scene.peer.keep_open()
        await turns()
        scene.network.break_channels()
        await turns()
        assert deaths == [] and len(scene.network.attempts) == 2, "a break is not a death"
        del scene.network.listeners[ENDPOINT]
        scene.network.break_channels()
        await turns()
        assert deaths == [scene.peer.death]

    run(story)


def test_a_peer_dies_once() -> None:
    async def story() -> None:
        scene = Scene()
        deaths: list[PeerUnreachable] = []
        scene.peer.on_death = deaths.append
        for reason in ("it is reported dead", "it is reported dead again"):
            scene.peer.give_up(reason)
        assert deaths == [scene.peer.death] and str(scene.peer.death).endswith(": it is reported dead")

    run(story)


def test_closing_fails_nothing() -> None:
    async def story() -> None:
        connected, connecting = Scene(), Scene()
        connecting.network.unreachable = True
        for scene in (connected, connecting):
            scene.ask(1)
        await turns()
        for scene in (connected, connecting):
            scene.peer.close()
        await turns()
        assert connected.replies() == [1] and connecting.answers == []

    run(story)


@pytest.mark.parametrize("connected", [True, False])
def test_a_closed_peer_goes_although_it_was_asked_something(connected: bool) -> None:
    async def story() -> None:
        scene = Scene()
        scene.network.held = True
        scene.network.unreachable = not connected
        scene.ask(1)
        await turns()
        scene.peer.close()
        await turns()
        peer = weakref.ref(scene.peer)
        assert scene.answers == []
        del scene
        gc.collect()
        assert peer() is None

    run(story)


def test_a_closed_peer_opens_no_channel() -> None:
    """Neither for what it is asked then, nor because the last one has broken in the same turn."""

    async def story() -> None:
        scene = Scene()
        scene.peer.keep_open()
        await turns()
        scene.network.break_channels()
        scene.peer.close()
        await turns()
        scene.ask(1)
        await pass_time(2 * TIMEOUT_S)
        assert len(scene.network.attempts) == 1 and scene.answers == scene.peer._waiting == []

    run(story)


# --- all peers of a process


def address(worker_id: bytes, node_id: bytes = b"node") -> Address:
    return Address(worker_id, node_id, f"fake:{worker_id.decode()}", "tcp:10.0.0.1:80")


def endpoints(network: FakeNetwork) -> Peers:
    return Peers(network.platform, b"node", TIMEOUT_S)


async def asked_once() -> tuple[FakeNetwork, Peers]:
    """There is a channel to one peer, which has answered."""
    network = FakeNetwork()
    network.listen_at("fake:a", b"a", lambda incoming: incoming.reply(encode(Answer(1))))
    peers = endpoints(network)
    await peers.to(address(b"a")).call(Ask(1))
    return network, peers


def test_one_incarnation_is_one_peer() -> None:
    peers = endpoints(FakeNetwork())
    assert peers.to(address(b"a")) is peers.to(address(b"a")) is not peers.to(address(b"b"))
    gcs = peers.at("fake:gcs", reconnect_timeout_s=1, may_restart=True)
    assert gcs is peers.at("fake:gcs", reconnect_timeout_s=1, may_restart=True) and gcs.may_restart


def test_a_peer_at_an_endpoint_may_be_one_incarnation_alone() -> None:
    """So a driver whose raylet was started again does not take the new one for its own."""
    network = FakeNetwork()
    network.listen_at("fake:raylet", b"new", lambda incoming: incoming.reply(encode(Answer(1))))

    async def ask() -> None:
        await endpoints(network).at("fake:raylet", b"old", reconnect_timeout_s=1, may_restart=False).call(Ask(1))

    with pytest.raises(PeerUnreachable):
        run(ask)


def test_peers_of_other_nodes_are_reached_by_tcp() -> None:
    peers = endpoints(FakeNetwork())
    assert peers.to(address(b"a")).endpoint == "fake:a"
    assert peers.to(address(b"b", b"elsewhere")).endpoint == "tcp:10.0.0.1:80"
    assert peers.to(Address(b"c", b"elsewhere", "fake:c")).endpoint == "fake:c", "there is no TCP at all"


def test_dead_peers_are_forgotten() -> None:
    """Each worker has its peers; a driver that outlives ten thousand of them must not remember them all."""

    async def story() -> None:
        peers = endpoints(FakeNetwork())
        for number in range(10):
            with pytest.raises(PeerUnreachable):
                await peers.to(address(b"%d" % number)).call(Ask(1))
        assert peers._peers == {}

    run(story)


def test_peers_that_nobody_talks_to_any_more_are_forgotten() -> None:
    async def story() -> None:
        network, peers = await asked_once()
        network.break_channels()
        await pass_time(10)
        assert peers._peers == {}
        assert await peers.to(address(b"a")).call(Ask(1)) == Answer(1)

    run(story)


def test_a_reported_death_of_a_stranger_means_nothing() -> None:
    peers = endpoints(FakeNetwork())
    peers.on_death_of(b"stranger", "dead")
    assert peers._peers == {}


def test_dead_peers_are_closed_and_forgotten() -> None:
    async def story() -> None:
        network, peers = await asked_once()
        peers.on_death_of(b"a", "it is reported dead")
        assert network.channels[0].closed and peers._peers == {}

    run(story)


def test_with_the_process_all_its_channels_are_closed() -> None:
    async def story() -> None:
        network, peers = await asked_once()
        await peers.at("fake:a", reconnect_timeout_s=1, may_restart=True).call(Ask(1))
        peers.close()
        assert [channel.closed for channel in network.channels] == [True, True]

    run(story)


def test_an_error_is_not_kept_by_those_who_have_waited_for_it() -> None:
    """The error would keep them in its frames, with their variables, until the garbage collector comes."""

    class Known:
        pass

    async def ask(known: Known) -> None:
        await answer_of(lambda on_answer: on_answer(None, PeerUnreachable("gone"), ()))

    async def story() -> None:
        known = Known()
        seen = weakref.ref(known)
        with contextlib.suppress(PeerUnreachable):
            await ask(known)
        del known
        assert seen() is None

    gc.disable()
    try:
        run(story)
    finally:
        gc.enable()
