"""The web server of the dashboard: paths, answers and errors. This file and ``guarded_connection`` alone import aiohttp.

Ray: python/ray/dashboard/http_server_head.py, python/ray/dashboard/routes.py

Every request first passes ``_guard``, which asks ``access`` whether it is answered at all, the page and unknown paths too.
The handlers below are short: they read the question, ask ``DashboardState``, and return JSON. Errors of the cluster, of the
visitor and of minray become ``{"error": SENTENCE}`` in one place.

A stream of events ends when its visitor has not taken an event for ``PATIENCE_S``, with one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from minray.common.complaints import Complaints
from minray.dashboard.access import (
    CONTROL_HEADER,
    SECURITY_HEADERS,
    UNAUTHORIZED,
    Access,
    Visit,
    cookie_name,
    dashboard_token,
    is_token,
)
from minray.dashboard.cluster_state import DashboardState, NotFound
from minray.dashboard.control import Control
from minray.dashboard.guarded_connection import Doorkeeper
from minray.dashboard.history import History
from minray.dashboard.listing import parse_question, whole_number
from minray.dashboard.logs import LogDesk
from minray.dashboard.news import News
from minray.dashboard.page_files import PAGE, PageFile, read_page
from minray.dashboard.tables import COLUMNS
from minray.observability.chrome_trace import newest, trace_pieces
from minray.observability.prometheus_exposition import CONTENT_TYPE, exposition
from minray.observability.state_reader import describe_dropped
from minray.platform.base import PlatformError
from minray.platform.transport.strangers import Strangers
from minray.platform.transport.tls import PLAIN_PEER
from minray.platform.transport.tls_acceptor import TlsAcceptor, listening_socket
from minray.platform.transport.web_tls import WebTls
from minray.protocol.state import ProfileEvents

logger = logging.getLogger(__name__)

MOST_BODY_BYTES = 64 * 1024
"""Most bytes of a request's body; changes are small."""
BODY_S = 10.0
"""Seconds in which a body must have come."""
PATIENCE_S = 10.0
"""Seconds after which a visitor who does not take an event is disconnected."""
HEARTBEAT_S = 15.0
"""Seconds without news after which a stream sends an empty comment, so that a dead visitor is noticed."""
RETRY_MS = 2000
"""Milliseconds after which a browser reconnects a stream that has ended."""
MOST_DRAWN = 20_000
"""Most tasks of a timeline with a ``limit``; a page that draws more is slow."""
MOST_DOWNLOADED = 100_000
"""Most tasks of a timeline that is a file: about 60 MB of this process while it is made. ``minray timeline`` has all."""
MOST_STREAMS = 64
"""Most streams at a time: less than connections, so that others are always answered."""
EVENT_STREAM = "text/event-stream"
REQUEST_TIMEOUT, FAILED, UNAVAILABLE = 408, 500, 503
PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks HTTPS: the address begins with https://\n"
)
"""Answer to a visitor without TLS, where it is spoken."""
BACKLOG = 128
"""Most connections that wait to be accepted."""
SHUTDOWN_S = 2.0
"""Seconds that requests under way may take when the server ends."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DashboardServer:
    """A server on one port."""

    def __init__(
        self,
        state: DashboardState,
        *,
        host: str,
        port: int,
        allow_control: bool,
        hostname: str,
        tls: WebTls | None = None,
    ) -> None:
        """Make a server, which listens after ``start``; ``tls``: it speaks HTTPS."""
        self.state = state
        self.host = host
        self.port = port
        """Port that is listened on; before ``start`` the wanted one, and 0 means any."""
        self._access = Access({hostname.lower(), host.lower().strip("[]")}, allow_control)
        self.allow_control = allow_control
        self.news = News(state)
        self.history = History(state)
        self._control = Control(state)
        self._logs = LogDesk(state)
        state.extra_tables["logs"] = self._logs.table
        self._page: dict[str, PageFile] = read_page()
        self.complaints = Complaints(asyncio.get_running_loop().time)
        self._runner: web.AppRunner | None = None
        self._tls = tls
        self.is_encrypted = tls is not None
        self._listener: asyncio.Server | None = None
        """The server; None before it listens, and with TLS."""
        self._acceptor: TlsAcceptor | None = None
        """Accepts connections instead of ``_listener`` with TLS."""
        self._doorkeeper: Doorkeeper | None = None
        self._streams = 0
        self.served = 0
        """Number of requests that were answered so far."""

    # --- life

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use or not one of this machine."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BODY_BYTES)
        app.add_routes(self._routes())
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        assert self._runner.server is not None
        self._doorkeeper = Doorkeeper(self._runner.server, self.complaints)
        loop, host = asyncio.get_running_loop(), self.host.strip("[]")
        if self._tls is None:
            self._listener = await loop.create_server(self._doorkeeper, host, self.port)
            listening = self._listener.sockets[0]
        else:
            listening = await listening_socket(host, self.port, BACKLOG)
            self._acceptor = TlsAcceptor(
                [listening], self._tls, Strangers(), self._doorkeeper, self._note_refused, PLAIN_ANSWER
            )
        self.port = listening.getsockname()[1]
        self.history.start()

    def _note_refused(self, machine: str, place: str, reason: str) -> None:
        text = "it does not speak TLS: the address begins with https://" if reason == PLAIN_PEER else reason
        self.complaints.note("tls", f"a connection of {place} is refused: {text}")

    async def close(self) -> None:
        """Stop listening, and disconnect all visitors."""
        self.history.close()
        self.news.close()
        if self._listener is not None:
            self._listener.close()
        if self._acceptor is not None:
            await self._acceptor.close()
        if self._doorkeeper is not None:
            for connection in list(self._doorkeeper.connections):
                connection.abort()
        if self._runner is not None:
            await self._runner.cleanup()
        self.state.close()

    @property
    def address(self) -> str:
        """Host and port for people, as in Ray's ``dashboard_url``."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host and not host.startswith("[") else f"{host}:{self.port}"

    def url(self) -> str:
        """Return the address with the token, for the first visit."""
        return f"{'https' if self.is_encrypted else 'http'}://{self.address}/?token={dashboard_token(self.state.connection.target.token)}"

    def _routes(self) -> list[web.RouteDef]:
        get, post = web.get, web.post
        return [
            get("/", self._page_itself),
            get("/page/{name}", self._page_file),
            get("/favicon.ico", self._no_icon),
            get("/metrics", self._metrics),
            get("/api/cluster", self._cluster),
            get("/api/tasks/summary", self._task_summary),
            get("/api/waits", self._waits),
            get("/api/why/{id}", self._why),
            get("/api/timeline", self._timeline),
            get("/api/stacks", self._stacks),
            get("/api/metrics/history", self._history),
            get("/api/events", self._events),
            get("/api/logs/{node}/{file}", self._log),
            get("/api/logs/{node}/{file}/follow", self._follow_log),
            get("/api/{table}", self._table),
            get("/api/{table}/{id}", self._row),
            post("/api/control/{kind}", self._change),
        ]

    # --- before and around each request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or refuse it, or turn its error into a sentence."""
        self.served += 1
        token = self.state.connection.target.token
        given = request.query.get("token", "")
        refusal = self._access.refusal(self._visit_of(request, given), token)
        if refusal is not None:
            return self._refuse(request, refusal.status, refusal.error)
        if given and is_token(given, token) and request.method == "GET":
            return self._welcome(request, token)
        try:
            return await handler(request)
        except NotFound as error:
            return _error(404, str(error))
        except ValueError as error:
            return _error(400, str(error))
        except web.HTTPException as error:
            return _error(error.status, _words_of(error, request), error.headers.get("Allow"))
        except (PlatformError, ConnectionError, TimeoutError) as error:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the visitor has gone") from None
            return _error(UNAVAILABLE, self.state.trouble(error))
        except Exception:
            logger.exception("%s could not be answered", request.path)
            return _error(FAILED, "the dashboard could not answer this; its log has the traceback")

    def _visit_of(self, request: web.Request, given: str) -> Visit:
        headers = request.headers
        return Visit(
            method=request.method,
            host=headers.get("Host", ""),
            given=given if request.method == "GET" else "",
            cookie=request.cookies.get(cookie_name(self.port), ""),
            authorization=headers.get("Authorization", ""),
            origin=headers.get("Origin"),
            site=headers.get("Sec-Fetch-Site"),
            has_control_header=CONTROL_HEADER in headers,
        )

    def _refuse(self, request: web.Request, status: int, error: str) -> web.Response:
        self.complaints.note(f"refused {status}", f"a request of {request.remote} is refused with {status}: {error}")
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and request.headers.get("Sec-Fetch-Mode") == "navigate":
            # A link on another page leads here, and the browser keeps the cookie back. It sends it with what we lead to.
            again = b'<!doctype html><meta http-equiv="refresh" content="0"><title>minray</title>'
            return web.Response(status=status, body=again, content_type="text/html")
        if "text/html" in request.headers.get("Accept", ""):
            return web.Response(status=status, text=f"{error[0].upper()}{error[1:]}.\n", content_type="text/plain")
        response = _error(status, error)
        if status == UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = 'Bearer realm="minray dashboard"'
        return response

    def _welcome(self, request: web.Request, token: bytes) -> web.Response:
        """Set the cookie, and lead on to the same path without the token."""
        query = request.rel_url.query.copy()
        del query["token"]
        target = request.rel_url.with_query(query)
        response = web.Response(status=303, headers={"Location": f"/{str(target).lstrip('/')}"})
        response.set_cookie(
            cookie_name(self.port), dashboard_token(token), httponly=True, samesite="Strict", path="/", secure=request.secure
        )
        return response

    # --- the page

    async def _page_itself(self, request: web.Request) -> web.Response:
        return _file(self._page[PAGE], request)

    async def _page_file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._page:
            raise NotFound("the page has no such file")
        return _file(self._page[name], request)

    async def _no_icon(self, request: web.Request) -> web.Response:
        return web.Response(status=204)

    # --- answers

    async def _cluster(self, request: web.Request) -> web.Response:
        return _json({**await self.state.cluster(), "allow_control": self.allow_control})

    async def _table(self, request: web.Request) -> web.Response:
        name = _table_name(request)
        question = parse_question(request.query.items(), COLUMNS[name])
        return _json_body(await self.state.select(name, question))

    async def _row(self, request: web.Request) -> web.Response:
        return _json(await self.state.find(_table_name(request), request.match_info["id"]))

    async def _task_summary(self, request: web.Request) -> web.Response:
        return _json(await self.state.task_summary())

    async def _waits(self, request: web.Request) -> web.Response:
        return _json(await self.state.waits())

    async def _why(self, request: web.Request) -> web.Response:
        return _json(await self.state.why(request.match_info["id"]))

    async def _stacks(self, request: web.Request) -> web.Response:
        return _json(await self.state.stacks(request.query.get("process", "")))

    async def _history(self, request: web.Request) -> web.Response:
        return _json(self.history.facts())

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        """Send a trace, with the number of tasks that it leaves out: of the newest ``limit`` tasks, or as a file."""
        limit = request.query.get("limit")
        headers = {"Content-Type": "application/json"}
        if limit is None:
            most = MOST_DOWNLOADED
            profile = await self.state.profile(most)
            headers["Content-Disposition"] = 'attachment; filename="minray-timeline.json"'
        else:
            most = whole_number("limit", limit, 1, MOST_DRAWN)
            profile = await self.state.profile(MOST_DRAWN)
        workers = await asyncio.to_thread(newest, profile.workers, most)
        total = sum(worker.total for worker in profile.workers)
        facts = {
            "total": total,
            "left_out": total - sum(len(worker.events) for worker in workers),
            "most_downloaded": MOST_DOWNLOADED,
            "notes": list(filter(None, [describe_dropped(profile.dropped)])),
            "silent": profile.silent,
        }
        begin = msgspec.json.encode(facts)[:-1] + b',"traceEvents":['
        return await self._send_trace(request, headers, begin, workers, b"]}")

    async def _send_trace(
        self, request: web.Request, headers: dict[str, str], begin: bytes, workers: Sequence[ProfileEvents], end: bytes
    ) -> web.StreamResponse:
        """Send a trace in pieces, so that it is never in memory as a whole."""
        response = web.StreamResponse(headers=headers)
        response.enable_compression()
        pieces = trace_pieces(workers, begin, end)
        try:
            await response.prepare(request)
            while piece := await asyncio.to_thread(next, pieces, b""):
                await self._send(request, response, piece)
        except ConnectionError:
            pass  # The visitor has stopped the download.
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        families = await self.state.metrics()
        body = await asyncio.to_thread(lambda: exposition(families))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _log(self, request: web.Request) -> web.Response:
        node_id, file = request.match_info["node"], request.match_info["file"]
        return _json(await self._logs.read(node_id, file, dict(request.query)))

    async def _follow_log(self, request: web.Request) -> web.StreamResponse:
        node_id, file = request.match_info["node"], request.match_info["file"]
        return await self._stream(request, self._logs.follow(node_id, file, dict(request.query), HEARTBEAT_S))

    async def _change(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
        except TimeoutError:
            return _error(REQUEST_TIMEOUT, f"the body has not come within {BODY_S:g} s")
        done = await self._control.change(request.match_info["kind"], body)
        logger.warning("a visitor at %s: %s", request.remote, done["done"])
        return _json(done)

    # --- streams

    async def _events(self, request: web.Request) -> web.StreamResponse:
        names = frozenset(filter(None, request.query.get("tables", "").split(",")))
        subscriber = self.news.subscribe(names)

        async def events() -> AsyncIterator[Any]:
            while True:
                changed = await subscriber.wait_news(HEARTBEAT_S)
                if changed is None:
                    yield None
                else:
                    yield {"tables": changed, "cluster": {**self.news.summary, "allow_control": self.allow_control}}

        try:
            return await self._stream(request, events())
        finally:
            self.news.unsubscribe(subscriber)

    async def _stream(self, request: web.Request, events: AsyncIterator[Any]) -> web.StreamResponse:
        """Send events until the visitor goes, or does not take one in time. None is a heartbeat."""
        if self._streams >= MOST_STREAMS:
            self.complaints.note("streams", f"more than {MOST_STREAMS} streams at a time are refused")
            return _error(UNAVAILABLE, f"{MOST_STREAMS} pages or logs are followed already, which is the most; close some")
        self._streams += 1
        response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            await self._send(request, response, b"retry: %d\n\n" % RETRY_MS)
            async for event in events:
                text = b": here\n\n" if event is None else b"data: %s\n\n" % msgspec.json.encode(event)
                await self._send(request, response, text)
        except ConnectionError:
            pass  # The visitor has closed the page.
        finally:
            self._streams -= 1
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, text: bytes) -> None:
        """Send a piece of a stream. Raises ConnectionResetError after disconnecting a visitor that does not take it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await response.write(text)
        except TimeoutError:
            self.complaints.note("reader", f"{request.remote} does not read its events any more, and is disconnected")
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the visitor does not read") from None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
    response.headers["Server"] = "minray"
    response.headers.setdefault("Cache-Control", "no-store")


def _table_name(request: web.Request) -> str:
    name = request.match_info["table"]
    if name not in COLUMNS:
        raise NotFound(f"there is no table {name[:50]!r}; there are {', '.join(COLUMNS)}")
    return name


def _words_of(error: web.HTTPException, request: web.Request) -> str:
    if error.status == 404:
        return f"there is nothing at {request.path[:100]!r}; /api/cluster and /api/nodes are examples of paths"
    if error.status == 405:
        return f"{request.method} is not possible at this path"
    if error.status == 413:
        return f"the body has more than {MOST_BODY_BYTES} bytes"
    return error.reason or "the request is not understood"


def _file(file: PageFile, request: web.Request) -> web.Response:
    headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
    if file.tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    response = web.Response(body=file.body, headers={**headers, "Content-Type": file.type})
    response.enable_compression()
    return response


def _json(value: Any) -> web.Response:
    return _json_body(msgspec.json.encode(value))


def _json_body(body: bytes) -> web.Response:
    response = web.Response(body=body, content_type="application/json")
    response.enable_compression()
    return response


def _error(status: int, text: str, allow: str | None = None) -> web.Response:
    headers = {"Allow": allow} if allow else None
    return web.Response(
        status=status, body=msgspec.json.encode({"error": text}), content_type="application/json", headers=headers
    )
