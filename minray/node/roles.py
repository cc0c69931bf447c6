"""What a forked child is: gcs, raylet or worker, each made of the same rooms as in the simulation; and the zygote itself.

Ray: src/ray/gcs/gcs_server_main.cc, src/ray/raylet/main.cc, python/ray/_private/workers/default_worker.py

A composition root. ``zygote_main`` is the program of a zygote, which has imported everything here once; what
it forks calls ``run_role`` and ends when that returns. gcs and raylet run their loop in their only thread; a worker's
main thread runs tasks, and the loop in between (``main_thread``).
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
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import msgspec

from minray.api import calls as worker
from minray.common.config import GcsConfig, RayletConfig, SystemConfig, WorkerConfig
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.service import CoreWorkerService
from minray.core_worker.user_threads.user_api import UserApi
from minray.gcs.server import GCS_SERVICES, GcsServer
from minray.node.discovery import session_token
from minray.node.worker_output import TaskNamedStream
from minray.platform.base import PlatformError
from minray.platform.process.host import RealHost
from minray.platform.process.processes import WorkerProcesses, ZygoteProcesses
from minray.platform.process.rotating_log import RotatingLog
from minray.platform.process.session import LOGS
from minray.platform.process.zygote import serve
from minray.platform.process.zygote_child import ChildEnds
from minray.platform.real import make_platform
from minray.platform.threads.main_thread import TERMINATED, MainThreadUserCode
from minray.platform.threads.user_code import DriverUserCode
from minray.platform.transport.endpoints import UnixEndpoint, make_room, parse
from minray.protocol.core_worker import TaskHeader
from minray.protocol.gcs import JobInfo, NodeInfo, NodeResources
from minray.raylet.log_monitor import OpenLog
from minray.raylet.raylet import RAYLET_SERVICES, Raylet
from minray.rpc.service import prepare

_worker_config = msgspec.msgpack.Decoder(WorkerConfig)
_gcs_config = msgspec.msgpack.Decoder(GcsConfig)
_raylet_config = msgspec.msgpack.Decoder(RayletConfig)


@dataclass(frozen=True, slots=True)
class Heritage:
    """What the zygote has found out once, for all its children."""

    token: bytes
    host: RealHost


def run_role(heritage: Heritage, role: str, config: bytes, ends: ChildEnds) -> None:
    """What a forked child is; returns when its part is over."""
    if role == "worker":
        _run_worker(_worker_config.decode(config), heritage, ends)
    elif role == "gcs":
        gcs = _gcs_config.decode(config)
        _log_to_file(ends, gcs.system_config)
        _run_loop(_serve_gcs(gcs, heritage, ends))
    else:
        raylet = _raylet_config.decode(config)
        _log_to_file(ends, raylet.system_config)
        _run_loop(_serve_raylet(raylet, heritage, ends))


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error was when the process began, also where user code has put something in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.__stderr__  # type: ignore[return-value]


def _log_through(handler: logging.Handler) -> None:
    """Log what minray has to say. The root logger is the user's: in a worker, ``logging.basicConfig`` has its effect."""
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
    """The names of files in an error need not be text that can be sent."""
    if ends.ready_descriptor is not None:
        ends.ready(msgspec.json.encode([word.encode(errors="backslashreplace").decode() for word in words]))


async def _serve_gcs(config: GcsConfig, heritage: Heritage, ends: ChildEnds) -> None:
    user_code = DriverUserCode(asyncio.get_running_loop())
    system, processes, identity = config.system_config, WorkerProcesses(ends), heritage.host.random_bytes(16)
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
    raylet = Raylet(platform, config, _log_opener(config.session_dir, system), _remove_socket)
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


def _remove_socket(endpoint: str) -> None:
    try:
        parsed = parse(endpoint)
        assert isinstance(parsed, UnixEndpoint), endpoint
        make_room(parsed)
    except PlatformError as error:
        logging.getLogger(__name__).warning("the socket of a dead process stays: %s", error)


def _log_opener(session_dir: str, system: SystemConfig) -> OpenLog:
    def open_log(name: str) -> RotatingLog:
        return RotatingLog(os.path.join(session_dir, LOGS, name), system.rotation_max_bytes, system.rotation_backup_count)

    return open_log


def _log_to_file(ends: ChildEnds, system: SystemConfig) -> None:
    """From now on this process logs to a file of its own in the session, which rotates."""
    path = os.path.join(ends.session_dir, LOGS, f"{ends.name}.log")
    file = RotatingLog(path, system.rotation_max_bytes, system.rotation_backup_count, standard=(1, 2))
    _log_through(logging.StreamHandler(file))


def _run_worker(config: WorkerConfig, heritage: Heritage, ends: ChildEnds) -> None:
    """A loop and user code, which share the main thread (see ``main_thread``)."""
    loop = asyncio.new_event_loop()
    user_code = MainThreadUserCode(loop)
    name = f"worker/{config.worker_id[:4].hex()}"
    system, processes = config.system_config, WorkerProcesses(ends)
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
    executor = core.executor
    sys.stdout = TaskNamedStream(sys.stdout, executor)
    sys.stderr = TaskNamedStream(sys.stderr, executor)
    user_code.end_on_signal(executor.is_in_task, lambda: executor.end_process(SystemExit(TERMINATED)))
    user_code.serve()


def prepare_children() -> None:
    """Do once what each of them would do: it takes time, and what a child writes to is memory of its own."""
    prepare(CoreWorkerService, *GCS_SERVICES, *RAYLET_SERVICES, records=(TaskHeader, NodeInfo, NodeResources, JobInfo))
    _log_through(_StandardError())
    asyncio.new_event_loop().close()  # the first one of a process sets up what all others find
    hmac.digest(b"", b"", "sha256")  # OpenSSL looks for its algorithms
    importlib.invalidate_caches()  # since Python 3.12 this imports half of the email package


def zygote_main() -> None:
    """The program of a zygote, whose arguments are DESCRIPTOR and SESSION_DIR (see ``minray.node.node``)."""
    import psutil  # noqa: F401  (imported once, here, for all children)
    import uvloop  # noqa: F401

    prepare_children()
    assert threading.active_count() == 1, "the zygote must have one thread"
    link, session_dir = int(sys.argv[1]), sys.argv[2]
    serve(link, partial(run_role, Heritage(session_token(session_dir), RealHost())), session_dir=session_dir)
