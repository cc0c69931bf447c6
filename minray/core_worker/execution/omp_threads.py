"""Sets ``OMP_NUM_THREADS`` in a worker to the CPUs of the lease that it serves, so that libraries start no more threads.

Ray: set_omp_num_threads_if_unset in python/ray/_private/utils.py

numpy, torch and others start one thread for each CPU of the machine by default. When several workers do that, they compete
for the CPUs. As in Ray, the number is rounded down, and 1 at least. It is 1, too, for a lease without CPUs.

A value of the user's own is never changed: one in the environment of the node, in the ``env_vars`` of the runtime
environment, or set by the setup hook. All tasks of a lease need the same resources, so a task costs nothing here, and a
lease costs a comparison. The lease of an actor is never replaced.
"""

from __future__ import annotations

import os

from minray.common.bundles import plain
from minray.common.resources import CPU, UNIT
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo
from minray.platform.base import UserCode

VARIABLE = "OMP_NUM_THREADS"
"""Name of the environment variable that OpenMP reads, and libraries with threads of their own, too."""


class OmpThreads:
    """Keeps the variable of one worker equal to the CPUs of its lease."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self._wanted = 1
        """Threads that the present lease allows."""
        self._set: int | None = None
        """Value that this class has set; None while the environment is not prepared, or if the value is the user's."""

    def on_lease(self, shape: LeaseShape) -> None:
        """Take note of a new lease, before any of its tasks begins."""
        self._wanted = threads_of(shape)
        if self._set is not None:
            self._apply()

    def on_environment(self, environment: RuntimeEnvInfo) -> None:
        """Set the variable for the first time, unless the user has set it in this runtime environment or outside of it."""
        if VARIABLE not in dict(environment.env_vars) and VARIABLE not in os.environ:
            self._apply()

    def _apply(self) -> None:
        if self._wanted != self._set:
            self._set = self._wanted
            self._user_code.enter_environment((), (), None, {VARIABLE: str(self._set)})


def threads_of(shape: LeaseShape) -> int:
    """Return the number of threads for a lease: its whole CPUs, those of a placement group too, and 1 at least."""
    return max(plain(dict(shape.resources)).get(CPU, 0) // UNIT, 1)
