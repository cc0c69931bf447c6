"""A dashboard server inside the test's process, and a plain HTTP client for it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minray.dashboard.access import CONTROL_HEADER, cookie_name, dashboard_token
from minray.dashboard.connection import Target
from minray.dashboard.process import Listening, open_dashboard
from minray.dashboard.server import DashboardServer
from minray.node.discovery import NodeFile, find_nodes, session_token
from minray.platform.process.host import RealHost
from minray.platform.process.processes import PlainProcesses
from minray.platform.threads.user_code import IoThread
from minray.platform.transport.tls import TlsFiles
from minray.platform.transport.web_tls import WebFiles


@dataclass
class Answer:
    """The answer to one request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """A dashboard that can be asked, by visitors of all kinds."""

    port: int
    token: str
    trusts: ssl.SSLContext | None = None
    """With what HTTPS is spoken; None: HTTP."""

    def visit(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Send a request without a cookie. Underscores in the names of headers stand for dashes."""
        if self.trusts is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.trusts)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.msg, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Send a request with the cookie."""
        return self.visit(path, Cookie=self.cookie, **headers)

    def rows(self, path: str) -> list[dict[str, Any]]:
        answer = self.get(path)
        assert answer.status == 200, answer.body
        rows: list[dict[str, Any]] = answer.json["rows"]
        return rows

    @property
    def cookie(self) -> str:
        return f"{cookie_name(self.port)}={self.token}"

    def change(self, kind: str, **fields: Any) -> Answer:
        """Send a change, as the page does."""
        headers = {"Cookie": self.cookie, "Origin": f"http://127.0.0.1:{self.port}", CONTROL_HEADER: "1"}
        return self.visit(f"/api/control/{kind}", "POST", json.dumps(fields).encode(), **headers)

    @contextmanager
    def stream(self, path: str) -> Generator[http.client.HTTPResponse, None, None]:
        """Open a stream of events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers={"Cookie": self.cookie})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def connect(self, data: bytes = b"") -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        raw.sendall(data)
        return raw


class OwnSite(Site):
    """A dashboard in this process, on a thread of its own."""

    def __init__(self, file: NodeFile, allow_control: bool = True, files: TlsFiles | None = None) -> None:
        token = session_token(file.session_dir)
        target = Target(file.gcs_endpoint, token, file.system_config, file.gcs_address, Path(file.session_dir).name)
        self._thread = IoThread()
        own = None if files is None else WebFiles(files.cert, files.key)
        listening = Listening(port=0, allow_control=allow_control, files=own)
        opened = open_dashboard(target, lambda: target, listening, RealHost(), PlainProcesses())
        self.server: DashboardServer = self._thread.run(opened)
        trusts = None if files is None else ssl.create_default_context(cafile=files.ca)
        super().__init__(self.server.port, dashboard_token(token), trusts)

    def run(self, coroutine: Any) -> Any:
        return self._thread.run(coroutine)

    def close(self) -> None:
        self._thread.run(self.server.close())
        self._thread.stop()


def next_event(response: http.client.HTTPResponse) -> dict[str, Any]:
    """Read a stream up to its next event."""
    while True:
        line = response.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return event


def own_node() -> NodeFile:
    """The file of the newest node that runs here."""
    return find_nodes()[-1]
