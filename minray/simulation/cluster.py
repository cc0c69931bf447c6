"""A whole cluster in one Python process: the classes of every real cluster, on simulated machines.

``run(program)`` runs an ordinary synchronous function that uses minray's public API. The function does not know that the
cluster is simulated, and neither do the gcs, the raylets and the core workers. The same program, seed and faults give the
same run.

    run(lambda: minray.get([f.remote(i) for i in range(10)]), nodes=3, seed=7, faults=FaultPlan.swarm(7))

``SimCluster`` offers the same in steps, for tests that act on the cluster while a program runs.

Rules
  * Roles are composed here exactly as in ``minray.node.roles``, except for the platform.
  * Faults begin when the driver is connected. ``settle`` stops them, mends the wire, and lets time pass.
  * An uncaught exception anywhere in the gcs, the raylets or the core workers fails the run, whatever the program returned.

What we do not like yet: all simulated processes share the same modules, with all their globals.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeVar

import msgspec

from minray.api import calls as worker
from minray.common.config import GcsConfig, RayletConfig, SystemConfig, WorkerConfig
from minray.common.signals import signal_name
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.execution.job_environment import pack_hook
from minray.core_worker.user_threads.user_api import UserApi
from minray.gcs.server import GcsServer
from minray.node.node import NodeOptions, node_resources
from minray.node.worker_output import LinePrinter, TaskNamedStream
from minray.platform.base import Platform, PlatformError, ProcessGone
from minray.policies.names import check_policies
from minray.protocol.gcs import JobConfig
from minray.raylet.raylet import Raylet
from minray.simulation.arguments import check_plan, check_program, check_result, node_descriptions
from minray.simulation.cores import one_core
from minray.simulation.costs import Costs
from minray.simulation.faults import FaultPlan, Key, Oracle
from minray.simulation.garbage import without_garbage_collection
from minray.simulation.interpreter import simulated_meanings
from minray.simulation.journal import journal
from minray.simulation.logs import SimLogs
from minray.simulation.loop import Failure, SimProcess, current_process, to_ticks
from minray.simulation.machine import Role, SimHost, SimWorld
from minray.simulation.membership import Membership
from minray.simulation.sharing import shared_values
from minray.simulation.trace import Trace
from minray.simulation.user_code import SimUserCode

GCS, HEAD, DRIVER = "gcs", "head", "driver"
GCS_ENDPOINT = "sim:gcs"
START_S = 60.0
"""Virtual seconds within which all nodes must have started."""
LIMIT_S = 600.0
"""Virtual seconds that a program may take, by default."""
SETTLE_S = 30.0
OBJECT_STORE_BYTES = 64 << 20
"""Size of each node's object store, unless its options give another."""
T = TypeVar("T")


class SimulationFailed(AssertionError):
    """An exception in minray itself was not caught, though the program may not have noticed."""

    failures: Sequence[Failure] = ()
    """The exceptions in the order in which they were raised."""


class DriverDied(Exception):
    """The driver process ended before its program did: a fault struck it, or it has ended itself."""


def run(
    program: Callable[[], T],
    nodes: int | Sequence[Mapping[str, Any]] = 3,
    seed: int = 7,
    faults: FaultPlan | str | None = None,
    num_cpus: float = 2,
    overrides: Mapping[Key, int] | None = None,
    timeout: float = LIMIT_S,
) -> T:
    """Run ``program`` as the driver of a fresh simulated cluster; return its result, or raise its exception.

    ``nodes``: the number of nodes (at most ``MAX_NODES``), with ``num_cpus`` each, or a description of each (see
    ``SimCluster``). ``faults``: a plan, or the word ``none``, ``quiet`` or ``swarm``. ``timeout``: virtual seconds after
    which the run fails with Deadlock. ``overrides``: exactly the faults that strike. Overrides whose question never comes up
    are ignored silently; ``SimCluster.missed`` names them.
    """
    check_program(program)
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout is how many virtual seconds the program may take, a number above 0, not {timeout!r}")
    plan = FaultPlan.named(faults, seed) if isinstance(faults, str) else faults
    if plan is not None:
        check_plan(plan, overrides is None)
    with SimCluster(node_descriptions(nodes, num_cpus), seed, plan, overrides) as cluster:
        result = cluster.run(program, timeout)
        cluster.settle()
    check_result(result)
    return result


class SimCluster:
    """A cluster with a head (gcs, raylet, drivers) and further nodes; use it as a context manager."""

    def __init__(
        self,
        nodes: int | Sequence[Mapping[str, Any]] = 1,
        seed: int = 0,
        faults: FaultPlan | None = None,
        overrides: Mapping[Key, int] | None = None,
        system_config: Mapping[str, Any] | None = None,
        storage: str = "",
        show_output: bool = True,
        costs: Costs | None = None,
    ) -> None:
        """``nodes``: a description of each node, the head first, with the keys ``num_cpus``, ``resources``, ``labels``, ...
        of ``NodeOptions``; or the number of nodes, with two CPUs each.

        There may be at most ``MAX_NODES``; ``add_node`` adds more later.

        ``storage`` is a path on the head's disk for the gcs, which can then be restarted. Without ``show_output`` the output
        of drivers (which includes their workers' lines) goes to the trace only. ``costs``: how long messages, disks and
        starts of workers take.
        """
        self.seed = seed
        self.oracle = Oracle(seed, faults, overrides)
        self.world: SimWorld
        self.processes: dict[str, SimProcess] = {}
        """The processes without a parent, by name: gcs, raylets, drivers."""
        self.cores: dict[str, CoreWorker] = {}
        """The core worker of every driver and worker that has started, by name."""
        self.raylets: dict[str, Raylet] = {}
        """The raylets that have started, by the name of the node."""
        self.gcs: GcsServer | None = None
        """The gcs that was started last; None before."""
        self._nodes = node_descriptions(nodes)
        self._system_config = SystemConfig.from_overrides({"memory_monitor_refresh_ms": 0, **(system_config or {})})
        check_policies(self._system_config)
        self._storage = storage
        self._head = HEAD
        """Name of the machine with the gcs; ``move_head`` changes it."""
        self._gcs_endpoint = GCS_ENDPOINT
        """Endpoint of the gcs, to which the name ``GCS_ENDPOINT`` leads."""
        self._show_output = show_output
        self._costs = costs
        self._gcs_count = 0
        """Number of gcs processes started so far: each is an incarnation of its own."""
        self._node_count = 0
        """Number of nodes started so far: each is an incarnation of its own, even if names repeat."""
        self._node_ids: dict[str, bytes] = {}
        self._programs: dict[str, tuple[Callable[[], Any], asyncio.Future[Any], str, Any]] = {}
        """(program, outcome, namespace) of each driver, by its name."""
        self._stack = ExitStack()

    @property
    def trace(self) -> Trace:
        return self.world.trace

    def __enter__(self) -> Self:
        process = current_process.get()
        if process is not None:
            raise RuntimeError(f"a simulation inside of {process.name}, which is simulated itself; run it from outside")
        with ExitStack() as stack:
            stack.enter_context(one_core())
            stack.enter_context(without_garbage_collection())
            stack.enter_context(shared_values())
            roles = {
                "gcs": Role(self._run_gcs, lambda config: self._new_gcs_identity()),
                "raylet": Role(self._run_raylet, lambda config: _decode(config, RayletConfig).node_id),
                "worker": Role(self._run_worker, lambda config: _decode(config, WorkerConfig).worker_id),
                "driver": Role(self._run_driver, lambda config: _decode(config, WorkerConfig).worker_id),
            }
            stack.enter_context(simulated_meanings(self.seed))
            self.world = SimWorld(self.oracle, roles, costs=self._costs)
            stack.callback(self._forget_tasks)
            stack.callback(self.world.close)
            stack.enter_context(journal(self.world))
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with self._stack:
            if isinstance(error, DriverDied) or error is None:
                self.raise_failures()  # The driver may have died of them.
            if error is not None:
                error.add_note(self._explanation())

    def _forget_tasks(self) -> None:
        """Break the reference cycles of tasks that never ended, which the garbage collector does not find."""
        for core in self.cores.values():
            for task in core.submission.tasks.tasks.values():
                task.worker = task.stream = task.prepared.key = None

    @property
    def missed(self) -> dict[Key, int]:
        """The overrides that have not struck so far: their question has not come up, or has no such answer."""
        answers = self.oracle.answers
        return {key: answer for key, answer in (self.oracle.overrides or {}).items() if answer != answers.get(key, 0)}

    def raise_failures(self) -> None:
        """Raise SimulationFailed if minray has raised an exception that was not caught."""
        failures = self.world.loop.failures
        if failures:
            listing = "\n".join(str(failure) for failure in failures)
            failed = SimulationFailed(f"{listing}\n{self._explanation()}")
            failed.failures = tuple(failures)
            raise failed from failures[0].exception

    def _explanation(self) -> str:
        faults = "".join(f"\n  {key}: {answer}" for key, answer in self.oracle.answers.items())
        steps = self.world.loop.steps
        return f"seed {self.seed}; {steps} steps; chances that struck:{faults or ' none'}\n{self.trace.story()}"

    # --- The cluster's own life ---

    def _start(self) -> None:
        self.world.node(HEAD)
        self.start_gcs()
        for index, options in enumerate(self._nodes):
            self.add_node(HEAD if index == 0 else f"n{index}", **options)
        self.wait_until(lambda: set(self.raylets) == set(self._node_ids), START_S)

    def start_gcs(self) -> SimProcess:
        """Start a gcs, with the tables that the last one has left on the head's disk."""
        config = GcsConfig([self._gcs_endpoint], self._storage, f"simulated-{self.seed}", self._system_config)
        return self._add(GCS, GCS, self._head, config)

    def move_head(self, name: str, **options: Any) -> None:
        """Start gcs and raylet of the head on another machine, which has the disk of the former one.

        The former machine must be lost, or its processes dead. The new gcs has another endpoint. The others find it by name.
        """
        disk = self.world.nodes[self._head].disk
        self._head, self._gcs_endpoint = name, f"{GCS_ENDPOINT}/{name}"
        self.world.node(name).disk = disk
        self.world.wire.names[GCS_ENDPOINT] = self._gcs_endpoint
        self.start_gcs()
        self.add_node(name, **options)

    def _new_gcs_identity(self) -> bytes:
        self._gcs_count += 1
        return self.oracle.bytes(("identity", GCS, self._gcs_count), 16)

    def add_node(self, name: str, **options: Any) -> SimProcess:
        """Start a raylet on a machine of its own (the head's is shared with gcs and drivers)."""
        node = self.world.node(name)
        number = self._node_count
        self._node_count += 1
        ip = f"10.0.0.{number + 1}"
        store = options.pop("object_store_memory", OBJECT_STORE_BYTES)
        node_options = NodeOptions(head=name == self._head, node_ip=ip, node_name=name, object_store_memory=store, **options)
        incarnation = ("node id", name, number)
        host = SimHost(node, self.world.loop.world, self.oracle, 0)
        config = RayletConfig(
            node_id=self.oracle.bytes(incarnation, 16),
            node_name=name,
            node_ip=ip,
            gcs_endpoint=GCS_ENDPOINT,
            socket_dir=f"sim:{name}",
            tcp_host="",
            tcp_port=0,
            session_dir="",
            resources=node_resources(node_options, host),
            labels=node_options.labels,
            is_head=node_options.head,
            system_config=self._system_config,
            spill_directories=[f"spill/{number}"],
        )
        self._node_ids[name] = config.node_id
        return self._add("raylet", f"raylet/{name}", name, config)

    def _add(self, role: str, name: str, node: str, config: msgspec.Struct) -> SimProcess:
        process = self.world.start(role, name, self.world.nodes[node], msgspec.msgpack.encode(config))
        self.processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """Kill a process, as ``kill -9`` does, by its name (``gcs``, ``raylet/n1``, ``worker/1f3c...``)."""
        victim = next(process for process in self.world.loop.processes if process.name == name and process.alive)
        victim.exit(None, 9)

    def alive(self) -> set[str]:
        """Return the names of all living processes."""
        return {process.name for process in self.world.loop.processes if process.alive}

    def workers(self, node: str | None = None) -> list[SimProcess]:
        """Return the living worker processes, oldest first; only those of ``node`` if it is given."""
        return [
            process
            for process in self.world.loop.processes
            if process.alive and process.name.startswith("worker/") and node in (None, process.node)
        ]

    # --- Programs ---

    def start_driver(
        self,
        program: Callable[[], T],
        name: str = DRIVER,
        node: str = HEAD,
        namespace: str = "",
        setup_hook: Callable[[], None] | str | None = None,
    ) -> asyncio.Future[T]:
        """Start a driver. Its future is done when the program has ended and the driver has left the cluster.

        ``setup_hook``: what each worker of its job calls first, or the name of that.
        """
        outcome: asyncio.Future[T] = self.world.loop.create_future()
        self._programs[name] = program, outcome, namespace, setup_hook
        config = WorkerConfig(
            worker_id=self.oracle.bytes(("worker id", name), 16),
            node_id=self._node_ids[node],
            node_ip="",
            raylet_endpoint=f"sim:{node}/raylet",
            gcs_endpoint=GCS_ENDPOINT,
            socket_dir=f"sim:{node}",
            tcp_host="",
            session_dir="",
            is_driver=True,
            system_config=self._system_config,
        )
        process = self._add(DRIVER, name, node, config)
        how = "has died"

        def on_exit(code: int | None, number: int | None) -> None:
            nonlocal how
            if process.alive:
                how = f"has exited with code {code}" if number is None else f"was killed by {signal_name(number)}"

        process.on_exit = on_exit
        process.on_death.append(lambda: _fail(outcome, DriverDied(f"{name} {how}")))
        if not self._show_output:
            self.world.read_output(process, lambda stream, line: None)
        return outcome

    def run(self, program: Callable[[], T], limit_s: float = LIMIT_S) -> T:
        """Run a program to its end as a driver on the head; return its result or raise its exception."""
        return self.wait_for(self.start_driver(program, f"{DRIVER}/{len(self._programs)}"), limit_s)

    def wait_for(self, outcome: asyncio.Future[T], limit_s: float = LIMIT_S) -> T:
        """Run the world until a driver has ended. Raises Deadlock after ``limit_s`` virtual seconds."""
        loop = self.world.loop
        loop.limit_ticks = loop.ticks + to_ticks(limit_s)
        outcome.add_done_callback(_stop)
        try:  # not run_until_complete: it does not stop for a SystemExit or a KeyboardInterrupt
            loop.run_forever()
        finally:
            outcome.remove_done_callback(_stop)
        return outcome.result()

    def wait_until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Run the world until the condition is true. Raises Deadlock after ``limit_s`` virtual seconds."""
        self.world.loop.run_until(condition, limit_s)

    def settle(self, seconds: float = SETTLE_S, collects: bool = True) -> None:
        """Stop all faults, mend the wire and let ``seconds`` pass, so that everything due happens.

        ``collects``: collect garbage after half of that time.
        """
        self.oracle.heal()
        self.world.wire.heal()
        loop = self.world.loop
        loop.limit_ticks = loop.ticks + to_ticks(seconds + 1)
        loop.run_until_complete(asyncio.sleep(seconds / 2))
        if collects:
            gc.collect()
        loop.run_until_complete(asyncio.sleep(seconds / 2))

    # --- Roles: what ``minray.node.roles`` does, on simulated platforms ---

    async def _run_gcs(self, platform: Platform, config: bytes) -> int:
        server = self.gcs = GcsServer(platform, _decode(config, GcsConfig))
        try:
            await server.start()
        except PlatformError:
            return 1
        await server.wait_closed()
        return 0

    async def _run_raylet(self, platform: Platform, config: bytes) -> int:
        raylet_config = _decode(config, RayletConfig)
        raylet = Raylet(platform, raylet_config, SimLogs())
        try:
            await raylet.start()
        except PlatformError:
            return 1
        self.raylets[raylet_config.node_name] = raylet
        await raylet.wait_closed()
        return 0

    async def _run_worker(self, platform: Platform, config: bytes) -> int:
        user_code = platform.user_code
        assert isinstance(user_code, SimUserCode)
        user_code.hold()
        core = CoreWorker(platform, _decode(config, WorkerConfig))
        try:
            await core.start()
        except PlatformError:
            return 0
        self._connect(core)
        _name_output(core)
        user_code.serve()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a worker ends by exit alone")

    async def _run_driver(self, platform: Platform, config: bytes) -> int:
        program, outcome, namespace, setup_hook = self._programs[platform.name]
        job = JobConfig(list(sys.path), os.getcwd(), namespace, platform.name, setup_hook=pack_hook(setup_hook))
        membership = Membership(self, platform, _decode(config, WorkerConfig), job)
        try:
            await membership.join()
        except PlatformError as refusal:
            _fail(outcome, ConnectionError(f"cannot join the cluster: {refusal}"))
            return 1
        self.oracle.begin()
        result, error = await _in_user_thread(platform.user_code, program)
        await membership.leave()
        if error is not None:
            _fail(outcome, error)
        elif not outcome.done():
            outcome.set_result(result)
        return 0

    def show_lines(self, platform: Platform) -> LinePrinter:
        """Make the printer of a driver's lines."""
        return LinePrinter(self._system_config.log_deduplication_window_s, platform.user_code.time)

    def _connect(self, core: CoreWorker) -> None:
        """Connect the public API (``minray.api.calls``) of this simulated process to this core worker."""
        process = current_process.get()
        assert process is not None
        self.cores[process.name] = core
        process.context.run(worker.connect_context, UserApi(core.user_port()))

    def connect(self, core: CoreWorker) -> None:
        """Connect the present process to its cluster through this core worker."""
        self._connect(core)


async def _in_user_thread(user_code: Any, program: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    ended: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()

    def work() -> None:
        try:
            result: tuple[Any, BaseException | None] = program(), None
        except ProcessGone:
            raise
        except StopIteration as error:  # no future accepts it
            result = None, RuntimeError("the program raised StopIteration")
            result[1].__cause__ = error
        except BaseException as error:  # sys.exit(3) is the program's outcome, too
            result = None, error
        user_code.post(ended.set_result, result)

    user_code.run(work)
    return await ended


def _stop(outcome: asyncio.Future[Any]) -> None:
    outcome.get_loop().stop()


def _fail(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)


def _decode(config: bytes, record: type[T]) -> T:
    return msgspec.msgpack.decode(config, type=record)


def _name_output(core: CoreWorker) -> None:
    """Mark a worker's lines with the name of the task that prints them, as in a real worker."""
    process = current_process.get()
    assert process is not None and process.on_text is not None
    streams: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        streams[name] = TaskNamedStream(_Sink(name, process.on_text), core.execution.executor)  # type: ignore[arg-type]
    process.on_text = lambda name, text: streams[name].write(text)


class _Sink:
    """The part of a stream that ``TaskNamedStream`` writes to."""

    def __init__(self, name: str, on_text: Callable[[str, str], None]) -> None:
        self._name = name
        self._on_text = on_text

    def write(self, text: str) -> int:
        self._on_text(self._name, text)
        return len(text)
