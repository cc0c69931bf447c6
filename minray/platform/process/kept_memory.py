"""Keep memory that was freed, in processes through which large buffers pass one after the other.

Ray: its processes use jemalloc (src/ray/common/jemalloc_config), which keeps freed pages for a while

glibc gives a block of more than 128 KiB back to the system when it is freed. The next block then costs a page fault for each
4 KiB: for a value of 100 MiB in buffers of 1 MiB that takes as long as copying it twice.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

KEPT_BYTES = 32 * 1024 * 1024
"""Bytes of freed memory that a process keeps: a window of a session in each direction."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt: bytes free at the end of the heap above which it shrinks, and bytes of the smallest block that
has a mapping of its own."""


def keep_freed_memory() -> None:
    """Have this process keep freed blocks of up to ``KEPT_BYTES``; do nothing where the C library cannot."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
