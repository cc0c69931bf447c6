"""Worker processes: this class starts them, asks them to end and kills them, as the worker pool decides.

Ray: src/ray/raylet/worker_pool.cc (StartWorkerProcess, TryKillingIdleWorkers), src/ray/util/process.h

One coroutine per worker follows it from its start to its death. Only ``ChildProcess.wait`` proves a death; a worker's own
message or a broken channel does not. By then all of the worker's output was given to the log monitor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from minray.common.config import RayletConfig, WorkerConfig
from minray.common.ids import lease_tag, short
from minray.common.signals import SIGKILL, signal_name
from minray.common.task_rows import read_journal
from minray.platform.base import ChildProcess, ExitStatus, Platform, PlatformError, SpawnFailed
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import ExitWorker
from minray.protocol.raylet import LeaseFailure
from minray.protocol.state import WorkerTaskEvents
from minray.raylet.last_words import LastWords
from minray.raylet.log_monitor import LogMonitor
from minray.raylet.worker_deaths import WorkerDeaths
from minray.rpc.connection import Peers

logger = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 5.0
"""Seconds after which a worker that agreed to end, or does not answer the request, is killed."""


class Death(msgspec.Struct, frozen=True):
    """Describes how a worker process ended."""

    pid: int
    """Process id; 0 if no process was ever started."""
    status: ExitStatus | None
    """Exit status; None: the process could not be started."""
    marks: bytes
    """First 16 bytes of the worker's marks: sequence number of the last started task, and the tag of that task's lease."""
    stderr_tail: list[str]
    cause: str
    """Cause for users: ``exit code 3``, ``signal SIGKILL``, or why the process could not be started."""

    def certificate(
        self,
        lease_id: bytes,
        doom: str,
        memory_usage: tuple[int, int],
        group_removed: bool,
        node_ended: str | None,
        preempted: bool,
    ) -> LeaseFailure:
        """Build the death certificate for the lease that the worker served.

        ``doom``: why this raylet killed the worker, if it did. ``memory_usage``: zeros unless memory was the reason."""
        tag = int.from_bytes(self.marks[8:16], "little")
        started = int.from_bytes(self.marks[:8], "little") if tag == lease_tag(lease_id) else 0
        status = self.status or ExitStatus(None, None)
        return LeaseFailure(
            known=True,
            dead=True,
            started=started,
            pid=self.pid,
            exit_code=status.code,
            signal=status.signal,
            stderr_tail=self.stderr_tail,
            cause=self.cause,
            memory_used=memory_usage[0],
            memory_total=memory_usage[1],
            group_removed=group_removed,
            node_ended=node_ended,
            preempted=preempted,
            doom=self.doom_that_counts(doom),
        )

    def is_excused(self) -> bool:
        """Tell whether the worker had begun a task, or was killed; else it died of the preparation of its first task."""
        return any(self.marks) or self._was_killed

    def doom_that_counts(self, doom: str) -> str:
        """Return why the worker was killed; empty if it had ended in another way before that."""
        return doom if self._was_killed else ""

    @property
    def _was_killed(self) -> bool:
        return self.status is not None and self.status.signal == SIGKILL


def describe_status(status: ExitStatus) -> str:
    if status.signal is None:
        return f"exit code {status.code}"
    return f"signal {signal_name(status.signal).removeprefix('signal ')}"


class WorkerProcesses:
    """Runs the processes of the worker pool's workers."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        endpoint: str,
        peers: Peers,
        log_monitor: LogMonitor,
        on_task_events: Callable[[WorkerTaskEvents], None],
        on_exit: Callable[[bytes, Death], None],
    ) -> None:
        self._platform = platform
        self._config = config
        self._endpoint = endpoint
        """Endpoint at which the workers reach this raylet."""
        self._peers = peers
        self._log_monitor = log_monitor
        self._on_task_events = on_task_events
        """Called for every worker that has run tasks, when it is dead, with what its journal says of them."""
        self._on_exit = on_exit
        """Called once for every worker's end."""
        self._lives: dict[bytes, asyncio.Task[None]] = {}
        self._processes: dict[bytes, ChildProcess] = {}
        self._doomed: dict[bytes, None] = {}
        """Workers to be killed as soon as they have a process."""
        self._asking: dict[bytes, asyncio.Task[None]] = {}
        self._killed: dict[bytes, None] = {}
        """Workers that this raylet has killed, until their end was seen."""
        self.deaths = WorkerDeaths()

    def start(self, worker_id: bytes) -> None:
        life = self._live(worker_id)
        self._lives[worker_id] = asyncio.get_running_loop().create_task(life, name=f"worker_process({short(worker_id)})")

    def kill(self, worker_id: bytes) -> None:
        if worker_id in self._lives:
            self._killed[worker_id] = None
        process = self._processes.get(worker_id)
        if process is not None:
            process.kill()
        elif worker_id in self._lives:
            self._doomed[worker_id] = None

    def ask_to_exit(self, worker_id: bytes, address: Address, force: bool, on_refused: Callable[[], None]) -> None:
        """Ask a worker to end; call ``on_refused`` if it refuses, and kill it if it does not answer or does not end."""
        asking = self._ask(worker_id, address, force, on_refused)
        self._asking[worker_id] = asyncio.get_running_loop().create_task(asking, name=f"ask_to_exit({short(worker_id)})")

    async def close(self) -> None:
        """Kill all workers; return when they are dead, at the latest after EXIT_TIMEOUT_S."""
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
        self._note_failure(worker_id, death, is_expected=asking is not None)
        self._log_monitor.on_exit(worker_id)
        self._peers.on_death_of(worker_id, death.cause)
        self._on_exit(worker_id, death)

    def _note_failure(self, worker_id: bytes, death: Death, is_expected: bool) -> None:
        """Count the end of a worker that was neither asked to end nor killed by this raylet, unless it ended in order."""
        was_killed = worker_id in self._killed
        self._killed.pop(worker_id, None)
        if death.status is not None and death.status.code != 0 and not is_expected and not was_killed:
            self.deaths.on_failure(describe_status(death.status), self._log_monitor.task_name(worker_id))

    async def _die(self, worker_id: bytes) -> Death:
        """Run a worker process from start to end, and return how it ended."""
        name = f"worker/{short(worker_id)}"
        words = LastWords()

        def on_output(stream: str, line: str) -> None:
            if stream == "stderr":
                words.add_line(line)
            self._log_monitor.on_output(worker_id, stream, line)

        try:
            process = await self._platform.processes.spawn("worker", name, encode(self._worker_config(worker_id)), on_output)
        except SpawnFailed as error:
            return Death(pid=0, status=None, marks=bytes(16), stderr_tail=[], cause=str(error))
        self._processes[worker_id] = process
        self._log_monitor.on_started(worker_id, process.pid)
        if worker_id in self._doomed:
            process.kill()
        status = await process.wait()
        self._read_journal(worker_id, process)
        shortage = "" if any(process.marks[:16]) else self._platform.host.shortage()
        return Death(
            pid=process.pid,
            status=status,
            marks=bytes(process.marks[:16]),
            stderr_tail=words.lines(),
            cause=describe_status(status) + (f" ({shortage})" if shortage else ""),
        )

    def _read_journal(self, worker_id: bytes, process: ChildProcess) -> None:
        zero_us, rows, lost = read_journal(process.journal)
        if rows and self._config.system_config.task_events_report_interval_ms:
            self._on_task_events(
                WorkerTaskEvents(
                    node_id=self._config.node_id,
                    node_ip=self._config.node_ip,
                    worker_id=worker_id,
                    pid=process.pid,
                    zero_us=zero_us,
                    rows=rows,
                    lost=lost,
                )
            )

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
            gpus=config.gpus,
        )
