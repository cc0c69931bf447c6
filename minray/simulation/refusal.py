"""Says where user code has asked for something that the simulation refuses.

A refusal is raised deep inside: ``ThreadPoolExecutor.submit`` starts a thread, ``requests.get`` opens a socket. The user
knows neither place. So the error names the innermost line that belongs neither to minray nor to Python's library nor to an
installed package. If all lines belong to these, it names none.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from types import FrameType

from minray.errors.tracebacks import is_runtime
from minray.simulation.loop import NotSimulated

LIBRARIES = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
    | {os.path.dirname(os.__file__) + os.sep}
)
"""Directories of Python's library and of installed packages. In a browser the library is in an archive, which only the
file of one of its modules tells."""
MADE = "<frozen "
"""Beginning of the file name of frames that Python itself has without a file."""


@functools.cache
def is_library(filename: str) -> bool:
    """Return whether frames of this file belong to Python's library or to an installed package."""
    return filename.startswith((*LIBRARIES, MADE))


def refusal(words: str) -> NotSimulated:
    """Return the error for a call that the simulation refuses: what is refused, what to do instead, and the user's line."""
    frame = users_frame(sys._getframe(1))
    if frame is None:
        return NotSimulated(words)
    filename, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(filename, line).strip()
    return NotSimulated(f"{words} (called at {filename}:{line}{': ' if source else ''}{source})")


def users_frame(innermost: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own code; None if there is none."""
    frame = innermost
    while frame is not None and (is_runtime(frame.f_code.co_filename) or is_library(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame
