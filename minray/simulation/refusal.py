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

from minray.errors.tracebacks import is_runtime
from minray.simulation.loop import NotSimulated

LIBRARIES = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
)
"""Directories of Python's library and of installed packages."""
MADE = "<frozen "
"""Beginning of the file name of frames that Python itself has without a file."""


@functools.cache
def is_library(filename: str) -> bool:
    """Return whether frames of this file belong to Python's library or to an installed package."""
    return filename.startswith((*LIBRARIES, MADE))


def refusal(words: str) -> NotSimulated:
    """Return the error for a call that the simulation refuses: what is refused, what to do instead, and the user's line."""
    frame = sys._getframe(1)
    while frame is not None:
        filename, line = frame.f_code.co_filename, frame.f_lineno
        if not is_runtime(filename) and not is_library(filename):
            source = linecache.getline(filename, line).strip()
            return NotSimulated(f"{words} (called at {filename}:{line}{': ' if source else ''}{source})")
        if frame.f_back is None:
            break
        frame = frame.f_back
    return NotSimulated(words)
