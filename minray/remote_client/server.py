"""The client server: it lets remote clients in, gives each a driver process, and forwards between the two.

Ray: python/ray/util/client/server/proxier.py (ProxyManager, RayletServicerProxy)

The server listens on one TCP port, on loopback unless it is told another address. It speaks the transport of its cluster, or
the other one (``client_transport``). The handshake of the transport comes first: a stranger that does not know the cluster's
token is turned away before anything that it sends is decoded. Then a client names its versions. It is refused, with words,
if its Python or its minray is another one, because values and functions are pickled on one side and unpickled on the other.

Rules
  * The server looks into no message of a session. It keeps no frames: a connection that breaks loses nothing, because the
    session is between the client and its driver process (``session``).
  * Each client has a process of its own (``driver``), which ends with this process.
  * At most ``MAX_CLIENTS`` are served, since each has a process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from minray._version import __version__
from minray.common.config import SystemConfig
from minray.common.decoding import MALFORMED
from minray.common.peer_log import KNOWN_PEERS, PeerLog
from minray.common.shown import cut, shown
from minray.common.task_set import TaskSet
from minray.node.discovery import NodeFile, read_node_file, session_token
from minray.node.node import import_path
from minray.platform.base import Buffer, Channel, Host, Incoming, PlatformError, RemoteFailure
from minray.platform.process.kept_memory import keep_freed_memory
from minray.platform.process.programs import Program, start_program
from minray.platform.process.session import LOGS
from minray.platform.real import client_network
from minray.platform.transport.endpoints import UnixEndpoint, make_room, parse
from minray.platform.transport.sockets import StreamNetwork
from minray.protocol.base import decode, encode
from minray.protocol.client import Carry, OpenClient, OpenClientReply
from minray.remote_client.driver import DriverConfig
from minray.remote_client.session import FRAME_BYTES

logger = logging.getLogger(__name__)

MAX_CLIENTS = 256
"""Most clients at a time; each has a process of about 40 MB."""
GONE = "no-session"
"""Kind of the failure of a message whose session has ended."""
ID_BYTES = 16


class _Client:
    """One client that is being served."""

    def __init__(self, opening: asyncio.Task[None]) -> None:
        self.opening = opening
        """Ends when the driver process is there, or could not be started."""
        self.program: Program | None = None
        self.channel: Channel | None = None
        """The channel to the driver process; None before it is there."""


def python_version() -> str:
    """Return this Python's version without the patch level."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class ClientServer:
    """Serves remote clients of the cluster to which a node of this machine belongs."""

    def __init__(self, session_dir: str, host: Host, system_config: SystemConfig) -> None:
        """Serve the cluster of the node with this session. Raises RuntimeError if its token cannot be read."""
        self._session_dir = session_dir
        self._system_config = system_config
        self._host = host
        self._token = session_token(session_dir)
        self._to_drivers = StreamNetwork(self._token, host)
        self._clients: dict[bytes, _Client] = {}
        """Clients whose driver process lives, or is being started, by their incarnation."""
        self._peer_log = PeerLog(logger)
        self._tasks = TaskSet()
        self.address = ""
        """Host and port where the server listens."""

    async def listen(self, host: str, port: int) -> None:
        """Begin to listen. Raises PlatformError, e.g. if the port is in use."""
        keep_freed_memory()
        network = client_network(self._token, self._host, self._system_config.for_clients(), FRAME_BYTES)
        endpoint = f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"
        self._listener = await network.listen(endpoint, self._host.random_bytes(ID_BYTES), self._on_incoming)
        self.address = self._listener.endpoint.removeprefix("tcp:")
        logger.info("remote clients of the cluster are served at %s", self.address)

    async def close(self) -> None:
        """Stop serving, and end all driver processes."""
        await self._listener.close()
        self._tasks.cancel()
        programs = [client.program for client in self._clients.values() if client.program is not None]
        for program in programs:
            program.kill()
        await asyncio.gather(*(program.wait() for program in programs))
        self._peer_log.close()

    # --- messages

    def _on_incoming(self, incoming: Incoming) -> None:
        if incoming.method == Carry.__name__:
            self._forward(incoming)
        elif incoming.method == OpenClient.__name__:
            self._tasks.begin(self._open(incoming), "open_client")
        else:
            incoming.fail(RemoteFailure("unknown-method", f"{cut(incoming.method)} is not understood here"))

    def _forward(self, incoming: Incoming) -> None:
        client = self._clients.get(incoming.peer)
        if client is None or client.channel is None or client.channel.closed:
            incoming.fail(RemoteFailure(GONE, "this client's session has ended"))
            return

        def on_reply(error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
            if error is None:
                incoming.reply(payload, buffers)
            elif isinstance(error, RemoteFailure):
                incoming.fail(error)
            else:
                incoming.fail(RemoteFailure(GONE, "the driver process of this client has ended"))

        client.channel.call(incoming.method, incoming.payload, incoming.buffers, on_reply)

    async def _open(self, incoming: Incoming) -> None:
        try:
            request = decode(OpenClient, incoming.payload)
        except MALFORMED as error:
            self._peer_log.warn(KNOWN_PEERS, f"refused a malformed {OpenClient.__name__}: {error}")
            incoming.fail(RemoteFailure("bad-request", str(error)))
            return
        node = read_node_file(self._session_dir)
        refused = self._refusal(request, incoming.peer, node)
        if not refused:
            assert node is not None
            try:
                await self._attach(incoming.peer, node)
            except PlatformError as error:
                refused = f"its driver process could not be started: {error}"
        if refused:
            self._peer_log.warn(KNOWN_PEERS, f"refused a client: {refused}")
            incoming.reply(encode(OpenClientReply(refused)))
            return
        client = self._clients[incoming.peer]
        assert client.program is not None
        file = msgspec.json.encode(node)
        incoming.reply(encode(OpenClientReply("", file, client.program.pid, len(self._clients))))

    def _refusal(self, request: OpenClient, peer: bytes, node: NodeFile | None) -> str:
        """Return why a client is not served; empty if it is."""
        if request.version != __version__:
            return f"the client has minray {shown(request.version)} and the cluster has minray {__version__!r}"
        if request.python != python_version():
            text = "values and functions that one pickles, the other could not always unpickle"
            return f"the client runs Python {shown(request.python)} and the cluster Python {python_version()!r}: {text}"
        if len(peer) != ID_BYTES:
            return f"a client's id has {ID_BYTES} bytes, not {len(peer)}"
        if peer in self._clients:
            return ""
        if request.resumes:
            return "its session has ended, because it was not heard for too long or its driver process has died"
        if node is None:
            return "the node of this client server has ended"
        if len(self._clients) >= MAX_CLIENTS:
            return f"{MAX_CLIENTS} clients are connected, which is the most that a client server takes"
        return ""

    # --- driver processes

    async def _attach(self, peer: bytes, node: NodeFile) -> None:
        """Return when the client's driver process is there; start one if it has none. Raises PlatformError."""
        client = self._clients.get(peer)
        if client is None:
            opening = self._tasks.begin(self._start(peer, node), "start_client_driver")
            client = self._clients[peer] = _Client(opening)
        await asyncio.shield(client.opening)

    async def _start(self, peer: bytes, node: NodeFile) -> None:
        name = peer[:8].hex()
        endpoint = f"{node.socket_dir}/c-{name}"
        config = msgspec.json.encode(DriverConfig(peer, endpoint, self._token, node))
        log = os.path.join(node.session_dir, LOGS, f"client_driver_{name}.log")
        module = "minray.remote_client.driver"
        program = None
        try:
            program = await start_program(module, "main", config, node.session_dir, log, import_path())
            own_id = self._host.random_bytes(ID_BYTES)
            channel = await self._to_drivers.connect(endpoint, peer, own_id, lambda: None)
        except BaseException:
            self._clients.pop(peer, None)
            if program is not None:
                program.kill()
            raise
        client = self._clients[peer]
        client.program, client.channel = program, channel
        self._tasks.begin(self._await_end(peer, program, endpoint), "await_client_driver")
        logger.info("client %s is served by process %d", peer.hex(), program.pid)

    async def _await_end(self, peer: bytes, program: Program, endpoint: str) -> None:
        code = await program.wait()
        self._clients.pop(peer, None)
        logger.info("the driver process %d of client %s has ended with code %d", program.pid, peer.hex(), code)
        where = parse(endpoint)
        assert isinstance(where, UnixEndpoint), endpoint
        with suppress(PlatformError):  # removes the socket of a process that was killed
            make_room(where)
