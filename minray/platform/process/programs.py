"""Programs of minray that run as children of another process and end with it.

Ray: python/ray/util/client/server/proxier.py (ProxyManager.start_specific_server)

A program is a function of a module, run by a new interpreter. Its first line of standard input is its configuration, so that
no secret stands on a command line or in an environment. Its standard input then stays open as long as the parent lives: a
program reads the end of it and ends. It writes one line to standard output when it is ready. What it writes to standard
error goes to a log file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from minray.platform.base import SpawnFailed
from minray.platform.process.processes import environment_of_children

START = (
    "import sys, json; path = json.loads(sys.stdin.buffer.readline()); sys.path[:] = path; "
    "from {module} import {function}; {function}()"
)
READY_S = 30.0
"""Seconds that a program has to say that it is ready."""


class Program:
    """A running program, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        """Return the exit code when the program has ended; negative: the signal that ended it."""
        return await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL; do nothing if the program has ended."""
        with suppress(ProcessLookupError):
            self._process.kill()


async def start_program(
    module: str, function: str, config: bytes, session_dir: str, log_path: str, path: Sequence[str]
) -> Program:
    """Start a program whose modules are found in ``path``; return when it is ready. Raises SpawnFailed.

    ``config`` has no line break.
    """
    try:
        with open(log_path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-c",
                START.format(module=module, function=function),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment_of_children(session_dir),
                start_new_session=True,
            )
    except OSError as error:
        raise SpawnFailed(f"{module}: {error.strerror or error}") from None
    program = Program(process)
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(list(path)).encode() + b"\n" + config + b"\n")
        async with asyncio.timeout(READY_S):
            ready = await process.stdout.readline()
    except (OSError, TimeoutError):
        ready = b""
    except BaseException:
        program.kill()
        raise
    if not ready:
        program.kill()
        await program.wait()
        raise SpawnFailed(f"{module} did not begin; its log is {log_path}")
    return program
