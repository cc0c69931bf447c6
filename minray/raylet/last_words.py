"""What a worker has written to standard error before it died: the lines of its last task, as far as they are the user's.

Ray: has no counterpart; its driver says where the log files are

Pure: lines in, the last of them out. A crash in compiled code has Python's faulthandler write down where all
threads are, which would leave no room for what the task itself has said: of that only its first line and the frames of the
user's code stay, in the thread that has crashed.
"""

from __future__ import annotations

import re
from collections import deque

from minray.errors.tracebacks import WORKERS_PROGRAM, is_runtime
from minray.protocol.core_worker import TASK_NAME_MARK

MOST_LINES, MOST_CHARACTERS = 20, 1000
"""So many lines, and so much of each."""
_CRASH, _CRASHED_THREAD, _OTHER_THREAD = "Fatal Python error: ", "Current thread 0x", "Thread 0x"
_FRAME = re.compile(r'  File "(.*)", line \d+ in (.*)')
_EXTENSIONS = "Extension modules: "


class LastWords:
    """Of one worker."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._is_crash = False
        """Whether faulthandler is writing."""
        self._is_other_thread = False

    def add(self, line: str) -> None:
        line = line[:MOST_CHARACTERS]
        if line.startswith(TASK_NAME_MARK):  # Another task begins to write, or what comes next is nobody's.
            self._lines.clear()
            self._is_crash = False
        elif line.startswith(_CRASH):
            self._is_crash = True
            self._lines.append(line)
        elif not self._is_crash or self._is_users(line):
            self._lines.append(line)

    def _is_users(self, line: str) -> bool:
        """Of faulthandler's lines; the first one that is none ends them."""
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
