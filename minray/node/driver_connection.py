"""The connection of a driver to its cluster: its core worker, the thread of that, and the node that it has started.

Ray: connect and disconnect in python/ray/_private/worker.py

``start`` finishes a node for this process and ``join`` finds a place in a running cluster; both return a
``DriverConnection``. ``init`` keeps it until ``shutdown``. It imports this file, and so the core worker, while the zygote of
a new node begins.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from minray._version import __version__
from minray.api import calls
from minray.api.runtime_environment import merge_runtime_env
from minray.common.config import LOCAL, WorkerConfig
from minray.common.shown import running_shell
from minray.common.task_spec import RuntimeEnvInfo
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.user_threads.user_api import UserApi
from minray.exceptions import LocalRayletDiedError
from minray.node.arguments import Driver
from minray.node.discovery import NodeFile, session_token, setting
from minray.node.node import Node
from minray.node.own_thread import OwnThread, make_own_thread
from minray.node.raylet_restart import successor_of, when_listening
from minray.node.termination import take_sigterm
from minray.node.worker_output import LinePrinter
from minray.platform.base import Platform, PlatformError
from minray.platform.process.host import raise_file_limit
from minray.platform.process.session import LOGS
from minray.platform.threads.user_code import DriverUserCode
from minray.protocol.gcs import JobConfig
from minray.protocol.raylet import FlushLogs
from minray.values.object_ref import ObjectRef

if TYPE_CHECKING:
    from minray.node.notebook import CellOutput

CONNECT_TIMEOUT_S = 10.0
"""Seconds that a driver has to register with its raylet and gcs before ``init`` fails."""
FLUSH_TIMEOUT_S = 2.0
"""Seconds that ``shutdown`` waits for the last lines of workers, and again for the connection to close."""
KEPT_TERMINAL = "DEBUG_TERMINAL"
"""Name of the setting with which a driver keeps its terminal to itself: MINRAY_DEBUG_TERMINAL=0."""
logger = logging.getLogger("minray")


class DriverConnection:
    """The parts that ``init`` has started and ``shutdown`` must end."""

    def __init__(
        self,
        node: Node | None,
        file: NodeFile,
        thread: OwnThread,
        user_code: DriverUserCode,
        platform: Platform,
        core_class: type[CoreWorker] = CoreWorker,
    ) -> None:
        """Make a core worker on this thread, for a driver on the node of this file.

        ``node`` is that node if ``init`` has started it, None if it joins a cluster. A remote client has another
        ``core_class``.
        """
        raise_file_limit()
        self.node = node
        self.file = file
        self.pid = os.getpid()
        self.thread = thread
        self.user_code = user_code
        config = WorkerConfig(
            worker_id=platform.identity,
            node_id=bytes.fromhex(file.node_id),
            node_ip=file.node_ip,
            raylet_endpoint=file.raylet_endpoint,
            gcs_endpoint=file.gcs_endpoint,
            socket_dir=file.socket_dir,
            tcp_host=file.tcp_host,
            session_dir=file.session_dir,
            is_driver=True,
            system_config=file.system_config,
        )

        async def make() -> CoreWorker:
            return core_class(platform, config)

        self.core = self.thread.run(make())
        self._printer = LinePrinter(file.system_config.log_deduplication_window_s, platform.user_code.time)
        self._cells: CellOutput | None = None
        """Follower of the cells of the notebook that this program is; None if it is none, or shows no lines."""
        self._packages: list[ObjectRef[Any]] = []
        """References to the large packages of the runtime environment; they live as long as the connection."""

    def connect(self, driver: Driver) -> None:
        """Register with the cluster, and make this the connection of the process.

        Raises ConnectionError if the cluster cannot be reached or refuses the token, RuntimeEnvSetupError if a package
        cannot be uploaded. Nothing is left of a connection that has failed.
        """
        if driver.shows_lines:
            self.core.on_lines = self._printer.show
            if _may_attach_terminal():
                from minray.node.debugger_terminal import DriverTerminal  # Many programs have no terminal.

                self._printer.on_breakpoint = DriverTerminal(self.user_code, self.file.socket_dir).on_breakpoint
        self._register(driver.job)
        api = UserApi(self.core.user_port())
        if driver.packed is not None:
            try:
                self._packages = driver.packed.upload(api)
            except BaseException:
                self.disconnect()
                raise
            self.core.context.environment = merge_runtime_env(RuntimeEnvInfo(), driver.packed.environment)
        calls.connect_process(api)
        take_sigterm()
        shell = running_shell()
        if shell is not None and driver.shows_lines:
            from minray.node.notebook import CellOutput  # few programs are notebooks

            self._cells = CellOutput(shell, self._printer, self.core.context.task_ids.next, self._flush_lines)
            self._cells.start()

    def _register(self, job: JobConfig) -> None:
        try:
            self.thread.run(self.core.start(job), CONNECT_TIMEOUT_S)
        except BaseException as error:
            with suppress(PlatformError, TimeoutError):
                self.thread.run(self.core.close(), FLUSH_TIMEOUT_S)
            self.thread.stop()
            if not isinstance(error, PlatformError | TimeoutError):
                raise
            raise ConnectionError(
                f"cannot join the cluster at {self.file.gcs_address}: {error or 'no answer in time'}"
                f" (the logs of its processes are in {os.path.join(self.file.session_dir, LOGS)})"
            ) from None

    def disown(self) -> None:
        """In a forked copy of the program: leave the node to the program, since it must not end with the copy."""
        if self.node is not None:
            self.node.zygote.disown()

    def close(self, *, interpreter_ends: bool) -> None:
        """Disconnect, and end the cluster if ``init`` has started it."""
        try:
            self.disconnect(interpreter_ends=interpreter_ends)
        finally:  # also after Ctrl-C, or an error in the callback of a future that failed just now
            if self.node is not None:
                self.node.close()

    def disconnect(self, *, interpreter_ends: bool = False) -> None:
        """Show the last lines of workers, then close the core worker and its thread."""
        core = self.core
        try:
            if self._cells is not None:
                self._cells.stop()
            if core.raylet.death is None:  # Also if no lines are shown: they must reach the session's logs.
                self._flush_lines()
            self._printer.end_bars()
            self.thread.run(core.close(tells_threads=not interpreter_ends), FLUSH_TIMEOUT_S)
        except (PlatformError, TimeoutError) as error:
            logger.debug("the cluster did not answer while this driver disconnected: %s", error)
        finally:
            self.thread.stop()
            if not interpreter_ends:
                self.user_code.close(lambda: LocalRayletDiedError(reason="this driver has left its cluster"))

    def _flush_lines(self) -> None:
        """Wait until the lines that this node's workers have printed are shown here, or the raylet does not answer."""
        with suppress(PlatformError, TimeoutError):
            self.thread.run(_flush_logs(self.core), FLUSH_TIMEOUT_S)
        self._printer.flush_repetitions()


def _may_attach_terminal() -> bool:
    """Whether this program has a terminal that may be attached to tasks at breakpoints."""
    if setting(KEPT_TERMINAL) == "0":
        return False
    try:
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # None, a stream without a file, a closed one
        return False


async def _flush_logs(core: CoreWorker) -> None:
    await core.raylet.call(FlushLogs(core.context.job_id))


def start(finish_node: Callable[[], Node], driver: Driver) -> DriverConnection:
    """Finish the start of a cluster that ends with this process (``begin_node``), and connect this process as its driver."""
    node = finish_node()
    try:
        connection = _connect(node, node.file, node.token, driver)
    except BaseException:
        node.close()
        raise
    text = "minray %s started a local cluster with %g CPUs; session %s"
    logger.info(text, __version__, node.cpus, node.file.session_dir)
    if node.dashboard_url:
        logger.info("dashboard: %s", node.dashboard_url)
    return connection


def join(files: list[NodeFile], driver: Driver) -> DriverConnection:
    """Connect this process as a driver to the first of these nodes that answers.

    Raises the first node's ConnectionError if none answers.
    """
    errors: list[ConnectionError] = []
    for file in files:
        try:
            return _join_node(file, driver)
        except RuntimeError as error:
            errors.append(ConnectionError(f"cannot join the cluster at {file.gcs_address}: {error}"))
        except ConnectionError as error:
            errors.append(error)
    raise errors[0]


def _join_node(file: NodeFile, driver: Driver) -> DriverConnection:
    """Connect this process as a driver to a node, or to the one that has taken its place meanwhile."""
    if file.system_config.transport == LOCAL:
        return _connect(None, file, b"", driver)
    while True:
        file = when_listening(file)
        try:
            return _connect(None, file, session_token(file.session_dir), driver)
        except ConnectionError:
            newer = successor_of(file)
            if newer is None:
                raise
            file = newer


def _connect(node: Node | None, file: NodeFile, token: bytes, driver: Driver) -> DriverConnection:
    own = make_own_thread("driver", secrets.token_bytes(16), file.gcs_endpoint, token, file.system_config)
    connection = DriverConnection(node, file, *own)
    connection.connect(driver)
    return connection
