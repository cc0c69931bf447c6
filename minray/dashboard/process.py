"""The dashboard as a process: in the foreground, or as a process of the head node.

Ray: python/ray/dashboard/dashboard.py, python/ray/_private/services.py (start_api_server)

``open_dashboard`` makes a server that listens. The head's process then serves until it is killed with its node; the zygote
starts it again if it crashes. ``minray dashboard`` serves until it is interrupted.

The address of the head's dashboard is in the gcs's key-value table, where drivers look it up (``RayContext.dashboard_url``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from minray.common.config import DashboardConfig
from minray.dashboard.connection import ClusterConnection, Target
from minray.platform.base import Host, Platform, Processes
from minray.platform.process.host import raise_file_limit
from minray.platform.process.processes import PlainProcesses
from minray.platform.real import make_platform
from minray.platform.threads.user_code import DriverUserCode
from minray.platform.transport.tls import TlsFilesWrong
from minray.platform.transport.web_tls import WebFiles, WebTls, web_files_of
from minray.protocol.gcs import DASHBOARD, DASHBOARD_ADDRESS, KvPut

if TYPE_CHECKING:
    from minray.dashboard.server import DashboardServer  # which needs aiohttp

logger = logging.getLogger(__name__)

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8265
"""Ray's defaults."""
PORTS_TRIED = 50
"""Number of ports after the default one that are tried if it is taken, as in Ray."""
REGISTER_S = 10.0
"""Seconds in which the gcs must take the address."""


class Listening(NamedTuple):
    """Where and how a dashboard listens."""

    host: str = DEFAULT_HOST
    port: int | None = None
    """TCP port; 0: any free one; None: 8265, or the next free one."""
    allow_control: bool = False
    files: WebFiles | None = None
    """Files for HTTPS; None: HTTP."""


def check_installed() -> None:
    """Raise RuntimeError, with what to do, if the packages of the dashboard are not installed."""
    missing = [name for name in ("aiohttp", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise RuntimeError(
            f"the dashboard needs {' and '.join(missing)}, not installed here: pip install 'minray[dashboard]'"
        )


async def open_dashboard(
    target: Target, locate: Callable[[], Target], listening: Listening, host: Host, processes: Processes
) -> DashboardServer:
    """Make a server and let it listen. Raises RuntimeError if it cannot."""
    from minray.dashboard.cluster_state import DashboardState
    from minray.dashboard.server import DashboardServer  # It imports aiohttp, which nothing else needs.

    user_code = DriverUserCode(asyncio.get_running_loop())

    def platform_for(found: Target) -> Platform:
        identity = host.random_bytes(16)
        return make_platform("dashboard", identity, found.system_config, found.token, processes, user_code, host)

    try:
        tls = None if listening.files is None else WebTls(listening.files)
    except TlsFilesWrong as error:
        raise RuntimeError(str(error)) from None
    raise_file_limit()
    state = DashboardState(ClusterConnection(target, locate, platform_for))
    first = DEFAULT_PORT if listening.port is None else listening.port
    ports = range(first, first + PORTS_TRIED) if listening.port is None else [first]
    for port in ports:
        server = DashboardServer(
            state, host=listening.host, port=port, allow_control=listening.allow_control, hostname=host.hostname, tls=tls
        )
        try:
            await server.start()
        except OSError as error:
            await server.close()
            if error.errno == errno.EADDRINUSE and port != ports[-1]:
                continue
            raise RuntimeError(
                f"the dashboard cannot listen at {listening.host}:{port}: {error.strerror or error}; give another"
                " host or port"
            ) from None
        return server
    raise AssertionError("the last port returns or raises")


async def serve_on_head(
    config: DashboardConfig, token: bytes, host: Host, processes: Processes, tell: Callable[..., None]
) -> None:
    """Serve as a process of the head node. ``tell`` reports to the zygote that it listens, or why it does not."""
    target = Target(
        gcs_endpoint=config.gcs_endpoint,
        token=token,
        system_config=config.system_config,
        address=config.gcs_address,
        session=config.session_dir.rpartition("/")[2],
    )
    port = None if config.port < 0 else config.port
    listening = Listening(config.host, port, files=web_files_of(config.system_config))
    try:
        server = await open_dashboard(target, lambda: target, listening, host, processes)
    except RuntimeError as error:
        tell("failed", str(error))
        raise SystemExit(1) from None
    request = KvPut(DASHBOARD, DASHBOARD_ADDRESS, f"{target.session} {server.address}".encode(), True)
    await server.state.connection.ask(server.state.connection.connected(), request, REGISTER_S)
    logger.info("the dashboard listens at %s", server.address)
    tell("ready", server.url())
    await asyncio.Event().wait()  # It is killed with its node.


async def serve_in_foreground(
    target: Target,
    locate: Callable[[], Target],
    listening: Listening,
    host: Host,
    announce: Callable[[DashboardServer], None],
) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` prints where. Raises RuntimeError if the server cannot listen."""
    server = await open_dashboard(target, locate, listening, host, PlainProcesses())
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    announce(server)
    await is_over.wait()
    await server.close()
