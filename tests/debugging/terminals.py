"""Terminals of tests that debug tasks: a socket to the debugger of a worker, and a pseudo-terminal for ``minray debug``."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from minray.cli.debug import Waiting, _find
from minray.cli.main import _client
from minray.node.discovery import find_nodes
from tests.helpers import wait_for_condition

PATIENCE_S = 30.0
"""Seconds that no answer of a debugger takes, unless a test fails."""


def waiting() -> list[Waiting]:
    """The breakpoints of all clusters of this test run, oldest first."""
    return _find(_client, None, None, PATIENCE_S)


def wait_for_breakpoints(count: int) -> list[Waiting]:
    wait_for_condition(lambda: len(waiting()) == count, PATIENCE_S, f"{count} breakpoints")
    return waiting()


def debugger_sockets() -> list[str]:
    """The sockets of debuggers in all sessions of this test run."""
    folders = [file.socket_dir.removeprefix("unix:") for file in find_nodes()]
    return [path.name for folder in folders for path in Path(folder).glob("b-*")]


def wait_for_no_sockets() -> None:
    wait_for_condition(lambda: not debugger_sockets(), PATIENCE_S, "no socket of a debugger is left")


class Terminal:
    """One that shows what it receives up to the next prompt, and sends lines."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.first = ""
        """Output that it had shown when it was attached."""

    def read_until(self, ending: str = "(Pdb) ") -> str:
        """Return what is shown until the text ends so; "" means until the other side ends."""
        shown = b""
        while not ending or not shown.endswith(ending.encode()):
            assert select.select([self._descriptor], [], [], PATIENCE_S)[0], f"only {shown!r}"
            try:
                data = os.read(self._descriptor, 1 if ending else 4096)
            except OSError:  # the end of a pseudo-terminal whose other side is closed
                data = b""
            if not data:
                assert not ending, f"ended after {shown!r}"
                break
            shown += data
        return shown.decode()

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def ask(self, line: str) -> str:
        """Type a line, and return what is shown before the next prompt."""
        self.type(line)
        return self.read_until().removesuffix("(Pdb) ").strip()


    def behind_breakpoint(self, shown: str) -> str:
        """Go on to the next line if the debugger has stopped in the line with ``breakpoint()``, as it does since Python
        3.13; return what is shown last."""
        if "-> breakpoint()" not in shown:
            return shown
        self.type("n")
        return self.read_until()


@contextmanager
def attached(one: Waiting) -> Generator[Terminal, None, None]:
    """A terminal that is attached to a breakpoint, and has shown the prompt at the line after it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(one.at.endpoint.removeprefix("unix:"))
        terminal = Terminal(connection.fileno())
        terminal.first = terminal.behind_breakpoint(terminal.read_until())
        yield terminal


def command(*arguments: str) -> AbstractContextManager[tuple[Terminal, subprocess.Popen[bytes]]]:
    """``minray debug`` on a pseudo-terminal."""
    return program("-m", "minray", "debug", *arguments)


@contextmanager
def program(*arguments: str, **variables: str) -> Generator[tuple[Terminal, subprocess.Popen[bytes]], None, None]:
    """A Python on a pseudo-terminal that does not repeat what is typed, with these variables in its environment."""
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    argv, environment = [sys.executable, *arguments], {**os.environ, **variables}
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment)
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        process.kill()
        process.wait()
        os.close(ours)

