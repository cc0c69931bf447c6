"""What tasks print: named in the worker, shown once in the driver.

Ray: python/ray/_private/log_monitor.py, python/ray/_private/ray_logging/__init__.py

Worker side: standard output and error are pipes that the raylet reads. ``TaskNamedStream`` writes, before the first line of
a task, a line with a control character and the task's name (of a call: after its actor, which may describe itself by its
``__repr__``), which the raylet takes out and attaches to what follows. Output of C libraries and child processes, which does
not pass here, is named too when their task has printed something, and until another one begins: then it is the worker's. A
line that a task has begun ends with it, but not one that a thread of its own has begun.

Driver side: ``LinePrinter`` shows ``(f pid=123) text``. A line that several workers print within a few seconds is shown
at once, and counted from the second of them on; what one worker alone repeats is shown each time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from minray.protocol.core_worker import TASK_NAME_MARK, PrintLines

if TYPE_CHECKING:
    from minray.core_worker.execution.task_executor import Speaker, TaskExecutor

HOLDS_LOCKS = True
"""See ``common/package.py``: these frames may hold a lock."""

MOST_BEGUN = 8192
"""Characters of a line that is not at its end, which are written at once. As much as Python's own streams hold back."""
_writing = threading.RLock()
"""Between a name and its lines nobody else writes; a signal's handler may, in the same thread."""


def _renew_lock() -> None:
    """In a child that user code has forked while another thread was writing."""
    global _writing
    _writing = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class TaskNamedStream:
    """Wraps a text stream of a worker, so that each line has its task's name, and lines of several threads do not mix:
    ``print`` writes a line and its end apart. What a thread, or a call that shares its thread with others, has begun is
    written with its end, which a newline or that of the task is, or when it flushes."""

    def __init__(self, stream: IO[str], executor: TaskExecutor) -> None:
        self._stream = stream
        self._executor = executor
        executor.forget_names.append(self._forget_name)
        self._named = ""
        self._open: Speaker | None = None
        """Who has flushed the beginning of a line; None: what is written is at the beginning of one."""
        self._begun: dict[Speaker, str] = {}
        """The beginning of a line, which is not written yet."""

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        speaker = self._executor.speaker
        begun = self._begun.pop(speaker, "")
        shown = begun + text.replace(TASK_NAME_MARK, "\\x1e")
        end = shown.rfind("\n") + 1 if len(shown) < MOST_BEGUN else len(shown)
        self._put(speaker, shown[:end])
        if end < len(shown):
            self._begun[speaker] = shown[end:]
            if not begun or end:
                self._executor.unended.add((speaker, self._end_line))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        speaker = self._executor.speaker
        self._put(speaker, self._begun.pop(speaker, ""))
        self._stream.flush()

    def close(self) -> None:
        """At the end of the process: flush for all threads."""
        while self._begun:
            self._put(*self._begun.popitem())
        self._stream.close()

    def _end_line(self, speaker: Speaker, name: str) -> None:
        """Its task, of this name, is over."""
        text = self._begun.pop(speaker, "")
        if text or self._open == speaker:
            self._put(speaker, text + "\n", name)

    def _put(self, speaker: Speaker, text: str, name: str | None = None) -> None:
        """Written as the words of ``name``, or of what runs."""
        if not text:
            return
        with _writing:
            if name is None:
                running = self._executor.current
                name = self._executor.shown_name(running) if running is not None else ""
            if name != self._named:
                end = "\n" if self._open is not None else ""
                self._stream.write(f"{end}{TASK_NAME_MARK}{' '.join(name.split())}\n")
                self._named = self._executor.named = name
            self._stream.write(text)
            if text.endswith("\n"):
                self._open = None
                self._executor.unended.discard((speaker, self._end_line))
            else:
                self._open = speaker
                self._executor.unended.add((speaker, self._end_line))

    def _forget_name(self) -> None:
        """Another task begins: what it has written past this stream is not taken for the words of the last one."""
        with _writing:
            if self._named and self._open is None:
                self._stream.write(f"{TASK_NAME_MARK}\n")
                self._named = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


Source = tuple[bytes, int, bool]
"""Node, process id, and whether it is standard error."""


@dataclass(slots=True)
class _Seen:
    """A line that was shown lately."""

    source: Source | None
    """The only worker that has printed it; None: there are several."""
    until: float
    """The end of its window."""
    held_back: int = 0
    """How often it was not shown."""


class LinePrinter:
    """Shows the lines of one driver's workers."""

    def __init__(self, window_s: float, clock: Callable[[], float]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen: OrderedDict[tuple[str, bool], _Seen] = OrderedDict()
        """By text and stream; the window that began first is the first one, and over first."""
        self._sequences: dict[Source, int] = {}
        """The last batch shown, per worker and stream: a repeated message is not shown again."""

    def show(self, message: PrintLines) -> None:
        """Print one batch from one worker."""
        source = (message.node_id, message.pid, message.is_stderr)
        if message.sequence <= self._sequences.get(source, -1):
            return
        self._sequences[source] = message.sequence
        now = self._clock()
        lines = [(name, text) for name, text in message.lines if self._is_new(text, source, now)]
        if lines:
            shown = [f"({name or 'worker'} pid={message.pid}) {text}" for name, text in lines]
            self._print("\n".join(shown), message.is_stderr)
        self.flush_repetitions(now)

    def _print(self, text: str, is_stderr: bool) -> None:
        """A driver whose output nobody reads any more (``| head``) goes on without it, until it writes something itself."""
        stream = sys.stderr if is_stderr else sys.stdout
        with suppress(OSError, ValueError):
            try:
                print(text, file=stream, flush=True)
            except UnicodeEncodeError as error:  # shown as well as this terminal or file can
                shown = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
                print(shown, file=stream, flush=True)

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
        """Say how often lines were repeated whose window is over (without ``now``: all lines)."""
        while self._seen:
            (text, is_stderr), seen = next(iter(self._seen.items()))
            if now is not None and now < seen.until:
                return
            del self._seen[text, is_stderr]
            if seen.held_back:
                times = f"{seen.held_back} more time{'s' if seen.held_back != 1 else ''}"
                self._print(f"(repeated {times} across the cluster) {text}", is_stderr)
