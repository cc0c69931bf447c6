"""The lives of worker processes, one by one: how they start, are asked and killed, and what is told of their ends.

``Nursery`` stands for the raylet around them, and for the operating system: a test decides when a process is there, and when
it ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.common.ids import lease_tag
from minray.common.task_rows import HEADER, ROW, ROWS_BEGIN
from minray.platform.base import ExitStatus, SpawnFailed
from minray.protocol.base import Address
from minray.protocol.core_worker import TASK_NAME_MARK, ExitWorker, ExitWorkerReply
from minray.protocol.state import WorkerTaskEvents
from minray.raylet.worker_processes import EXIT_TIMEOUT_S, Death, WorkerProcesses, describe_status
from tests.core_worker.peers import Asked, RecordingPeers, unreachable
from tests.platform_record import FakeHost, platform_record, raylet_config
from tests.rpc.fake_network import pass_time, run, turns

ID, LEASE = b"worker".ljust(16), b"lease".ljust(24)
ADDRESS = Address(ID, b"node".ljust(16), "sim:worker")


class FakeProcess:
    """One that lives until the test ends it; ``kills`` counts the signals."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.marks = bytearray(32)
        self.journal = memoryview(b"")
        self.kills = 0
        self.ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        self.kills += 1

    async def wait(self) -> ExitStatus:
        return await self.ended


class Nursery:
    """See the head of this file."""

    def __init__(self, **system: Any) -> None:
        self.peers = RecordingPeers()
        self.spawning: list[asyncio.Future[FakeProcess]] = []
        self.told: list[Any] = []
        """To the log monitor and the raylet, in order."""
        self.host = FakeHost()
        platform, config = platform_record(processes=self, host=self.host), raylet_config(b"node".ljust(16), **system)
        peers: Any = self.peers
        logs: Any = self
        self.workers = WorkerProcesses(platform, config, "sim:raylet", peers, logs, self.told.append, self.on_worker_exit)

    async def spawn(self, role: str, name: str, config: bytes, on_output: Any) -> FakeProcess:
        self.on_line = on_output
        assert role == "worker"
        self.spawning.append(asyncio.get_running_loop().create_future())
        return await self.spawning[-1]

    def on_output(self, worker_id: bytes, stream: str, line: str) -> None:
        self.told.append((stream, line))

    def on_started(self, worker_id: bytes, pid: int) -> None:
        self.told.append(("started", pid))

    def task_name(self, worker_id: bytes) -> str:
        return ""

    def on_exit(self, worker_id: bytes) -> None:
        self.told.append("all it has printed is here")

    def on_worker_exit(self, worker_id: bytes, death: Death) -> None:
        assert worker_id == ID and self.peers.reported_dead == [ID]
        self.told.append(death)

    async def start(self) -> FakeProcess:
        """A worker that has begun."""
        self.workers.start(ID)
        await turns()
        return await self.appear()

    async def appear(self) -> FakeProcess:
        process = FakeProcess(7)
        self.spawning.pop().set_result(process)
        await turns()
        return process

    async def ask(self, force: bool = False) -> Asked:
        """Ask the worker to end; what it has been asked."""
        self.workers.ask_to_exit(ID, ADDRESS, force, lambda: self.told.append("refused"))
        await turns()
        return self.peers.take(ExitWorker)

    def is_empty(self) -> bool:
        """Whether nothing is remembered of any worker."""
        workers = self.workers
        return not (workers._lives or workers._processes or workers._doomed or workers._asking)


def tell(story: Any) -> None:
    async def whole() -> None:
        await story(Nursery())

    run(whole)


def test_the_end_of_a_process_is_told_once_when_all_it_has_printed_is_here() -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        printed = [("stderr", f"{TASK_NAME_MARK}f"), ("stdout", "a result"), ("stderr", "last words")]
        for line in printed:
            nursery.on_line(*line)
        assert nursery.told == [("started", 7), *printed]
        process.ended.set_result(ExitStatus(3, None))
        await turns()
        death = Death(7, ExitStatus(3, None), bytes(16), ["last words"], "exit code 3")
        assert nursery.told[4:] == ["all it has printed is here", death]
        assert nursery.is_empty()
        nursery.workers.kill(ID)
        assert process.kills == 0 and nursery.is_empty()

    tell(story)


def test_the_cause_of_a_death_before_the_first_task_names_a_limit_that_is_nearly_reached() -> None:
    async def story(nursery: Nursery) -> None:
        nursery.host.limit = "ulimit -n"
        process = await nursery.start()
        process.ended.set_result(ExitStatus(3, None))
        await turns()
        assert nursery.told[-1].cause == "exit code 3 (ulimit -n)"

    tell(story)


def test_a_worker_that_could_not_be_started_has_died_of_that() -> None:
    async def story(nursery: Nursery) -> None:
        nursery.workers.start(ID)
        await turns()
        nursery.spawning.pop().set_exception(SpawnFailed("out of processes"))
        await turns()
        assert nursery.told[-1] == Death(0, None, bytes(16), [], "out of processes")
        assert nursery.is_empty()

    tell(story)


@pytest.mark.parametrize("fails", [False, True])
def test_one_that_is_killed_while_it_starts_is_killed_as_soon_as_it_is_there(fails: bool) -> None:
    async def story(nursery: Nursery) -> None:
        nursery.workers.start(ID)
        await turns()
        nursery.workers.kill(ID)
        if fails:
            nursery.spawning.pop().set_exception(SpawnFailed("out of processes"))
        else:
            process = await nursery.appear()
            assert process.kills == 1
            process.ended.set_result(ExitStatus(None, 9))
        await turns()
        assert nursery.is_empty()

    tell(story)


def test_one_that_was_not_killed_while_it_started_lives() -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        assert process.kills == 0
        nursery.workers.kill(ID)
        assert process.kills == 1

    tell(story)


@pytest.mark.parametrize("force", [False, True])
def test_a_worker_that_has_agreed_to_end_has_its_time(force: bool) -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        asked = await nursery.ask(force)
        assert asked.address == ADDRESS and asked.request.force is force
        asked.answer(ExitWorkerReply(True))
        await pass_time(EXIT_TIMEOUT_S - 0.1)
        assert process.kills == 0
        await pass_time(0.2)
        assert process.kills == 1

    tell(story)


def test_a_worker_that_ends_in_time_is_not_killed() -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        (await nursery.ask()).answer(ExitWorkerReply(True))
        await turns()
        process.ended.set_result(ExitStatus(0, None))
        await turns()
        assert nursery.is_empty() and len(asyncio.all_tasks()) == 1, "the story itself"

    tell(story)


def test_a_worker_that_refuses_lives_on() -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        (await nursery.ask()).answer(ExitWorkerReply(False))
        await pass_time(2 * EXIT_TIMEOUT_S)
        assert nursery.told[1:] == ["refused"] and process.kills == 0

    tell(story)


@pytest.mark.parametrize("silent", [False, True])
def test_a_worker_that_does_not_answer_is_killed(silent: bool) -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        asked = await nursery.ask()
        if not silent:
            asked.fail(unreachable())
            await turns()
        else:
            await pass_time(EXIT_TIMEOUT_S + 0.1)
        assert process.kills == 1 and nursery.told[1:] == []

    tell(story)


def test_at_the_end_all_are_killed_and_those_that_cannot_be_seen_to_die_are_given_up() -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        (await nursery.ask()).answer(ExitWorkerReply(True))
        await turns()
        closing = asyncio.get_running_loop().create_task(nursery.workers.close(), name="closing")
        await pass_time(EXIT_TIMEOUT_S - 0.1)
        assert process.kills == 1 and not closing.done()
        await pass_time(0.2)
        await closing
        await turns()
        assert process.kills == 1 and len(asyncio.all_tasks()) == 1, "the story itself"

    tell(story)


def test_the_end_waits_for_those_that_die() -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        closing = asyncio.get_running_loop().create_task(nursery.workers.close(), name="closing")
        await turns()
        assert process.kills == 1 and not closing.done()
        process.ended.set_result(ExitStatus(None, 9))
        await closing
        assert isinstance(nursery.told[-1], Death) and nursery.is_empty()

    tell(story)


def test_nobody_waits_where_there_are_no_workers() -> None:
    async def story(nursery: Nursery) -> None:
        await nursery.workers.close()

    tell(story)


def test_marks_count_for_the_lease_that_they_were_made_for() -> None:
    marks = (5).to_bytes(8, "little") + lease_tag(LEASE).to_bytes(8, "little")
    death = Death(7, ExitStatus(None, 9), marks, [], "signal SIGKILL")
    own = death.certificate(LEASE, "for memory", (1, 2), False, None, False)
    assert (own.started, own.signal, own.cause, own.doom) == (5, 9, "signal SIGKILL", "for memory")
    other = death.certificate(b"other".ljust(24), "", (0, 0), False, None, False)
    assert (other.started, other.cause, other.doom) == (0, "signal SIGKILL", "")


def test_one_that_ended_otherwise_was_not_killed() -> None:
    """The owner says that the channel broke, and wants the worker killed for that."""
    death = Death(7, ExitStatus(1, None), bytes(16), [], "exit code 1")
    assert death.certificate(LEASE, "its channel broke", (0, 0), False, None, False).doom == ""


@pytest.mark.parametrize(
    ("status", "text"),
    [(ExitStatus(3, None), "exit code 3"), (ExitStatus(None, 9), "signal SIGKILL"), (ExitStatus(None, 99), "signal 99")],
)
def test_how_a_process_ended_in_words(status: ExitStatus, text: str) -> None:
    assert describe_status(status) == text


@pytest.mark.parametrize("interval_ms", [1000, 0])
def test_what_a_dead_worker_has_run_is_reported_before_its_death_if_reports_are_wanted(interval_ms: int) -> None:
    async def story(nursery: Nursery) -> None:
        process = await nursery.start()
        row = ROW.pack(b"task".ljust(24), b"", 5, 6, 1, 0, 0, 0, b"f")
        process.journal = memoryview(HEADER.pack(ROWS_BEGIN + ROW.size, 9).ljust(ROWS_BEGIN, b"\0") + row)
        process.ended.set_result(ExitStatus(None, 9))
        await turns()
        events = [one for one in nursery.told if isinstance(one, WorkerTaskEvents)]
        assert isinstance(nursery.told[-1], Death) and len(events) == (interval_ms > 0)
        for one in events:
            assert (one.worker_id, one.pid, one.zero_us, one.rows, one.lost) == (ID, 7, 9, row, 0)

    async def whole() -> None:
        await story(Nursery(task_events_report_interval_ms=interval_ms))

    run(whole)
