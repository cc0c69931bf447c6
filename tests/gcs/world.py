"""A simulated world with a gcs, processes that answer health checks, and the story that a test tells in it.

``World.run`` runs one story, in virtual time, as a process of its own on a node of its own; the story asks the gcs
through its ``Client`` and acts on the world: starts and kills processes, cuts nodes off, fills the gcs's disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from minray.common.config import GcsConfig, SystemConfig
from minray.gcs.server import GcsServer
from minray.platform.base import Platform
from minray.protocol.base import Address, Record, Request, decode
from minray.protocol.gcs import (
    JOBS,
    NODES,
    RESOURCES,
    WORKER_DEATHS,
    CheckAlive,
    JobConfig,
    JobInfo,
    NodeInfo,
    NodeResources,
    Poll,
    RegisterJob,
    WorkerDeath,
)
from minray.rpc.connection import Peer
from minray.rpc.service import Dispatcher
from minray.simulation.faults import Oracle
from minray.simulation.loop import SimProcess
from minray.simulation.machine import Role, SimWorld
from minray.simulation.network import SimNetwork
from tests.gcs.neighbours import Neighbour
from tests.raylet.scene import timers_of

GCS = "sim:gcs"
DISK = "gcs.db"
RECORDS: dict[str, type[Record]] = {NODES: NodeInfo, RESOURCES: NodeResources, JOBS: JobInfo, WORKER_DEATHS: WorkerDeath}
PATIENCE_S = 1000.0

R = TypeVar("R", bound=Record)
Story = Callable[["Client"], Coroutine[Any, Any, None]]


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def address(name: str, node: str) -> Address:
    return Address(id_of(name), id_of(node), f"sim:{name}")


def node_info(name: str, **fields: Any) -> NodeInfo:
    node = NodeInfo(id_of(name), name, "127.0.0.1", name, address(name, name), {"CPU": 40_000}, {}, is_head=False)
    return msgspec.structs.replace(node, **fields)


def resources(name: str, version: int, cpus: int = 4) -> NodeResources:
    return NodeResources(id_of(name), version, {"CPU": 40_000}, {"CPU": cpus * 10_000}, [])


def register_job(driver: str, node: str) -> RegisterJob:
    return RegisterJob(address(driver, node), 77, JobConfig(["/src"], "/", "", f"python {driver}.py"))


class Client:
    """How a story talks to the gcs."""

    def __init__(self, platform: Platform) -> None:
        self._peer = Peer(platform, GCS, b"", PATIENCE_S, may_restart=True)

    async def ask(self, request: Request[R]) -> R:
        return await self._peer.call(request)

    def close(self) -> None:
        """Close the channel: no request is sent again."""
        self._peer.close()

    async def table(self, channel: str) -> dict[bytes, Any]:
        """Entries that a new subscriber receives."""
        return await self._entries(Poll(channel, b"", 0, PATIENCE_S))

    async def _entries(self, poll: Poll) -> dict[bytes, Any]:
        reply = await self.ask(poll)
        return {key: None if value is None else decode(RECORDS[poll.channel], value) for key, value in reply.entries}

    async def until(self, channel: str, name: str | bytes, condition: Callable[[Any], object]) -> Any:
        """Follow a channel until an entry satisfies the condition; returns it."""
        key = id_of(name) if isinstance(name, str) else name
        epoch, version = b"", 0
        while True:
            reply = await self.ask(Poll(channel, epoch, version, PATIENCE_S))
            epoch, version = reply.epoch, reply.version
            value = dict(reply.entries).get(key)
            if value is not None and condition(record := decode(RECORDS[channel], value)):
                return record

    async def pass_time(self, for_s: float) -> None:
        """Let other processes run for this many virtual seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await asyncio.Event().wait()

    async def news(self, channel: str, for_s: float) -> list[bytes]:
        """Keys that change next; none if nothing changes within ``for_s``."""
        now = await self.ask(Poll(channel, b"", 0, 0.0))
        later = await self.ask(Poll(channel, now.epoch, now.version, for_s))
        return [key for key, _ in later.entries]


class World:
    """See the head of this file."""

    def __init__(self, storage_path: str = DISK, **overrides: Any) -> None:
        self.config = GcsConfig([GCS], storage_path, "session", SystemConfig(**overrides))
        roles = {
            "gcs": Role(self._run_gcs, lambda config: config),
            "answering": Role(self._run_answering, lambda config: config),
            "story": Role(self._run_story, lambda config: config),
        }
        self.sim = SimWorld(Oracle(0), roles)
        self.head = self.sim.node("head")
        self.outside = self.sim.node("outside")
        self.processes: dict[str, SimProcess] = {}
        self.neighbours: dict[str, Neighbour] = {}
        """Name of a process that ``start`` has started -> what answers there."""
        self._gcs_count = 0
        self._outcome: asyncio.Future[None]
        self.start_gcs()

    def start_gcs(self) -> None:
        self._gcs_count += 1
        self.processes["gcs"] = self.sim.start("gcs", "gcs", self.head, id_of(f"gcs-{self._gcs_count}"))

    def start(self, name: str, node: str = "", silent: bool = False) -> Address:
        """A process that listens, see ``neighbours``; a silent one answers no health check; a raylet has its node's name."""
        node = node or name
        self.neighbours[name] = Neighbour()
        if silent:
            self.neighbours[name].answers[CheckAlive] = None
        self.processes[name] = self.sim.start("answering", name, self.sim.node(node), id_of(name))
        return address(name, node)

    def kill(self, name: str) -> None:
        self.processes[name].exit(None, 9)

    def restart_gcs(self) -> None:
        self.kill("gcs")
        self.start_gcs()

    def break_channels(self, name: str) -> None:
        """All that the gcs has to this process."""
        assert isinstance(self.gcs_platform.network, SimNetwork)
        for end in list(self.gcs_platform.network.ends):
            if end.pipe.target is self.processes[name]:
                self.sim.wire._reset(end, "broken by the test")

    def watches(self) -> list[str]:
        """Processes that the gcs watches: names of its tasks."""
        names = [task.get_name() for task in self.sim.loop.pending_tasks() if task.process is self.processes["gcs"]]
        return sorted(name for name in names if name.startswith("watch("))

    def run(self, story: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        self._story: Callable[[Client], Awaitable[None]] = story
        self._outcome = self.sim.loop.create_future()
        self.sim.start("story", "story", self.outside, id_of("story"))
        try:
            self.sim.loop.run_until_complete(self._outcome)
        finally:
            self.sim.loop.close()
        assert self.sim.loop.failures == []

    async def _run_gcs(self, platform: Platform, config: bytes) -> None:
        self.gcs = GcsServer(platform, self.config)
        self.gcs_platform = platform
        await self.gcs.start()
        await asyncio.Event().wait()

    def left_by_gcs(self) -> list[str]:
        """Leftovers of the gcs: tasks, timers, channels, and endpoints where it listens."""
        process, network = self.processes["gcs"], self.gcs_platform.network
        assert isinstance(network, SimNetwork)
        tasks = [task.get_name() for task in self.sim.loop.pending_tasks() if task.process is process]
        channels = [f"channel to {end.pipe.target.name}" for end in network.ends if not end.closed]
        listening = [where for where, listener in self.sim.wire.listeners.items() if listener.network is network]
        return [*(name for name in tasks if name != "gcs"), *timers_of(process), *channels, *listening]

    async def _run_answering(self, platform: Platform, config: bytes) -> None:
        dispatcher = Dispatcher(self.neighbours[platform.name])
        await platform.network.listen(f"sim:{platform.name}", platform.identity, dispatcher)
        await asyncio.Event().wait()

    async def _run_story(self, platform: Platform, config: bytes) -> None:
        self.platform = platform
        try:
            await self._story(Client(platform))
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)
