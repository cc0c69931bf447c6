"""The driver process of one remote client: it stands in the cluster where the client cannot.

Ray: python/ray/util/client/server/proxier.py (SpecificServer), python/ray/util/client/server/server.py

The client server starts one such process for each client, and gives it its configuration on its standard input. The process
listens on a unix socket for the server, which forwards what the client sends. All channels and listeners of the client are
here (``relay``). So the cluster takes this process for the client's driver: when it ends, the client's job ends, with its
actors and objects.

The process ends
  * at once when the client disconnects (``LeaveClient``), or when the client server is gone (its standard input ends),
  * when the client was not heard for ``client_reconnect_grace_period_s``,
  * when its node has ended, or the client breaks the rules of the session, or reads too slowly.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import deque

import msgspec

from minray.common.config import fallback_endpoint, store_endpoint
from minray.node.discovery import NodeFile
from minray.object_store.client import StoreClient
from minray.platform.base import Platform
from minray.platform.process.host import RealHost, raise_file_limit
from minray.platform.process.kept_memory import keep_freed_memory
from minray.platform.process.processes import PlainProcesses
from minray.platform.real import make_platform
from minray.platform.threads.user_code import DriverUserCode
from minray.platform.transport.sockets import StreamNetwork
from minray.protocol.client import AnyRelayed, Carry, LeaveClient, Parcel, Relayed
from minray.remote_client.relay import Relay
from minray.remote_client.session import NO_FRAME, ClientSession, SessionBroken, SessionFrame, apart, frame_in
from minray.remote_client.store_service import StoreService
from minray.rpc.connection import Peers
from minray.rpc.service import Call, Dispatcher

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""Seconds after which a ``Carry`` is answered although there is no frame, so that each side hears of the other."""
MOST_ASKED = 64
"""Most ``Carry`` that are not answered; the client sends one with each frame, even if none comes back."""
MAX_BACKLOG_BYTES = 512 * 1024 * 1024
"""Most bytes that wait for a client that reads too slowly; with more its session ends."""


class DriverConfig(msgspec.Struct, frozen=True):
    """Configuration that the client server gives to a driver process."""

    client: bytes
    """The client's incarnation."""
    endpoint: str
    """The unix socket at which the process listens for the server."""
    token: bytes
    node: NodeFile


class ClientDriver:
    """One driver process: the handlers for its client's messages, and its life."""

    def __init__(self, platform: Platform, config: DriverConfig) -> None:
        self._client = config.client
        self._loop = asyncio.get_running_loop()
        self._session = ClientSession()
        node = config.node
        self._grace_s = node.system_config.client_reconnect_grace_period_s
        peers = Peers(platform, bytes.fromhex(node.node_id), node.system_config.rpc_reconnect_timeout_s)
        raylet = peers.at(
            node.raylet_endpoint,
            bytes.fromhex(node.node_id),
            reconnect_timeout_s=node.system_config.rpc_reconnect_timeout_s,
            may_restart=False,
        )
        raylet.on_death = lambda death: self.end(f"the raylet of its node has died: {death}")
        raylet.keep_open()
        store = StoreClient(
            platform,
            raylet,
            config.client,
            store_endpoint(node.socket_dir, bytes.fromhex(node.node_id)),
            fallback_endpoint(node.socket_dir, bytes.fromhex(node.node_id)),
            self.end,
        )
        self._own = Dispatcher(StoreService(store))
        self._relay = Relay(platform.network, config.client, self._send, self._own)
        self._connection = 0
        """Number of the client's current connection."""
        self._asked: deque[tuple[Call, float]] = deque()
        """Requests for a frame that are not answered, oldest first, with the times of their arrival."""
        self._last_heard = self._loop.time()
        self._is_flushing = False
        self._ended: asyncio.Future[str] = self._loop.create_future()
        """Set to the reason when the process has to end."""

    # --- the client's messages

    def handle_Carry(self, request: Carry, call: Call) -> None:
        self._last_heard = self._loop.time()
        if request.connection > self._connection:
            self._connection = request.connection
            self._answer_asked(math.inf)
            self._session.rewind()
        try:
            self._session.acknowledge(request.acknowledged)
            if request.number:
                for record in self._session.receive(frame_in(request, call.buffers)):
                    self._on_record(record)
        except SessionBroken as error:
            self.end(f"the client has broken the session: {error}")
        if request.connection < self._connection:
            call.reply(Parcel(self._session.report()))
            return
        self._asked.append((call, self._loop.time()))
        self._flush_soon()

    def _on_record(self, record: AnyRelayed) -> None:
        if isinstance(record, LeaveClient):
            self.end(record.reason)
        else:
            self._relay.on_record(record)

    def _answer_asked(self, asked_before: float) -> None:
        """Answer the requests for a frame that came before this time, without one."""
        while self._asked and self._asked[0][1] < asked_before:
            self._answer_oldest(NO_FRAME)

    def _answer_oldest(self, frame: SessionFrame) -> None:
        call, _ = self._asked.popleft()
        data, buffers = apart(frame)
        call.reply(Parcel(self._session.report(), frame.number, frame.is_end, data), buffers)

    # --- sending

    def _send(self, record: Relayed, size: int) -> None:
        self._session.add(record, size)
        if self._session.waiting_bytes > MAX_BACKLOG_BYTES:
            self.end(f"the client reads too slowly: {MAX_BACKLOG_BYTES >> 20} MiB wait for it")
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self._asked and (frame := self._session.take()) is not None:
            self._answer_oldest(frame)
        while self._asked and (len(self._asked) > MOST_ASKED or self._session.owes_report()):
            self._answer_oldest(NO_FRAME)

    # --- life

    def end(self, reason: str) -> None:
        """Have the process end, for this reason."""
        if not self._ended.done():
            self._ended.set_result(reason)

    async def serve(self) -> str:
        """Serve the client until the process has to end; return the reason."""
        answer_s = min(ANSWER_S, self._grace_s / 4)
        while not self._ended.done():
            await asyncio.wait([self._ended], timeout=answer_s / 4)
            self._answer_asked(self._loop.time() - answer_s)
            if self._loop.time() - self._last_heard > self._grace_s:
                self.end(f"the client was not heard for {self._grace_s:g} s")
        reason = self._ended.result()
        await self._relay.close()
        self._session.add(LeaveClient(reason))
        self._flush()  # a client that is there has a request for a frame open
        self._own.close()
        return reason


async def _run(config: DriverConfig) -> None:
    keep_freed_memory()
    user_code = DriverUserCode(asyncio.get_running_loop())
    host = RealHost()
    name = f"client/{config.client[:4].hex()}"
    system = config.node.system_config
    processes = PlainProcesses()
    platform = make_platform(name, config.client, system, config.token, processes, user_code, host, exchanges=True)
    user_code.spinner.allow(0.0, host.cpu_count)
    driver = ClientDriver(platform, config)
    to_server = StreamNetwork(config.token, host)
    listener = await to_server.listen(config.endpoint, config.client, Dispatcher(driver))
    _end_with_server(driver)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    reason = await driver.serve()
    logger.info("the driver process of client %s ends: %s", config.client.hex(), reason)
    await listener.close()


def _end_with_server(driver: ClientDriver) -> None:
    """Have the process end when its standard input does, which the client server holds open."""

    def on_readable() -> None:
        loop.remove_reader(sys.stdin.fileno())  # the server sends nothing more: this is the end
        driver.end("the client server has ended")

    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), on_readable)


def main() -> None:
    """Run the program of a driver process; its configuration is the first line of its standard input, as JSON."""
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=DriverConfig)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    raise_file_limit()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_run(config))
    else:
        uvloop.run(_run(config))
