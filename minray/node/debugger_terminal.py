"""The terminal of a person at the debugger of a task: that of ``minray debug``, or that of the driver.

Ray: the command debug in python/ray/scripts/scripts.py; a driver's own terminal has no counterpart

A driver sees the line that a task prints when it stops (``protocol/logs.py``). If the driver's main thread waits in ``get``
or ``wait``, it attaches its terminal to that task before it waits on (``DriverUserCode.visit``). It then stands still until
the terminal is left, as a program does in pdb.

Rules
  * Standard input and error are terminals, and the program is in the foreground; the kernel stops a program that reads from
    its terminal in the background.
  * The terminal is the program's own at all other times. A breakpoint that is reached meanwhile is visited at the main
    thread's next wait, if its task still waits.
  * Several tasks that stop are visited one after the other.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from minray.common.config import debugger_endpoint
from minray.platform.base import PlatformError
from minray.platform.threads.user_code import DriverUserCode
from minray.platform.transport.remote_terminal import attach, is_listening


def attach_terminal(endpoint: str, breakpoint_id: str, name: str, pid: int) -> None:
    """Attach this process's terminal to a task's debugger, until the session or the input ends; say both.

    Raises PlatformError if no debugger listens there, KeyboardInterrupt after Ctrl-C. The task waits on then.
    """
    greeting = f"Attached to {name}, process {pid}. Ctrl-D leaves it waiting; quit makes it fail.\n"
    left = f"\n{name} waits on. To attach again: minray debug {breakpoint_id}"
    try:
        is_over = attach(endpoint, sys.stdin.fileno(), _show, greeting)
    except KeyboardInterrupt:
        print(left, file=sys.stderr)
        raise
    print(f"\nThe debugger of {name} has ended." if is_over else left, file=sys.stderr)


def _show(text: str) -> None:
    print(text, end="", flush=True)


class DriverTerminal:
    """Attaches the terminal of a driver to tasks that stop on its machine."""

    def __init__(self, user_code: DriverUserCode, socket_dir: str) -> None:
        """``socket_dir`` is the directory with the sockets of the driver's node."""
        self._user_code = user_code
        self._socket_dir = socket_dir
        user_code.receives_visits = True

    def on_breakpoint(self, breakpoint_id: str, name: str, pid: int) -> None:
        """From the loop: a task of this name has stopped in a process. On another machine there is no socket of it here."""
        endpoint = debugger_endpoint(self._socket_dir, breakpoint_id)
        if is_listening(endpoint):
            self._user_code.visit(partial(self._attach, endpoint, breakpoint_id, name, pid))

    def _attach(self, endpoint: str, breakpoint_id: str, name: str, pid: int) -> None:
        if not _is_in_foreground():
            return
        try:
            attach_terminal(endpoint, breakpoint_id, name, pid)
        except PlatformError:
            pass  # The task has ended meanwhile.


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, ValueError):
        return False
    except OSError:  # The terminal controls nobody, and so stops nobody.
        return True
