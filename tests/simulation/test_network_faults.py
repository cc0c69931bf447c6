"""Faults of the simulated wire in a conversation, and what both sides see of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from minray.platform.base import (
    Buffer,
    ChannelBroken,
    ConnectFailed,
    ConnectRefused,
    Incoming,
    PlatformError,
    ProcessGone,
)
from minray.simulation.channel import SimChannelEnd
from minray.simulation.faults import BREAKS, LONG_DELAYS_S, POSTHUMOUS_S, REPEATS_S, RESETS, FaultPlan, Key, Oracle
from minray.simulation.loop import SimLoop, SimProcess
from minray.simulation.network import MOST_BREAKS, SILENCE_S, SimNetwork, SimWire
from minray.simulation.trace import Trace


@dataclass
class Pair:
    """A client and a server on two nodes, a channel between them, and what happened on it."""

    loop: SimLoop
    oracle: Oracle
    wire: SimWire
    client: SimProcess
    server: SimProcess
    networks: list[SimNetwork]
    channel: SimChannelEnd = field(init=False)
    heard: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    """``x`` for a reply, ``x!`` for a broken call, with virtual time in whole seconds."""
    closed_at: list[float] = field(default_factory=list)
    hold: bool = False
    """Whether the server leaves calls unanswered."""

    def on_incoming(self, incoming: Incoming) -> None:
        self.heard.append(incoming.payload.decode())
        if not self.hold:
            incoming.reply(incoming.payload)

    async def open(self) -> None:
        await self.networks[1].listen("sim:server", b"server", self.on_incoming)
        self.channel = await self.connect()

    async def connect(self) -> SimChannelEnd:
        return await self.networks[0].connect("sim:server", b"server", b"client", lambda: self.closed_at.append(self.now()))

    def ask(self, word: str) -> None:
        def on_reply(error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
            assert error is None or isinstance(error, ChannelBroken)
            self.answers.append(f"{word}{'!' if error else ''} {self.now():.0f}")

        self.channel.call("Say", word.encode(), (), on_reply)

    def now(self) -> float:
        return self.loop.ticks / (1 << 20)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.open()
            self.oracle.active = True
            await story()

        self.loop.run_until_complete(main())
        assert self.loop.failures == []


def make_pair(overrides: dict[Key, int]) -> Pair:
    loop = SimLoop()
    oracle = Oracle(1, overrides=overrides)
    wire = SimWire(loop, oracle, Trace(loop))
    client, server = loop.add_process("client", "here", 0), loop.add_process("server", "there", 0)
    return Pair(loop, oracle, wire, client, server, [SimNetwork(wire, client), SimNetwork(wire, server)])


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = make_pair(getattr(request, "param", {}))
    yield made
    made.loop.close()


def reset(how: str) -> dict[Key, int]:
    return {("reset", "client>server", "Say", 2): RESETS.index(how)}


@pytest.mark.parametrize(
    ("pair", "heard", "answers"),
    [
        (reset("lost"), ["a"], ["a! 0", "b! 0", "c! 0"]),
        (reset("answer lost"), ["a", "b"], ["a! 0", "b! 0", "c! 0"]),
        (reset("half-open there"), ["a"], ["a! 0", "b! 0", "c! 0"]),
        (reset("half-open here"), ["a"], ["a! 30", "b! 30", "c! 30"]),
    ],
    indirect=["pair"],
)
def test_a_reset_loses_a_suffix_in_each_direction(pair: Pair, heard: list[str], answers: list[str]) -> None:
    async def story() -> None:
        for word in "abc":
            pair.ask(word)
        await asyncio.sleep(60)

    pair.run(story)
    assert (pair.heard, pair.answers, len(pair.closed_at)) == (heard, answers, 1)


@pytest.mark.parametrize("pair", [{("posthumous", "client>server", "Say", 2): POSTHUMOUS_S.index(3.0)}], indirect=True)
def test_the_last_messages_of_a_dead_process_come_after_the_news_of_its_death(pair: Pair) -> None:
    async def story() -> None:
        ends: list[float] = []
        pair.client.on_death.append(lambda: ends.append(pair.now()))
        for word in "abc":
            pair.ask(word)
        await asyncio.sleep(1)
        assert pair.heard == [] and ends == [pytest.approx(0, abs=0.1)]
        await asyncio.sleep(60)

    with contextlib.suppress(ProcessGone):
        pair.run(story)
    assert pair.heard == ["a", "b"] and not pair.client.alive


def test_a_plan_aims_the_kinds_that_it_names() -> None:
    plan = FaultPlan({"long_delay": 0.1}, 1, aims=("PushTask",))
    everywhere, aimed = Oracle(1, plan), Oracle(1, replace(plan, aimed=("long_delay",)))
    assert everywhere.is_aimed_at("long_delay", "Poll") and not everywhere.is_aimed_at("duplicate", "Poll")
    assert aimed.is_aimed_at("long_delay", "PushTask") and not aimed.is_aimed_at("long_delay", "Poll")
    with pytest.raises(ValueError, match="cannot aim 'crash' at messages"):
        replace(plan, aimed=("crash",))


@pytest.mark.parametrize(
    ("pair", "heard"),
    [
        ({("duplicate", "client>server", "Say", 2): 1}, ["a", "b", "b", "c"]),
        ({("duplicate", "client>server", "Say", 2): REPEATS_S.index(3.0)}, ["a", "b", "c", "b"]),
    ],
    indirect=["pair"],
)
def test_a_request_that_arrives_twice_is_answered_to_its_sender_once(pair: Pair, heard: list[str]) -> None:
    async def story() -> None:
        for word in "abc":
            pair.ask(word)
            await asyncio.sleep(0.01)
        await asyncio.sleep(60)

    pair.run(story)
    assert pair.heard == heard and pair.answers == ["a 0", "b 0", "c 0"]


@pytest.mark.parametrize("pair", [{("duplicate", "client>server", "Say", 1): REPEATS_S.index(3.0)}], indirect=True)
def test_a_request_is_not_repeated_on_another_channel(pair: Pair) -> None:
    async def story() -> None:
        pair.ask("a")
        await asyncio.sleep(1)
        pair.channel.close()
        pair.channel = await pair.connect()
        await asyncio.sleep(60)

    pair.run(story)
    assert pair.heard == ["a"]


@pytest.mark.parametrize(
    ("pair", "heard"),
    [
        ({("break", "client>server", "Say", 1): BREAKS.index("lost")}, []),
        ({("break", "client>server", "Say", 1): BREAKS.index("answer lost")}, ["a"]),
        ({("break", "server>client", "Say reply", 1): BREAKS.index("lost")}, ["a"]),
    ],
    indirect=["pair"],
)
def test_a_break_is_noticed_by_both_sides_at_once(pair: Pair, heard: list[str]) -> None:
    async def story() -> None:
        pair.ask("a")
        await asyncio.sleep(0.1)

    pair.run(story)
    assert (pair.heard, pair.answers, len(pair.closed_at)) == (heard, ["a! 0"], 1)


def say_often(plan: FaultPlan) -> list[str]:
    """Ask thirty times, each time on an open channel; return the answers."""
    pair = make_pair({})
    pair.oracle = Oracle(1, plan)
    pair.wire = SimWire(pair.loop, pair.oracle, Trace(pair.loop))
    pair.networks = [SimNetwork(pair.wire, pair.client), SimNetwork(pair.wire, pair.server)]

    async def story() -> None:
        for i in range(30):
            if pair.channel.closed:
                pair.channel = await pair.connect()
            pair.ask(str(i))
            await asyncio.sleep(0.01)

    pair.run(story)
    pair.loop.close()
    return pair.answers


def test_breaks_are_aimed_and_a_link_breaks_only_so_often() -> None:
    always = {"break": 1.0}
    assert not any("!" in answer for answer in say_often(FaultPlan(always, aims=("Shout",))))
    broken = sum("!" in answer for answer in say_often(FaultPlan(always, aims=("Say",))))
    assert MOST_BREAKS <= broken <= 2 * MOST_BREAKS


@pytest.mark.parametrize("pair", [{("long_delay", "client>server", "Say", 2): 2}], indirect=True)
def test_a_late_message_holds_back_those_behind_it(pair: Pair) -> None:
    async def story() -> None:
        for word in "abc":
            pair.ask(word)
        await asyncio.sleep(60)

    pair.run(story)
    assert LONG_DELAYS_S[2] == 12.0
    assert pair.answers == ["a 0", "b 12", "c 12"]


def test_what_a_cut_holds_arrives_when_it_heals(pair: Pair) -> None:
    async def story() -> None:
        pair.wire.cut("here", "there", 20)
        pair.ask("a")
        with pytest.raises(ConnectFailed):
            await pair.connect()
        assert pair.heard == []
        await asyncio.sleep(60)

    pair.run(story)
    assert pair.answers == ["a 20"]


def test_a_one_way_cut_holds_replies_only(pair: Pair) -> None:
    async def story() -> None:
        pair.wire.cut("there", "here", 20, both_ways=False)
        pair.ask("a")
        await asyncio.sleep(1)
        assert (pair.heard, pair.answers) == (["a"], [])
        await asyncio.sleep(60)

    pair.run(story)
    assert pair.answers == ["a 20"]


def test_a_long_cut_breaks_the_channel_on_both_sides(pair: Pair) -> None:
    async def story() -> None:
        pair.wire.cut("here", "there", None)
        pair.ask("a")
        await asyncio.sleep(60)
        assert pair.networks[0].ends == pair.networks[1].ends == {}
        pair.wire.heal()
        pair.channel = await pair.connect()
        pair.ask("b")
        await asyncio.sleep(1)

    pair.run(story)
    assert pair.heard == ["b"] and pair.answers == [f"a! {SILENCE_S:.0f}", f"b {60:.0f}"]


@pytest.mark.parametrize(
    ("pair", "kept"), [({}, 3), ({("crash_prefix", "client", "server"): 2}, 1)], indirect=["pair"]
)
def test_a_crash_leaves_a_prefix_of_what_was_sent(pair: Pair, kept: int) -> None:
    async def story() -> None:
        for word in "abc":
            pair.ask(word)
        pair.loop.kill(pair.client)
        await asyncio.sleep(1)

    pair.run(story)
    assert pair.heard == list("abc")[:kept]
    assert pair.answers == [] and pair.networks[1].ends == {}


def test_the_peers_of_a_crashed_process_see_it_and_cannot_connect(pair: Pair) -> None:
    async def story() -> None:
        pair.hold = True
        pair.ask("a")
        await asyncio.sleep(1)
        pair.loop.kill(pair.server)
        await asyncio.sleep(1)
        with pytest.raises(ConnectRefused):
            await pair.connect()

    pair.run(story)
    assert pair.answers == ["a! 1"] and len(pair.closed_at) == 1


def test_a_lost_node_is_silent(pair: Pair) -> None:
    async def story() -> None:
        pair.wire.lose_node("there")
        pair.loop.kill(pair.server)
        pair.ask("a")
        with pytest.raises(ConnectFailed, match="no answer"):
            await pair.connect()
        await asyncio.sleep(60)

    pair.run(story)
    assert pair.answers == [f"a! {SILENCE_S:.0f}"] and pair.heard == []


def test_a_stalled_process_hears_everything_later(pair: Pair) -> None:
    async def story() -> None:
        pair.loop.stall(pair.server, 15)
        for word in "abc":
            pair.ask(word)
        await asyncio.sleep(60)

    pair.run(story)
    assert pair.answers == ["a 15", "b 15", "c 15"]


def test_no_object_is_shared_by_two_processes(pair: Pair) -> None:
    found: list[Sequence[Buffer]] = []

    async def story() -> None:
        buffer = bytearray(b"before")
        pair.channel.call("Put", b"x", [buffer], lambda error, payload, buffers: None)
        buffer[:] = b"after!"
        await asyncio.sleep(1)

    def on_incoming(incoming: Incoming) -> None:
        found.append(incoming.buffers)
        assert memoryview(incoming.buffers[0]).readonly

    pair.on_incoming = on_incoming  # type: ignore[method-assign]
    pair.run(story)
    assert [bytes(buffer) for buffer in found[0]] == [b"before"]


def test_the_same_seed_gives_the_same_conversation() -> None:
    def talk(seed: int) -> tuple[str, list[str], dict[Key, int]]:
        pair = make_pair({})
        pair.oracle = Oracle(seed, FaultPlan({"delay": 0.3, "reset": 0.05}, budget=1))
        pair.wire = SimWire(pair.loop, pair.oracle, Trace(pair.loop))
        pair.networks = [SimNetwork(pair.wire, pair.client), SimNetwork(pair.wire, pair.server)]

        async def story() -> None:
            for i in range(50):
                if pair.channel.closed:
                    pair.channel = await pair.connect()
                pair.ask(str(i))
                await asyncio.sleep(0.01)
            await asyncio.sleep(60)

        pair.run(story)
        pair.loop.close()
        return pair.wire.trace.digest(), pair.answers, pair.oracle.answers

    runs = {seed: talk(seed) for seed in range(6)}
    assert {seed: talk(seed) for seed in range(6)} == runs
    assert len({digest for digest, _, _ in runs.values()}) == 6
    assert any("!" in answer for _, answers, _ in runs.values() for answer in answers)
