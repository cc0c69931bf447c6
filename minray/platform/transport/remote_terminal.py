"""A terminal for a process that has none: text lines over a unix socket, between a worker's debugger and a command.

Ray: _RemoteFile and _RemotePdb in python/ray/util/rpdb.py, whose socket is TCP

Worker side: ``TerminalListener`` is standard input and output of a debugger. It waits for a terminal when the debugger
wants a line. User side: ``attach`` passes lines from a terminal to the worker, and output back.

Rules
  * A terminal may go and another may come. A new one first gets the output since the last line that was read, so that it
    shows where the debugger is.
  * One terminal at a time: the next waits in the socket's queue.
  * Both sides check the user of the other process before they say anything (``endpoints.check_peer``).
  * Only the thread of the debugger touches a listener. Every ``POLL_S`` it checks whether it still has to wait.

Left out: terminal modes. Lines are edited by the terminal of the command, and there is no completion.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

from minray.platform.base import AuthenticationFailed, PlatformError
from minray.platform.transport import endpoints
from minray.platform.transport.endpoints import UnixEndpoint

POLL_S = 0.1
"""Seconds between two checks whether the thread that waits for a line still has to."""
SEND_S = 10.0
"""Seconds that a terminal may take to read output; a slower one, such as a stopped command, counts as gone."""
PIECE_BYTES = 64 * 1024
"""Bytes that are read at once."""
MOST_KEPT = 64 * 1024
"""Most characters of recent output that a new terminal gets."""
MOST_LINE_BYTES = 1024 * 1024
"""Longest line that a terminal may send; a longer one ends the connection."""


class TerminalListener:
    """Standard input and output of a debugger: a socket at which a terminal may attach."""

    def __init__(self, endpoint: str, check: Callable[[], None]) -> None:
        """Listen at a unix endpoint. Raises PlatformError if that is not possible.

        While a line is awaited, ``check`` is called again and again; the wait ends with what it raises.
        """
        parsed = endpoints.parse(endpoint)
        assert isinstance(parsed, UnixEndpoint), endpoint
        self._endpoint = parsed
        self._check = check
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(parsed.path)
            self._listener.listen()
        except OSError as error:
            self._listener.close()
            raise PlatformError(f"{endpoint}: {error.strerror or error}") from None
        self._inode = endpoints.inode(self._endpoint)
        self._terminal: socket.socket | None = None
        """The terminal that is attached; None if there is none."""
        self._received = b""
        """The beginning of a line whose end has not arrived."""
        self._recent = ""
        """Output since the last line was read, for the next terminal; its end, if it is long."""

    @property
    def is_attached(self) -> bool:
        """Whether a terminal is attached, as far as is known."""
        return self._terminal is not None

    def write(self, text: str) -> int:
        """Show text on the terminal, now or when one attaches."""
        self._recent = (self._recent + text)[-MOST_KEPT:]
        self._send(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: text is sent when it is written."""

    def readline(self) -> str:
        """Wait for a line of a terminal, whichever attaches."""
        while True:
            if self._terminal is None:
                self._accept()
            line = self._read_line()
            if line is not None:
                self._recent = ""
                return line
            self._drop()

    def close(self) -> None:
        """Remove the socket, and then leave the terminal, which sees by that order that the session is over."""
        self._listener.close()
        with suppress(OSError):
            endpoints.remove(self._endpoint, self._inode)
        self._drop()

    def _accept(self) -> None:
        self._await(self._listener)
        terminal, _ = self._listener.accept()
        try:
            endpoints.check_peer(terminal)
        except AuthenticationFailed:
            terminal.close()
            return
        terminal.settimeout(SEND_S)
        self._terminal, self._received = terminal, b""
        self._send(self._recent)

    def _read_line(self) -> str | None:
        """Read a line; return None if the terminal has gone."""
        while self._terminal is not None:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                return line.decode(errors="replace") + "\n"
            self._await(self._terminal)
            try:
                data = self._terminal.recv(PIECE_BYTES)
            except OSError:
                return None
            self._received += data
            if not data or len(self._received) > MOST_LINE_BYTES:
                return None
        return None

    def _await(self, source: socket.socket) -> None:
        while not select.select([source], [], [], POLL_S)[0]:
            self._check()

    def _send(self, text: str) -> None:
        if self._terminal is None:
            return
        try:
            self._terminal.sendall(text.encode(errors="backslashreplace"))
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._terminal is not None:
            self._terminal.close()
            self._terminal, self._received = None, b""


def is_listening(endpoint: str) -> bool:
    """Whether the socket of a listener at this unix endpoint is there."""
    parsed = endpoints.parse(endpoint)
    return isinstance(parsed, UnixEndpoint) and os.path.exists(parsed.path)


def attach(endpoint: str, read_from: int, show: Callable[[str], None], greeting: str = "") -> bool:
    """Attach a terminal to the listener at this unix endpoint, until one side ends.

    ``read_from`` is the descriptor of the terminal's input, and ``show`` prints output, first the greeting. After the end of
    the input the answer to its last line is shown. Returns whether the debugger's session is over. Raises PlatformError if
    nobody listens there, or another user's process.
    """
    parsed = endpoints.parse(endpoint)
    assert isinstance(parsed, UnixEndpoint), endpoint
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
        try:
            worker.connect(parsed.path)
            endpoints.check_peer(worker)
        except (OSError, AuthenticationFailed) as error:
            raise endpoints.connect_error(endpoint, error) from None
        show(greeting)
        sources = [worker.fileno(), read_from]
        while True:
            readable, _, _ = select.select(sources, [], [])
            if worker.fileno() in readable:
                text = _receive(worker)
                if not text:
                    return not os.path.exists(parsed.path)
                show(text)
            if read_from in readable:
                typed = os.read(read_from, PIECE_BYTES)
                with suppress(OSError):  # the worker has ended; the next turn notices
                    if typed:
                        worker.sendall(typed)
                    else:
                        sources.remove(read_from)
                        worker.shutdown(socket.SHUT_WR)


def _receive(worker: socket.socket) -> str:
    """Return what has arrived as whole characters; empty if the worker has closed the connection."""
    data = b""
    while True:
        try:
            piece = worker.recv(PIECE_BYTES if not data else 1)
        except OSError:
            piece = b""
        data += piece
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            if not piece or error.end < len(data):  # no character that only waits for its end
                return data.decode(errors="replace")
