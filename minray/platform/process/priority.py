"""Makes a worker the first process that the kernel takes memory or CPU time from, so that node and user go on.

Ray: AdjustWorkerOomScore in src/ray/raylet/worker_pool.cc, worker_niceness in src/ray/core_worker/core_worker_process.cc

Both settings are inherited by the processes and threads that user code starts. Neither needs a right: a process may always
step back, and only a privileged one may undo it.
"""

from __future__ import annotations

import os
from contextlib import suppress

MOST_OOM_SCORE_ADJUSTMENT = 1000
"""Largest adjustment that Linux knows: the process is killed first, whatever memory it uses."""


def step_back(niceness: int, oom_score_adjustment: int) -> None:
    """Raise the niceness of this process by ``niceness``, and set its adjustment of the OOM score where the system has one.

    A process that has stepped back further already stays as it is. Call this before threads are started.
    """
    os.nice(niceness)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # macOS has no such file
        file.write(str(min(oom_score_adjustment, MOST_OOM_SCORE_ADJUSTMENT)))
