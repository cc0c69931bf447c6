"""When a node tells the gcs what it has free, and when it gives up: in virtual time, with a pretended gcs."""

from __future__ import annotations

import asyncio
from typing import Any

from minray.platform.base import RemoteFailure
from minray.protocol.gcs import NodeResources, RegisterNodeReply, ReportResources
from minray.raylet.resource_reporter import FAILURE_PAUSE_S, ResourceReporter
from minray.rpc.connection import PeerUnreachable
from tests.rpc.fake_network import in_virtual_time, pass_time

PERIOD_S, HEARTBEAT_S, PATIENCE_S = 0.1, 5.0, 60.0


class Node:
    """A node with ``free`` CPUs, the reports that its gcs has heard, and the reasons why it has to end."""

    def __init__(self) -> None:
        self.free = 4
        self.heard: list[tuple[float, int, int]] = []
        """When, which version, how many CPUs."""
        self.answer: RegisterNodeReply | Exception | None = RegisterNodeReply(b"cluster")
        """None: it does not answer."""
        self.ended: list[str] = []
        self._began = asyncio.get_running_loop().time()
        gcs: Any = self
        self.reporter = ResourceReporter(
            gcs, self._read, self.ended.append, period_s=PERIOD_S, heartbeat_s=HEARTBEAT_S, patience_s=PATIENCE_S
        )
        self.reporter.start()

    def _read(self, version: int) -> NodeResources:
        return NodeResources(b"node", version, {"CPU": 4}, {"CPU": self.free}, [])

    async def call(self, request: ReportResources) -> RegisterNodeReply:
        report = request.resources
        self.heard.append((round(self.now(), 3), report.version, report.available["CPU"]))
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def change(self, free: int) -> None:
        self.free = free
        self.reporter.changed()


@in_virtual_time
async def test_a_change_is_told_at_once_and_many_once_per_period() -> None:
    node = Node()
    await pass_time(1.0)
    node.change(3)
    await pass_time(0.0)
    node.change(2)
    node.change(1)
    await pass_time(1.0)
    assert node.heard == [(0.0, 1, 4), (1.0, 2, 3), (1.1, 3, 1)]
    node.reporter.close()


@in_virtual_time
async def test_what_has_not_changed_is_told_now_and_then_as_a_sign_of_life() -> None:
    node = Node()
    for _ in range(12):
        await pass_time(1.0)
        node.reporter.changed()
    assert [(version, free) for _, version, free in node.heard] == [(1, 4), (2, 4), (3, 4)]
    assert [round(at) for at, _, _ in node.heard] == [0, 5, 10]
    node.reporter.close()
    await pass_time(60.0)
    assert len(node.heard) == 3 and node.ended == []


@in_virtual_time
async def test_a_report_that_the_gcs_could_not_take_is_repeated_after_a_pause() -> None:
    node = Node()
    node.answer = RemoteFailure("storage-failed", "no space left")
    await pass_time(2.5 * FAILURE_PAUSE_S)
    node.answer = RegisterNodeReply(b"cluster")
    await pass_time(FAILURE_PAUSE_S)
    assert node.heard == [(at * FAILURE_PAUSE_S, at + 1, 4) for at in range(4)] and node.ended == []
    node.reporter.close()


@in_virtual_time
async def test_g111_a_node_that_the_gcs_refuses_ends() -> None:
    node = Node()
    node.answer = RegisterNodeReply(b"cluster", "it was declared dead")
    await pass_time(60.0)
    assert node.ended == ["refused by the gcs: it was declared dead"] and len(node.heard) == 1


@in_virtual_time
async def test_g111_a_node_without_a_gcs_ends_after_a_while() -> None:
    """Counted from the last answer."""
    node = Node()
    await pass_time(1.0)
    node.answer = None
    await pass_time(PATIENCE_S - 1.5)
    assert node.ended == []
    await pass_time(1.0)
    assert node.ended == ["the gcs was not reached for 60 s"] and len(node.heard) == 2


@in_virtual_time
async def test_g111_a_node_whose_gcs_is_certainly_gone_ends_at_once() -> None:
    node = Node()
    node.answer = PeerUnreachable("it refused: this process does not know its cluster token")
    node.answer.is_certain = True
    await pass_time(0.0)
    assert node.ended == ["the gcs is gone: it refused: this process does not know its cluster token"]


@in_virtual_time
async def test_a_process_that_was_suspended_has_not_waited_so_long_for_the_gcs() -> None:
    """The gcs has declared it dead meanwhile, and says so when it is asked."""
    node = Node()
    await pass_time(1.0)
    node.answer = None
    node.change(3)
    await pass_time(0.1)
    loop = asyncio.get_running_loop()
    resumed_at = loop.time() + 2 * PATIENCE_S
    time = loop.time
    loop.time = lambda: max(time(), resumed_at)  # type: ignore[method-assign]
    node.answer = RegisterNodeReply(b"cluster", "it was declared dead")
    try:
        await pass_time(PATIENCE_S)
    finally:
        loop.time = time  # type: ignore[method-assign]
    assert node.ended == ["refused by the gcs: it was declared dead"]
