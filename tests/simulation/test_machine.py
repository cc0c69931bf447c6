"""Simulated processes, their parents, their disks; and the faults that strike between two steps."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minray.platform.base import ConnectRefused, Incoming, MemoryFailed, Platform, SpawnFailed, StorageFailed
from minray.simulation.faults import SPAWNS, FaultPlan, Key, Oracle
from minray.simulation.interpreter import simulated_meanings
from minray.simulation.loop import Deadlock
from minray.simulation.machine import Role, SimWorld
from minray.simulation.node import SimNode
from minray.simulation.trace import first_difference
from tests.seeds import seeds

Main = Callable[[Platform, bytes], Coroutine[Any, Any, int | None]]


def live(main: Main, child: Main | None = None, oracle: Oracle | None = None, nodes: int = 1) -> SimWorld:
    """Run a world in which ``main`` is the first process, until that has ended."""
    roles = {"main": Role(main, lambda config: config), "child": Role(child or main, lambda config: config)}
    with simulated_meanings(0):
        world = SimWorld(oracle or Oracle(0), roles)
        made = [world.node(f"node{i}") for i in range(nodes)]
        process = world.start("main", "main", made[0], b"m")
        done = world.loop.create_future()
        process.on_death.append(lambda: done.set_result(None))
        world.oracle.active = True
        try:
            world.loop.run_until_complete(done)
        finally:
            world.close()
    assert world.loop.failures == []
    return world


async def wait_for_ever(platform: Platform, config: bytes) -> None:
    await asyncio.get_running_loop().create_future()


async def watch(platform: Platform) -> list[object]:
    """Spawn a child, and tell everything that is heard of it until its end."""
    heard: list[object] = []
    child = await platform.processes.spawn("child", "child/1", b"c", lambda stream, line: heard.append((stream, line)))
    heard.append(await child.wait())
    return [*heard, bytes(child.marks[:4])]


def test_a_parent_hears_output_then_the_end_and_can_read_the_marks() -> None:
    heard: list[object] = []

    async def main(platform: Platform, config: bytes) -> None:
        heard.extend(await watch(platform))

    async def child(platform: Platform, config: bytes) -> int:
        assert (platform.name, platform.identity, config) == ("child/1", b"c", b"c")
        platform.processes.marks[:4] = b"mark"

        def work() -> None:
            print("hello", end=" ")
            print("world")
            os.write(1, b"")
            print("no newline", end="")
            os._exit(7)

        platform.user_code.run(work)
        await asyncio.get_running_loop().create_future()
        return 0

    live(main, child)
    status = heard[2]
    assert heard[:2] == [("stdout", "hello world"), ("stdout", "no newline")]
    assert (status.code, status.signal) == (7, None)  # type: ignore[attr-defined]
    assert heard[3:] == [b"mark"]


@pytest.mark.parametrize(
    ("end", "code"), [(lambda platform: platform.processes.exit(3), 3), (lambda platform: None, 0)], ids=["exit", "return"]
)
def test_exit_statuses(end: Callable[[Platform], None], code: int) -> None:
    heard: list[object] = []

    async def main(platform: Platform, config: bytes) -> None:
        heard.extend(await watch(platform))

    async def child(platform: Platform, config: bytes) -> None:
        end(platform)

    live(main, child)
    assert heard[0].code == code  # type: ignore[attr-defined]


@pytest.mark.parametrize(("answer", "code"), [(SPAWNS.index("no process"), None), (SPAWNS.index("ends at once"), 1)])
def test_a_process_that_does_not_come_to_be(answer: int, code: int | None) -> None:
    heard: list[object] = []

    async def main(platform: Platform, config: bytes) -> None:
        try:
            heard.append((await watch(platform))[0].code)  # type: ignore[attr-defined]
        except SpawnFailed as error:
            heard.append(error)

    async def child(platform: Platform, config: bytes) -> None:
        raise AssertionError("it never begins")

    world = live(main, child, Oracle(0, overrides={("spawn", "child/1"): answer}))
    assert heard == [code] if code is not None else str(heard[0]) == "child/1: no processes left"
    told = [event.details for event in world.trace.events if event.process == "main"]
    assert (f"spawn: {SPAWNS[answer]}", "child/1") in told


def test_a_process_that_stands_still_from_its_birth_ends_when_it_is_killed() -> None:
    signals: list[int | None] = []

    async def main(platform: Platform, config: bytes) -> None:
        child = await platform.processes.spawn("child", "child/1", b"c", lambda stream, line: None)
        await asyncio.sleep(100)
        child.kill()
        signals.append((await child.wait()).signal)

    async def child(platform: Platform, config: bytes) -> None:
        raise AssertionError("it never begins")

    live(main, child, Oracle(0, overrides={("spawn", "child/1"): SPAWNS.index("stands still")}))
    assert signals == [9]


def test_children_die_soon_after_their_parent() -> None:
    async def main(platform: Platform, config: bytes) -> None:
        await platform.processes.spawn("child", "child/1", b"c", lambda stream, line: None)
        platform.processes.exit(1)

    async def child(platform: Platform, config: bytes) -> None:
        await wait_for_ever(platform, config)

    async def grandmother(platform: Platform, config: bytes) -> None:
        if platform.name == "main":
            await platform.processes.spawn("child", "mother", b"", lambda stream, line: None)
            await asyncio.sleep(5)
        elif platform.name == "mother":
            await main(platform, config)
        else:
            await child(platform, config)

    world = live(grandmother)
    ends = [(event.process, event.ticks) for event in world.trace.events if event.details == ("ends",)]
    assert [name for name, _ in ends] == ["mother", "child/1", "main"] and ends[0][1] < ends[1][1]


def test_a_commit_survives_a_crash_and_what_was_only_staged_does_not() -> None:
    found: list[dict[str, bytes]] = []

    async def main(platform: Platform, config: bytes) -> None:
        for _ in range(2):
            child = await platform.processes.spawn("child", "child/1", b"", lambda stream, line: None)
            await child.wait()

    async def child(platform: Platform, config: bytes) -> None:
        storage = platform.open_storage("store")
        found.append(storage.load("table"))
        storage.put("table", "durable", b"1")
        storage.put("table", "removed", b"1")
        await storage.commit()
        storage.delete("table", "removed")
        await asyncio.gather(storage.commit(), storage.commit())
        storage.put("table", "staged", b"1")
        syncing = asyncio.create_task(storage.commit(), name="never ends")
        await asyncio.sleep(0.001)
        assert not syncing.done()
        platform.processes.exit(0)

    live(main, child)
    assert found == [{}, {"durable": b"1"}]
    found.clear()
    live(main, child, Oracle(0, overrides={("unsynced", "child/1", 1): 1}))
    assert found == [{}, {"durable": b"1", "staged": b"1"}]


def test_a_full_disk_refuses_what_is_put_and_keeps_removals() -> None:
    async def main(platform: Platform, config: bytes) -> None:
        node = world_nodes[0]
        storage, memory = platform.open_storage("store"), platform.open_storage("")
        assert (storage.durable, memory.durable) == (True, False)
        storage.put("table", "gone", b"value")
        await storage.commit()
        storage.put("table", "key", b"value")
        storage.delete("table", "gone")
        node.disk_full = True
        with pytest.raises(StorageFailed, match="no space"):
            await storage.commit()
        memory.put("table", "key", b"value")
        await memory.commit()
        node.disk_full = False
        await storage.commit()
        assert storage.load("table") == {} and memory.load("table") == {"key": b"value"}

    world_nodes: list[SimNode] = []
    find_node = SimWorld.node

    def remember(self: SimWorld, name: str) -> SimNode:
        world_nodes.append(find_node(self, name))
        return world_nodes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimWorld, "node", remember)
        live(main)


def test_entropy_is_the_seeds_and_every_incarnations_own() -> None:
    def draw(seed: int) -> list[bytes]:
        drawn: list[bytes] = []

        async def main(platform: Platform, config: bytes) -> None:
            drawn.append(platform.host.random_bytes(16))
            assert 0 <= platform.host.random() < 1
            if platform.name == "main":
                for _ in range(2):
                    await (await platform.processes.spawn("child", "child", b"", lambda stream, line: None)).wait()

        live(main, oracle=Oracle(seed))
        return drawn

    assert draw(1) == draw(1) and draw(1) != draw(2)
    assert len(set(draw(1))) == 3


def crash(task: str, ordinal: int) -> dict[Key, int]:
    return {("crash", "child/1", task, ordinal): 1}


@pytest.mark.parametrize(
    ("overrides", "story"),
    [({}, ["0", "1", "2", "done"]), (crash("child", 1), []), (crash("count", 1), []), (crash("count", 3), ["0", "1"])],
)
def test_a_crash_strikes_before_a_named_step(overrides: dict[Key, int], story: list[str]) -> None:
    heard: list[str] = []

    async def count() -> None:
        for i in range(3):
            heard.append(str(i))
            await asyncio.sleep(1)

    async def child(platform: Platform, config: bytes) -> None:
        await asyncio.create_task(count(), name="count")
        heard.append("done")

    async def main(platform: Platform, config: bytes) -> None:
        status = (await watch(platform))[0]
        assert status.signal == (9 if overrides else None)  # type: ignore[attr-defined]

    oracle = Oracle(0, overrides=overrides)
    live(main, child, oracle)
    assert heard == story and oracle.answers == overrides


def test_user_code_can_be_struck_at_every_border() -> None:
    def crash_at(ordinal: int) -> int:
        naps: list[int] = []

        def work() -> None:
            for i in range(3):
                naps.append(i)
                time.sleep(1)

        async def child(platform: Platform, config: bytes) -> None:
            platform.user_code.run(work)
            await asyncio.sleep(10)

        async def main(platform: Platform, config: bytes) -> None:
            await watch(platform)

        live(main, child, Oracle(0, overrides={("crash", "child/1", "user_code", ordinal): 1}))
        return len(naps)

    assert [crash_at(ordinal) for ordinal in (1, 2, 3, 4, 5)] == [0, 1, 2, 3, 3]


def test_a_lost_node_takes_all_its_processes() -> None:
    async def main(platform: Platform, config: bytes) -> None:
        world_of[0].lose_node("node1")
        await asyncio.sleep(1)
        with pytest.raises(ConnectRefused):
            await platform.network.connect("sim:nowhere", b"", b"", lambda: None)

    world_of: list[SimWorld] = []
    with simulated_meanings(0):
        world = SimWorld(Oracle(0), {"main": Role(main, bytes), "other": Role(wait_for_ever, bytes)})
        world_of.append(world)
        nodes = [world.node(f"node{i}") for i in range(2)]
        others = [world.start("other", f"other/{i}", nodes[1], b"") for i in range(3)]
        process = world.start("main", "main", nodes[0], b"")
        world.loop.run_until_complete(asyncio.sleep(10))
        assert not any(other.alive for other in others) and not process.alive
        world.close()
    assert "node lost" in world.trace.story()


def talkative(seed: int, plan: FaultPlan) -> SimWorld:
    """Three servers that a client asks in turns, for as long as they live."""

    async def child(platform: Platform, config: bytes) -> None:
        def on_incoming(incoming: Incoming) -> None:
            incoming.reply(platform.host.random_bytes(4))

        await platform.network.listen(f"sim:{platform.name}", b"", on_incoming)
        await wait_for_ever(platform, config)

    async def main(platform: Platform, config: bytes) -> None:
        names = [f"worker/{i}" for i in range(3)]
        for name in names:
            await platform.processes.spawn("child", name, b"", lambda stream, line: None)
        await asyncio.sleep(0.1)
        for _ in range(20):
            for name in names:
                try:
                    channel = await platform.network.connect(f"sim:{name}", b"", b"", lambda: None)
                except ConnectRefused:
                    continue
                answered = asyncio.get_running_loop().create_future()
                channel.call("Ask", b"", (), lambda error, *_, answered=answered: answered.set_result(error))
                await answered
                channel.close()

    return live(main, child, Oracle(seed, plan))


@pytest.mark.parametrize("seed", seeds(5))
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    plan = FaultPlan({"delay": 0.3, "crash": 0.02, "stall": 0.1, "long_stall": 0.01, "orphan": 0.5}, budget=3)
    one, other = talkative(seed, plan), talkative(seed, plan)
    assert first_difference(one.trace, other.trace) == ""
    assert one.trace.digest() == other.trace.digest()
    assert one.oracle.answers == other.oracle.answers


def test_the_answers_of_a_run_replay_it() -> None:
    plan = FaultPlan({"delay": 0.3, "crash": 0.05, "stall": 0.1}, budget=2)
    for seed in range(5):
        drawn = talkative(seed, plan)
        replayed = Oracle(seed, overrides=drawn.oracle.answers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{__name__}.Oracle", lambda seed, plan, replayed=replayed: replayed)
            assert talkative(seed, FaultPlan()).trace.digest() == drawn.trace.digest()
    assert first_difference(drawn.trace, talkative(99, plan).trace).startswith("event ")


def test_a_world_that_can_go_on_no_more_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="main"):
        live(wait_for_ever)


def test_memory_of_a_node_is_shared_until_its_creator_dies() -> None:
    seen: list[object] = []

    async def main(platform: Platform, config: bytes) -> None:
        arena = await platform.memory.create_arena("sim:arena", 100)
        arena.view[0] = 1
        with pytest.raises(MemoryFailed, match="out of memory"):
            await platform.memory.create_arena("sim:another", platform.host.memory_bytes + 1)
        child = await platform.processes.spawn("child", "child/1", b"c", lambda stream, line: None)
        await child.wait()
        seen.append(arena.view[1])

    async def child(platform: Platform, config: bytes) -> None:
        view = platform.memory.attach("sim:arena")
        view[1] = view[0] + 1

    world = live(main, child)
    assert seen == [2] and world._arenas == {}
