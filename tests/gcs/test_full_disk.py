"""The disk of the gcs is full from one write on, for each write, until it has room again. Every request is done once.

A story is told again and again. At first the disk takes no write, then one more each time, until it takes all that the story
needs. A caller that is refused asks again, as raylets and owners do. In the end there is room again, for the same gcs, or
for another one, because the first has fallen meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minray.gcs.placement_group_manager import CREATED, REMOVED, RESCHEDULING
from minray.platform.base import RemoteFailure
from minray.protocol import actor as protocol
from minray.protocol.actor import ALIVE, DEAD, RESTARTING, DeathCause
from minray.protocol.base import Request
from minray.protocol.core_worker import FAILED, OK, PushTask, PushTaskReply, Value
from minray.protocol.gcs import (
    IDLE_TERMINATION,
    JOBS,
    NODES,
    PREEMPTION,
    DrainNode,
    DrainNodeReply,
    FinishJob,
    GetJob,
    KvDel,
    KvGet,
    KvKeys,
    KvPut,
    RegisterNode,
    UnregisterNode,
    job_namespace,
)
from minray.protocol.placement_group import RemovePlacementGroup
from minray.protocol.raylet import (
    CANCELLED,
    GRANTED,
    CancelWorkerLease,
    GetLeaseFailure,
    LeaseFailure,
    LeaseReply,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from tests.gcs.stories import A_MOMENT_S, Cluster
from tests.gcs.world import Client, World, address, id_of, node_info, register_job

FULL_FOR_S = 3.0
Story = Callable[["FullDisk"], Coroutine[Any, Any, None]]


class FullDisk(Cluster):
    """A gcs whose disk takes ``writes`` more writes from ``fill`` on, and then none for a while."""

    def __init__(self, world: World, client: Client, writes: int, falls: bool) -> None:
        super().__init__(world, client)
        self._writes = writes
        self._falls = falls
        """Whether the gcs falls while the disk is full."""
        self._is_empty_again = False
        self.refused = 0
        self.ask = self.say

    def fill(self) -> None:
        """From now on."""
        head: Any = self.world.head
        head.disk_full = self

    def _empty(self) -> None:
        self._is_empty_again = True
        if self._falls:
            self.world.restart_gcs()

    def __bool__(self) -> bool:
        """Whether the disk is full: asked once for each write."""
        if self._is_empty_again or self._writes:
            self._writes -= not self._is_empty_again
            return False
        if not self.refused:
            self.world.sim.loop.world.call_later(FULL_FOR_S, self._empty)
        self.refused += 1
        return True

    def serve(self, but: bytes = b"") -> None:
        """From now on the first node grants leases at once, and constructors return; one lease is over, its worker dead."""
        granted, raylet = LeaseReply(GRANTED, self.world.start("v", "a"), 7), self.world.neighbours["a"]
        raylet.answers[RequestWorkerLease] = lambda request: LeaseReply(CANCELLED) if request.lease_id == but else granted
        raylet.answers[GetLeaseFailure] = lambda request: LeaseFailure(known=True, dead=request.lease_id == but)
        self.world.neighbours["v"].answers[PushTask] = PushTaskReply(OK, (), 0)

    async def until_next(self, number: int) -> protocol.ActorInfo:
        """Wait until the actor has restarted, and all that follows is done."""
        await self.until(number, RESTARTING, ALIVE)
        await self.all_asked()
        return await self.until(number, ALIVE)

    async def all_asked(self) -> None:
        """Until everything that follows is stored, and told."""
        await self.client.pass_time(FULL_FOR_S + 2.0)

    async def say(self, request: Request[Any]) -> Any:
        """As those do who ask again when they are refused."""
        while True:
            try:
                return await self.client.ask(request)
            except RemoteFailure as error:
                assert error.kind == "storage-failed"
                await self.client.pass_time(0.5)

    def returned(self) -> set[bytes]:
        """Leases that the first raylet was told to end."""
        return {one.lease_id for one in self.world.neighbours["a"].heard if isinstance(one, ReturnWorkerLease)}

    def told_twice(self) -> list[Any]:
        """Requests that a neighbour got twice from one gcs. A lease may be cancelled for several reasons."""
        heard = [(name, request) for name, each in self.world.neighbours.items() for request in each.heard]
        told = [one for one in heard if not isinstance(one[1], CancelWorkerLease)]
        return [] if self._falls and self.refused else [one for index, one in enumerate(told) if one in told[:index]]


def at_every_write(tell: Story) -> Callable[[bool], None]:
    """Makes a test of a story."""

    @pytest.mark.parametrize("falls", [False, True], ids=["the same gcs", "another gcs"])
    def test(falls: bool) -> None:
        writes = 0
        while told(tell, writes, falls).refused:
            writes += 1
        assert writes, "it writes nothing"

    test.__name__, test.__doc__ = tell.__name__, tell.__doc__
    return test


def told(tell: Story, writes: int, falls: bool) -> FullDisk:
    """Once."""
    world = World()
    made: list[FullDisk] = []

    async def whole(client: Client) -> None:
        it = FullDisk(world, client, writes, falls)
        made.append(it)
        await it.begin()
        await tell(it)
        await it.client.pass_time(A_MOMENT_S)
        assert it.told_twice() == []

    world.run(whole)
    return made[0]


# --- Jobs


@at_every_write
async def test_a_job_is_registered_once(it: FullDisk) -> None:
    it.world.start("e", "a")
    it.fill()
    first, again = await it.ask(register_job("e", "a")), await it.ask(register_job("e", "a"))
    assert first == again and not (await it.ask(GetJob(first.job_id))).job.end_time
    assert len(await it.client.table(JOBS)) == 2


async def begin_work(it: FullDisk) -> None:
    """Begin the work of the job: an actor, one that waits for a worker, a group, a function."""
    await it.begin_actor(1)
    await it.register(2, max_restarts=1)
    await it.create(2)
    await it.create_group(1, 1)
    await it.until_group(1, CREATED)
    await it.ask(KvPut(job_namespace(it.job_id), b"function", b"code", True))


async def is_over(it: FullDisk) -> None:
    await it.all_asked()
    assert (await it.ask(GetJob(it.job_id))).job.end_time
    for number in (1, 2):
        assert (await it.known(number)).state == DEAD
    assert (await it.group(1)).group.state == REMOVED
    assert (await it.ask(KvKeys(job_namespace(it.job_id), b""))).keys == []
    assert len(it.returned()) == 2


@at_every_write
async def test_a_job_that_finishes_takes_its_own_along(it: FullDisk) -> None:
    await begin_work(it)
    it.fill()
    await it.ask(FinishJob(it.job_id))
    assert (await it.ask(GetJob(it.job_id))).job.end_time
    await is_over(it)


@at_every_write
async def test_a_driver_that_dies_takes_its_own_along(it: FullDisk) -> None:
    await begin_work(it)
    it.fill()
    it.world.kill("d")
    await it.client.until(JOBS, it.job_id, lambda job: job.end_time)
    await is_over(it)


@at_every_write
async def test_a_driver_of_which_a_raylet_says_that_it_is_dead(it: FullDisk) -> None:
    await begin_work(it)
    it.fill()
    await it.ask(it.death("d"))
    assert (await it.ask(GetJob(it.job_id))).job.end_time
    await is_over(it)


@at_every_write
async def test_g26_a_job_ends_with_its_last_detached_actor(it: FullDisk) -> None:
    await it.begin_actor(1, detached=True)
    await it.create_group(1, 1, creator=it.actor_id(1))
    await it.create_group(2, 1, detached=True)
    for number in (1, 2):
        await it.until_group(number, CREATED)
    await it.ask(KvPut(job_namespace(it.job_id), b"function", b"code", True))
    it.fill()
    await it.ask(FinishJob(it.job_id))
    assert (await it.known(1)).state == ALIVE and (await it.ask(GetJob(it.job_id))).job.kept
    await it.kill(1)
    await it.all_asked()
    assert not (await it.ask(GetJob(it.job_id))).job.kept
    assert [(await it.group(number)).group.state for number in (1, 2)] == [REMOVED, CREATED]
    assert (await it.ask(KvKeys(job_namespace(it.job_id), b""))).keys == []


# --- Nodes


@at_every_write
async def test_a_node_joins_and_is_used(it: FullDisk) -> None:
    await it.create_group(1, 8)
    it.world.start("b")
    it.fill()
    await it.ask(RegisterNode(node_info("b", resources_total={"CPU": 80_000})))
    assert (await it.client.table(NODES))[id_of("b")].alive
    await it.until_group(1, CREATED)


async def begin_on_b(it: FullDisk) -> bytes:
    """An actor, a group, a driver; returns the driver's job."""
    await it.join("b", cpus=8)
    it.world.start("e", "b")
    job_id: bytes = (await it.ask(register_job("e", "b"))).job_id
    await it.register(1, max_restarts=1)
    await it.create(1, cpus=8)
    await it.live(1, node="b")
    await it.create_group(1, 8)
    await it.until_group(1, CREATED)
    return job_id


async def is_without_b(it: FullDisk, job_id: bytes) -> None:
    await it.all_asked()
    assert not (await it.client.table(NODES))[id_of("b")].alive
    assert (await it.ask(GetJob(job_id))).job.end_time
    restarting = await it.known(1)
    assert (restarting.state, restarting.restarts, restarting.death.kind) == (RESTARTING, 1, protocol.NODE_DIED)
    assert (await it.group(1)).group.state == RESCHEDULING


@at_every_write
async def test_a_node_that_leaves_is_mourned(it: FullDisk) -> None:
    job_id = await begin_on_b(it)
    it.fill()
    await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    assert not (await it.client.table(NODES))[id_of("b")].alive
    await is_without_b(it, job_id)


@at_every_write
async def test_a_node_that_dies_is_mourned(it: FullDisk) -> None:
    job_id = await begin_on_b(it)
    it.fill()
    it.world.kill("b")
    await is_without_b(it, job_id)


@at_every_write
async def test_g21_a_node_is_told_once_to_leave(it: FullDisk) -> None:
    await it.join("b")
    it.fill()
    assert await it.ask(DrainNode(id_of("b"), PREEMPTION, "go")) == DrainNodeReply(True)
    assert (await it.client.table(NODES))[id_of("b")].is_preempted()


@at_every_write
async def test_an_idle_node_that_agrees_to_leave_is_known_to(it: FullDisk) -> None:
    await it.join("b")
    it.fill()
    assert await it.ask(DrainNode(id_of("b"), IDLE_TERMINATION, "go")) == DrainNodeReply(True)
    assert (await it.client.table(NODES))[id_of("b")].drain.reason == IDLE_TERMINATION


# --- Actors


@at_every_write
async def test_an_actor_begins(it: FullDisk) -> None:
    it.serve()
    it.fill()
    await it.register(1, name="n")
    await it.create(1)
    assert (await it.until(1, ALIVE)).restarts == 0
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor.actor_id == it.actor_id(1)
    assert (await it.register(2, name="n")).existing.actor_id == it.actor_id(1)


@at_every_write
async def test_g31_two_that_want_one_name_at_once(it: FullDisk) -> None:
    it.fill()
    replies = await it.at_once(*(it.register_message(number, name="n") for number in (1, 2)))
    holder = (await it.ask(protocol.GetNamedActor("n", ""))).actor.actor_id
    expected = [None if it.actor_id(number) == holder else holder for number in (1, 2)]
    assert [reply.existing and reply.existing.actor_id for reply in replies] == expected


@at_every_write
async def test_g29_a_killed_actor_is_dead_when_that_is_answered(it: FullDisk) -> None:
    await it.begin_actor(1, max_restarts=1)
    it.fill()
    killed = await it.kill(1)
    assert killed is not None and killed.state == DEAD
    await it.all_asked()
    assert len(it.returned()) == 1


@at_every_write
async def test_g29_an_actor_is_killed_before_it_is_registered(it: FullDisk) -> None:
    it.fill()
    killed = await it.kill(1)
    assert killed is not None and killed.state == DEAD
    assert (await it.register(1)).refused == "it was killed by minray.kill"


@at_every_write
async def test_g29_a_killed_incarnation_is_followed_by_another(it: FullDisk) -> None:
    await it.begin_actor(1, max_restarts=2)
    it.serve()
    it.fill()
    await it.kill(1, no_restart=False)
    await it.hears("a", ReturnWorkerLease)
    await it.die("w")
    assert (await it.until_next(1)).restarts == 1


@at_every_write
async def test_g24_an_actor_without_handles_has_ended_when_that_is_answered(it: FullDisk) -> None:
    await it.begin_actor(1, max_restarts=1)
    it.fill()
    await it.ask(protocol.EndActor(it.actor_id(1), DeathCause(protocol.OUT_OF_SCOPE, "no handle")))
    assert (await it.known(1)).state == DEAD


@at_every_write
async def test_g27_an_actor_that_says_that_it_ends(it: FullDisk) -> None:
    await it.begin_actor(1, max_restarts=1)
    it.fill()
    await it.ask(protocol.ReportActorExit(it.actor_id(1), id_of("w"), "exit_actor"))
    assert (await it.known(1)).death == DeathCause(protocol.EXITED, "exit_actor")
    await it.die("w")
    await it.all_asked()
    assert (await it.known(1)).death.kind == protocol.EXITED


@at_every_write
async def test_g35_a_worker_that_dies_uses_up_one_restart(it: FullDisk) -> None:
    await it.begin_actor(1, max_restarts=2)
    it.serve()
    it.fill()
    await it.die("w")
    assert (await it.until_next(1)).restarts == 1


@at_every_write
async def test_g35_a_worker_that_dies_in_the_constructor_uses_up_one_restart(it: FullDisk) -> None:
    await it.register(1, max_restarts=2)
    await it.create(1)
    first = (await it.grant("w"))[0].lease_id
    it.serve(but=first)
    it.fill()
    await it.die("w")
    assert (await it.until_next(1)).restarts == 1


@at_every_write
async def test_a_constructor_that_fails_is_the_actors_end(it: FullDisk) -> None:
    await it.register(1, max_restarts=2)
    it.serve()
    it.world.neighbours["v"].answers[PushTask] = PushTaskReply(FAILED, (Value(b"error", is_error=True),), 0)
    it.fill()
    await it.create(1)
    assert (await it.until(1, DEAD)).death.kind == protocol.CREATION_TASK_FAILED


@at_every_write
async def test_g25_actors_of_a_dead_owner_are_dead(it: FullDisk) -> None:
    it.world.start("o", "a")
    owner = address("o", "a")
    await it.begin_actor(1, owner=owner)
    await it.register(2, owner=owner, detached=True)
    await it.begin_actor(3, "x", owner=owner, detached=True)
    it.fill()
    await it.die("o")
    states = [(await it.known(number)).state for number in (1, 2, 3)]
    assert states == [DEAD, DEAD, ALIVE]
    assert (await it.register(4, owner=owner)).refused.startswith("its owner is dead")


# --- Placement groups


@at_every_write
async def test_g104_a_group_is_made(it: FullDisk) -> None:
    await it.join("b")
    it.fill()
    assert await it.create_group(1, 3, 3, name="n") == ""
    group = await it.until_group(1, CREATED)
    assert set(group.nodes()) == {id_of("a"), id_of("b")}
    assert "already" in await it.create_group(2, 1, name="n")


@at_every_write
async def test_g106_a_group_is_removed(it: FullDisk) -> None:
    await it.create_group(1, 1, name="n")
    await it.until_group(1, CREATED)
    it.fill()
    await it.ask(RemovePlacementGroup(it.group_id(1)))
    assert (await it.group(1)).group.state == REMOVED
    assert await it.create_group(2, 1, name="n") == ""
    await it.until_group(2, CREATED)


@at_every_write
async def test_g106_a_group_is_removed_while_it_is_made(it: FullDisk) -> None:
    it.fill()
    await it.create_group(1, 1)
    await it.remove_group(1)
    await it.all_asked()
    assert (await it.group(1)).group.state == REMOVED


@at_every_write
async def test_g107_bundles_of_a_dead_node_move(it: FullDisk) -> None:
    await it.join("b", cpus=8)
    await it.create_group(1, 8)
    await it.until_group(1, CREATED)
    await it.join("c", cpus=8)
    it.fill()
    it.world.kill("b")
    await it.client.until(NODES, "b", lambda node: not node.alive)
    await it.all_asked()
    group = (await it.group(1)).group
    assert group.state == CREATED and group.nodes() == [id_of("c")]


# --- Values


@at_every_write
async def test_values_are_put_and_deleted(it: FullDisk) -> None:
    it.fill()
    assert (await it.ask(KvPut("n", b"k", b"v", False))).added
    assert (await it.ask(KvGet("n", b"k"))).value == b"v"
    assert not (await it.ask(KvPut("n", b"k", b"w", False))).added
    await it.ask(KvDel("n", b"k"))
    assert (await it.ask(KvGet("n", b"k"))).value is None
    assert (await it.ask(KvPut("n", b"k", b"w", False))).added
