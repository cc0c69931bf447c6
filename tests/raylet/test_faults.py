"""Owners lease, use, cancel and return workers while messages are lost, late and repeated, and workers die.

When the faults have stopped and every owner has returned its workers, nothing may be left: no lease, no CPU in use, no
worker more than can run (L3, S1, S2). One seed is one run; a failure is replayed by its seed.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from minray.platform.base import PlatformError
from minray.protocol.base import Record, Request
from minray.protocol.raylet import (
    GRANTED,
    REJECTED,
    SPILLBACK,
    CancelWorkerLease,
    GetLeaseFailure,
    LeaseReply,
    ReturnWorkerLease,
)
from minray.simulation.faults import FaultPlan
from minray.simulation.loop import to_ticks
from tests.raylet.scene import Scene, check, scenario

NODES = {"head": {"CPU": 2.0, "GPU": 1.0}, "other": {"CPU": 1.0, "GPU": 1.0}}
OWNERS, ROUNDS = 6, 4
LIMIT_S = 3000.0
R = TypeVar("R", bound=Record)


@pytest.mark.parametrize("seed", range(20))
def test_g112_nothing_is_left_whatever_becomes_of_messages_and_workers(seed: int) -> None:
    plan = FaultPlan.swarm(seed, targets=("worker/", "raylet/other"), budget=4)
    scenario(seed=seed, nodes=NODES, faults=plan)(many_owners)()


async def many_owners(scene: Scene) -> None:
    loop = asyncio.get_running_loop()
    scene.world.loop.limit_ticks = to_ticks(LIMIT_S)
    owners = [loop.create_task(owner(scene, number), name=f"owner({number})") for number in range(OWNERS)]
    await asyncio.wait(owners)
    for task in owners:
        task.result()
    scene.world.oracle.heal()
    scene.world.wire.heal()
    await scene.settle(120)
    for name in [name for name in scene.raylets if scene.processes[name].alive]:
        broker = scene.raylets[name]._broker
        assert not broker.entries and not broker.states.items(), f"{name} still has leases"
        assert broker.local.available == broker.local.total
        check(scene.raylets[name])
    limit = sum(int(resources["CPU"]) for resources in NODES.values())
    assert len(scene.alive()) <= limit


async def owner(scene: Scene, number: int) -> None:
    """Several leases one after the other, each treated as a chance of this owner's own decides."""
    oracle = scene.world.oracle
    for round_number in range(ROUNDS):
        def chance(what: str, n: int, round_number: int = round_number) -> int:
            return oracle.below((what, number, round_number), n)

        needs = ({"CPU": 1.0}, {"CPU": 2.0}, {"GPU": 1.0}, {})[chance("needs", 4)]
        lease_id, name, reply = await obtain(scene, needs, chance("depth", 3), impatient=chance("impatient", 4) == 0)
        if reply is None or reply.kind != GRANTED or reply.worker is None:
            continue
        await scene.nap(chance("work", 100) / 100)
        if chance("judge", 3) == 0:
            await insist(scene, name, GetLeaseFailure(lease_id, 1.0))
        await insist(scene, name, ReturnWorkerLease(lease_id, chance("kill", 3) == 0, "chance"))


async def insist(scene: Scene, name: str, request: Request[R]) -> R | None:
    """Ask until there is an answer; None: the node has ended. An owner that gives up earlier leaks what it holds there."""
    while scene.processes[name].alive:
        try:
            return await scene.raylet(name).call(request)
        except PlatformError:
            await scene.nap(0.1)
    return None


async def obtain(
    scene: Scene, needs: dict[str, float], depth: int, impatient: bool
) -> tuple[bytes, str, LeaseReply | None]:
    """Ask until there is an answer that is not "ask there"; returns who gave it. None: that node has gone."""
    name, second_hop = "head", False
    while True:
        request = scene.request(needs, depth=depth, second_hop=second_hop)
        asking = asyncio.get_running_loop().create_task(insist(scene, name, request), name=f"ask({depth})")
        if impatient:
            await scene.nap(0.01)
            await insist(scene, name, CancelWorkerLease(request.lease_id))
        reply = await asking
        if reply is None:
            return request.lease_id, name, None
        if reply.kind == SPILLBACK:
            assert not second_hop and reply.raylet is not None
            name, second_hop = next(key for key, raylet in scene.raylets.items() if raylet.address == reply.raylet), True
        elif reply.kind == REJECTED:
            assert second_hop
            name, second_hop = "head", False
            await scene.nap(0.05)
        else:
            return request.lease_id, name, reply
