"""The debugger of a worker: ``breakpoint()`` and failed tasks wait for a terminal, which ``minray debug`` attaches.

Ray: python/ray/util/rpdb.py, python/ray/util/debugpy.py, python/ray/_private/worker.py (_debugger_breakpoint)

A worker has no terminal, so its pdb (``debugger_session``) talks over a unix socket in the session's directory. The worker
prints where it waits, and answers ``GetBreakpoints`` with what it waits at. A driver that reads what it prints attaches its
own terminal (``driver_terminal``).

Rules
  * A task, or a thread that user code has started, has one session, from its first breakpoint to its end: the terminal
    stays attached when the task goes on to its next breakpoint.
  * A cancelled task leaves the debugger, and a session's socket goes with its task. The socket of a killed worker is removed
    by its raylet.
  * With MINRAY_DEBUG_POST_MORTEM=1 a task that raises waits in the debugger before it fails. Interrupts, exits and what the
    debugger itself has raised are left alone.
  * pdb is imported at the first breakpoint, since most workers never need it.

Left out: Ray's ``ray.util.pdb`` continues in the task that a debugged task has submitted (``remote``).
"""

from __future__ import annotations

import asyncio
import bdb
import itertools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from minray.common.config import breakpoint_id, debugger_endpoint
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.execution.task_names import Speaker
from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import ReceivedTask
from minray.errors.tracebacks import is_runtime
from minray.exceptions import RayActorError
from minray.node.discovery import setting
from minray.protocol.logs import invitation
from minray.protocol.state import Breakpoint

if TYPE_CHECKING:
    from minray.node.debugger_session import DebuggerSession

logger = logging.getLogger(__name__)

POST_MORTEM = "DEBUG_POST_MORTEM"
"""Name of the setting that opens the debugger where a task raises: MINRAY_DEBUG_POST_MORTEM=1."""


class WorkerDebugger:
    """Opens and ends the debugger sessions of one worker."""

    def __init__(self, process: Process, executor: TaskExecutor, write_as: Callable[[str, str], None]) -> None:
        """``write_as(name, text)`` prints lines to standard error under the name of a task."""
        self._process = process
        self._executor = executor
        self._write_as = write_as
        self._sessions: dict[Speaker, DebuggerSession] = {}
        """Open sessions, by the thread or the actor call that they debug."""
        self._numbers = itertools.count(1)

    def on_breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Serve as ``sys.breakpointhook``: the calling thread waits in the debugger at its next line.

        If ``PYTHONBREAKPOINT`` names another debugger, that is called; "0" means none. Raises RuntimeError in a process that
        the worker has forked, and PlatformError if no socket can be made.
        """
        if os.environ.get("PYTHONBREAKPOINT") not in (None, "", "pdb.set_trace"):
            return sys.__breakpointhook__(*args, **kwargs)
        if self._process.platform.processes.is_copy:
            raise RuntimeError(
                f"breakpoint() cannot be used in process {os.getpid()}, which a task has forked; call it in the task itself"
            )
        self._session(self._executor.current).begin(sys._getframe(1))
        return None

    def examine(self, task: ReceivedTask, error: BaseException) -> None:
        """Wait in the debugger where a task has raised, if the setting says so. The task fails afterwards."""
        if setting(POST_MORTEM) != "1" or self._process.platform.processes.is_copy:
            return
        if isinstance(error, bdb.BdbQuit | RayActorError) or not isinstance(error, Exception):
            return
        if not any(not is_runtime(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)):
            return
        try:
            self._session(task).examine(error)
        except (KeyboardInterrupt, asyncio.CancelledError):  # the task was cancelled, and ends anyway
            pass
        except Exception:
            logger.exception("the debugger could not examine the error of a task")

    def _session(self, task: ReceivedTask | None) -> DebuggerSession:
        """Return the session of the calling thread or coroutine, which is opened if there is none."""
        from minray.node.debugger_session import DebuggerSession

        speaker = self._executor.speaker
        session = self._sessions.get(speaker)
        if session is None:
            is_of_task = bool(speaker[1]) or speaker[0] == threading.main_thread().ident
            waiting = _Waiting(self._process, self._executor, task if is_of_task else None, self._numbers, self._write_as)
            session = DebuggerSession(waiting, is_of_task, lambda: self._sessions.pop(speaker, None))
            self._sessions[speaker] = session
        # Entered for each stop: the entry is dropped when the task ends, and with it the session.
        self._executor.output.unended.add((speaker, self._end))
        return session

    def _end(self, speaker: Speaker, task: ReceivedTask) -> None:
        """End the session of a task that has ended, in its thread."""
        session = self._sessions.get(speaker)
        if session is not None:
            session.end()


class _Waiting:
    """Prints and describes the places at which a session waits; implements ``SessionPort``."""

    def __init__(
        self,
        process: Process,
        executor: TaskExecutor,
        task: ReceivedTask | None,
        numbers: Iterator[int],
        write_as: Callable[[str, str], None],
    ) -> None:
        from minray.platform.transport.remote_terminal import TerminalListener  # few tasks stop

        number = next(numbers)
        worker_id = process.config.worker_id
        self._process = process
        self._task = task
        self._id = breakpoint_id(worker_id, number)
        self._endpoint = debugger_endpoint(process.config.socket_dir, self._id)
        self._name = executor.output.shown_name(task) if task is not None else ""
        self._write_as = write_as
        self._is_coroutine = asyncio._get_running_loop() is not None
        self.terminal = TerminalListener(self._endpoint, self._check)

    def on_stop(self, frame: FrameType, line: int, error: str) -> None:
        """Say that the session waits for a command at this line."""
        code, since, task = frame.f_code, self._process.platform.host.time(), self._task

        def describe() -> Breakpoint:
            return Breakpoint(
                id=self._id,
                task_name=self._name,
                task_id=b"" if task is None else task.task_id,
                actor_id=b"" if task is None else task.actor_id,
                function=code.co_qualname,
                filename=code.co_filename,
                line=line,
                error=error,
                since=since,
                endpoint=self._endpoint,
                is_attached=self.terminal.is_attached,
            )

        self._process.breakpoints[self._id] = describe
        if not self.terminal.is_attached:
            self._write_as(self._name, invitation(f"{code.co_qualname} ({code.co_filename}:{line})", error, self._id) + "\n")

    def _check(self) -> None:
        """Raise what ends a cancelled task. KeyboardInterrupt in a coroutine would end the event loop."""
        if self._task is not None and self._task.cancelled:
            raise asyncio.CancelledError if self._is_coroutine else KeyboardInterrupt

    def on_go(self) -> None:
        """Say that the session does not wait any more."""
        self._process.breakpoints.pop(self._id, None)
