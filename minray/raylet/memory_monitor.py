"""When a node runs out of memory: which worker has to go, before the kernel takes one without asking.

Ray: src/ray/common/memory_monitor.h, src/ray/raylet/worker_killing_policy.h

The choice is pure and is printed with every kill:

  1. idle workers, the largest first: nothing is lost with them;
  2. workers whose task or actor may begin anew, before those that may not;
  3. among these the newest lease: it has done the least, and those that came before it may finish (G89).

One at a time: as long as a victim is dying its memory counts as free soon, and nobody else is killed. The owner of a task
that was killed makes it again without using up a retry, later each time (G20).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minray.common.ids import short
from minray.platform.base import Host

logger = logging.getLogger(__name__)

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could be killed."""

    worker_id: bytes
    pid: int
    lease_id: bytes
    """Empty: it is idle."""
    retriable: bool
    leased_at: float
    memory_bytes: int
    """What would be free without it."""


def choose_victim(candidates: Sequence[Candidate]) -> Candidate | None:
    """By the rules above; None if there is nobody."""
    idle = [one for one in candidates if not one.lease_id]
    if idle:
        return max(idle, key=lambda one: (one.memory_bytes, one.worker_id))
    return max(candidates, key=lambda one: (one.retriable, one.leased_at, one.worker_id), default=None)


def describe_choice(victim: Candidate, candidates: Sequence[Candidate]) -> str:
    """For the log and for whoever waits for the task: who was taken, and before whom."""
    if not victim.lease_id:
        why = "it was idle"
    else:
        why = "its work can be done again" if victim.retriable else "nobody was left whose work can be done again"
    others = sorted((one for one in candidates if one is not victim), key=lambda one: -one.memory_bytes)[:3]
    listing = ", ".join(f"pid={one.pid} {one.memory_bytes / GIB:.2f} GiB" for one in others)
    beside = f"; the largest others: {listing}" if others else ""
    name = f"worker {short(victim.worker_id)} (pid={victim.pid}, {victim.memory_bytes / GIB:.2f} GiB)"
    return f"{name} is killed: {why}{beside}"


class MemoryMonitor:
    """Looks at the host's memory from time to time."""

    def __init__(
        self,
        host: Host,
        *,
        threshold: float,
        period_s: float,
        candidates: Callable[[], list[Candidate] | None],
        kill: Callable[[Candidate, str, int, int], None],
    ) -> None:
        """``candidates`` is None while a victim is dying. ``period_s`` 0: never look."""
        self._host = host
        self._threshold = threshold
        self._period_s = period_s
        self._candidates = candidates
        self._kill = kill
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._period_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch_memory")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                used, total = self._host.memory_usage()
            except OSError as error:  # no file can be opened just now
                logger.warning("how much memory is in use is not known: %s", error)
                continue
            if used > total * self._threshold:
                self._relieve(used, total)

    def _relieve(self, used: int, total: int) -> None:
        candidates = self._candidates()
        if candidates is None:
            return
        victim = choose_victim(candidates)
        if victim is None:
            return
        reason = (
            f"the node has {used / GIB:.2f} of {total / GIB:.2f} GiB in use, more than {self._threshold:.0%};"
            f" {describe_choice(victim, candidates)}"
        )
        logger.warning("out of memory: %s", reason)
        self._kill(victim, reason, used, total)
