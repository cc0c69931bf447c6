"""The connection of a program without a node: ``init("minray://host:port")``.

Ray: python/ray/util/client/__init__.py, python/ray/util/client_connect.py

The program becomes a driver like any other (``node.driver_connection``), but for two parts. Its network is that of its
driver process on the cluster's head (``network``), and large values travel in chunks (``values``). The rest of minray does
not know the difference.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from minray.common.config import SystemConfig
from minray.common.decoding import MALFORMED
from minray.node.arguments import Driver
from minray.node.discovery import NodeFile, find_nodes, given_token, session_token, with_environment
from minray.node.driver_connection import DriverConnection
from minray.node.own_thread import OwnThread
from minray.platform.base import Platform, PlatformError
from minray.platform.process.host import RealHost
from minray.platform.process.kept_memory import keep_freed_memory
from minray.platform.process.processes import PlainProcesses
from minray.platform.real import client_network, io_thread, make_platform
from minray.platform.threads.user_code import DriverUserCode, IoThread
from minray.platform.transport.sockets import StreamNetwork
from minray.protocol.client import OpenClientReply
from minray.remote_client.link import ClientLink, ClientRefused
from minray.remote_client.network import RelayedNetwork
from minray.remote_client.session import FRAME_BYTES
from minray.remote_client.values import ClientCoreWorker

CONNECT_S = 40.0
"""Seconds that ``init`` waits for a client server, which has to start a process."""
CLOSE_S = 5.0
"""Seconds that ``shutdown`` waits for the end of the connection."""

T = TypeVar("T")


class ClientThread:
    """The loop of one client: an ``OwnThread``."""

    def __init__(self, thread: OwnThread, link: ClientLink) -> None:
        self.loop = thread.loop
        self._thread = thread
        self._link = link

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self._thread.run(coroutine, timeout_s)

    def stop(self) -> None:
        """Disconnect from the client server."""
        try:
            self._thread.run(self._link.close(), CLOSE_S)
        except TimeoutError:
            pass  # the driver process notices that this client is gone
        self._thread.stop()


def connect_client(server: str, driver: Driver) -> tuple[DriverConnection, int]:
    """Connect this process to the client server at host and port; return the connection, and how many clients there are.

    Raises ConnectionError if the server cannot be reached or refuses the token; RuntimeError if it refuses this client's
    versions, or the transport cannot be used here.
    """
    keep_freed_memory()
    token = _token(server)
    own = SystemConfig.from_overrides(with_environment(None)).for_clients()  # whose transport and files for TLS count
    thread = io_thread(own)
    identity = secrets.token_bytes(16)
    relayed, host = RelayedNetwork(), RealHost()
    endpoint = f"tcp:{server}"

    network = client_network(token, host, own, FRAME_BYTES)
    if isinstance(network, StreamNetwork):
        thread.before_end = network.cut_off

    async def open_link() -> tuple[ClientLink, OpenClientReply]:
        link = ClientLink(network, endpoint, identity, relayed.on_record, relayed.on_lost)
        return link, await link.open()

    try:
        with stopped_by_error(thread):
            link, reply = thread.run(open_link(), CONNECT_S)
    except ClientRefused as error:
        raise RuntimeError(f"the client server at {server} refuses this client: {error}") from None
    except (PlatformError, TimeoutError) as error:
        text = str(error) or f"it did not answer for {CONNECT_S:g} s"
        raise ConnectionError(f"cannot connect to the client server at {server}: {text}") from None
    relayed.send = link.send
    owned = ClientThread(thread, link)
    try:
        file = msgspec.json.decode(reply.node, type=NodeFile)
    except MALFORMED as error:
        owned.stop()
        raise ConnectionError(f"the client server at {server} describes its node wrongly: {error}") from None
    link.resume_s = file.system_config.client_reconnect_grace_period_s
    user_code = DriverUserCode(owned.loop)
    platform = _platform(identity, token, user_code, host, relayed, reply.pid)
    if own.transport == "grpc":  # whose thread brings each answer, and an awake loop would be in its way
        user_code.spinner.allow(0.0, host.cpu_count)
    connection = DriverConnection(None, file, owned, user_code, platform, ClientCoreWorker)
    connection.connect(driver)
    return connection, reply.clients


@contextmanager
def stopped_by_error(thread: IoThread) -> Iterator[None]:
    """Stop a thread if what follows raises."""
    try:
        yield
    except BaseException:
        thread.stop()
        raise


def _platform(
    identity: bytes,
    token: bytes,
    user_code: DriverUserCode,
    host: RealHost,
    network: RelayedNetwork,
    driver_pid: int,
) -> Platform:
    """Make the platform of a client: that of any driver, but for its network and its process id in the cluster."""
    processes = PlainProcesses()
    processes.pid = driver_pid
    platform = make_platform("driver", identity, SystemConfig(), token, processes, user_code, host)
    user_code.outbox = None
    return msgspec.structs.replace(platform, network=network, bulk=())


def _token(server: str) -> bytes:
    """Return the token: that of the environment, else that of a cluster on this machine. Raises RuntimeError."""
    token = given_token(os.environ.get("MINRAY_TOKEN_FILE"))
    if token is not None:
        return token
    nodes = find_nodes()
    if not nodes:
        raise RuntimeError(
            f"the token of the cluster of {server} is not known here: set $MINRAY_TOKEN to the content of the token file"
            " that `minray start --head` has printed"
        )
    return session_token(nodes[-1].session_dir)
