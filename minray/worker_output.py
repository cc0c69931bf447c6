"""What tasks print: named in the worker, shown once in the driver.

Ray: python/ray/_private/log_monitor.py, python/ray/_private/ray_logging/__init__.py

Worker side: standard output and error are pipes that the raylet reads. ``TaskNamedStream`` writes, before the first line of
a task, a line with a control character and the task's name, which the raylet takes out and attaches to what follows; so
output of C libraries and child processes, which does not pass here, is named too.

Driver side: ``LinePrinter`` shows ``(f pid=123) text``. A line that several workers print within a few seconds is shown
once at once, and then counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from minray.protocol.core_worker import PrintLines

if TYPE_CHECKING:
    from minray.core_worker.task_executor import TaskExecutor

TASK_NAME_MARK = "\x1e"


class TaskNamedStream:
    """Wraps a text stream of a worker; passes everything on but ``write``."""

    def __init__(self, stream: IO[str], executor: TaskExecutor) -> None:
        self._stream = stream
        self._executor = executor
        self._named = ""
        self._at_line_start = True

    def write(self, text: str) -> int:
        if TASK_NAME_MARK in text:
            text = text.replace(TASK_NAME_MARK, "\\x1e")
        running = self._executor.current
        name = running.header.template.name if running is not None else ""
        if name != self._named and self._at_line_start and text:
            self._named = name
            self._stream.write(f"{TASK_NAME_MARK}{' '.join(name.split())}\n")
        if text:
            self._at_line_start = text.endswith("\n")
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LinePrinter:
    """Shows the lines of one driver's workers."""

    def __init__(self, window_s: float, clock: Callable[[], float]) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen: dict[str, list[float | int]] = {}
        """Text to the end of its window and how many repetitions were held back."""
        self._sequences: dict[tuple[bytes, int, bool], int] = {}
        """The last batch shown, per worker and stream: a repeated message is not shown again."""

    def show(self, message: PrintLines) -> None:
        """Print one batch from one worker."""
        source = (message.node_id, message.pid, message.is_stderr)
        if message.sequence <= self._sequences.get(source, -1):
            return
        self._sequences[source] = message.sequence
        now = self._clock()
        stream = sys.stderr if message.is_stderr else sys.stdout
        shown = [f"({name or 'worker'} pid={message.pid}) {text}" for name, text in message.lines if self._is_new(text, now)]
        if shown:
            self._print("\n".join(shown), stream)
        self.flush_repetitions(now)

    def _print(self, text: str, stream: IO[str]) -> None:
        """A driver whose output nobody reads any more (``| head``) goes on without it, until it writes something itself."""
        with suppress(OSError, ValueError):
            print(text, file=stream, flush=True)

    def _is_new(self, text: str, now: float) -> bool:
        if self._window_s <= 0 or not text.strip():
            return True
        known = self._seen.get(text)
        if known is not None and now < known[0]:
            known[1] += 1
            return False
        self._seen[text] = [now + self._window_s, 0 if known is None else known[1]]
        return True

    def flush_repetitions(self, now: float | None = None) -> None:
        """Say how often lines were repeated whose window is over (without ``now``: all lines)."""
        for text, (until, count) in list(self._seen.items()):
            if now is None or now >= until:
                del self._seen[text]
                if count:
                    times = f"{count} more time{'s' if count != 1 else ''}"
                    self._print(f"(repeated {times} by other workers) {text}", sys.stdout)
