"""A connection of aiohttp with limits: on the number of connections, on silence, and on the patience with slow readers.

Ray: has no counterpart

aiohttp bounds headers and bodies, and it closes a connection whose next request has not come completely in time. Added here
are a bound on the connections, a time limit for taking an answer, and one short line in the log instead of a traceback for
each piece of garbage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from minray.common.complaints import Complaints
from minray.dashboard.access import SECURITY_HEADERS

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 256
"""Most connections at a time. A browser opens six, and each page that is open keeps one or two."""
REQUEST_S = 15.0
"""Seconds in which a request must have come completely, counted from the connection or the last answer."""
ANSWER_S = 30.0
"""Seconds in which a visitor must have taken an answer, streams excepted."""
LINGER_S = 1.0
"""Seconds in which the rest of a body that nobody wants is read, so that its sender reads the answer."""
MOST_HEADERS = 64
MOST_HEADER_BYTES = 8190
"""Most headers, and most bytes of one of them and of the first line. A cookie jar of localhost may be large."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 5\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)


class Doorkeeper:
    """Counts the connections of a server, and makes them."""

    def __init__(self, server: web.Server, complaints: Complaints, most: int = MOST_CONNECTIONS) -> None:
        self._server = server
        self.complaints = complaints
        self.most = most
        self.connections: set[GuardedConnection] = set()

    def __call__(self) -> GuardedConnection:
        return GuardedConnection(self, self._server)


class GuardedConnection(web.RequestHandler):
    """One connection."""

    def __init__(self, doorkeeper: Doorkeeper, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=REQUEST_S,
            access_log=None,  # type: ignore[arg-type]  # The declaration forgets that None is allowed.
            max_line_size=MOST_HEADER_BYTES,
            max_field_size=MOST_HEADER_BYTES,
            max_headers=MOST_HEADERS,
            lingering_time=LINGER_S,
        )
        self._doorkeeper = doorkeeper

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self._doorkeeper
        if len(door.connections) < door.most:
            door.connections.add(self)
            super().connection_made(transport)
            return
        door.complaints.note("connections", f"more than {door.most} connections at a time are refused")
        refused = cast(asyncio.Transport, transport)  # uvloop's transports are none by their class.
        error = b'{"error": "the dashboard has %d connections, which is its most; close some pages"}' % door.most
        refused.write(FULL % (len(error), error))
        refused.close()

    def data_received(self, data: bytes) -> None:
        if self in self._doorkeeper.connections:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self in self._doorkeeper.connections:
            self._doorkeeper.connections.discard(self)
            super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer. A visitor that does not take it in time is disconnected."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self._doorkeeper.complaints.note("slow", f"{request.remote} has not taken an answer for {ANSWER_S:g} s")
            self.abort()
            raise ConnectionResetError("the visitor does not read") from None

    def abort(self) -> None:
        """Close the connection now, without waiting for what it has not taken."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP, or that aiohttp could not deal with."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._doorkeeper.complaints.note("malformed", f"a request of {request.remote} is malformed: {exc.message[:200]}")
        body = msgspec.json.encode({"error": f"the request is malformed: {exc.message.split(chr(10))[0]}"})
        headers = {**SECURITY_HEADERS, "Server": "minray"}
        response = web.Response(status=status, body=body, content_type="application/json", headers=headers)
        response.force_close()
        return response
