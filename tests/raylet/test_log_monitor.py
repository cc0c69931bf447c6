"""Lines of workers that are kept, and lines that wait for a driver. A pretended driver answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from minray.node.worker_output import LinePrinter
from minray.platform.base import PlatformError
from minray.protocol.base import DONE, Address
from minray.protocol.core_worker import PrintLines
from minray.protocol.logs import mark_of
from minray.raylet.log_monitor import MAX_UNACKNOWLEDGED_BATCHES, LogMonitor
from tests.rpc.fake_network import in_virtual_time, turns

JOB, WORKER = b"job1", b"w" * 16
FIRST, SECOND, NOBODY = mark_of("f", b"1" * 24), mark_of("f", b"2" * 24, 1), mark_of("")
FIRST_ID = (b"1" * 24).hex()
DRIVER = Address(b"driver", b"node", "sim:driver")


class File:
    """Plays ``LogSink``: a file of a node whose disk may be full."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name

    def write(self, text: str, heading: str = "") -> None:
        if self._node.disk_full:
            raise OSError("no space left")
        self._node.files.setdefault(self._name, []).append(text)
        self._node.headings.append(heading)

    def close(self) -> None:
        self._node.closed.append(self._name)


class Node:
    """One worker, bound to a job, its files, and the way to its driver."""

    def __init__(self, keeps_files: bool = True) -> None:
        self.sent: list[PrintLines] = []
        self._on_answer: list[Callable[..., None]] = []
        self.files: dict[str, list[str]] = {}
        self.headings: list[str] = []
        """Beginning of a new file that would start with this piece of text, for each piece."""
        self.closed: list[str] = []
        self.disk_full = False
        driver: Any = self
        self.monitor = LogMonitor(driver, b"node", "1.2.3.4", "/logs", self._open if keeps_files else None)
        self.monitor.on_bound(WORKER, JOB)

    def to(self, address: Address) -> Node:
        return self

    def send(self, batch: PrintLines, on_answer: Callable[..., None]) -> None:
        self.sent.append(batch)
        self._on_answer.append(on_answer)

    def _open(self, name: str) -> Any:
        return File(self, name)

    def answer(self, error: PlatformError | None = None) -> None:
        self._on_answer.pop(0)(None if error else DONE, error, ())

    async def print(self, *lines: str, stream: str = "stdout") -> None:
        for line in lines:
            self.monitor.on_output(WORKER, stream, line)
        await turns(2)

    def flush(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.monitor.flush(JOB))


@in_virtual_time
async def test_who_flushes_waits_until_the_driver_has_it_all() -> None:
    node = Node()
    await node.monitor.flush(JOB)
    node.monitor.on_job(JOB, DRIVER, True)
    node.monitor.on_output(WORKER, "stdout", "one")
    flushing = [node.flush(), node.flush()]
    await node.print("two", stream="stderr")
    flushing[1].cancel()
    assert [batch.lines for batch in node.sent] == [[("", "one", "")], [("", "two", "")]]
    node.answer()
    await turns(2)
    assert not flushing[0].done()
    node.answer()
    await flushing[0]
    await node.monitor.flush(JOB)


@in_virtual_time
async def test_who_flushes_waits_for_what_arrives_in_the_same_turn() -> None:
    node = Node()
    flushing = node.flush()
    asyncio.get_running_loop().call_soon(node.monitor.on_job, JOB, DRIVER, True)
    asyncio.get_running_loop().call_soon(node.monitor.on_output, WORKER, "stdout", "one")
    await turns(5)
    assert len(node.sent) == 1 and not flushing.done()
    node.answer()
    await flushing


@in_virtual_time
async def test_lines_wait_for_a_job_that_the_gcs_has_not_told_of_yet() -> None:
    node = Node()
    await node.print("early")
    assert node.sent == []
    node.monitor.on_job(JOB, DRIVER, True)
    assert [batch.lines for batch in node.sent] == [[("", "early", "")]]


@pytest.mark.parametrize("ends", ["driver", "job"])
@in_virtual_time
async def test_when_the_driver_is_gone_nothing_waits_for_it(ends: str) -> None:
    node = Node()
    node.monitor.on_job(JOB, DRIVER, True)
    await node.print(*(f"{number}" for number in range(MAX_UNACKNOWLEDGED_BATCHES)))
    for number in range(2 * MAX_UNACKNOWLEDGED_BATCHES):
        await node.print("even" if number % 2 else "odd", stream="stderr" if number % 2 else "stdout")
    sent = len(node.sent)
    assert sent == MAX_UNACKNOWLEDGED_BATCHES
    flushing = node.flush()
    await turns(2)
    if ends == "job":
        node.monitor.on_job(JOB, DRIVER, False)
    for _ in range(sent):
        assert not flushing.done()
        node.answer(PlatformError("gone") if ends == "driver" else None)
    await flushing
    await node.print("late")
    assert len(node.sent) == sent


@in_virtual_time
async def test_files_are_closed_with_their_worker() -> None:
    node = Node()
    node.monitor.on_started(WORKER, 7)
    await node.print("one")
    await node.print("two", stream="stderr")
    node.monitor.on_exit(WORKER)
    node.monitor.on_exit(WORKER)
    names = [f"worker-{WORKER.hex()}-{JOB.hex()}-7.{suffix}" for suffix in ("out", "err")]
    assert node.files == dict(zip(names, (["one\n"], ["two\n"]), strict=True)) and node.closed == names


@in_virtual_time
async def test_a_mark_costs_no_write_and_is_repeated_only_when_it_changes() -> None:
    """One write for each line, as without marks; and a rotation at any line would keep what the line belongs to."""
    node = Node()
    await node.print(FIRST, "early")
    node.monitor.on_started(WORKER, 7)
    await node.print("one", FIRST, "two", SECOND, NOBODY, "three", NOBODY, SECOND, FIRST, "four")
    (texts,) = node.files.values()
    assert texts == [f"{FIRST}\nearly\n", "one\n", "two\n", f"{NOBODY}\nthree\n", f"{FIRST}\nfour\n"]
    assert node.headings == [f"{mark}\n" for mark in (FIRST, FIRST, FIRST, NOBODY, FIRST)]
    node.monitor.on_job(JOB, DRIVER, True)
    ended = [("f", "early", FIRST_ID), ("f", "one", FIRST_ID), ("f", "two", FIRST_ID)]
    assert node.sent[0].lines == [*ended, ("", "three", ""), ("f", "four", FIRST_ID)]


@in_virtual_time
async def test_a_full_disk_is_complained_about_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.disk_full = True
    node.monitor.on_started(WORKER, 7)
    await node.print("one", "two", "three")
    assert caplog.text.count("the output of workers cannot be kept in /logs: no space left") == 1
    node.monitor.on_exit(WORKER)


@in_virtual_time
async def test_a_node_without_files_keeps_nothing() -> None:
    node = Node(keeps_files=False)
    await node.print("before its pid is known")
    node.monitor.on_started(WORKER, 7)
    await node.print("after")
    assert node.files == {} and node.monitor._sources[WORKER].stdout.early == []


@in_virtual_time
async def test_a_worker_that_has_the_pid_of_a_dead_one_is_heard() -> None:
    node, shown = Node(), []
    node.monitor.on_job(JOB, DRIVER, True)
    printer = LinePrinter(0.0, lambda: 0.0)
    printer._print = lambda lines, is_stderr, context: shown.extend(lines)  # type: ignore[method-assign]
    for worker_id in (WORKER, b"x" * 16):
        node.monitor.on_bound(worker_id, JOB)
        node.monitor.on_started(worker_id, 7)
        for line in ("one", "two"):
            node.monitor.on_output(worker_id, "stdout", line)
            await turns(2)
        node.monitor.on_exit(worker_id)
    for batch in (*node.sent, node.sent[-1]):
        printer.show(batch)
    assert shown == [f"(worker pid=7) {line}" for line in ("one", "two", "one", "two")]
