"""Core workers in a simulated cluster, on whose loops a test runs: the gcs, the raylets and all other processes are real.

``core.do(story())`` runs a coroutine on the loop of a ``Core``, as its process; there the public API works as usual, but
that ``get`` is ``await``. ``core.act`` does the same for plain functions, and ``core.run`` runs a program in a user thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

import minray
from minray.api import calls as worker
from minray.common.config import WorkerConfig
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.user_threads.user_api import UserApi
from minray.exceptions import LocalRayletDiedError
from minray.platform.base import Platform
from minray.protocol.gcs import JobConfig
from minray.simulation import SimCluster
from minray.simulation.cluster import GCS_ENDPOINT, HEAD, _in_user_thread
from minray.simulation.loop import SimProcess
from minray.simulation.machine import Role
from tests.simulation.interference import watch_sends

STORY = "story"
JOB = JobConfig([], "", "", "a test")
T = TypeVar("T")


@minray.remote(max_retries=0)
def make(size: int) -> bytes:
    return b"x" * size


class Core:
    """See the head of this file."""

    def __init__(self, cluster: Cores, process: SimProcess) -> None:
        self.cluster = cluster
        self.process = process
        self.worker: CoreWorker
        """Set as soon as the process runs."""

    def do(self, story: Coroutine[Any, Any, T]) -> T:
        return self.cluster.wait_for(self.begin(story))

    def begin(self, story: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.process.create_task(story, STORY)

    def act(self, function: Callable[..., T], *arguments: Any) -> T:
        async def story() -> T:
            return function(*arguments)

        return self.do(story())

    def run(self, program: Callable[[], T]) -> T:
        """In its user thread, where ``get`` may block."""
        return self.do(self.thread(program))

    async def thread(self, program: Callable[[], T]) -> T:
        result, error = await _in_user_thread(self.worker.platform.user_code, program)
        if error is not None:
            raise error
        returned: T = result
        return returned

    def join(self) -> None:
        """As a driver."""
        self.do(self.worker.start(JOB))
        self.process.context.run(worker.connect_context, UserApi(self.worker.user_port()))
        self.cluster.cores[self.process.name] = self.worker

    def tasks(self) -> list[str]:
        """Names of what is not over on its loop."""
        pending = self.cluster.world.loop.pending_tasks()
        names = [task.get_name() for task in pending if task.process is self.process]
        return [name for name in names if name not in ("core", STORY)]

    def endpoints(self) -> list[str]:
        """Where it listens."""
        listeners = self.cluster.world.wire.listeners
        return [where for where, listener in listeners.items() if listener.network.process is self.process]


class Cores(SimCluster):
    """A cluster, and cores beside it."""

    def driver(self, name: str = "driver", node: str = HEAD, **config: Any) -> Core:
        """One that has joined."""
        core = self.core(name, node, **config)
        core.join()
        return core

    def core(self, name: str, node: str = HEAD, **config: Any) -> Core:
        """One that has not joined."""
        values: dict[str, Any] = {
            "worker_id": name.encode().ljust(16),
            "node_id": self._node_ids[node],
            "node_ip": "10.0.0.9",
            "raylet_endpoint": f"sim:{node}/raylet",
            "gcs_endpoint": GCS_ENDPOINT,
            "socket_dir": f"sim:{node}",
            "tcp_host": "",
            "session_dir": "",
            "is_driver": True,
            "system_config": self._system_config,
            **config,
        }
        roles: Any = self.world._roles
        roles["core"] = Role(self._run_core, lambda config: msgspec.msgpack.decode(config, type=WorkerConfig).worker_id)
        self._made: list[CoreWorker] = []
        made = Core(self, self._add("core", name, node, WorkerConfig(**values)))
        self.wait_until(lambda: bool(self._made))
        made.worker = self._made[0]
        return made

    async def _run_core(self, platform: Platform, config: bytes) -> int:
        self._made.append(CoreWorker(platform, msgspec.msgpack.decode(config, type=WorkerConfig)))
        return await asyncio.get_running_loop().create_future()

    def worker_of(self, pid: int) -> Core:
        """The worker process with this pid."""
        process = next(process for process in self.world.loop.processes if process.pid == pid)
        found = Core(self, process)
        found.worker = self.cores[process.name]
        return found


def cores(*cpus: float, storage: str = "", **system: Any) -> Cores:
    """A small cluster; ``cpus`` of each node, and entries of the configuration."""
    nodes = [{"num_cpus": each} for each in cpus or (2,)]
    return Cores(nodes, system_config=system, storage=storage, show_output=False)


def sent(cluster: Cores, sender: str) -> list[str]:
    """Words of the messages that a process sends from now on."""
    words: list[str] = []

    def on_send(end: Any, message: Any, word: str) -> bool:
        if end.pipe.source.name == sender:
            words.append(word)
        return True

    watch_sends(cluster, on_send)
    return words


async def outcome_of(ref: Any) -> Any:
    """The value of a reference, or its error."""
    try:
        return await ref
    except Exception as error:
        return error


def failed_future() -> Future[Any]:
    """As a driver's user code makes them when its loop has ended."""
    future: Future[Any] = Future()
    future.set_exception(LocalRayletDiedError(reason="it has left"))
    return future


def let_pass(seconds: float) -> None:
    """In a user thread, in virtual time."""
    worker.current_api().port.process.platform.user_code.parker().wait(seconds)


async def pause(seconds: float) -> None:
    """Pause on an event loop."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, done.set)
    await done.wait()
