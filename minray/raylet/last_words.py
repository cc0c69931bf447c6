"""The last lines that a worker wrote to standard error before it died: those of its last task, as far as they are useful.

Ray: has no counterpart; its driver says where the log files are

Pure: lines in, the last of them out. After a crash in compiled code, Python's faulthandler writes the stacks of all threads.
They would displace the task's own output. So of faulthandler's output only the first line stays, and the frames of user code
in the crashed thread.
"""

from __future__ import annotations

import re
from collections import deque

from minray.errors.tracebacks import WORKERS_PROGRAM, is_runtime
from minray.protocol.core_worker import TASK_NAME_MARK

MOST_LINES, MOST_CHARACTERS = 20, 1000
"""Most lines that are kept, and most characters of each: an error message must stay readable."""
_CRASH, _CRASHED_THREAD, _OTHER_THREAD = "Fatal Python error: ", "Current thread 0x", "Thread 0x"
_FRAME = re.compile(r'  File "(.*)", line \d+ in (.*)')
_EXTENSIONS = "Extension modules: "


class LastWords:
    """Collects the last lines of one worker's standard error."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._is_crash = False
        """Whether the lines are those of faulthandler."""
        self._is_other_thread = False

    def add_line(self, line: str) -> None:
        line = line[:MOST_CHARACTERS]
        if line.startswith(TASK_NAME_MARK):  # Another task begins to write, or no task does.
            self._lines.clear()
            self._is_crash = False
        elif line.startswith(_CRASH):
            self._is_crash = True
            self._lines.append(line)
        elif not self._is_crash or self._is_users(line):
            self._lines.append(line)

    def _is_users(self, line: str) -> bool:
        """Tell whether a line is to be kept while faulthandler writes; its first foreign line ends that state."""
        frame = _FRAME.fullmatch(line)
        if frame is not None:
            return not self._is_other_thread and not is_runtime(frame[1]) and frame.groups() != WORKERS_PROGRAM
        if line.startswith((_CRASHED_THREAD, _OTHER_THREAD)):
            self._is_other_thread = line.startswith(_OTHER_THREAD)
            return False
        if not line.strip() or line.startswith("  "):
            return False
        self._is_crash = line.startswith(_EXTENSIONS)
        return not self._is_crash

    def lines(self) -> list[str]:
        return list(self._lines)
