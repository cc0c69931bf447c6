"""A gcs and all that is said to it, by one driver, as stories in the simulated world of ``tests.gcs.world``.

``@story`` makes a test of a coroutine that is given a ``Cluster``: the raylet of node "a", a driver "d" there, its job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from minray.common.bundles import PACK
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo, SchedulingStrategy
from minray.platform.base import RemoteFailure
from minray.protocol import actor as protocol
from minray.protocol.actor import ALIVE, DEPENDENCIES_UNREADY, ActorInfo
from minray.protocol.base import Address, Request
from minray.protocol.core_worker import OK, PushTask, PushTaskReply
from minray.protocol.gcs import RegisterNode, ReportWorkerDeath, WorkerDeath
from minray.protocol.placement_group import (
    Bundle,
    CreatePlacementGroup,
    GetPlacementGroup,
    PlacementGroupInfo,
    PlacementGroupReply,
    RemovePlacementGroup,
)
from minray.protocol.raylet import GRANTED, LeaseReply, RequestWorkerLease
from minray.rpc.service import Call
from tests.gcs.neighbours import Kind
from tests.gcs.world import Client, World, id_of, node_info, register_job
from tests.parameters import without_first

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
        values = {"name": "", "owner": self.driver, "detached": False, "max_restarts": 0, "handle": b"", **fields}
        actor = ActorInfo(self.actor_id(number), DEPENDENCIES_UNREADY, "Counter", namespace="", restarts=0, **values)
        return protocol.RegisterActor(actor)

    async def register(self, number: int, **fields: Any) -> protocol.RegisterActorReply:
        return await self.ask(self.register_message(number, **fields))

    async def create(self, number: int, cpus: int = 0) -> None:
        shape = LeaseShape((("CPU", 10_000),), SchedulingStrategy(), RuntimeEnvInfo(), self.job_id)
        placement = [("CPU", cpus * 10_000)] if cpus else []
        creation = protocol.ActorCreation(b"t" * 24, shape, placement, b"header", b"args", inline_buffers=(b"buffer",))
        await self.ask(protocol.CreateActor(self.actor_id(number), creation))

    async def grant(self, worker: str, node: str = "a") -> tuple[PushTask, Call]:
        """The raylet grants this worker, who is given a constructor."""
        _, call = await self.hears(node, RequestWorkerLease)
        call.reply(LeaseReply(GRANTED, self.world.start(worker, node), 7))
        return await self.hears(worker, PushTask)

    async def live(self, number: int, worker: str = "w", node: str = "a") -> ActorInfo:
        """Constructed there."""
        _, constructor = await self.grant(worker, node)
        constructor.reply(PushTaskReply(OK, (), 0))
        return await self.until(number, ALIVE)

    async def begin_actor(self, number: int, worker: str = "w", **fields: Any) -> ActorInfo:
        """Registered, created and constructed."""
        assert await self.register(number, **fields) == protocol.RegisterActorReply(None)
        await self.create(number)
        return await self.live(number, worker)

    async def kill(self, number: int, kill_id: bytes = b"kill", no_restart: bool = True) -> ActorInfo | None:
        return (await self.ask(protocol.KillActor(self.actor_id(number), kill_id, no_restart))).actor

    def full_disk(self, after_s: float, for_s: float) -> None:
        """Let the disk of the gcs take no write during this time."""
        for at_s, is_full in ((after_s, True), (after_s + for_s, False)):
            self.world.sim.loop.world.call_later(at_s, setattr, self.world.head, "disk_full", is_full)

    async def ask_until_stored(self, request: Request[Any]) -> Any:
        """Ask again as long as the gcs refuses because it cannot store the request."""
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

    # --- Placement groups

    def group_message(self, number: int, *cpus: int, **fields: Any) -> CreatePlacementGroup:
        """A group with a bundle for each of these numbers of CPUs."""
        bundles = [Bundle({"CPU": count * 10_000}) for count in cpus]
        group = PlacementGroupInfo(self.group_id(number), "", "", PACK, bundles, "", self.job_id, detached=False)
        return CreatePlacementGroup(msgspec.structs.replace(group, **fields))

    async def create_group(self, number: int, *cpus: int, **fields: Any) -> str:
        """Returns why it is refused."""
        return (await self.ask(self.group_message(number, *cpus, **fields))).refused

    def group_id(self, number: int) -> bytes:
        return number.to_bytes(14, "big") + self.job_id

    async def group(self, number: int) -> PlacementGroupReply:
        return await self.ask(GetPlacementGroup(self.group_id(number)))

    async def remove_group(self, number: int) -> None:
        await self.ask(RemovePlacementGroup(self.group_id(number)))

    async def until_group(self, number: int, *states: str) -> PlacementGroupInfo:
        for _ in range(1000):
            group = (await self.group(number)).group
            if group is not None and group.state in states:
                return group
            await self.client.pass_time(0.005)
        raise AssertionError(f"group {number} is still {group and group.state}")

    # --- What the others hear

    async def hears(self, name: str, kind: Kind) -> tuple[Any, Call]:
        """Wait for the next request of this kind to a raylet or worker; see ``neighbours``."""
        return await self.world.neighbours[name].hears(kind)

    async def explained(self, number: int) -> protocol.ActorExplanation:
        """Why an actor is not alive."""
        await self.client.pass_time(A_MOMENT_S)
        return await self.ask(protocol.ExplainActor(self.actor_id(number), self.driver))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_clock(self) -> float:
        return self.world.platform.host.time()

    async def until(self, number: int, *states: str) -> ActorInfo:
        for _ in range(1000):
            known = await self.known(number)
            if known is not None and known.state in states:
                return known
            await self.client.pass_time(0.005)
        raise AssertionError(f"actor {number} is still {known and known.state}")


def story(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of it, whose parameters and fixtures are those that it has beside the cluster."""

    def run(**parameters: Any) -> None:
        world = World()

        async def tell(client: Client) -> None:
            cluster = Cluster(world, client)
            await cluster.begin()
            await test(cluster, **parameters)

        world.run(tell)

    return without_first(test, run)
