"""Health checks: they notice a dead process at once by its closed sockets, or after a while by its silence.

Ray: src/ray/gcs/gcs_health_check_manager.h; the disconnection of a driver is noticed in src/ray/raylet/node_manager.cc

A channel to every watched process is kept open. The kernel closes the sockets of a killed process, so the channel breaks.
The check that follows finds that no process listens at the endpoint any more. So a death is known a few milliseconds after
the kill. A machine that is cut off closes nothing; there, unanswered checks count.

Rules
  * A broken channel alone proves nothing; only a refused connection does (or another incarnation at the endpoint).
  * Silence counts against raylets: ``health_check_failure_threshold`` unanswered checks in a row are a death. An answer or
    a resource report resets the count.
  * Silence does not count against drivers: users stop them in debuggers, suspend them, and hold the GIL for minutes. A
    driver whose machine is cut off ends with its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

from minray.common.config import SystemConfig
from minray.common.ids import short
from minray.common.task_set import TaskSet
from minray.platform.base import Platform, PlatformError, RemoteFailure
from minray.protocol.base import Address, Done, Request
from minray.protocol.gcs import CheckAlive
from minray.rpc.connection import Peer, PeerUnreachable

FAREWELL_S = 1.0
"""Seconds that a driver has to hear that its node was declared dead, before its job is finished."""
OnDead = Callable[[str], Awaitable[None]]
"""Callback that is called once, with the reason why the process counts as dead."""


class _Watch:
    """One watched process."""

    def __init__(self, peer: Peer, silence_counts: bool, on_dead: OnDead) -> None:
        self.peer = peer
        self.silence_counts = silence_counts
        self.on_dead = on_dead
        self.silences = 0
        """Number of checks in a row that were not answered in time."""
        self.check_now = asyncio.Event()
        """Event that is set when the channel breaks, so that the next check comes at once."""
        self.task: asyncio.Task[None] | None = None
        peer.on_break = self.check_now.set


class HealthCheckManager:
    """Watches processes for the gcs, and reports their deaths."""

    def __init__(self, platform: Platform, config: SystemConfig) -> None:
        self._platform = platform
        self._period_s = config.health_check_period_ms / 1000
        self._timeout_s = config.health_check_timeout_ms / 1000
        self._threshold = config.health_check_failure_threshold
        self._watches: dict[bytes, _Watch] = {}
        """Watches by incarnation; a watch is removed before its ``on_dead`` is called."""
        self._tasks = TaskSet()

    def watch(self, address: Address, *, silence_counts: bool, on_dead: OnDead) -> None:
        """Watch a process until it is dead; watching it again changes nothing."""
        if address.worker_id in self._watches:
            return
        # A peer that cannot be reached is never given up here: whether its silence counts is decided below.
        endpoint = address.endpoint_from(b"")
        peer = Peer(self._platform, endpoint, address.worker_id, reconnect_timeout_s=math.inf, may_restart=False)
        watch = _Watch(peer, silence_counts, on_dead)
        self._watches[address.worker_id] = watch
        watch.task = self._tasks.begin(self._watch(address.worker_id, watch), f"watch({short(address.worker_id)})")

    def unwatch(self, worker_id: bytes) -> None:
        """Stop watching a process. A death that is being reported already is not affected."""
        watch = self._watches.pop(worker_id, None)
        if watch is not None:
            assert watch.task is not None
            watch.task.cancel()
            watch.peer.close()

    def on_heard(self, worker_id: bytes) -> None:
        """Reset the count of silences, because a resource report of this raylet has arrived."""
        watch = self._watches.get(worker_id)
        if watch is not None:
            watch.silences = 0

    async def dismiss(self, worker_id: bytes, farewell: Request[Done]) -> None:
        """Stop watching a process, and tell it why; return when it knows, at the latest after FAREWELL_S."""
        watch = self._watches.pop(worker_id, None)
        if watch is None:
            return
        assert watch.task is not None
        watch.task.cancel()
        try:
            with contextlib.suppress(TimeoutError, PlatformError):
                async with asyncio.timeout(FAREWELL_S):
                    await watch.peer.call(farewell)
        finally:
            watch.peer.close()

    async def _watch(self, worker_id: bytes, watch: _Watch) -> None:
        cause = await self._until_dead(watch)
        del self._watches[worker_id]
        watch.peer.close()
        await watch.on_dead(cause)

    async def _until_dead(self, watch: _Watch) -> str:
        """Check repeatedly until the process counts as dead, and return the reason."""
        while True:
            watch.check_now.clear()
            try:
                async with asyncio.timeout(self._timeout_s if watch.silence_counts else None):
                    await watch.peer.call(CheckAlive())
            except TimeoutError:
                watch.silences += 1
                if watch.silences >= self._threshold:
                    return f"no answer to {watch.silences} health checks in a row"
            except PeerUnreachable as death:
                return str(death)
            except RemoteFailure:
                watch.silences = 0  # A failure is an answer, too.
            else:
                watch.silences = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s if watch.silence_counts else None):
                    await watch.check_now.wait()

    def close(self) -> None:
        self._tasks.cancel()
        for watch in self._watches.values():
            watch.peer.close()
