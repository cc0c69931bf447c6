"""Visitors who send garbage, too much, too little, or too slowly: bounded, told in one line, harmless to others."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

import minray
from minray.dashboard import guarded_connection, server
from minray.dashboard.news import News, Subscriber
from minray.platform.transport import tls_acceptor
from minray.platform.transport.tls import TlsFiles
from tests.dashboard.site import OwnSite, own_node
from tests.helpers import wait_for_condition
from tests.platform.certificates import Authority, node_files


@pytest.fixture(scope="module")
def site() -> Generator[OwnSite, None, None]:
    minray.init(num_cpus=1, log_to_driver=False, logging_level="ERROR")
    site = OwnSite(own_node())
    try:
        yield site
    finally:
        site.close()
        minray.shutdown()


@pytest.fixture(autouse=True)
def others_are_served(site: OwnSite) -> Generator[None, None, None]:
    """Let the server's complaints begin anew, and check afterwards that others are answered."""
    site.server.complaints._silent_until.clear()
    yield
    assert site.get("/api/cluster").json["is_connected"]


def everything(raw: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    try:
        while piece := raw.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith(("minray", "aiohttp"))]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"G\xff\xfeT / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % number for number in range(500)) + b"\r\n",
    ],
    ids=["tls", "version", "nul", "method", "colon", "length", "both", "header", "line", "headers"],
)
def test_garbage_is_refused_and_told_in_one_line(site: OwnSite, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minray"):
        for _ in range(3):
            with site.connect(garbage) as raw:
                raw.shutdown(socket.SHUT_WR)
                said = everything(raw)
                assert said.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")) or not said
                assert b"Traceback" not in said and b"aiohttp" not in said
    assert len(lines(caplog)) <= 1, lines(caplog)


def test_a_wrong_token_is_one_line_without_the_token(site: OwnSite, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minray"):
        for _ in range(20):
            assert site.visit("/?token=guess-guess-guess").status == 401
    (line,) = lines(caplog)
    assert "is refused with 401" in line and "guess" not in line


def test_a_body_that_is_too_large_is_refused(site: OwnSite) -> None:
    headers = {"Cookie": site.cookie, "Origin": f"http://127.0.0.1:{site.port}", "X-Minray-Dashboard": "1"}
    answer = site.visit("/api/control/kill", "POST", bytes(200_000), **headers)
    assert answer.status == 413 and "65536 bytes" in answer.json["error"]


def test_a_request_that_never_comes_completely_is_given_up(site: OwnSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_connection, "REQUEST_S", 0.2)
    with site.connect() as silent, site.connect(b"GET / HTTP/1.1\r\nHost: loc") as slow:
        slow.sendall(b"alhost\r\nX-A: b\r\n")
        assert everything(silent) == b"" and everything(slow) == b""


def test_a_body_that_never_comes_is_given_up(site: OwnSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_S", 0.1)
    monkeypatch.setattr(guarded_connection, "LINGER_S", 0.1)
    head = (
        f"POST /api/control/kill HTTP/1.1\r\nHost: localhost\r\nCookie: {site.cookie}\r\nOrigin: http://localhost\r\n"
        "X-Minray-Dashboard: 1\r\nContent-Length: 100\r\n\r\n{"
    )
    with site.connect(head.encode()) as raw:
        assert everything(raw).startswith(b"HTTP/1.1 408 ")


def test_a_thousand_connections_are_bounded_and_refused_in_words(site: OwnSite, caplog: pytest.LogCaptureFixture) -> None:
    door = site.server._doorkeeper
    assert door is not None
    raws: list[socket.socket] = []
    refused = 0
    try:
        with caplog.at_level(logging.WARNING, "minray"):
            for _ in range(1000):
                raws.append(site.connect())
            wait_for_condition(lambda: len(door.connections) == door.most)
            for raw in raws[-20:]:
                said = everything(raw)
                refused += said.startswith(b"HTTP/1.1 503 ") and b"256 connections, which is its most" in said
        assert refused == 20 and len(lines(caplog)) == 1
    finally:
        for raw in raws:
            raw.close()
    wait_for_condition(lambda: len(door.connections) < 10)


def test_a_visitor_who_never_reads_events_costs_bounded_memory(
    site: OwnSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.2)
    sent = 0

    async def always_news(subscriber: Subscriber, timeout_s: float) -> list[str]:
        nonlocal sent
        sent += 1
        return []

    async def nothing_new(news: News) -> None:
        pass

    monkeypatch.setattr(Subscriber, "wait_news", always_news)
    monkeypatch.setattr(News, "_look", nothing_new)
    monkeypatch.setattr(site.server.news, "summary", {"text": "x" * 100_000})
    before = psutil.Process().memory_info().rss
    request = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nCookie: {site.cookie}\r\n\r\n"
    with caplog.at_level(logging.WARNING, "minray"), site.connect(request.encode()):
        wait_for_condition(lambda: sent > 0)
        wait_for_condition(lambda: site.server._streams == 0)
    grown = psutil.Process().memory_info().rss - before
    assert sent < 1000 and grown < 50_000_000, (sent, grown)
    assert [line for line in lines(caplog) if "does not read its events" in line]


def test_a_visitor_who_never_takes_an_answer_is_disconnected(
    site: OwnSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guarded_connection, "ANSWER_S", 0.3)

    async def large() -> dict[str, Any]:
        return {"text": "x" * 20_000_000}

    monkeypatch.setattr(site.server.state, "waits", large)
    request = f"GET /api/waits HTTP/1.1\r\nHost: localhost\r\nCookie: {site.cookie}\r\n\r\n"
    with caplog.at_level(logging.WARNING, "minray"), site.connect(request.encode()):
        wait_for_condition(lambda: any("has not taken an answer" in line for line in lines(caplog)))


def test_streams_are_bounded_so_that_others_are_answered(site: OwnSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_STREAMS", 1)
    with site.stream("/api/events") as first:
        assert first.status == 200
        answer = site.get("/api/events")
        assert answer.status == 503 and "close some" in answer.json["error"]


# --- with TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def encrypted(site: OwnSite, tmp_path: Path) -> Generator[tuple[OwnSite, TlsFiles], None, None]:
    """A dashboard with HTTPS, and copies of its files, which a test may replace."""
    files = TlsFiles(*(str(tmp_path / name) for name in ("cert", "key", "ca")))
    for name in ("cert", "key", "ca"):
        shutil.copy(getattr(node_files(), name), getattr(files, name))
    own = OwnSite(own_node(), files=files)
    try:
        yield own, files
        assert own.get("/api/cluster").json["is_connected"]
    finally:
        own.close()


def test_https_has_a_secure_cookie_and_follows_its_files(encrypted: tuple[OwnSite, TlsFiles]) -> None:
    site, files = encrypted
    assert site.server.url().startswith("https://127.0.0.1:")
    cookie = site.visit(f"/?token={site.token}").headers["Set-Cookie"]
    assert "Secure" in cookie and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert site.visit("/metrics").status == 401
    other = Authority(Path(files.ca).parent / "other").sign("renewed")
    shutil.copy(other.cert, files.cert)
    shutil.copy(other.key, files.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        site.get("/api/cluster")
    site.trusts = ssl.create_default_context(cafile=other.ca)


def test_visitors_without_tls_and_broken_tls_are_told_in_one_line(
    encrypted: tuple[OwnSite, TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    site, _ = encrypted
    with caplog.at_level(logging.WARNING, "minray"):
        for _ in range(3):
            with site.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as raw:
                assert b"HTTP/1.1 400 " in (said := everything(raw)) and b"https://" in said
    (line,) = lines(caplog)
    assert "the address begins with https://" in line
    caplog.clear()
    site.server.complaints._silent_until.clear()
    with caplog.at_level(logging.WARNING, "minray"):
        for _ in range(3):
            with site.connect(b"\x16\x03\x01\x00\x30" + bytes(48)) as raw:
                everything(raw)
    assert len(lines(caplog)) == 1


def test_a_handshake_that_never_ends_is_given_up_and_others_go_on(
    encrypted: tuple[OwnSite, TlsFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, _ = encrypted
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_TIMEOUT_S", 0.2)
    with site.connect(b"\x16\x03") as slow, site.connect() as silent:
        assert site.get("/api/cluster").status == 200
        assert everything(silent) == everything(slow) == b""


def test_files_that_cannot_be_used_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot read .*--tls-key"):
        OwnSite(own_node(), files=TlsFiles(node_files().cert, str(tmp_path / "none"), node_files().ca))
