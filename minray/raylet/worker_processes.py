"""Starting, asking and killing worker processes: what the worker pool decides, done.

Ray: src/ray/raylet/worker_pool.cc (StartWorkerProcess, TryKillingIdleWorkers), src/ray/util/process.h

One task per worker follows it from its start to its death, which is seen by ``Process.wait`` alone: what a worker says of
itself, or a broken channel, is not a proof. By then all that it has printed was given to the log monitor.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass

from minray.common.config import RayletConfig, WorkerConfig
from minray.common.ids import lease_tag, short
from minray.platform.base import ExitStatus, Platform, PlatformError, Process, SpawnFailed
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import ExitWorker
from minray.protocol.raylet import LeaseFailure
from minray.raylet.last_words import LastWords
from minray.raylet.log_monitor import LogMonitor
from minray.rpc.connection import Peers

logger = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 5.0
"""A worker that has agreed to end, or does not answer when asked, is killed after this time."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process ended."""

    pid: int
    """0 if none was ever started."""
    status: ExitStatus | None
    """None: it could not be started."""
    marks: bytes
    """The first 16 bytes of its marks: sequence number of the last started task, and the tag of that task's lease."""
    stderr_tail: list[str]
    cause: str
    """For people: ``exit code 3``, ``signal SIGKILL``, or why it could not be started."""

    def certificate(
        self,
        lease_id: bytes,
        doom: str,
        memory_usage: tuple[int, int],
        group_removed: bool,
        node_ended: str | None,
        preempted: bool,
    ) -> LeaseFailure:
        """For the lease that it served; ``doom`` is why this raylet killed it, if it did, perhaps for the node's memory."""
        tag = int.from_bytes(self.marks[8:16], "little")
        started = int.from_bytes(self.marks[:8], "little") if tag == lease_tag(lease_id) else 0
        status = self.status or ExitStatus(None, None)
        return LeaseFailure(
            True,
            True,
            started,
            self.pid,
            status.code,
            status.signal,
            self.stderr_tail,
            self.cause,
            *memory_usage,
            group_removed,
            node_ended,
            preempted,
            self.doom_that_counts(doom),
        )

    def is_excused(self) -> bool:
        """Whether it had begun a task, or was killed by somebody: it has not died of what comes before its first task."""
        return any(self.marks) or self._was_killed

    def doom_that_counts(self, doom: str) -> str:
        """Why it was killed; nothing if it had ended otherwise before that."""
        return doom if self._was_killed else ""

    @property
    def _was_killed(self) -> bool:
        return self.status is not None and self.status.signal == signal.SIGKILL


def describe_status(status: ExitStatus) -> str:
    if status.signal is None:
        return f"exit code {status.code}"
    try:
        return f"signal {signal.Signals(status.signal).name}"
    except ValueError:
        return f"signal {status.signal}"


class WorkerProcesses:
    """The processes behind the worker pool's workers."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        endpoint: str,
        peers: Peers,
        log_monitor: LogMonitor,
        on_exit: Callable[[bytes, Death], None],
    ) -> None:
        self._platform = platform
        self._config = config
        self._endpoint = endpoint
        """Where the workers find this raylet."""
        self._peers = peers
        self._log_monitor = log_monitor
        self._on_exit = on_exit
        """Told of every end, once."""
        self._lives: dict[bytes, asyncio.Task[None]] = {}
        self._processes: dict[bytes, Process] = {}
        self._doomed: dict[bytes, None] = {}
        """To be killed as soon as there is a process."""
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    def start(self, worker_id: bytes) -> None:
        life = self._live(worker_id)
        self._lives[worker_id] = asyncio.get_running_loop().create_task(life, name=f"worker_process({short(worker_id)})")

    def kill(self, worker_id: bytes) -> None:
        process = self._processes.get(worker_id)
        if process is not None:
            process.kill()
        elif worker_id in self._lives:
            self._doomed[worker_id] = None

    def ask_to_exit(self, worker_id: bytes, address: Address, force: bool, on_refused: Callable[[], None]) -> None:
        """The worker ends, or ``on_refused`` is called."""
        asking = self._ask(worker_id, address, force, on_refused)
        self._asking[worker_id] = asyncio.get_running_loop().create_task(asking, name=f"ask_to_exit({short(worker_id)})")

    async def close(self) -> None:
        """Kill all; return when they are dead, or that cannot be seen in reasonable time."""
        for asking in self._asking.values():
            asking.cancel()
        for worker_id in list(self._lives):
            self.kill(worker_id)
        if self._lives:
            _, late = await asyncio.wait(list(self._lives.values()), timeout=EXIT_TIMEOUT_S)
            for life in late:
                life.cancel()

    async def _live(self, worker_id: bytes) -> None:
        death = await self._die(worker_id)
        self._lives.pop(worker_id)
        self._processes.pop(worker_id, None)
        self._doomed.pop(worker_id, None)
        asking = self._asking.pop(worker_id, None)
        if asking is not None:
            asking.cancel()
        self._log_monitor.on_exit(worker_id)
        self._peers.on_death_of(worker_id, death.cause)
        self._on_exit(worker_id, death)

    async def _die(self, worker_id: bytes) -> Death:
        """The whole life of a process; returns how it ended."""
        name = f"worker/{short(worker_id)}"
        words = LastWords()

        def on_output(stream: str, line: str) -> None:
            if stream == "stderr":
                words.add(line)
            self._log_monitor.on_output(worker_id, stream, line)

        try:
            process = await self._platform.processes.spawn("worker", name, encode(self._worker_config(worker_id)), on_output)
        except SpawnFailed as error:
            return Death(0, None, bytes(16), [], str(error))
        self._processes[worker_id] = process
        self._log_monitor.on_started(worker_id, process.pid)
        if worker_id in self._doomed:
            process.kill()
        status = await process.wait()
        return Death(process.pid, status, bytes(process.marks[:16]), words.lines(), describe_status(status))

    async def _ask(self, worker_id: bytes, address: Address, force: bool, on_refused: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                reply = await self._peers.to(address).call(ExitWorker(force))
        except (TimeoutError, PlatformError) as error:
            logger.info("worker %s does not answer and is killed: %s", short(worker_id), error or "time-out")
            self.kill(worker_id)
            return
        if not reply.agreed:
            on_refused()
            return
        await asyncio.sleep(EXIT_TIMEOUT_S)
        self.kill(worker_id)

    def _worker_config(self, worker_id: bytes) -> WorkerConfig:
        config = self._config
        return WorkerConfig(
            worker_id=worker_id,
            node_id=config.node_id,
            node_ip=config.node_ip,
            raylet_endpoint=self._endpoint,
            gcs_endpoint=config.gcs_endpoint,
            socket_dir=config.socket_dir,
            tcp_host=config.tcp_host,
            session_dir=config.session_dir,
            is_driver=False,
            system_config=config.system_config,
        )
