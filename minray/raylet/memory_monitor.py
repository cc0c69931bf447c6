"""The memory monitor: when a node runs short of memory, it kills a worker before the kernel kills any process.

Ray: src/ray/common/memory_monitor.h, src/ray/raylet/worker_killing_policy.h

The choice is pure and is logged with every kill:

  1. idle workers, the largest first: nothing is lost with them;
  2. workers whose task can be retried, or whose actor can be restarted, before those that cannot;
  3. among these the newest lease: it has done the least, and older leases may finish (G89).

One worker is killed at a time: while a victim is dying, its memory counts as free soon. The owner retries the killed task
without using up a retry, after a pause that grows each time (G20).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from minray.common.ids import short
from minray.platform.base import Host

logger = logging.getLogger(__name__)

GIB = 1 << 30


class Candidate(msgspec.Struct, frozen=True):
    """A worker that could be killed."""

    worker_id: bytes
    pid: int
    lease_id: bytes
    """Lease of the worker; empty: it is idle."""
    retriable: bool
    leased_at: float
    memory_bytes: int
    """Memory that the worker's death would free."""


def choose_victim(candidates: Sequence[Candidate]) -> Candidate | None:
    """Choose the worker to kill by the rules above; return None if there are no candidates."""
    idle = [one for one in candidates if not one.lease_id]
    if idle:
        return max(idle, key=lambda one: (one.memory_bytes, one.worker_id))
    return max(candidates, key=lambda one: (one.retriable, one.leased_at, one.worker_id), default=None)


def describe_choice(victim: Candidate, candidates: Sequence[Candidate]) -> str:
    """Explain the choice, for the log and for the error of the task: the victim, and the largest workers that are spared."""
    if not victim.lease_id:
        why = "it was idle"
    else:
        why = "its task or actor can be rerun" if victim.retriable else "no worker was left whose task or actor can be rerun"
    others = sorted((one for one in candidates if one is not victim), key=lambda one: -one.memory_bytes)[:3]
    listing = ", ".join(f"pid={one.pid} {one.memory_bytes / GIB:.2f} GiB" for one in others)
    beside = f"; the largest others: {listing}" if others else ""
    name = f"worker {short(victim.worker_id)} (pid={victim.pid}, {victim.memory_bytes / GIB:.2f} GiB)"
    return f"{name} is killed: {why}{beside}"


class Workers(Protocol):
    """Port to the workers of the node (``killable_workers``)."""

    def candidates(self) -> list[Candidate] | None:
        """Return the workers whose death would free memory; None while one is dying."""

    def kill(self, victim: Candidate, reason: str, used: int, total: int) -> None:
        """Kill a candidate, because ``used`` of ``total`` bytes of memory are in use."""


class MemoryMonitor:
    """Checks the host's memory periodically, and kills a worker if too much is in use."""

    def __init__(
        self,
        host: Host,
        *,
        threshold: float,
        period_s: float,
        workers: Workers,
    ) -> None:
        """``period_s`` 0: never look."""
        self._host = host
        self._threshold = threshold
        self._period_s = period_s
        self._workers = workers
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._period_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch_memory")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        is_blind = False
        while True:
            await asyncio.sleep(self._period_s)
            try:
                used, total = self._host.memory_usage()
            except OSError as error:  # For example, no file can be opened just now.
                if not is_blind:
                    logger.warning("the memory in use could not be read, and may not be for a while: %s", error)
                is_blind = True
                continue
            is_blind = False
            if used > total * self._threshold:
                self._relieve(used, total)

    def _relieve(self, used: int, total: int) -> None:
        candidates = self._workers.candidates()
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
        self._workers.kill(victim, reason, used, total)
