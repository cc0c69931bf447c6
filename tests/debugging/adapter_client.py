"""A client of the Debug Adapter Protocol, as an editor is one: https://microsoft.github.io/debug-adapter-protocol."""

from __future__ import annotations

import json
import socket
from typing import Any

PATIENCE_S = 60.0
"""Seconds that no answer of an adapter takes, unless a test fails."""


class AdapterClient:
    """A connection to a debug adapter, and one debugged process."""

    def __init__(self, port: int) -> None:
        """Connect to an adapter and introduce the client."""
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._input = self._socket.makefile("rb")
        self._sent = 0
        self.send("initialize", clientID="test", adapterID="debugpy", linesStartAt1=True, columnsStartAt1=True)

    def close(self) -> None:
        self._input.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> None:
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def event(self, *names: str) -> dict[str, Any]:
        """Read up to the next of these events and return it."""
        return self._until(lambda message: message.get("event") in names)

    def answer(self, command: str) -> Any:
        """Read up to the answer to a command and return its body."""
        return self._until(lambda message: message["type"] == "response" and message["command"] == command).get("body")

    def attach(self, path: str, line: int, **arguments: Any) -> None:
        """Attach to a process with a breakpoint at this line."""
        self.send("attach", **arguments)
        self.event("initialized")
        self.send("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        self.send("configurationDone")
        self.answer("attach")

    def _until(self, is_wanted: Any) -> dict[str, Any]:
        while True:
            message = self._read()
            assert message.get("success", True), message
            if is_wanted(message):
                return message

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._input.readline()) != b"\r\n":
            if not line:
                raise ConnectionResetError("the adapter has closed the connection")
            length = int(line.partition(b":")[2])
        message: dict[str, Any] = json.loads(self._input.read(length))
        return message
