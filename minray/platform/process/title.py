"""Shows in lists of processes what a worker does: ``ray::f`` while it runs ``f``, ``ray::IDLE`` while it runs nothing.

Ray: python/ray/_raylet.pyx (setproctitle)

Linux shows the memory that held a process's command line when it was started. So a title is a write into that memory: no
system call, 0.2 us. A title is cut to the length that the command line had. Where the memory cannot be found, titles do
nothing.

Left out: the short name that ``top`` and ``ps -o comm`` show stays ``minray:worker``. To change it is a system call.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

_ARG_START = 45
"""Position in ``/proc/self/stat``, counted from behind the name in parentheses, of the address where the arguments begin."""
_KEPT = 64
"""Number of titles that are kept as bytes: a worker mostly runs a few functions in turn."""


class ProcessTitle:
    """The title of this process."""

    def __init__(self) -> None:
        self._memory = _argument_memory()
        self._encode = lru_cache(_KEPT)(self._encoded)

    def show(self, title: str) -> None:
        """Replace the title."""
        self._memory[:] = self._encode(title)

    def _encoded(self, title: str) -> bytes:
        """Return the bytes that fill the memory. The last one is always zero: otherwise Linux also shows what follows."""
        size = len(self._memory)
        room = max(size - 1, 0)
        text = title.replace("\0", "").encode(errors="replace")[:room]
        return text.decode(errors="ignore").encode().ljust(size, b"\0")


def _argument_memory() -> memoryview:
    """Return the memory of this process's command line; empty if this is not Linux, or it says something else than that."""
    with suppress(OSError, ValueError, IndexError):
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(numbers[_ARG_START]), int(numbers[_ARG_START + 1])
        arguments = Path("/proc/self/cmdline").read_bytes()
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # which answers a wrong address with an error
            memory.seek(start)
            if arguments and memory.read(end - start) == arguments:
                return memoryview((ctypes.c_char * (end - start)).from_address(start)).cast("B")
    return memoryview(bytearray())
