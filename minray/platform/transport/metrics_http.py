"""A small HTTP server with one page behind a token: ``/metrics`` for Prometheus.

Ray: the HTTP server of python/ray/_private/prometheus_exporter.py; it listens on each node, and asks for no token

Python's own server does the work, within bounds that it does not have itself:

  * A request has a few kilobytes, and a time within which it must be complete; then its connection is cut.
  * A client that does not read its answer is cut as well.
  * There are at most ``MOST_CONNECTIONS`` at a time. A further one is closed at once.
  * With TLS, the handshake happens in the thread of its connection, within the time of the request.
  * Nothing is answered, and no path looked at, before the token is right. It is compared in constant time.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, NamedTuple

from minray.common.complaints import Complaints
from minray.platform.transport.web_tls import WebTls

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
"""Most connections at a time. Each has a thread; Prometheus needs one."""
MOST_REQUEST_BYTES = 16 * 1024
"""Most bytes of a request: a line, and headers of a browser with cookies."""
REQUEST_S = 5.0
"""Seconds within which a request must be complete."""
ANSWER_S = 30.0
"""Seconds within which a page must be made and read."""
PATH = "/metrics"


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    content: bytes


def plain(status: int, text: str) -> Page:
    """Make an answer of one line for people."""
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class MetricsServer(ThreadingHTTPServer):
    """Serves one page. ``serve_forever`` returns after ``shutdown``; ``server_close`` frees the port."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """Most connections that wait to be accepted. With Python's 5, a burst of strangers delays honest visitors by seconds."""

    def __init__(self, host: str, port: int, token: bytes, page: Callable[[], Page], tls: WebTls | None = None) -> None:
        """Listen. Raises OSError. ``page`` makes the page, in any thread, perhaps in several at a time."""
        self._tls = tls
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.authorization = f"Bearer {token.hex()}"
        self.page = page
        self._lock = threading.Lock()
        self.complaints = Complaints(time.monotonic)
        self._deadlines: dict[socket.socket, float] = {}
        """Open connections, each with the time at which it is cut."""
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of this machine, as ``HTTPServer`` would."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._deadlines) >= MOST_CONNECTIONS
            if not is_full:
                self._deadlines[request] = time.monotonic() + REQUEST_S
        if is_full:
            text = f"a connection of {client_address[0]} is refused: {MOST_CONNECTIONS} are open, which is the most"
            self.complaints.note("full", text)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer the request of a connection, in its own thread; the handshake of TLS comes first."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        encrypted = self._tls.server().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._deadlines[encrypted] = self._deadlines.pop(request)
        try:
            encrypted.do_handshake()
            super().finish_request(encrypted, client_address)
        finally:
            self.shutdown_request(encrypted)

    def begin_answer(self, request: Any) -> None:
        """Give a connection whose request is complete the time for its answer."""
        with self._lock:
            if request in self._deadlines:
                self._deadlines[request] = time.monotonic() + ANSWER_S

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut the connections whose time is up; called twice a second by ``serve_forever``."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, deadline in self._deadlines.items() if deadline <= now]
        if late:
            self.complaints.note("late", f"{len(late)} connections are cut: no whole request came in time, or nobody read")
        for request in late:
            with suppress(OSError):  # The thread of the connection then sees its end, and closes it.
                request.shutdown(socket.SHUT_RDWR)

    def connections(self) -> int:
        """Return the number of open connections."""
        with self._lock:
            return len(self._deadlines)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a connection of %s has failed", client_address[0], exc_info=True)


class _Bounded:
    """The request as it arrives, of which a bounded number of bytes is read."""

    def __init__(self, file: BufferedIOBase, limit: int) -> None:
        self._file = file
        self._left = limit
        self.is_exceeded = False

    def readline(self, limit: int = -1) -> bytes:
        if not self._left:
            self.is_exceeded = True
            return b""
        line: bytes = self._file.readline(min(limit, self._left) if limit >= 0 else self._left)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of one connection."""

    server: MetricsServer
    server_version = "minray"
    sys_version = ""
    timeout = ANSWER_S
    """Seconds of one read or write of the socket; the server's deadlines are shorter."""

    def setup(self) -> None:
        super().setup()
        self._bounded = _Bounded(self.rfile, MOST_REQUEST_BYTES)
        self.rfile = self._bounded  # type: ignore[assignment]  # The parser reads lines, and nothing else.

    def handle(self) -> None:
        with suppress(OSError):  # The client has gone, or was cut.
            super().handle()

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, with_content: bool) -> None:
        self.server.begin_answer(self.request)
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if page.status == 401:
            self.send_header("WWW-Authenticate", 'Bearer realm="minray"')
        self.end_headers()
        if with_content:
            self.wfile.write(page.content)

    def _page(self) -> Page:
        if self._bounded.is_exceeded:
            self._complain("oversized", f"it has more than {MOST_REQUEST_BYTES} bytes")
            return plain(431, f"a request has at most {MOST_REQUEST_BYTES} bytes")
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), self.server.authorization.encode()):
            self._complain("token", "it lacks the cluster's token")
            return plain(401, "the cluster's token is needed: Authorization: Bearer TOKEN")
        if self.path.partition("?")[0] != PATH:
            return plain(404, f"there is only {PATH}")
        return self.server.page()

    def log_error(self, format: str, *args: Any) -> None:
        self._complain("malformed", format % args)

    def _complain(self, kind: str, reason: str) -> None:
        self.server.complaints.note(kind, f"a request of {self.client_address[0]} is refused: {reason}")

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: %s", self.client_address[0], format % args)
