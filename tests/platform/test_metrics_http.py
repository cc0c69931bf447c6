"""The HTTP server of ``minray metrics --serve``: whom it answers, and what nobody can do to it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Generator

import pytest

from minray.platform.transport import metrics_http
from minray.platform.transport.metrics_http import MOST_REQUEST_BYTES, MetricsServer, Page
from minray.platform.transport.web_tls import WebFiles, WebTls
from tests.helpers import wait_for_condition
from tests.platform.certificates import node_files

TOKEN = bytes(range(32))
GOOD = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {TOKEN.hex()}\r\n\r\n".encode()


class Served:
    """A server that runs in a thread, and counts how often its page was made."""

    def __init__(self, tls: WebTls | None = None) -> None:
        self.made = 0
        self.server = MetricsServer("127.0.0.1", 0, TOKEN, self._page, tls)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def _page(self) -> Page:
        self.made += 1
        return Page(200, "text/plain", b"up 1\n")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=30)

    def ask(self, request: bytes) -> bytes:
        """Send a request and return everything that comes back."""
        with self.connect() as connection:
            connection.sendall(request)
            return received(connection)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def received(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while part := connection.recv(65536):
            answer += part
    except ConnectionResetError:
        pass
    return answer


@pytest.fixture
def served() -> Generator[Served, None, None]:
    running = Served()
    yield running
    running.close()


def test_who_has_the_token_gets_the_page(served: Served) -> None:
    answer = served.ask(GOOD)
    assert answer.startswith(b"HTTP/1.0 200 ") and answer.endswith(b"\r\n\r\nup 1\n") and served.made == 1
    assert b"Content-Length: 5\r\n" in answer and b"Python" not in answer
    assert served.ask(GOOD.replace(b"GET", b"HEAD")).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "header",
    [b"", b"Authorization: Bearer " + b"0" * 64, b"Authorization: Bearer", b"Authorization: Basic abc", b"X: \xff\xfe"],
)
@pytest.mark.parametrize("path", [b"/metrics", b"/", b"/../../etc/passwd"])
def test_without_the_token_there_is_nothing_to_see(served: Served, path: bytes, header: bytes) -> None:
    answer = served.ask(b"GET " + path + b" HTTP/1.1\r\n" + header + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 401 ") and b"WWW-Authenticate: Bearer" in answer and served.made == 0


def test_there_is_one_page(served: Served) -> None:
    assert served.ask(GOOD.replace(b"/metrics", b"/other")).startswith(b"HTTP/1.0 404 ")
    assert served.ask(GOOD.replace(b"/metrics", b"/metrics?a=b")).startswith(b"HTTP/1.0 200 ")
    assert served.ask(GOOD.replace(b"GET", b"POST")).startswith(b"HTTP/1.0 501 ") and served.made == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01" + b"\0" * 100 + b"\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b""),
        (b"GET /" + b"a" * MOST_REQUEST_BYTES + b" HTTP/1.1\r\n\r\n", b""),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * MOST_REQUEST_BYTES, b"431"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505"),
    ],
)
def test_garbage_is_refused_and_harms_nobody(served: Served, request_bytes: bytes, status: bytes) -> None:
    with served.connect() as connection:
        try:
            connection.sendall(request_bytes)
        except OSError:
            pass  # It was cut in the middle.
        assert status in received(connection)
    assert served.made == 0 and served.ask(GOOD).endswith(b"up 1\n")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_each_wrong_has_one_line_without_the_token(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        served.ask(GOOD.replace(b"Bearer ", b"Bearer 0"))
        served.ask(b"\x16\x03\x01\x1b[31m\r\n\r\n")
    token, garbage = said(caplog)
    assert token == "a request of 127.0.0.1 is refused: it lacks the cluster's token"
    assert garbage.startswith("a request of 127.0.0.1 is refused: code 400, message Bad request") and "\x1b" not in garbage


def test_a_client_that_never_reads_its_page_is_cut(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_http, "ANSWER_S", 0.2)
    served.server.page = lambda: Page(200, "text/plain", bytes(64 << 20))
    with served.connect() as idle:
        idle.sendall(GOOD)
        wait_for_condition(lambda: served.server.connections() == 1)
        wait_for_condition(lambda: served.server.connections() == 0)
    assert said(caplog) == ["1 connections are cut: no whole request came in time, or nobody read"]
    served.server.page = served._page
    assert served.ask(GOOD).endswith(b"up 1\n")


def test_a_request_that_does_not_end_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_S", 0.1)
    with served.connect() as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nA: ")
        assert received(slow) == b"" or b"400" in received(slow)
    wait_for_condition(lambda: served.server.connections() == 0)
    assert served.ask(GOOD).endswith(b"up 1\n")


def test_a_thousand_connections_are_bounded_and_others_are_answered_afterwards(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_S", 600)  # None is cut before the last one has come.
    before, most = threading.active_count(), metrics_http.MOST_CONNECTIONS
    held = [served.connect() for _ in range(1000)]
    closed = [connection for connection in held[most:] if received(connection) == b""]
    assert len(closed) == 1000 - most and threading.active_count() <= before + most
    assert said(caplog)[0] == f"a connection of 127.0.0.1 is refused: {most} are open, which is the most"
    assert len(said(caplog)) < 20
    for connection in held:
        connection.close()
    wait_for_condition(lambda: served.server.connections() == 0)
    assert served.ask(GOOD).endswith(b"up 1\n")


def test_with_tls_the_page_is_read_through_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_S", 1.0)
    files = node_files()
    served = Served(WebTls(WebFiles(files.cert, files.key)))
    trusts = ssl.create_default_context(cafile=files.ca)
    try:
        with trusts.wrap_socket(served.connect(), server_hostname="127.0.0.1") as connection:
            connection.sendall(GOOD)
            assert received(connection).endswith(b"\r\n\r\nup 1\n")
        with served.connect() as silent, served.connect() as slow:
            slow.sendall(b"\x16\x03")
            assert b"up 1" not in served.ask(GOOD)
            assert received(silent) == received(slow) == b""
        wait_for_condition(lambda: served.server.connections() == 0)
        assert served.made == 1
    finally:
        served.close()
