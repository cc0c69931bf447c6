"""A client's link to its driver process: one connection to the client server at a time, and a session that outlives it.

Ray: python/ray/util/client/worker.py (its reconnection), python/ray/util/client/dataclient.py, dataservicer.py

The link sends what the session has. Each message asks for a frame in return, and at least ``ASKED`` of them are open. The
link hands the records that come to the client's network. When the connection ends, it connects again for ``resume_s``.
The session loses no message by that, and handles none twice. A connection on which nothing has come for ``SILENCE_S``
counts as lost.

All methods run on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from minray._version import __version__
from minray.common.decoding import MALFORMED
from minray.common.task_set import TaskSet
from minray.platform.base import (
    AuthenticationFailed,
    Buffer,
    Channel,
    ConnectFailed,
    Network,
    PlatformError,
    RemoteFailure,
)
from minray.protocol.base import Record, Request, decode, encode, reply_class
from minray.protocol.client import AnyRelayed, Carry, LeaveClient, OpenClient, OpenClientReply, Parcel, Relayed
from minray.remote_client.driver import ANSWER_S
from minray.remote_client.server import python_version
from minray.remote_client.session import NO_FRAME, ClientSession, SessionBroken, SessionFrame, apart, frame_in

logger = logging.getLogger("minray")

R = TypeVar("R", bound=Record)

ASKED = 16
"""Least number of open requests for a frame: while answers are on their way, the driver process can send others. This number
of frames of the largest size is a session's window."""
SILENCE_S = 3 * ANSWER_S
"""Seconds without any answer after which a connection counts as lost; an open request is answered after ``ANSWER_S``."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Seconds between two attempts to connect again; the pause doubles from the first to the longest."""
FAREWELL_S = 2.0
"""Most seconds that a client which disconnects waits until its driver process knows it."""


class ClientRefused(Exception):
    """The client server serves no such client; the text says why."""


class ClientLink:
    """The link of one client."""

    def __init__(
        self,
        network: Network,
        endpoint: str,
        identity: bytes,
        on_record: Callable[[AnyRelayed], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Make a link to the client server at an endpoint; ``on_lost`` is called with the reason if it ends for good."""
        self._network = network
        self._endpoint = endpoint
        self._identity = identity
        self._on_record = on_record
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._session = ClientSession()
        self._channel: Channel | None = None
        """The current connection; None while there is none."""
        self._connection = 0
        """Number of the current connection, or of the last one."""
        self._asked = 0
        """Number of open requests for a frame on the current connection."""
        self._connected_at = 0.0
        self._last_heard = 0.0
        self._is_flushing = False
        self.lost = ""
        """Why the link has ended; empty while it has not."""
        self.resume_s = 30.0
        """Seconds for which a lost connection is made again; ``connect`` sets it to what the cluster allows."""
        self._tasks = TaskSet()

    async def open(self) -> OpenClientReply:
        """Connect for the first time. Raises ConnectFailed and ClientRefused."""
        reply = await self._connect(resumes=False)
        self._tasks.begin(self._watch(), "watch_link")
        return reply

    def send(self, record: Relayed, size: int) -> None:
        """Send a record; do nothing if the link has ended."""
        if not self.lost:
            self._session.add(record, size)
            self._flush_soon()

    async def close(self) -> None:
        """Disconnect for good."""
        if not self.lost:
            self.send(LeaveClient("the client has disconnected"), 0)
            try:
                async with asyncio.timeout(FAREWELL_S):
                    while self._channel is not None and not self._session.is_through():
                        await asyncio.sleep(0.002)
            except TimeoutError:
                pass  # the driver process notices by itself
            self.lost = "this client has disconnected"
        self._tasks.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # --- the connection

    async def _connect(self, resumes: bool) -> OpenClientReply:
        connection = self._connection + 1
        on_close = partial(self._on_closed, connection)
        channel = await self._network.connect(self._endpoint, b"", self._identity, on_close)
        try:
            reply = await self._open(channel, resumes)
        except BaseException:
            channel.close()
            raise
        self._channel, self._connection = channel, connection
        self._last_heard = self._connected_at = self._loop.time()
        if channel.closed:
            self._on_closed(connection)
            raise ConnectFailed(f"{self._endpoint}: the connection ended at once")
        self._session.rewind()
        self._asked = 0
        self._flush()
        self._ask_for_more()
        return reply

    async def _open(self, channel: Channel, resumes: bool) -> OpenClientReply:
        answer: asyncio.Future[OpenClientReply] = self._loop.create_future()

        def on_reply(reply: OpenClientReply | None, error: PlatformError | None, _buffers: Sequence[Buffer]) -> None:
            if answer.done():
                return
            if reply is None:
                answer.set_exception(ConnectFailed(f"{self._endpoint}: {error}"))
            else:
                answer.set_result(reply)

        _ask(channel, OpenClient(__version__, python_version(), resumes), on_reply)
        reply = await answer
        if reply.refused:
            raise ClientRefused(reply.refused)
        return reply

    def _on_closed(self, connection: int) -> None:
        if connection == self._connection and self._channel is not None:
            self._channel = None
            if not self.lost:
                self._tasks.begin(self._come_back(), "come_back")

    async def _come_back(self) -> None:
        """Connect again; lose the link if that does not succeed in time."""
        logger.warning("the connection to the cluster at %s was lost; connecting again", self._endpoint)
        deadline, pause_s = self._loop.time() + self.resume_s, FIRST_PAUSE_S
        if self._connection > 1 and self._loop.time() - self._connected_at < LONGEST_PAUSE_S:
            await asyncio.sleep(LONGEST_PAUSE_S)  # else a peer that breaks every connection would fill the log
        while not self.lost:
            try:
                await self._connect(resumes=True)
            except ClientRefused as error:
                self._lose(str(error))
            except ConnectFailed as error:
                if isinstance(error, AuthenticationFailed):
                    self._lose(str(error))
                elif self._loop.time() + pause_s > deadline:
                    self._lose(f"it could not be reached for {self.resume_s:g} s: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                logger.warning("connected to the cluster at %s again", self._endpoint)
                return

    async def _watch(self) -> None:
        """Break connections on which nothing comes any more."""
        while True:
            await asyncio.sleep(1.0)
            if self._channel is not None and self._loop.time() - self._last_heard > SILENCE_S:
                channel, connection = self._channel, self._connection
                channel.close()
                self._on_closed(connection)

    def _lose(self, reason: str) -> None:
        """End the link, which cannot be mended."""
        if self.lost:
            return
        self.lost = reason
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._on_lost(reason)

    # --- frames

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self._channel is not None and (frame := self._session.take()) is not None:
            self._carry(self._channel, frame)

    def _ask_for_more(self) -> None:
        """Keep enough requests open, and let the driver process know what has arrived."""
        while self._channel is not None and (self._asked < ASKED or self._session.owes_report()):
            self._carry(self._channel, NO_FRAME)

    def _carry(self, channel: Channel, frame: SessionFrame) -> None:
        self._asked += 1
        data, buffers = apart(frame)
        request = Carry(self._session.report(), self._connection, number=frame.number, is_end=frame.is_end, frame=data)
        _ask(channel, request, partial(self._on_parcel, self._connection), buffers)

    def _on_parcel(
        self, connection: int, reply: Parcel | None, error: PlatformError | None, buffers: Sequence[Buffer]
    ) -> None:
        if connection == self._connection:
            self._asked -= 1
        if reply is None:
            self._on_failure(connection, error)
            return
        self._last_heard = self._loop.time()
        self._acknowledge(reply.acknowledged)
        if reply.number:
            self._receive(frame_in(reply, buffers))
        self._ask_for_more()

    def _receive(self, frame: SessionFrame) -> None:
        try:
            records = self._session.receive(frame)
        except SessionBroken as error:
            self._lose(f"its driver process has broken the session: {error}")
            return
        for record in records:
            if isinstance(record, LeaveClient):
                self._lose(f"its driver process has ended: {record.reason}")
                return
            self._on_record(record)

    def _acknowledge(self, number: int) -> None:
        try:
            self._session.acknowledge(number)
        except SessionBroken as error:
            self._lose(f"its driver process has broken the session: {error}")
        self._flush()

    def _on_failure(self, connection: int, error: PlatformError | None) -> None:
        """React to a message that was not answered: the connection has ended, or the session has."""
        if connection == self._connection and isinstance(error, RemoteFailure):
            self._lose(error.message)


def _ask(
    channel: Channel,
    request: Request[R],
    on_answer: Callable[[Any, PlatformError | None, Sequence[Buffer]], None],
    buffers: Sequence[Buffer] = (),
) -> None:
    """Send a request on a channel; ``on_answer`` receives the reply with its buffers, or the error."""

    def on_reply(error: PlatformError | None, payload: bytes, answered: Sequence[Buffer]) -> None:
        reply = None
        if error is None:
            try:
                reply = decode(reply_class(type(request)), payload)
            except MALFORMED as malformed:
                text = f"its driver process answers {type(request).__name__} wrongly: {malformed}"
                error = RemoteFailure("malformed", text)
        on_answer(reply, error, answered)

    channel.call(type(request).__name__, encode(request), buffers, on_reply)
