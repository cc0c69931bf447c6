"""What the gcs does about actors, told by a driver, with pretended raylets and workers in the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minray.common.task_spec import LeaseShape, RuntimeEnv, SchedulingStrategy
from minray.platform.base import RemoteFailure
from minray.protocol import actor as protocol
from minray.protocol.actor import ALIVE, DEAD, DEPENDENCIES_UNREADY, PENDING_CREATION, RESTARTING, ActorInfo
from minray.protocol.base import Address, Request
from minray.protocol.core_worker import NOT_STARTED, OK, PushTask, PushTaskReply
from minray.protocol.gcs import (
    JOBS,
    NODES,
    FinishJob,
    GetJob,
    KvPut,
    RegisterNode,
    ReportWorkerDeath,
    UnregisterNode,
    WorkerDeath,
)
from minray.protocol.raylet import (
    GRANTED,
    REJECTED,
    SPILLBACK,
    UNSCHEDULABLE,
    CancelWorkerLease,
    LeaseReply,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from minray.rpc.service import Call
from tests.gcs.world import Client, World, address, id_of, node_info, register_job

COMMIT_S = 0.002
"""As long as a write takes."""
A_MOMENT_S = 0.1


class Cluster:
    """A gcs, the raylet of node "a", and a driver, which says all that is said about actors."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.client = client
        self.ask = client.ask

    async def begin(self) -> None:
        await self.join("a")
        self.driver = self.world.start("d", "a")
        self.job_id = (await self.ask(register_job("d", "a"))).job_id

    async def join(self, name: str, cpus: int = 4) -> None:
        self.world.start(name)
        await self.ask(RegisterNode(node_info(name, resources_total={"CPU": cpus * 10_000})))

    def actor_id(self, number: int) -> bytes:
        return number.to_bytes(12, "big") + self.job_id

    async def at_once(self, *requests: Request[Any]) -> list[Any]:
        """Ask all of it while the first one is being written: what the others store shares the next write, in this order."""
        asking = []
        for request in requests:
            asking.append(asyncio.create_task(self.ask(request)))
            await self.client.pass_time(COMMIT_S / 8)
        return await asyncio.gather(*asking)

    def register_message(self, number: int, **fields: Any) -> protocol.RegisterActor:
        values = {"name": "", "owner": self.driver, "detached": False, "max_restarts": 0, **fields}
        actor = ActorInfo(
            self.actor_id(number), DEPENDENCIES_UNREADY, "Counter", namespace="", restarts=0, handle=b"", **values
        )
        return protocol.RegisterActor(actor)

    async def register(self, number: int, **fields: Any) -> protocol.RegisterActorReply:
        return await self.ask(self.register_message(number, **fields))

    async def create(self, number: int, cpus: int = 0) -> None:
        shape = LeaseShape((), SchedulingStrategy(), RuntimeEnv(), self.job_id)
        placement = [("CPU", cpus * 10_000)] if cpus else []
        creation = protocol.ActorCreation(b"t" * 24, shape, placement, b"header", b"args")
        await self.ask(protocol.CreateActor(self.actor_id(number), creation))

    async def grant(self, worker: str, node: str = "a") -> tuple[PushTask, Call]:
        """The raylet grants this worker, who is given a constructor."""
        _, call = await self.world.neighbours[node].hears(RequestWorkerLease)
        call.reply(LeaseReply(GRANTED, self.world.start(worker, node), 7))
        push, constructor = await self.world.neighbours[worker].hears(PushTask)
        return push, constructor

    async def live(self, number: int, worker: str = "w", node: str = "a") -> ActorInfo:
        """Constructed there."""
        _, constructor = await self.grant(worker, node)
        constructor.reply(PushTaskReply(OK, [], 0))
        return await self.until(number, ALIVE)

    async def begin_actor(self, number: int, worker: str = "w", **fields: Any) -> ActorInfo:
        """Registered, created and constructed."""
        assert await self.register(number, **fields) == protocol.RegisterActorReply(None)
        await self.create(number)
        return await self.live(number, worker)

    async def kill(self, number: int, kill_id: bytes = b"kill", no_restart: bool = True) -> ActorInfo | None:
        return (await self.ask(protocol.KillActor(self.actor_id(number), kill_id, no_restart))).actor

    def full_disk(self, after_s: float, for_s: float) -> None:
        """Of the gcs: nothing can be written during this time."""
        for at_s, is_full in ((after_s, True), (after_s + for_s, False)):
            self.world.sim.loop.world.call_later(at_s, setattr, self.world.head, "disk_full", is_full)

    async def ask_until_stored(self, request: Request[Any]) -> Any:
        """As those do who are refused for that."""
        while True:
            try:
                return await self.ask(request)
            except RemoteFailure as error:
                assert error.kind == "storage-failed"
                await self.client.pass_time(0.5)

    async def die(self, worker: str, node: str = "a") -> None:
        self.world.kill(worker)
        await self.ask(self.death(worker, node))

    def death(self, worker: str, node: str = "a") -> ReportWorkerDeath:
        return ReportWorkerDeath(WorkerDeath(id_of(worker), id_of(node), 7, "SIGSEGV"))

    async def known(self, number: int, owner: Address | None = None) -> ActorInfo | None:
        return (await self.ask(protocol.GetActor(self.actor_id(number), owner or self.driver))).actor

    async def until(self, number: int, *states: str) -> ActorInfo:
        for _ in range(1000):
            known = await self.known(number)
            if known is not None and known.state in states:
                return known
            await self.client.pass_time(0.005)
        raise AssertionError(f"actor {number} is still {known and known.state}")


def story(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Makes a test of it."""

    def run() -> None:
        world = World()

        async def tell(client: Client) -> None:
            cluster = Cluster(world, client)
            await cluster.begin()
            await test(cluster)

        world.run(tell)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@story
async def test_the_life_of_an_actor(it: Cluster) -> None:
    assert await it.register(1, max_restarts=1) == protocol.RegisterActorReply(None)
    assert (await it.until(1, DEPENDENCIES_UNREADY)).start_time > 0
    await it.create(1)
    push, constructor = await it.grant("w")
    assert (push.actor_id, push.attempt, push.args, push.header) == (it.actor_id(1), 0, b"args", b"header")
    assert (await it.known(1)).state == PENDING_CREATION
    constructor.reply(PushTaskReply(OK, [], 0))
    alive = await it.until(1, ALIVE)
    assert (alive.address, alive.raylet, alive.pid) == (address("w", "a"), address("a", "a"), 7)
    await it.die("w")
    assert (await it.known(1)).state == RESTARTING
    again = await it.live(1, "v")
    assert (again.restarts, again.address) == (1, address("v", "a"))
    await it.die("v")
    dead = await it.known(1)
    assert dead.state == DEAD and dead.death.message == "its worker died: SIGSEGV" and dead.end_time > dead.start_time


# --- What happens while something is written ---


@story
async def test_g25_an_actor_whose_owner_dies_while_it_is_registered_is_dead(it: Cluster) -> None:
    it.world.start("o", "a")
    _, _, reply = await it.at_once(
        KvPut("n", b"k", b"v", True), it.death("o"), it.register_message(1, owner=address("o", "a"), name="n")
    )
    assert reply == protocol.RegisterActorReply(None)
    assert (await it.until(1, DEAD)).death.kind == protocol.OWNER_DIED
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is None


@story
async def test_g25_an_actor_whose_job_finishes_while_it_is_registered_is_dead(it: Cluster) -> None:
    await it.at_once(KvPut("n", b"k", b"v", True), FinishJob(it.job_id), it.register_message(1))
    assert (await it.until(1, DEAD)).death.kind == protocol.JOB_FINISHED


@pytest.mark.parametrize("registered_first", [True, False])
def test_a_detached_actor_does_not_outlive_a_job_that_finishes_while_it_is_registered(registered_first: bool) -> None:
    """Nothing of the job was kept for it."""

    async def told(it: Cluster) -> None:
        register, finish = it.register_message(1, detached=True), FinishJob(it.job_id)
        await it.at_once(KvPut("n", b"k", b"v", True), *((register, finish) if registered_first else (finish, register)))
        assert (await it.until(1, DEAD)).death.kind == protocol.JOB_FINISHED

    story(told)()


@pytest.mark.parametrize("full_after_us", range(0, 6000, 1000))
def test_g26_a_job_is_let_go_with_its_last_detached_actor_when_that_can_be_written(full_after_us: int) -> None:
    async def told(it: Cluster) -> None:
        await it.begin_actor(1, detached=True)
        await it.ask(FinishJob(it.job_id))
        assert (await it.ask(GetJob(it.job_id))).job.kept
        it.full_disk(after_s=full_after_us / 1e6, for_s=3.0)
        await it.kill(1)
        await it.until(1, DEAD)
        await it.client.until(JOBS, it.job_id, lambda job: not job.kept)

    story(told)()


@pytest.mark.parametrize("full_after_us", range(0, 6000, 1000))
def test_g39b_actors_of_a_dead_node_are_dead_whenever_that_can_be_written(full_after_us: int) -> None:
    async def told(it: Cluster) -> None:
        await it.join("b", cpus=8)
        it.world.start("e", "b")
        other = (await it.ask(register_job("e", "b"))).job_id
        await it.register(1)
        await it.create(1, cpus=8)
        await it.live(1, node="b")
        it.full_disk(after_s=full_after_us / 1e6, for_s=3.0)
        it.world.kill("b")
        assert (await it.until(1, DEAD)).death.kind == protocol.NODE_DIED
        await it.client.until(JOBS, other, lambda job: job.end_time)

    story(told)()


@pytest.mark.parametrize("full_after_us", range(0, 6000, 1000))
def test_g109_a_job_of_a_dead_node_ends_whenever_that_can_be_written(full_after_us: int) -> None:
    """Its driver may be cut off, so that nothing else ends it."""

    async def told(it: Cluster) -> None:
        await it.join("b")
        it.world.start("e", "b", silent=True)
        await it.ask(UnregisterNode(id_of("b"), "minray stop"))
        it.full_disk(after_s=full_after_us / 1e6, for_s=3.0)
        job_id = (await it.ask_until_stored(register_job("e", "b"))).job_id
        await it.client.until(JOBS, job_id, lambda job: job.end_time)

    story(told)()
