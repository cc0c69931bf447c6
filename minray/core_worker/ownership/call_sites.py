"""Records where in the user's code each reference of this process was made.

Ray: CoreWorker's get_py_stack_ in python/ray/_raylet.pyx, turned on by RAY_record_ref_creation_sites as here

It is used only with ``record_ref_creation_sites``, since walking a stack costs a few microseconds for each ``remote`` and
``put``. User threads write and the loop deletes; each is one operation on a dict, and so atomic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType

from minray.errors.tracebacks import WORKERS_PROGRAM, is_runtime

DISABLED = "disabled"
"""Shown in place of a line when call sites are not recorded."""
MOST_FRAMES = 3
"""Maximum number of lines of user code that describe one call site, the innermost first; enough to recognize it."""


class CallSites:
    """Records the call sites of one process's references."""

    def __init__(self, *, is_driver: bool, running_task_name: Callable[[], str]) -> None:
        self._is_driver = is_driver
        self._running_task_name = running_task_name
        """Function that names the task of the calling thread; empty if it runs none."""
        self._sites: dict[bytes, str] = {}

    def note(self, object_ids: Iterable[bytes], what: str) -> None:
        """Note the calling user thread's stack as the call site of these objects, unless they have one."""
        site = " | ".join([f"({what})", *self._lines(sys._getframe(1))])
        for object_id in object_ids:
            self._sites.setdefault(object_id, site)

    def note_unpickled(self, object_ids: Iterable[bytes]) -> None:
        """Note, in the user's thread, references that are about to be made from a value's pickle."""
        name = self._running_task_name()
        self.note(object_ids, f"deserialize in task {name}" if name else "deserialize")

    def of(self, object_id: bytes) -> str:
        """Return the call site of an object; empty if none was noted, as for an object that came inside another one."""
        return self._sites.get(object_id, "")

    def forget(self, object_ids: Iterable[bytes]) -> None:
        for object_id in object_ids:
            self._sites.pop(object_id, None)

    def __len__(self) -> int:
        return len(self._sites)

    def _lines(self, frame: FrameType | None) -> list[str]:
        lines: list[str] = []
        while frame is not None and len(lines) < MOST_FRAMES:
            code = frame.f_code
            is_ours = is_runtime(code.co_filename) or self._is_program(frame)
            if not is_ours:
                lines.append(f"{code.co_filename}:{code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return lines

    def _is_program(self, frame: FrameType) -> bool:
        """Whether this is the frame of the program line with which a worker was started."""
        code = frame.f_code
        return not self._is_driver and frame.f_back is None and (code.co_filename, code.co_name) == WORKERS_PROGRAM
