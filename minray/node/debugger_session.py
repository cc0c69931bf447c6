"""One session of pdb in a worker, which talks through a ``TerminalListener``.

Ray: _RemotePdb in python/ray/util/rpdb.py

Rules
  * pdb neither stops in minray's frames nor shows those that have called the task. A step beyond the end of the task's
    function is a ``continue``.
  * Unlike pdb, a session lets an interrupt pass, because it is the task's cancellation.
  * ``quit`` raises ``bdb.BdbQuit`` in the user's code, so that the task fails with it. After ``continue`` the session of a
    task stays open, and that of a thread ends.
  * The trace function that was there before, such as coverage's, comes back when the session ends.

Left out: the commands ``run``, ``restart`` and ``interact``, and questions of pdb before it clears all breakpoints.
"""

from __future__ import annotations

import dis
import pdb
import sys
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol

from minray.core_worker.introspection.stacks import thread_frames, users_part
from minray.platform.transport.remote_terminal import TerminalListener

SKIPPED = ["minray", "minray.*"]
"""Modules in which pdb does not stop."""


class SessionPort(Protocol):
    """The rest of the worker, as a session sees it."""

    terminal: TerminalListener

    def on_stop(self, frame: FrameType, line: int, error: str) -> None: ...

    def on_go(self) -> None: ...


class DebuggerSession(pdb.Pdb):
    """pdb for one task, or for one thread that user code has started."""

    def __init__(self, port: SessionPort, is_of_task: bool, on_end: Callable[[], object]) -> None:
        """``on_end`` is called once, when the session ends."""
        super().__init__(stdin=port.terminal, stdout=port.terminal, skip=SKIPPED, nosigint=True)  # type: ignore[arg-type]
        self._port = port
        self._is_of_task = is_of_task
        self._on_end = on_end
        self._is_open = True
        self._is_through = False
        """Whether the session ends after the present command."""
        self._error: BaseException | None = None
        """The exception that is examined."""
        self._outermost: FrameType | None = None
        """The frame of the task's own function, in which stepping ends."""
        self._before = sys.gettrace()

    def examine(self, error: BaseException) -> None:
        """Wait at the place where a task has raised."""
        self._error = error
        self.reset()
        try:
            self.message(f"The task raised {_in_one_line(error)}")
            self.interaction(None, error if sys.version_info >= (3, 13) else error.__traceback__)
        finally:
            self._error = None
            self.end()

    def end(self) -> None:
        """End the session, in its thread."""
        if not self._is_open:
            return
        self._is_open = False
        if sys.gettrace() in (None, self.trace_dispatch):
            sys.settrace(self._before)
        self._port.terminal.close()
        self._on_end()

    def begin(self, frame: FrameType) -> None:
        """Stop at the next line of the user's code, which has called ``breakpoint`` in this frame."""
        self._outermost = users_part(thread_frames(frame))[0]
        self.set_trace(frame)

    # --- pdb's own methods

    def interaction(self, frame: FrameType | None, trouble: Any = None, *more: Any) -> None:
        place, line = _place_of(frame, trouble)
        if place is not None:
            self._port.on_stop(place, line, _in_one_line(self._error) if self._error is not None else "")
        try:
            super().interaction(frame, trouble, *more)
        except BaseException:
            self._is_through = not self._is_of_task
            raise
        finally:
            self._port.on_go()
            if self._is_through:
                self.end()

    def _cmdloop(self) -> None:
        self.cmdloop()

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        ours = len(stack) - len(users_part([frame for frame, _ in stack]))
        return stack[ours:], max(0, index - ours)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        super().user_return(frame, return_value)
        if frame is self._outermost and not _is_suspended(frame) and not self.quitting:
            self.set_continue()

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        if not self.is_skipped_module(str(frame.f_globals.get("__name__"))):  # bdb asks only for events of other kinds
            super().user_exception(frame, exc_info)

    def set_continue(self) -> None:
        super().set_continue()
        self._is_through = not self._is_of_task and not self.breaks

    def set_quit(self) -> None:
        super().set_quit()
        self._is_through = True

    def _refuse(self, arg: str) -> None:
        """Say that a command of pdb is not there."""
        self.error("minray's debugger does not have this command; each line may be a Python statement")

    do_run = do_restart = do_interact = _refuse


def _place_of(frame: FrameType | None, trouble: Any) -> tuple[FrameType | None, int]:
    """Return the innermost frame and its line, of a stack, an exception or a traceback."""
    if frame is not None:
        return frame, frame.f_lineno
    entry = trouble.__traceback__ if isinstance(trouble, BaseException) else trouble
    entries = list(traceback.walk_tb(entry))
    return entries[-1] if entries else (None, 0)


def _is_suspended(frame: FrameType) -> bool:
    """Whether a frame that pdb sees return is a generator or coroutine that only waits."""
    return not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _in_one_line(error: BaseException) -> str:
    return " ".join(traceback.format_exception_only(error)[-1].split())
