"""One core for a simulation.

All its threads take turns (``user_thread``), so none of them needs a core of its own. A hand-over from core to core has to
wake the other core, and takes 50 us instead of 5 to 10. Simulations side by side, in processes of their own, share the cores
as the system has spread them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

PROCESSOR = 36
"""Index of the field ``processor`` of ``/proc/thread-self/stat`` behind the command's name (proc_pid_stat(5))."""


@contextlib.contextmanager
def one_core() -> Generator[None, None, None]:
    """Keep this thread, and those it starts, on one core, so that a hand-over need not wake another core.

    It is the core on which the thread runs now: the system has chosen that, so that processes side by side share no core.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_current_core(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _current_core(cores: list[int]) -> int:
    """Return the core on which this thread runs; any of ``cores`` where the system does not say."""
    try:
        core = int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[PROCESSOR])
    except OSError:
        core = os.getpid()
    return core if core in cores else cores[core % len(cores)]
