"""Resource reports: the raylet tells the gcs what its node has free, and notices when the gcs cannot be reached.

Ray: src/ray/ray_syncer/ray_syncer.h, src/ray/raylet/node_manager.cc (RecordMetrics, gcs reconnection)

The first report is sent at once, then one on each change, at most one per period. Without a change one is sent now and then:
a report is also the node's sign of life, and its reply tells a node that it was declared dead. When no report has been
answered for a minute, the node ends (G111). It cannot tell a partition from a restart of the gcs, but in a partition the
gcs has declared it dead by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from minray.common.resources import ResourceSet
from minray.platform.base import RemoteFailure
from minray.protocol.gcs import NodeResources, ReportResources
from minray.rpc.connection import Peer, PeerUnreachable
from minray.scheduling.lease import LeaseRequest

logger = logging.getLogger(__name__)

FAILURE_PAUSE_S = 1.0
"""Seconds before the next report after one that the gcs answered with a failure."""
MAX_PENDING_SHAPES = 100
"""Most different needs of waiting requests in one report."""


class ResourceReporter:
    """Runs one loop: wait for a change, report, pause."""

    def __init__(
        self,
        gcs: Peer,
        read: Callable[[int], NodeResources],
        on_end: Callable[[str], None],
        *,
        period_s: float,
        heartbeat_s: float,
        patience_s: float,
    ) -> None:
        self._gcs = gcs
        self._read = read
        """Builds the report with a given version."""
        self._on_end = on_end
        """Called with the reason why this node must end: the gcs refused it, or was not reached for too long."""
        self._period_s = period_s
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._when_accepted: list[Callable[[], None]] = []

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="report_resources")

    def changed(self) -> None:
        """Report soon, because the node's resources may have changed."""
        self._changed.set()

    def when_accepted(self, then: Callable[[], None]) -> None:
        """Call back when the gcs has accepted a report that is not sent yet: it still has its tables, and this node."""
        self._when_accepted.append(then)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        last: NodeResources | None = None
        version = 0
        answered_at = loop.time()
        while True:
            self._changed.clear()
            report = self._read(version + 1)
            is_news = last is None or _contents(report) != _contents(last)
            if is_news or loop.time() >= answered_at + self._heartbeat_s:
                version, last = version + 1, report
                waiting = len(self._when_accepted)
                try:
                    async with asyncio.timeout_at(answered_at + self._patience_s):
                        reply = await self._gcs.call(ReportResources(report))
                except (TimeoutError, PeerUnreachable) as error:
                    if loop.time() > answered_at + self._patience_s + self._heartbeat_s:
                        answered_at = loop.time()  # This process was suspended, so it has not waited that long.
                        last = None
                        continue
                    is_gone = isinstance(error, PeerUnreachable) and error.is_certain
                    text = f"the gcs is gone: {error}" if is_gone else f"the gcs was not reached for {self._patience_s:g} s"
                    self._on_end(text)
                    return
                except RemoteFailure as failure:
                    logger.warning("the gcs could not take a report: %s", failure)
                    last = None
                    await asyncio.sleep(FAILURE_PAUSE_S)
                    continue
                if reply.refused:
                    self._on_end(f"refused by the gcs: {reply.refused}")
                    return
                answered_at = loop.time()
                accepted, self._when_accepted = self._when_accepted[:waiting], self._when_accepted[waiting:]
                for then in accepted:
                    then()
                await asyncio.sleep(self._period_s)
            await self._wait(answered_at + self._heartbeat_s)

    async def _wait(self, deadline: float) -> None:
        """Wait until resources change, at the latest until ``deadline``."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            return


def needs_of(requests: Iterable[LeaseRequest]) -> list[tuple[ResourceSet, int]]:
    """Return the needs of waiting requests with their counts, the most frequent first; at most MAX_PENDING_SHAPES."""
    counts = Counter(request.shape.resources for request in requests)
    return [(dict(resources), count) for resources, count in counts.most_common(MAX_PENDING_SHAPES)]


def _contents(report: NodeResources) -> tuple[object, ...]:
    return report.total, report.available, report.pending, report.shortages
