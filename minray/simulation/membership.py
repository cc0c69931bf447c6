"""The membership of a simulated driver in its cluster: it joins before its program begins, and may leave and join again.

Ray: ray.shutdown and ray.init of one process (python/ray/_private/worker.py)

A program that calls ``minray.shutdown`` and ``minray.init`` gets a core worker, a job and an id of its own each time, as in
a real process. What it has kept of the earlier time belongs to a job that is over. Its machine, threads and clock stay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from minray.api import calls
from minray.common.config import WorkerConfig
from minray.core_worker.core_worker import CoreWorker
from minray.node.worker_output import LinePrinter
from minray.platform.base import Platform, PlatformError
from minray.protocol.gcs import JobConfig
from minray.protocol.raylet import FlushLogs
from minray.simulation.faults import Oracle
from minray.simulation.loop import current_process
from minray.simulation.user_code import SimUserCode

FLUSH_TIMEOUT_S = 2.0
"""Virtual seconds that a leaving driver waits for the last lines of its workers."""


class JoinedCluster(Protocol):
    """Port to the simulated cluster that a driver joins."""

    oracle: Oracle
    cores: dict[str, CoreWorker]

    def show_lines(self, platform: Platform) -> LinePrinter:
        """Make the printer of a driver's lines."""

    def connect(self, core: CoreWorker) -> None:
        """Connect the present process to its cluster through this core worker."""


class Membership:
    """Joins and leaves the cluster for one driver process."""

    def __init__(self, cluster: JoinedCluster, platform: Platform, config: WorkerConfig, job: JobConfig) -> None:
        self._cluster = cluster
        self._platform = platform
        self._config = config
        self._job = job
        self._core: CoreWorker | None = None
        """Core worker of the present connection; None while the driver is not connected."""
        self._printer: LinePrinter
        self._join_count = 0

    async def join(self) -> None:
        """Join the cluster, under a new id if it is not the first time. Raises PlatformError."""
        self._join_count += 1
        if self._join_count > 1:
            self._renew()
        core = CoreWorker(self._platform, self._config)
        self._printer = self._cluster.show_lines(self._platform)
        core.on_lines = self._printer.show
        await core.start(self._job)
        self._core = core
        self._cluster.connect(core)
        process = current_process.get()
        assert process is not None
        process.on_init, process.on_shutdown = self._on_init, self._on_shutdown

    def _renew(self) -> None:
        """Take a new id, and a loop's half of the user threads that knows nothing of the references kept from before."""
        user_code = self._platform.user_code
        assert isinstance(user_code, SimUserCode)
        identity = self._cluster.oracle.bytes(("worker id", self._platform.name, self._join_count), 16)
        self._config = msgspec.structs.replace(self._config, worker_id=identity)
        self._platform = msgspec.structs.replace(self._platform, identity=identity, user_code=user_code.renewed())

    async def leave(self) -> None:
        """Leave the cluster when all lines are shown; do nothing if the driver has left it."""
        core, self._core = self._core, None
        if core is None:
            return
        with contextlib.suppress(PlatformError, TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await core.raylet.call(FlushLogs(core.context.job_id))
            self._printer.flush_repetitions()
        await core.close()

    # --- in user threads

    def _on_init(self) -> None:
        if self._core is None:
            self._wait_for(self.join)
            process = current_process.get()
            assert process is not None
            calls.connect_context(process.context[calls.current_process_api])

    def _on_shutdown(self) -> None:
        if self._core is not None:
            self._wait_for(self._leave_early)
            calls.connect_context(None)

    async def _leave_early(self) -> None:
        await self.leave()
        process = current_process.get()
        assert process is not None
        process.context.run(calls.connect_context, None)
        self._cluster.cores.pop(process.name, None)

    def _wait_for(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a coroutine run on the loop while the calling user thread waits, and raise its error."""
        parker = self._platform.user_code.parker()
        errors: list[Exception] = []

        async def run() -> None:
            try:
                await begin()
            except PlatformError as error:
                errors.append(ConnectionError(f"cannot join the cluster: {error}"))
            parker.release()

        def start() -> None:
            self._task = asyncio.get_running_loop().create_task(run(), name="membership")

        self._platform.user_code.post(start)
        parker.wait(None)
        if errors:
            raise errors[0]
