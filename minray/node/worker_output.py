"""Lines that tasks print: marked with the task's name in the worker, shown once in the driver.

Ray: python/ray/_private/log_monitor.py, python/ray/_private/ray_logging/__init__.py

Worker side: standard output and error are pipes that the raylet reads. Before the first line of a task ``TaskNamedStream``
writes a mark, a line with the task's name and ids (``protocol/logs.py``), in the same write. For an actor's call the actor's
name comes first, or its own ``__repr__``. The raylet attaches the name to the lines that follow. Output of C libraries and
child processes does not pass through the stream. It counts as the task's if the task has printed before, until another task
begins; otherwise it is the worker's. An unfinished line ends with its task, but not if a thread of the task has begun it.

Driver side: ``LinePrinter`` shows ``(f pid=123) text``. If several workers print the same line within a few seconds, it is
shown once, at once, and the repetitions are counted. A line that only one worker repeats is shown each time. The state of a
progress bar is a marked line too (``common/progress_bars.py``); it is drawn and not printed. In a notebook, the id of a task
leads to the cell that has submitted the task, and its lines appear there (``node/notebook.py``).
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any

import msgspec

from minray.common import shown
from minray.common.forks import at_fork
from minray.protocol.core_worker import TASK_NAME_MARK, PrintLines

if TYPE_CHECKING:
    from minray.common.progress_bars import Bar
    from minray.core_worker.execution.task_executor import TaskExecutor
    from minray.core_worker.execution.task_names import Speaker
    from minray.core_worker.records.received_task import ReceivedTask

HOLDS_LOCKS = True
"""Marks this module for ``common/package.py``: its frames may hold a lock."""

MOST_BEGUN = 8192
"""Most characters of an unfinished line that are held back, as many as Python's own streams buffer; a longer one is
written at once."""
BAR_MARK = "\x1d"
"""Beginning of a line that describes a progress bar, as JSON (ASCII 29, group separator)."""
Marked = tuple[str, bytes, int]
"""Origin of the output that a mark announces: the name shown, the task's id and its attempt. (The executor's record of the
task would keep the task's arguments alive.)"""
NOBODY: Marked = ("", b"", 0)
_writing = threading.RLock()
"""Lock that keeps a name and its lines together. It is reentrant, since a signal handler may write in the same thread."""


def _renew_lock() -> None:
    """Renew the lock in a child that user code has forked while another thread held it."""
    global _writing
    _writing = threading.RLock()


at_fork(after_in_child=_renew_lock)


class TaskNamedStream:
    """A wrapper of a worker's text stream that names the task of each line and keeps lines of several threads apart.

    ``print`` writes a line and its newline separately. So the beginning of a line is held back for each thread, and for each
    call that shares its thread with others. It is written with the newline, at the end of the task, or at a flush.
    """

    def __init__(self, stream: IO[str], executor: TaskExecutor) -> None:
        self._stream = stream
        self._executor = executor
        executor.output.forget_names.append(self._forget_name)
        self._marked = NOBODY
        """Content of the last mark."""
        self._open: Speaker | None = None
        """Speaker (thread or call) that has flushed the beginning of a line; None if the last written line is complete."""
        self._begun: dict[Speaker, str] = {}
        """Beginnings of lines that are held back, by speaker."""

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        speaker = self._executor.speaker
        begun = self._begun.pop(speaker, "")
        shown = begun + text.replace(TASK_NAME_MARK, "\\x1e")
        end = shown.rfind("\n") + 1 if len(shown) < MOST_BEGUN else len(shown)
        self._put(speaker, shown[:end], self._executor.current)
        if end < len(shown):
            self._begun[speaker] = shown[end:]
            if not begun or end:
                self._executor.output.unended.add((speaker, self._end_line))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        speaker = self._executor.speaker
        self._put(speaker, self._begun.pop(speaker, ""), self._executor.current)
        self._stream.flush()

    def write_as(self, name: str, text: str) -> None:
        """Write lines under this name, whichever task runs."""
        self._put(self._executor.speaker, text, self._executor.current, name)

    def write_bar(self, state: str) -> None:
        """Write the state of a progress bar as a line of its own, which the driver draws. Ends a begun line."""
        with _writing:
            begun = "\n" if self._open is not None else ""
            self._put(self._executor.speaker, f"{begun}{BAR_MARK}{state}\n", self._executor.current)

    def close(self) -> None:
        """Write the held back text of all threads, and close the stream; called at the end of the process."""
        while self._begun:
            self._put(*self._begun.popitem(), self._executor.current)
        self._stream.close()

    def _end_line(self, speaker: Speaker, task: ReceivedTask) -> None:
        """End the unfinished line of a speaker whose task has ended."""
        text = self._begun.pop(speaker, "")
        if text or self._open == speaker:
            self._put(speaker, text + "\n", task)

    def _put(self, speaker: Speaker, text: str, task: ReceivedTask | None, name: str | None = None) -> None:
        """Write text of a task, or of none, under ``name``; None means the name of the task."""
        if not text:
            return
        output = self._executor.output
        with _writing:
            if name is None:
                name = output.shown_name(task) if task is not None else ""
            marked = (name, task.task_id, task.attempt) if task is not None else (name, b"", 0)
            if marked != self._marked:
                from minray.protocol.logs import mark_of  # Drivers, which mark nothing, import this file, too.

                end = "\n" if self._open is not None else ""
                self._stream.write(f"{end}{mark_of(*marked, task.actor_id if task is not None else b'')}\n{text}")
                self._marked = marked
                output.is_named = marked != NOBODY
            else:
                self._stream.write(text)
            if text.endswith("\n"):
                self._open = None
                output.unended.discard((speaker, self._end_line))
            else:
                self._open = speaker
                output.unended.add((speaker, self._end_line))

    def _forget_name(self) -> None:
        """Forget the task when another one begins, so that output past this stream does not count as the last task's."""
        with _writing:
            if self._marked != NOBODY and self._open is None:
                self._stream.write(f"{TASK_NAME_MARK}\n")
                self._marked = NOBODY

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


Source = tuple[bytes, int, bool]
"""A worker's stream: node id, process id, and whether it is standard error."""


class _Seen(msgspec.Struct):
    """A line that was shown recently."""

    source: Source | None
    """The only stream that has printed the line; None if there are several."""
    until: float
    """Time at which the line's window ends."""
    held_back: int = 0
    """Number of repetitions that were not shown."""


def _nobodys(line: tuple[str, str, str]) -> str:
    """Return no task id, for lines that are printed in one place whatever their tasks are."""
    return ""


def _bar_of(line: str) -> Bar | None:
    """Return the progress bar that a line describes; None for a line that user code has forged."""
    from minray.common.progress_bars import Bar

    try:
        return msgspec.json.decode(line.removeprefix(BAR_MARK), type=Bar)
    except msgspec.DecodeError:
        return None


class LinePrinter:
    """Prints the lines of one driver's workers."""

    def __init__(self, window_s: float, clock: Callable[[], float]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen: OrderedDict[tuple[str, bool], _Seen] = OrderedDict()
        """Recent lines by text and stream, in the order in which their windows began and end."""
        self._sequences: dict[Source, int] = {}
        """Number of the last batch shown for each stream, so that a repeated message is not shown again."""
        self._has_bars = False
        """Whether a worker has shown a progress bar."""
        self.on_breakpoint: Callable[[str, str, int], None] | None = None
        """Function that is told of tasks which wait in the debugger: the id of the breakpoint, the name of the task and its
        process."""
        self.context_of: Callable[[str], contextvars.Context] | None = None
        """Function that finds, by the id of a task, the context in which the task's lines are printed. In a notebook the
        context names a cell. None: the caller's context."""

    def show(self, message: PrintLines) -> None:
        """Print one batch from one worker."""
        source = (message.node_id, message.pid, message.is_stderr)
        if message.sequence <= self._sequences.get(source, -1):
            return
        self._sequences[source] = message.sequence
        now = self._clock()
        pid = f" pid={message.pid}" if message.pid else ""
        for task_id, lines in groupby(message.lines, itemgetter(2) if self.context_of is not None else _nobodys):
            context = self._context(task_id)
            texts: list[str] = []
            for name, text, _ in lines:
                title = f"({name or 'worker'}{pid})"
                bar = _bar_of(text) if text.startswith(BAR_MARK) else None
                if bar is not None:
                    self._print(texts, message.is_stderr, context)
                    texts = []
                    self._draw(source, bar, title, context)
                elif self._is_new(text, source, now):
                    texts.append(f"{title} {text}")
            self._print(texts, message.is_stderr, context)
        self.flush_repetitions(now)
        if message.is_stderr and self.on_breakpoint is not None:
            self._tell_of_breakpoints(message, self.on_breakpoint)

    def _tell_of_breakpoints(self, message: PrintLines, on_breakpoint: Callable[[str, str, int], None]) -> None:
        from minray.protocol.logs import breakpoint_of

        for name, text, _ in message.lines:
            if breakpoint_id := breakpoint_of(text):
                on_breakpoint(breakpoint_id, name or "the thread", message.pid)

    def _context(self, task_id: str) -> contextvars.Context | None:
        return self.context_of(task_id) if self.context_of is not None else None

    def _print(self, lines: list[str], is_stderr: bool, context: contextvars.Context | None) -> None:
        """Print lines, and ignore a closed pipe (``| head``): only the driver's own output raises an error for that."""
        if not lines:
            return
        # One piece with its last newline, because another thread may write to the same terminal.
        text, stream = "\n".join(lines) + "\n", sys.stderr if is_stderr else sys.stdout
        # A copy, because only one thread at a time can be in a context.
        write = (contextvars.copy_context() if context is None else context.copy()).run
        with shown.around_lines(), suppress(OSError, ValueError):
            try:
                write(print, text, end="", file=stream, flush=True)
            except UnicodeEncodeError as error:  # escape what this terminal or file cannot show
                escaped = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
                write(print, escaped, end="", file=stream, flush=True)

    def _draw(self, source: Source, bar: Bar, title: str, context: contextvars.Context | None) -> None:
        from minray.common.progress_bars import progress_bars

        self._has_bars = True
        bar.description = f"{title} {bar.description}".rstrip()
        progress_bars().show((*source, bar.number), bar, context=context)

    def end_bars(self) -> None:
        """End the bars of workers that have not ended by themselves."""
        if self._has_bars:
            from minray.common.progress_bars import progress_bars

            progress_bars().end_all(lambda key: isinstance(key, tuple))

    def _is_new(self, text: str, source: Source, now: float) -> bool:
        if self._window_s <= 0 or not text.strip():
            return True
        key = (text, source[2])
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = _Seen(source, now + self._window_s)
        elif now >= known.until:
            self._seen[key] = _Seen(source, now + self._window_s, known.held_back)
            self._seen.move_to_end(key)
        elif known.source != source:
            known.source = None
            known.held_back += 1
            return False
        return True

    def flush_repetitions(self, now: float | None = None) -> None:
        """Print how often each line was repeated whose window has ended; without ``now``, each line."""
        while self._seen:
            (text, is_stderr), seen = next(iter(self._seen.items()))
            if now is not None and now < seen.until:
                return
            del self._seen[text, is_stderr]
            if seen.held_back:
                times = f"{seen.held_back} more time{'s' if seen.held_back != 1 else ''}"
                self._print([f"(repeated {times} across the cluster) {text}"], is_stderr, self._context(""))
