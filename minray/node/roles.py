"""The roles of a node's processes: gcs, raylet, worker, dashboard; and the zygote. Rooms are those of the simulation.

Ray: src/ray/gcs/gcs_server_main.cc, src/ray/raylet/main.cc, python/ray/_private/workers/default_worker.py

This file is a composition root. ``zygote_main`` is the program of a zygote, which has imported everything here once. Each
forked child calls ``run_role`` and ends when that returns. gcs and raylet run their loop in their only thread. A worker's
main thread runs tasks, and the loop between them (``main_thread``).
"""

from __future__ import annotations

import asyncio
import hmac
import importlib
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

import msgspec

from minray.api import calls as worker
from minray.common.config import (
    ClientServerConfig,
    DashboardConfig,
    GcsConfig,
    RayletConfig,
    SystemConfig,
    WorkerConfig,
    debugger_names,
)
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.execution.measured_executor import is_measured
from minray.core_worker.execution.task_names import IDLE
from minray.core_worker.service import CoreWorkerService
from minray.core_worker.user_threads.user_api import UserApi
from minray.gcs.server import GCS_SERVICES, GcsServer
from minray.node.debugger import WorkerDebugger
from minray.node.discovery import session_token
from minray.node.raylet_restart import next_life, note_departure
from minray.node.worker_output import TaskNamedStream
from minray.platform.base import PlatformError
from minray.platform.process.host import RealHost
from minray.platform.process.log_directory import SessionLogs
from minray.platform.process.priority import step_back
from minray.platform.process.processes import ChildlessProcesses, ZygoteProcesses
from minray.platform.process.rotating_log import RotatingLog
from minray.platform.process.session import LOGS
from minray.platform.process.title import ProcessTitle
from minray.platform.process.zygote import serve
from minray.platform.process.zygote_child import ChildEnds
from minray.platform.real import make_platform
from minray.platform.storage import memory
from minray.platform.threads.main_thread import TERMINATED, MainThreadUserCode
from minray.platform.threads.user_code import DriverUserCode
from minray.platform.transport.endpoints import UnixEndpoint, make_room, parse
from minray.protocol.core_worker import TaskHeader
from minray.protocol.gcs import JobInfo, NodeInfo, NodeResources
from minray.raylet.raylet import RAYLET_SERVICES, Raylet
from minray.rpc.service import prepare

MOST_WORDS_OF_FAILURE = 5000
"""Characters at which the reason of a failed start is cut: as JSON it must fit into the payload of readiness, 64 KiB."""
_worker_config = msgspec.msgpack.Decoder(WorkerConfig)
_gcs_config = msgspec.msgpack.Decoder(GcsConfig)
_raylet_config = msgspec.msgpack.Decoder(RayletConfig)
_client_server_config = msgspec.msgpack.Decoder(ClientServerConfig)


class Heritage(msgspec.Struct, frozen=True):
    """The token and the host's facts, which the zygote reads once for all its children."""

    token: bytes
    host: RealHost


def run_role(heritage: Heritage, role: str, config: bytes, ends: ChildEnds) -> None:
    """Run a forked child in its role; return when the role has ended."""
    if role == "worker":
        worker_config = _worker_config.decode(config)
        system = worker_config.system_config
        step_back(system.worker_niceness, system.worker_oom_score_adjustment)
        _run_worker(worker_config, heritage, ends)
    elif role == "client_server":
        server = _client_server_config.decode(config)
        _log_to_file(ends, server.system_config)
        _run_loop(_serve_clients(server, heritage, ends))
    elif role == "gcs":
        gcs = _gcs_config.decode(config)
        _log_to_file(ends, gcs.system_config)
        _find_policies(gcs.policy_path)
        _run_loop(_serve_gcs(gcs, heritage, ends))
    elif role == "dashboard":
        from minray.dashboard.process import serve_on_head  # Only nodes with a dashboard need it.

        dashboard = msgspec.msgpack.decode(config, type=DashboardConfig)
        _log_to_file(ends, dashboard.system_config)
        processes, tell = ChildlessProcesses(ends), partial(_tell_ready, ends)
        _run_loop(serve_on_head(dashboard, heritage.token, heritage.host, processes, tell))
    else:
        raylet = _raylet_config.decode(config)
        _log_to_file(ends, raylet.system_config)
        _find_policies(raylet.policy_path)
        _run_loop(_serve_raylet(raylet, heritage, ends))


def _find_policies(path: list[str]) -> None:
    """Let this process import the modules of a program's policies; its own ones come first."""
    sys.path += [entry for entry in path if entry not in sys.path]


class _StandardError(logging.StreamHandler[TextIO]):
    """A log handler that writes to the process's original standard error, even if user code has replaced ``sys.stderr``."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.__stderr__  # type: ignore[return-value]


def _log_through(handler: logging.Handler) -> None:
    """Log minray's own messages through this handler.

    The root logger stays free for the user, so that ``logging.basicConfig`` in a task has its effect.
    """
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("minray")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _tell_ready(ends: ChildEnds, *words: str) -> None:
    """Report readiness or a failure to the zygote. Bytes of file names that are not text are escaped; long text is cut."""
    if ends.ready_descriptor is not None:
        texts = [word.encode(errors="backslashreplace").decode()[:MOST_WORDS_OF_FAILURE] for word in words]
        ends.ready(msgspec.json.encode(texts))


async def _serve_gcs(config: GcsConfig, heritage: Heritage, ends: ChildEnds) -> None:
    user_code = DriverUserCode(asyncio.get_running_loop())
    system, processes, identity = config.system_config, ChildlessProcesses(ends), heritage.host.random_bytes(16)
    platform = make_platform("gcs", identity, system, heritage.token, processes, user_code, heritage.host)
    server = GcsServer(platform, config)
    try:
        await server.start()
    except PlatformError as error:
        _tell_ready(ends, "failed", str(error))
        raise SystemExit(1) from None
    _tell_ready(ends, "ready")
    await server.wait_closed()


async def _serve_raylet(config: RayletConfig, heritage: Heritage, ends: ChildEnds) -> None:
    """Run a raylet until it ends. The exit code is 0 if it has left in order, so that it is not started again."""
    config = next_life(config, heritage.host.random_bytes)
    user_code = DriverUserCode(asyncio.get_running_loop())
    name = f"raylet/{config.node_name}"
    system = config.system_config
    platform = make_platform(
        name,
        config.node_id,
        system,
        heritage.token,
        ZygoteProcesses(ends),
        user_code,
        heritage.host,
        system.object_manager_lanes,
    )
    logs = SessionLogs(os.path.join(config.session_dir, LOGS), system.rotation_max_bytes, system.rotation_backup_count)
    raylet = Raylet(platform, config, logs, _remove_sockets)
    try:
        await raylet.start()
    except PlatformError as error:
        _tell_ready(ends, "failed", str(error))
        raise SystemExit(1) from None
    if raylet.reason:
        _tell_ready(ends, "failed", raylet.reason)
    else:
        _tell_ready(ends, "ready")
    reason = await raylet.wait_closed()
    logging.getLogger(__name__).info("raylet ends: %s", reason)
    if not raylet.was_asked_to_end:
        raise SystemExit(1)
    note_departure(config, reason)


async def _serve_clients(config: ClientServerConfig, heritage: Heritage, ends: ChildEnds) -> None:
    from minray.remote_client.server import ClientServer  # Few nodes have one.

    server = ClientServer(config.session_dir, heritage.host, config.system_config)
    try:
        await server.listen(config.host, config.port)
    except PlatformError as error:
        _tell_ready(ends, "failed", str(error))
        raise SystemExit(1) from None
    _tell_ready(ends, "ready", server.address)
    await asyncio.get_running_loop().create_future()  # it ends with the node


def _remove_sockets(endpoint: str) -> None:
    """Remove what a dead worker has left: the socket at its endpoint, and beside it those of its debugger."""
    folder, beginning = os.path.dirname(endpoint), debugger_names(endpoint)
    names = [name for name in os.listdir(folder.removeprefix("unix:")) if name.startswith(beginning)]
    for left in [endpoint, *(f"{folder}/{name}" for name in names)]:
        try:
            parsed = parse(left)
            assert isinstance(parsed, UnixEndpoint), left
            make_room(parsed)
        except PlatformError as error:
            logging.getLogger(__name__).warning("cannot remove the socket of a dead process: %s", error)


def _log_to_file(ends: ChildEnds, system: SystemConfig) -> None:
    """Log from now on to this process's own rotating file in the session."""
    path = os.path.join(ends.session_dir, LOGS, f"{ends.name}.log")
    file = RotatingLog(path, system.rotation_max_bytes, system.rotation_backup_count, standard=(1, 2))
    _log_through(logging.StreamHandler(file))


def _run_worker(config: WorkerConfig, heritage: Heritage, ends: ChildEnds) -> None:
    """Run a worker: its loop and the user's code share the main thread (see ``main_thread``)."""
    config = msgspec.structs.replace(config, is_measured=is_measured())
    loop = asyncio.new_event_loop()
    user_code = MainThreadUserCode(loop)
    name = f"worker/{config.worker_id[:4].hex()}"
    system, processes = config.system_config, ChildlessProcesses(ends)
    platform = make_platform(name, config.worker_id, system, heritage.token, processes, user_code, heritage.host)

    async def start() -> CoreWorker:
        core = CoreWorker(platform, config)
        await core.start()
        return core

    user_code.start_relief()
    try:
        core = user_code.begin(start())
    except PlatformError as error:
        logging.getLogger(__name__).error("this worker cannot join its node: %s", error)
        return
    worker.connect_process(UserApi(core.user_port()))
    core.context.on_enter = _log_as_the_job_says
    executor = core.execution.executor
    sys.stdout = TaskNamedStream(sys.stdout, executor)
    sys.stderr = stderr = TaskNamedStream(sys.stderr, executor)
    debugger = WorkerDebugger(core.process, executor, stderr.write_as)
    sys.breakpointhook, core.execution.errors.examine = debugger.on_breakpoint, debugger.examine
    title = ProcessTitle()
    title.show(IDLE)
    executor.title.write, user_code.on_idle = title.show, executor.title.show_idle
    user_code.end_on_signal(executor.is_in_task, lambda: executor.end_process(SystemExit(TERMINATED)))
    user_code.serve()


def _log_as_the_job_says(job: JobInfo) -> None:
    if job.config.logging_config:
        from minray.logging_config import LoggingConfig  # few programs have one

        LoggingConfig.decode(job.config.logging_config).apply()


def prepare_children() -> None:
    """Do once in the zygote what each child would do: it takes time, and pages that a child writes to are not shared."""
    import minray.experimental
    import minray.internal
    import minray.util  # noqa: F401  (these three are imported once, here, for the tasks that use them)

    memory.prepare_children()
    prepare(CoreWorkerService, *GCS_SERVICES, *RAYLET_SERVICES, records=(TaskHeader, NodeInfo, NodeResources, JobInfo))
    _log_through(_StandardError())
    asyncio.new_event_loop().close()  # the first loop of a process sets up what all later ones need
    hmac.digest(b"", b"", "sha256")  # OpenSSL looks for its algorithms
    importlib.invalidate_caches()  # since Python 3.12 this imports half of the email package


def zygote_main() -> None:
    """Run the program of a zygote, whose arguments are DESCRIPTOR and SESSION_DIR (see ``minray.node.node``)."""
    try:
        import psutil  # noqa: F401  (imported once, here, for all children)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{sys.executable} lacks {error.name}, which minray needs: pip install {error.name}") from None
    with suppress(ImportError):  # without it the driver warns, and all processes run on asyncio's own loop
        import uvloop  # noqa: F401
    prepare_children()
    assert threading.active_count() == 1, "the zygote must have one thread"
    link, session_dir = int(sys.argv[1]), sys.argv[2]
    serve(link, partial(run_role, Heritage(session_token(session_dir), RealHost())), session_dir=session_dir)
