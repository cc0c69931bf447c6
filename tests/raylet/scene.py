"""A raylet among real and pretended neighbours, in the simulated world: real gcs, pretended workers and owners.

``@scenario(...)`` turns ``async def test_x(scene)`` into a test: the coroutine runs as the process of an owner with a job,
in virtual time. ``scene.lease()`` asks for a lease as that owner; ``scene.workers`` are the pretended workers, which do
nothing by themselves but register and agree to end.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from minray.common.bundles import is_cpu
from minray.common.config import GcsConfig, RayletConfig, SystemConfig, WorkerConfig
from minray.common.ids import LeaseIdFactory, lease_tag
from minray.common.resources import OBJECT_STORE_MEMORY, resource_set
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo, SchedulingStrategy
from minray.gcs.server import GcsServer
from minray.platform.base import Buffer, Platform, PlatformError, SpawnFailed
from minray.protocol.base import DONE, Address, Done
from minray.protocol.core_worker import ExitWorker, ExitWorkerReply, LocalGC, PrintLines, RevokeLeases
from minray.protocol.gcs import CheckAlive, JobConfig, RegisterJob
from minray.protocol.raylet import (
    LeaseReply,
    NotifyWorkerBlocked,
    RegisterWorker,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from minray.raylet.raylet import Raylet
from minray.rpc.connection import Peer, Peers
from minray.rpc.service import Call, Dispatcher
from minray.simulation.faults import FaultPlan, Oracle
from minray.simulation.interpreter import simulated_meanings
from minray.simulation.logs import SimLogs
from minray.simulation.loop import SimProcess, current_process
from minray.simulation.machine import Role, SimWorld

GCS = "sim:gcs"
POLL_S = 0.005
STORE_BYTES = 1 << 20


class Worker:
    """A pretended worker."""

    def __init__(self, scene: Scene, platform: Platform, config: WorkerConfig) -> None:
        process = current_process.get()
        assert process is not None
        self.process: SimProcess = process
        self.config = config
        self.pid = process.pid
        self.asked: list[bool] = []
        """The ``force`` of every ExitWorker that came."""
        self.refuses = False
        self.answers = True
        """Whether it answers ExitWorker by itself."""
        self.unanswered: Call | None = None
        """The last ExitWorker that it has not answered."""
        self.lingers = False
        """Whether it agrees to end and does not."""
        self.collected = 0
        """How often it was asked to collect garbage."""
        self._platform = platform
        self._scene = scene
        self._blocked = 0

    async def live(self) -> int:
        endpoint = f"{self.config.socket_dir}/{self.config.worker_id.hex()}"
        listener = await self._platform.network.listen(endpoint, self.config.worker_id, Dispatcher(self))
        self.address = Address(self.config.worker_id, self.config.node_id, listener.endpoint)
        peers = Peers(self._platform, self.config.node_id, 5.0)
        self.raylet = peers.at(self.config.raylet_endpoint, reconnect_timeout_s=5.0, may_restart=False)
        self._exited = asyncio.get_running_loop().create_future()
        self._scene.workers[self.config.worker_id] = self
        try:
            await self.register()
        except PlatformError:
            return 1
        return await self._exited

    async def register(self) -> str:
        return (await self.raylet.call(RegisterWorker(self.address, self.pid))).refused

    async def register_as(self, other: Worker) -> str:
        """Claim to be another worker."""
        return (await self.raylet.call(RegisterWorker(other.address, other.pid))).refused

    def handle_LocalGC(self, request: LocalGC, call: Call) -> Done:
        self.collected += 1
        return DONE

    async def handle_ExitWorker(self, request: ExitWorker, call: Call) -> ExitWorkerReply | None:
        self.asked.append(request.force)
        if not self.answers:
            self.unanswered = call
            return None
        agreed = request.force or not (self.refuses or self._scene.workers_refuse)
        if agreed and not self.lingers:
            asyncio.get_running_loop().call_later(POLL_S, self.exit, 0)
        return ExitWorkerReply(agreed)

    @property
    def is_alive(self) -> bool:
        return self.process.alive

    def exit(self, code: int) -> None:
        if not self._exited.done():
            self._exited.set_result(code)

    def print(self, text: str, stream: str = "stdout") -> None:
        assert self.process.on_text is not None
        self.process.on_text(stream, text)

    def start_task(self, lease_id: bytes, sequence: int) -> None:
        """Mark that a task begins, as a worker does."""
        marks = self._platform.processes.marks
        marks[:16] = sequence.to_bytes(8, "little") + lease_tag(lease_id).to_bytes(8, "little")

    def blocked_message(self, blocked: bool) -> NotifyWorkerBlocked:
        self._blocked += 1
        return NotifyWorkerBlocked(self.config.worker_id, self._blocked, blocked)


class Scene:
    """Nodes with real raylets, and the owner, workers and events that a test sees."""

    def __init__(
        self, nodes: Mapping[str, Mapping[str, float]], system: SystemConfig, seed: int, faults: FaultPlan | None
    ) -> None:
        self.nodes = nodes
        self.system = system
        self.raylets: dict[str, Raylet] = {}
        self.processes: dict[str, SimProcess] = {}
        """Processes of the gcs and the raylets."""
        self.reasons: dict[str, str] = {}
        """Why raylets ended."""
        self.refused: dict[str, str] = {}
        """Why raylets ended before they had joined."""
        self.left: dict[str, list[str]] = {}
        """Leftovers of raylets that have ended: timers, tasks, channels, endpoints, and memory that they hand out."""
        self.workers: dict[bytes, Worker] = {}
        """Those that have begun to register, alive or not, in that order."""
        self.workers_refuse = False
        self.spawn_failures = 0
        """Number of the next spawns that fail."""
        self.silent_starts = 0
        """Number of the next workers that never register."""
        self.broken_starts = 0
        """Number of the next workers that die before they register."""
        self.listening_takes_s = 0.0
        """How long a raylet needs for that."""
        self.spawns = 0
        self.logs = SimLogs()
        """The log files of all raylets."""
        self.printed: list[PrintLines] = []
        """Messages with lines that came to this owner as a driver."""
        self.revoked = 0
        """How often this owner was asked for idle leases,"""
        self.collected = 0
        """and how often to collect garbage."""
        self.is_busy = False
        """Whether this owner hears everything and answers nothing."""
        self.world = SimWorld(
            Oracle(seed, faults or FaultPlan.quiet()),
            {
                "gcs": Role(self._run_gcs, lambda config: b"g" * 16),
                "raylet": Role(self._run_raylet, lambda config: msgspec.msgpack.decode(config, type=RayletConfig).node_id),
                "worker": Role(self._run_worker, lambda config: msgspec.msgpack.decode(config, type=WorkerConfig).worker_id),
                "owner": Role(self._run_owner, lambda config: config),
                "other": Role(self._run_other, lambda config: config),
            },
        )
        self.others: dict[bytes, Address] = {}
        self.bystanders: dict[bytes, Bystander] = {}

    # --- Roles ---------------------------------------------------------------------------------------------------------

    async def _run_gcs(self, platform: Platform, config: bytes) -> None:
        server = GcsServer(platform, msgspec.msgpack.decode(config, type=GcsConfig))
        await server.start()
        await server.wait_closed()

    async def _run_raylet(self, platform: Platform, config: bytes) -> None:
        decoded = msgspec.msgpack.decode(config, type=RayletConfig)
        processes, network = Processes(self, platform.processes), Network(self, platform.network)
        platform = msgspec.structs.replace(platform, processes=processes, network=network)
        raylet = Raylet(platform, decoded, logs=self.logs)
        await raylet.start()
        if raylet.reason:
            self.refused[decoded.node_name] = raylet.reason
        self.raylets[decoded.node_name] = raylet
        reason = await raylet.wait_closed()
        self.left[decoded.node_name] = self.left_by(raylet)
        self.reasons[decoded.node_name] = reason

    def left_by(self, raylet: Raylet) -> list[str]:
        """See ``left``."""
        process = current_process.get()
        listening = [where for where, listener in self.world.wire.listeners.items() if listener.network.process is process]
        tasks = self.tasks_of(process)
        network: Any = raylet._platform.network
        channels = [f"channel to {end.pipe.target.name}" for end in network.ends if not end.closed]
        memory = self.handed_out(raylet._config.node_name)
        return [*timers_of(process), *listening, *(name for name in tasks if name != "raylet"), *channels, *memory]

    def written(self) -> dict[str, str]:
        """Return the contents of the log files, by name."""
        return {name: log.data.decode() for name, log in self.logs.files.items()}

    def handed_out(self, name: str) -> set[str]:
        """Where the memory of a node is found."""
        return {where for where, arena in self.world._arenas.items() if arena.creator is self.processes[name]}

    async def _run_worker(self, platform: Platform, config: bytes) -> int:
        if self.broken_starts:
            self.broken_starts -= 1
            process = current_process.get()
            assert process is not None and process.on_text is not None
            process.on_text("stderr", "no such module\n")
            return 3
        if self.silent_starts:
            self.silent_starts -= 1
            await asyncio.get_running_loop().create_future()
        return await Worker(self, platform, msgspec.msgpack.decode(config, type=WorkerConfig)).live()

    async def _run_owner(self, platform: Platform, config: bytes) -> None:
        self.platform = platform
        self.node_id = next(iter(self.nodes)).ljust(16).encode()
        await platform.network.listen("sim:owner", config, Dispatcher(self))
        self.address = Address(config, self.node_id, "sim:owner")
        self.peers = Peers(platform, self.node_id, 5.0)
        self.gcs = self.peers.at(GCS, reconnect_timeout_s=60.0, may_restart=True)
        self.lease_ids = LeaseIdFactory(config)
        await self.until(lambda: len(self.raylets) == len(self.nodes) and all(map(self.knows_all, self.raylets.values())))
        job = RegisterJob(self.address, 1, JobConfig([], "", "", ""))
        self.job_id = (await self.gcs.call(job)).job_id
        self.world.oracle.active = True
        await self.test(self)

    def knows_all(self, raylet: Raylet) -> bool:
        return len(raylet._broker.nodes.alive()) == len(self.nodes)

    async def _run_other(self, platform: Platform, config: bytes) -> None:
        address = Address(config, self.node_id, f"sim:other-{config.hex()}")
        self.bystanders[config] = Bystander()
        await platform.network.listen(address.endpoint, config, Dispatcher(self.bystanders[config]))
        self.others[config] = address
        await asyncio.get_running_loop().create_future()

    # --- As an owner and a driver ----------------------------------------------------------------------------------------

    def handle_CheckAlive(self, request: CheckAlive, call: Call) -> Done:
        return DONE

    def handle_RevokeLeases(self, request: RevokeLeases, call: Call) -> Done | None:
        self.revoked += 1
        return None if self.is_busy else DONE

    def handle_LocalGC(self, request: LocalGC, call: Call) -> Done:
        self.collected += 1
        return DONE

    def handle_PrintLines(self, request: PrintLines, call: Call) -> Done | None:
        self.printed.append(request)
        return None if self.is_busy else DONE

    def raylet(self, name: str = "") -> Peer:
        """The way to a raylet; the first one if none is named."""
        return self.peers.to(self.raylets[name or next(iter(self.nodes))].address)

    def shape(self, needs: Mapping[str, float], strategy: SchedulingStrategy, env: str, job_id: bytes | None) -> LeaseShape:
        resources = tuple(sorted(resource_set(needs).items()))
        return LeaseShape(resources, strategy, RuntimeEnvInfo(working_dir=env), self.job_id if job_id is None else job_id)

    def request(
        self,
        needs: Mapping[str, float] | float = 1,
        *,
        depth: int = 0,
        strategy: SchedulingStrategy | None = None,
        env: str = "",
        owner: Address | None = None,
        job_id: bytes | None = None,
        second_hop: bool = False,
        lease_id: bytes = b"",
    ) -> RequestWorkerLease:
        needs = {"CPU": needs} if isinstance(needs, int | float) else needs
        shape = self.shape(needs, strategy or SchedulingStrategy(), env, job_id)
        return RequestWorkerLease(
            lease_id or self.lease_ids.next(), owner or self.address, shape, depth, 0, second_hop
        )

    async def lease(self, *args: Any, **options: Any) -> tuple[bytes, LeaseReply]:
        """Ask the first raylet; returns the lease id and the answer."""
        request = self.request(*args, **options)
        return request.lease_id, await self.raylet().call(request)

    def ask(self, request: RequestWorkerLease, name: str = "") -> asyncio.Future[LeaseReply]:
        """Ask before anything that is asked after this, and go on."""
        answer: asyncio.Future[LeaseReply] = asyncio.get_running_loop().create_future()

        def on_answer(reply: LeaseReply | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
            if reply is not None:
                answer.set_result(reply)
            else:
                answer.set_exception(error or AssertionError("neither a reply nor an error"))

        self.raylet(name).send(request, on_answer)
        return answer

    async def give_back(self, lease_id: bytes, kill_worker: bool = False, reason: str = "") -> None:
        await self.raylet().call(ReturnWorkerLease(lease_id, kill_worker, reason))

    def worker(self, reply: LeaseReply) -> Worker:
        assert reply.worker is not None, reply
        return self.workers[reply.worker.worker_id]

    async def other_owner(self, worker_id: bytes) -> Address:
        """Another process that can own leases."""
        self.processes[worker_id.hex()] = self.world.start("other", worker_id.hex(), self.world.node("owners"), worker_id)
        await self.until(lambda: worker_id in self.others)
        return self.others[worker_id]

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine, name="begun")

    async def never(self, *_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    def tasks_of(self, process: SimProcess | None) -> list[str]:
        """Names of what goes on in it."""
        return [task.get_name() for task in self.world.loop.pending_tasks() if task.process is process]

    # --- The world -----------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], limit_s: float = 100.0) -> None:
        """Let virtual time pass until something is true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not condition():
            assert loop.time() < deadline, "it never became true"
            await self.nap(POLL_S)

    async def settle(self, duration_s: float = 1.0) -> None:
        """Let virtual time pass, so that everything that is due has happened."""
        await self.nap(duration_s)

    async def nap(self, duration_s: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(duration_s, waiter.set_result, None)
        await waiter

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.is_alive]

    def kill(self, name: str) -> None:
        self.processes[name].exit(None, 9)

    def add_node(self, name: str, resources: Mapping[str, float], tcp_host: str = "") -> None:
        config = RayletConfig(
            node_id=name.ljust(16).encode(),
            node_name=name,
            node_ip="10.0.0.1",
            gcs_endpoint=GCS,
            socket_dir=f"sim:{name}",
            tcp_host=tcp_host,
            tcp_port=0,
            session_dir="/session",
            resources=resource_set({OBJECT_STORE_MEMORY: STORE_BYTES, **resources}),
            labels={},
            is_head=False,
            system_config=self.system,
            spill_directories=["spill"],
        )
        node = self.world.node(name)
        self.processes[name] = self.world.start("raylet", f"raylet/{name}", node, msgspec.msgpack.encode(config))

    def start_gcs(self) -> None:
        config = GcsConfig([GCS], "/store", "session", self.system)
        self.processes["gcs"] = self.world.start("gcs", "gcs", self.world.node("gcs"), msgspec.msgpack.encode(config))

    def run(self, test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        self.test = test
        self.start_gcs()
        for name, resources in self.nodes.items():
            self.add_node(name, resources)
        owner = self.world.start("owner", "owner", self.world.node("owners"), b"o" * 16)
        ended = self.world.loop.create_future()
        owner.on_death.append(lambda: ended.set_result(None))
        self.world.loop.run_until_complete(ended)
        for failure in self.world.loop.failures:
            raise AssertionError(str(failure)) from failure.exception
        for raylet in self.raylets.values():
            check(raylet)


class Around:
    """A part of the simulated platform, of which something is different in the scene."""

    def __init__(self, scene: Scene, part: Any) -> None:
        self._scene = scene
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class Processes(Around):
    """Starting one may fail."""

    async def spawn(self, *arguments: Any) -> Any:
        self._scene.spawns += 1
        if self._scene.spawn_failures:
            self._scene.spawn_failures -= 1
            raise SpawnFailed("out of processes")
        return await self._part.spawn(*arguments)


class Network(Around):
    """Listening may take a while."""

    async def listen(self, *arguments: Any) -> Any:
        await self._scene.nap(self._scene.listening_takes_s)
        return await self._part.listen(*arguments)


class Bystander:
    """The service of another owner."""

    def __init__(self) -> None:
        self.collected = 0
        """How often it was asked to collect garbage."""

    def handle_LocalGC(self, request: LocalGC, call: Call) -> Done:
        self.collected += 1
        return DONE

    def handle_CheckAlive(self, request: CheckAlive, call: Call) -> Done:
        return DONE

    def handle_RevokeLeases(self, request: RevokeLeases, call: Call) -> Done:
        return DONE


def timers_of(process: SimProcess | None) -> list[str]:
    """The timers of a process that have not been cancelled, but for those of the network that it is in.

    Nor is it one that forgets a peer which has ended a moment ago.
    """
    loop: Any = asyncio.get_running_loop()
    own = [timer for _, _, timer in loop._timers if timer._context.get(current_process) is process]
    in_network = "minray.simulation.channel"
    due = [timer for timer in own if not timer.cancelled() and timer._callback.__module__ != in_network]
    return [repr(timer) for timer in due if timer._callback.__name__ != Peer._maybe_end.__name__]


def check(raylet: Raylet) -> None:
    """S1, S2 and no lost lease, at the end of every scene."""
    broker = raylet._broker
    for name, total in broker.local.total.items():
        leases = broker.local.leases.values()
        held = sum(lease.request.resources.get(name, 0) for lease in leases if not (lease.blocked and is_cpu(name)))
        held += broker.local.resources.reserved.get(name, 0)
        assert broker.local.available[name] == total - held
    serving = [entry.worker.worker_id for entry in broker.entries.values() if entry.worker is not None]
    assert len(serving) == len(set(serving))
    assert broker.local.leases.keys() <= broker.entries.keys()
    assert len(broker.states) == len(broker.entries)


def scenario(
    seed: int = 0,
    nodes: Mapping[str, Mapping[str, float]] | None = None,
    faults: FaultPlan | None = None,
    **options: Any,
) -> Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """``cpus``, or several ``nodes`` with their resources, and entries of the system configuration."""
    cpus = options.pop("cpus", 2)
    system = SystemConfig.from_overrides(options)

    def decorate(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            gc.disable()  # dead processes must not be unwound in the middle
            try:
                with simulated_meanings(seed):
                    scene = Scene(nodes or {"head": {"CPU": cpus}}, system, seed, faults)
                    try:
                        scene.run(test)
                    finally:
                        scene.world.loop.close()
            finally:
                gc.enable()

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate
