"""Starting, watching and ending processes of the in-process world; implements ``base.Processes``.

Ray: src/ray/raylet/worker_pool.h, src/ray/util/process.h

A process starts with the next turn of the loop. Its parent hears of its end one turn after everything that belongs to the
process has ended, and children of a dead process die with it. What a worker prints goes to the program's own streams: no
output passes through its raylet.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Never

from minray.in_process.process import KILLED, LocalProcess
from minray.platform.base import JOURNAL_BYTES, ExitStatus, OnOutput, ProcessGone

MARK_BYTES = 64
StartWorker = Callable[[LocalProcess, str, bytes, memoryview, memoryview], LocalProcess]
"""Starts a worker as ``(parent, name, config, marks, journal)``."""


class LocalChild:
    """Implements ``base.ChildProcess``."""

    def __init__(self, parent: LocalProcess, marks: memoryview, journal: memoryview) -> None:
        self.pid = 0
        self.marks = marks
        self.journal = journal
        self._parent = parent
        self._process: LocalProcess | None = None
        self._ended = asyncio.Event()

    def watch(self, process: LocalProcess) -> None:
        """Stand for this process, which has just been started."""
        self.pid = process.pid
        self._process = process
        process.on_death.append(self._on_end)

    def _on_end(self) -> None:
        self._parent.call_soon(self._ended.set)

    async def wait(self) -> ExitStatus:
        await self._ended.wait()
        return (self._process and self._process.status) or KILLED

    def kill(self) -> None:
        if self._process is not None:
            self._process.exit(None, 9)


class LocalProcesses:
    """Implements ``base.Processes`` for one process."""

    def __init__(self, process: LocalProcess, marks: memoryview, journal: memoryview, start_worker: StartWorker) -> None:
        self.pid = process.pid
        self.marks = marks
        self.journal = journal
        self.is_copy = False
        self._process = process
        self._start_worker = start_worker
        self._children: list[LocalChild] = []
        process.on_death.append(self._on_death)

    async def spawn(self, role: str, name: str, config: bytes, on_output: OnOutput) -> LocalChild:
        assert role == "worker", role
        child = LocalChild(self._process, memoryview(bytearray(MARK_BYTES)), memoryview(mmap.mmap(-1, JOURNAL_BYTES)))
        process = self._start_worker(self._process, name, config, child.marks, child.journal)
        child.watch(process)
        self._children.append(child)
        process.on_death.append(lambda: self._forget(child))
        return child

    def _forget(self, child: LocalChild) -> None:
        with suppress(ValueError):
            self._children.remove(child)

    def exit(self, code: int) -> Never:
        self._process.exit(code)
        raise ProcessGone

    def _on_death(self) -> None:
        for child in self._children:
            child.kill()
