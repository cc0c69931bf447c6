"""Nodes that are asked to leave, told by a driver, with pretended raylets in the simulated world."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.gcs.persistent_caller import ASK_AGAIN_S
from minray.platform.base import RemoteFailure
from minray.protocol.gcs import (
    DRAINED_PREEMPTED,
    IDLE_TERMINATION,
    NODES,
    PREEMPTION,
    DrainNode,
    DrainNodeReply,
    NodeDrain,
    RegisterNode,
    UnregisterNode,
)
from minray.protocol.raylet import DrainRaylet, DrainRayletReply
from tests.gcs.stories import A_MOMENT_S, Cluster, story
from tests.gcs.world import Client, id_of, node_info

GONE = DrainNodeReply(True)
B = id_of("b")


def drain(it: Cluster, reason: int, remaining_s: float = 0.0) -> asyncio.Task[Any]:
    deadline = it.wall_clock() + remaining_s if remaining_s else 0.0
    return asyncio.create_task(it.ask(DrainNode(B, reason, "you have to go", deadline)))


async def noted(it: Cluster) -> NodeDrain | None:
    await it.client.pass_time(A_MOMENT_S)
    drain: NodeDrain | None = (await it.client.table(NODES))[B].drain
    return drain


@story
async def test_g21_that_a_node_is_to_be_preempted_is_known_before_it_answers(it: Cluster) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[DrainRaylet] = None
    asking = drain(it, PREEMPTION, remaining_s=100.0)
    request, call = await it.hears("b", DrainRaylet)
    told = await noted(it)
    assert told == request.drain and (told.reason, told.message) == (PREEMPTION, "you have to go")
    now = (await it.client.table(NODES))[B]
    assert now.alive and 99.0 < told.deadline - it.wall_clock() < 100.0 and not asking.done()
    again = asyncio.create_task(it.ask(DrainNode(B, PREEMPTION, "you have to go", told.deadline)))
    assert await noted(it) == told, "who asks again, because nobody has answered, gives it no more time"
    _, repeated = await it.hears("b", DrainRaylet)
    repeated.reply(DrainRayletReply(True))
    assert await again == GONE
    call.reply(DrainRayletReply(True))
    assert await asking == GONE
    assert await noted(it) == told


@pytest.mark.parametrize("idle", [True, False])
@story
async def test_a_node_that_is_to_go_because_it_is_idle_says_itself_whether_it_is(it: Cluster, idle: bool) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[DrainRaylet] = None
    asking = drain(it, IDLE_TERMINATION)
    request, call = await it.hears("b", DrainRaylet)
    assert await noted(it) is None and request.drain == NodeDrain(IDLE_TERMINATION, "you have to go")
    call.reply(DrainRayletReply(idle))
    assert await asking == (GONE if idle else DrainNodeReply(False, "it is not idle (any more)"))
    assert await noted(it) == (request.drain if idle else None)


@story
async def test_what_makes_no_sense_is_refused(it: Cluster) -> None:
    await it.join("b")
    await it.ask(RegisterNode(node_info("h", is_head=True)))
    assert "the head" in (await it.ask(DrainNode(id_of("h"), PREEMPTION, ""))).rejection
    for strange in (DrainNode(B, 99, ""), DrainNode(B, PREEMPTION, "", -1.0)):
        reply = await it.ask(strange)
        assert not reply.is_accepted and "is unknown, or deadline" in reply.rejection
    assert await noted(it) is None and it.world.neighbours["b"].count(DrainRaylet) == 0


@story
async def test_who_is_gone_has_left(it: Cluster) -> None:
    assert await it.ask(DrainNode(B, PREEMPTION, "")) == GONE
    await it.join("b")
    await it.ask(UnregisterNode(B, "minray stop"))
    assert await drain(it, PREEMPTION) == GONE
    assert await noted(it) is None and it.world.neighbours["b"].count(DrainRaylet) == 0


@story
async def test_a_node_is_told_until_it_answers(it: Cluster) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[DrainRaylet] = None
    asking = drain(it, PREEMPTION)
    first, call = await it.hears("b", DrainRaylet)
    failed = it.now()
    call.fail("internal", "a mistake")
    again, call = await it.hears("b", DrainRaylet)
    assert again == first and it.now() - failed > A_MOMENT_S
    call.reply(DrainRayletReply(True))
    assert await asking == GONE


@story
async def test_g21_g110_a_preemption_that_was_stored_is_told_by_the_next_gcs(it: Cluster) -> None:
    """The process that has asked for the preemption may be gone."""
    await it.join("b")
    it.world.neighbours["b"].answers[DrainRaylet] = None
    client = Client(it.world.platform)
    asking = asyncio.create_task(client.ask(DrainNode(B, PREEMPTION, "you have to go", it.wall_clock() + 100.0)))
    first, _ = await it.hears("b", DrainRaylet)
    asking.cancel()
    client.close()
    it.world.restart_gcs()
    again, _ = await it.hears("b", DrainRaylet)
    assert again == first
    it.world.restart_gcs()
    _, call = await it.hears("b", DrainRaylet)
    call.reply(DrainRayletReply(True))
    assert await noted(it) == first.drain


@story
async def test_a_gcs_that_is_closed_tells_nobody_any_more(it: Cluster) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[DrainRaylet] = None
    asking = drain(it, PREEMPTION)
    await it.hears("b", DrainRaylet)
    it.world.restart_gcs()
    await it.hears("b", DrainRaylet)
    asking.cancel()
    await it.world.gcs.close()
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.left_by_gcs() == []


@story
async def test_g21_a_node_that_dies_before_it_answers_has_left(it: Cluster) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[DrainRaylet] = None
    asking = drain(it, PREEMPTION, remaining_s=5.0)
    await it.hears("b", DrainRaylet)
    await it.ask(UnregisterNode(B, "minray stop"))
    died = it.now()
    assert await asking == GONE
    assert it.now() - died < ASK_AGAIN_S + A_MOMENT_S


@story
async def test_g21_a_node_that_is_found_dead_after_its_time_was_preempted(it: Cluster) -> None:
    await it.join("b")
    await drain(it, PREEMPTION, remaining_s=5.0)
    await it.client.pass_time(6.0)
    it.world.kill("b")
    node = await it.client.until(NODES, "b", lambda node: not node.alive)
    assert node.death_reason == DRAINED_PREEMPTED and node.death_cause.startswith("you have to go (preempted: ")


@story
async def test_a_wish_that_cannot_be_stored_is_refused(it: Cluster) -> None:
    await it.join("b")
    it.full_disk(after_s=0.0, for_s=A_MOMENT_S)
    await it.client.pass_time(0.0)
    with pytest.raises(RemoteFailure, match="storage-failed"):
        await drain(it, PREEMPTION)
    assert await noted(it) is None and it.world.neighbours["b"].count(DrainRaylet) == 0
