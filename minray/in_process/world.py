"""An in-process cluster: its loop, its machines, and the roles that run on them. The composition root of this world.

Ray: has no counterpart

A world begins with its head node and ends when that node is closed. ``minray.node.init`` connects the program to it, as it
would to a cluster of processes; ``minray.node.node`` starts its nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import warnings
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import lru_cache, partial
from types import FrameType
from typing import Any, TypeVar

import msgspec

from minray.api import calls
from minray.common.config import GcsConfig, RayletConfig, SystemConfig, WorkerConfig
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.user_threads.user_api import UserApi
from minray.gcs.server import GcsServer
from minray.in_process import interpreter
from minray.in_process.memory import LocalMemory
from minray.in_process.network import LocalListener, LocalNetwork
from minray.in_process.process import LocalLoop, LocalProcess
from minray.in_process.processes import MARK_BYTES, LocalProcesses
from minray.in_process.session import LocalSession
from minray.in_process.user_code import LocalDriverCode, LocalUserCode
from minray.platform.base import Disk, Platform, PlatformError, Storage
from minray.platform.process.host import RealHost
from minray.platform.storage.compressed_disk import CompressedDisk
from minray.platform.storage.disk import RealDisk
from minray.platform.storage.external_storage import ExternalDisk, is_external
from minray.platform.storage.listed_arena import ListedArena
from minray.platform.storage.storage import open_storage
from minray.platform.threads.main_thread import TERMINATED
from minray.platform.threads.user_code import IoThread
from minray.raylet.raylet import Raylet

T = TypeVar("T")

END_S = 2.0
"""Seconds that the threads of a closed world get to end; those that take longer are reported."""
_numbers = itertools.count(1)
_worlds: dict[str, World] = {}
"""The running worlds of this process, by the address of their gcs."""


def world_of(endpoint: str) -> World:
    """Return the world with this gcs. Raises ConnectionError if it has ended."""
    world = _worlds.get(endpoint)
    if world is None:
        raise ConnectionError(f"no cluster of this process has its gcs at {endpoint}: it has been shut down")
    return world


class World:
    """All processes of one in-process cluster."""

    def __init__(self, system_config: SystemConfig) -> None:
        self.name = f"local:{next(_numbers)}"
        self.gcs_endpoint = f"{self.name}/0/gcs"
        self.sessions: dict[str, LocalSession] = {}
        """The directories of all nodes, by machine, the head first. Packages are unpacked in that of the head."""
        self.is_closed = False
        self.system_config = system_config
        self.thread = IoThread("minray-local", make_loop=LocalLoop)
        assert isinstance(self.thread.loop, LocalLoop)
        self.loop = self.thread.loop
        self.processes: list[LocalProcess] = []
        """The living processes."""
        self._listeners: dict[str, LocalListener] = {}
        self._arenas: dict[str, ListedArena] = {}
        self._mains: set[asyncio.Task[None]] = set()
        """The first task of every process, kept here because the loop keeps only weak references to tasks."""
        self._workers: list[LocalUserCode] = []
        """User code of all workers, dead ones too while their threads run."""
        _worlds[self.gcs_endpoint] = self
        interpreter.begin_world()

    def add_machine(self, session: LocalSession) -> str:
        """Return the name of a new machine, with which its endpoints begin; the first one has the gcs."""
        machine = f"{self.name}/{len(self.sessions)}"
        self.sessions[machine] = session
        return machine

    def call_on_loop(self, call: Callable[[], T]) -> T:
        """From another thread: make this call on the loop, outside of all processes, and return its result."""

        async def run() -> T:
            return call()

        return self.thread.run(run())

    # --- processes

    def add_process(self, name: str, node: str, parent: LocalProcess | None = None, program_pid: int = 0) -> LocalProcess:
        """From the loop: make a process that has nothing to do yet; see ``LocalProcess`` for ``program_pid``."""
        process = LocalProcess(self.loop, name, node, parent, program_pid)
        self.processes.append(process)
        process.on_death.append(lambda: self.processes.remove(process))
        interpreter.note_start(process)
        return process

    def begin(self, process: LocalProcess, main: Coroutine[Any, Any, int]) -> None:
        """From the loop: run the program of a process; the process ends when it returns."""

        async def run() -> None:
            process.exit(await main)

        self._keep(process.run(run()))

    def begin_in_no_process(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """From the loop: run a coroutine that outlives the processes, such as the restart of one."""
        self._keep(self.loop.create_task(coroutine, context=Context()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._mains.add(task)
        task.add_done_callback(self._mains.discard)

    def platform(
        self, process: LocalProcess, identity: bytes, user_code: Any, marks: memoryview, journal: memoryview
    ) -> Platform:
        return Platform(
            name=process.name,
            identity=identity,
            network=LocalNetwork(self._listeners, process),
            processes=LocalProcesses(process, marks, journal, self._start_worker),
            user_code=user_code,
            host=host(),
            open_storage=partial(self._open_storage, process),
            memory=LocalMemory(self._arenas, process),
            open_disk=partial(self._open_disk, process),
        )

    def plain_platform(self, process: LocalProcess, identity: bytes) -> Platform:
        """From the loop: make the platform of a process that runs no tasks."""
        user_code = LocalDriverCode(self.loop, process)
        return self.platform(process, identity, user_code, memoryview(bytearray(MARK_BYTES)), memoryview(b""))

    async def start_gcs(self, process: LocalProcess, config: GcsConfig) -> None:
        """Start a gcs; return when it listens. Raises ``PlatformError``."""
        server = GcsServer(self.plain_platform(process, host().random_bytes(16)), config)
        await self._started(process, server.start())
        self.begin(process, _until(server.wait_closed()))

    async def start_raylet(self, process: LocalProcess, config: RayletConfig) -> None:
        """Start a raylet; return when its node is registered. Raises ``PlatformError``."""
        raylet = Raylet(self.plain_platform(process, config.node_id), config)
        await self._started(process, raylet.start())
        if raylet.reason:
            process.exit(1)
            raise PlatformError(raylet.reason)
        self.begin(process, _until(raylet.wait_closed()))

    async def _started(self, process: LocalProcess, starting: Coroutine[Any, Any, None]) -> None:
        try:
            await process.run(starting)
        except BaseException:
            process.exit(1)
            raise

    def _start_worker(
        self, parent: LocalProcess, name: str, encoded: bytes, marks: memoryview, journal: memoryview
    ) -> LocalProcess:
        config = msgspec.msgpack.decode(encoded, type=WorkerConfig)
        process = self.add_process(f"worker/{config.worker_id[:4].hex()}", parent.node, parent)
        user_code = LocalUserCode(self.loop, process, self.sessions[f"{self.name}/0"].directory)
        self._drop_ended()
        self._workers.append(user_code)
        platform = self.platform(process, config.worker_id, user_code, marks, journal)

        async def main() -> int:
            core = CoreWorker(platform, config)
            try:
                await core.start()
            except PlatformError:
                return 0
            process.context.run(calls.connect_context, UserApi(core.user_port()))
            executor = core.execution.executor
            user_code.end_on_signal(executor.is_in_task, lambda: executor.end_process(SystemExit(TERMINATED)))
            user_code.serve()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("a worker ends by exit alone")

        self.begin(process, main())
        return process

    def _drop_ended(self) -> None:
        """Forget the dead workers whose threads have ended."""
        for user_code in [each for each in self._workers if each.is_over()]:
            user_code.close_event_loops()
            self._workers.remove(user_code)

    # --- files

    def _open_storage(self, process: LocalProcess, path: str) -> Storage:
        storage = open_storage(path)
        process.on_death.append(storage.close)
        return storage

    def _open_disk(self, process: LocalProcess, path: str) -> Disk:
        disk: Disk
        if is_external(path):
            disk = ExternalDisk(path)
        else:
            disk = _DiskInWorld(self.sessions[process.node], path, self.system_config.local_fs_capacity_threshold)
        process.on_death.append(lambda: self.begin_in_no_process(disk.close()))
        return CompressedDisk(disk) if self.system_config.object_spilling_compression else disk

    # --- the end

    def close(self) -> None:
        """End all processes and threads of the world now. Threads that do not end are reported with a warning."""
        if _worlds.pop(self.gcs_endpoint, None) is None:
            return
        self.is_closed = True
        try:
            left = self._end()
        finally:
            interpreter.end_world()
        for name, frame in left:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"
            how = "it waits in compiled code, so it cannot be ended; let it wait with a timeout, or use processes"
            warnings.warn(f"a thread of {name} outlives the cluster, at {place}: {how}", RuntimeWarning, stacklevel=2)

    def _end(self) -> list[tuple[str, FrameType | None]]:
        """End all processes and threads, remove all files; return the threads that are left."""
        self.thread.run(self._end_all(), None)
        left = self.left_threads()
        for user_code in self._workers:
            user_code.join_idle(END_S)
        self.thread.halt()
        for session in self.sessions.values():
            session.remove()
        return left

    async def _end_all(self) -> None:
        for process in list(self.processes):
            process.exit(None, 9)
        deadline = self.loop.time() + END_S
        await asyncio.sleep(0)
        while self.processes or (self.left_threads() and self.loop.time() < deadline):
            await asyncio.sleep(0.001)

    def left_threads(self) -> list[tuple[str, FrameType | None]]:
        """Return the threads of dead workers that still run, as (name of the worker, innermost frame)."""
        return [thread for user_code in self._workers for thread in user_code.left_threads()]


class _DiskInWorld:
    """Implements ``base.Disk`` in a directory that is made when something is written, and goes with its raylet."""

    def __init__(self, session: LocalSession, path: str, capacity_threshold: float) -> None:
        """``session`` is that of the node. A path elsewhere exists already."""
        self._session = session
        self._path = path
        self._threshold = capacity_threshold
        self._disk: RealDisk | None = None

    def _real(self) -> RealDisk:
        if self._disk is None:
            if self._session.contains(self._path):
                self._session.directory()
                os.makedirs(self._path, 0o700, exist_ok=True)
            self._disk = RealDisk(self._path, self._threshold)
        return self._disk

    async def write(self, name: str, pieces: Any) -> list[int]:
        return await self._real().write(name, pieces)

    async def read(self, name: str, start: int, pieces: Any) -> list[int]:
        return await self._real().read(name, start, pieces)

    def remove(self, name: str) -> None:
        self._real().remove(name)

    async def close(self) -> None:
        if self._disk is not None:
            await self._disk.close()
        self._session.remove_spilled()


class DriverThread:
    """The world's loop, as the program around it uses it for one connection: what ``IoThread`` is to a real cluster."""

    def __init__(self, world: World, name: str, identity: bytes) -> None:
        self.loop = world.loop
        self._world = world
        self._process = world.call_on_loop(lambda: world.add_process(name, "", program_pid=os.getpid()))
        self.platform = world.call_on_loop(lambda: world.plain_platform(self._process, identity))
        user_code = self.platform.user_code
        assert isinstance(user_code, LocalDriverCode)
        self.user_code = user_code

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in this connection's process to its end, and return its result; see ``IoThread.run``."""
        return self._process.context.copy().run(self._world.thread.run, coroutine, timeout_s)

    def stop(self) -> None:
        """End the connection's process. The world goes on."""
        self._process.exit(0)


@lru_cache(maxsize=1)
def host() -> RealHost:
    """Return this machine, which is looked at once: its facts do not change."""
    return RealHost()


async def _until(closing: Coroutine[Any, Any, Any]) -> int:
    await closing
    return 0
