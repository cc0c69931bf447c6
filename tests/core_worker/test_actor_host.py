"""The beginning and the end of an actor, in its process: in which order it ends, and what holds it up for how long.

``Home`` is that process; its calls, its dependants and its user thread are the test.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from minray.common.task_spec import ActorOptions
from minray.core_worker.execution.actor_host import CUT_OFF_S, LOOK_AGAIN_S, ActorHost
from minray.core_worker.records.received_task import Execution, ReceivedTask
from minray.exceptions import RaySystemError
from minray.protocol.actor import ReportActorEnding, ReportActorExit
from minray.protocol.base import DONE
from minray.protocol.core_worker import FAILED, OK, PushTaskReply
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply, WorkerDeath
from tests.core_worker.parts import OWN, address, id_of, packed, received, template
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import in_virtual_time, pass_time, turns

GRACE_S = 10
ACTOR_ID, CALLER = id_of("actor"), address("caller")
CONSTRUCTED = PushTaskReply(OK, (), 0)


class Home:
    """See the head of this file."""

    def __init__(self, **system: Any) -> None:
        self.asked = RecordingPeers()
        grace_ms = GRACE_S * 1000
        self.process = process_record(
            self.asked, user_code=self, processes=self, actor_graceful_shutdown_timeout_ms=grace_ms, **system
        )
        self.log: list[Any] = []
        """Events, in order."""
        self.reports: list[int] = []
        """Number of events before each report of failed tasks."""
        self.calls_run = False
        self.is_needed = False
        self.wants_exit = ""
        self.heeds_cancellation = False
        self._then: list[Callable[[], None]] = []
        others: Any = self
        def report() -> None:
            self.reports.append(len(self.log))

        self.host = ActorHost(self.process, others, others, others, self.cancel_children, self.is_through, report)
        receiver: Any = self.host.receiver
        receiver.stop_beginning, receiver.is_idle, receiver.on_death = self.stop_beginning, self.is_idle, self.on_death
        receiver.on_executed, receiver.unanswered = self.on_executed, self.unanswered

    @property
    def actor(self) -> Any:
        return self.host.receiver.actor

    # --- what it is made of

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        """In the user thread; over when the test says so."""
        work(*args)
        self._then.append(partial(then, *args))

    def execute(self, task: ReceivedTask) -> None:
        self.log.append("constructor")

    def shut_down_actor(self) -> None:
        self.log.append("clean-up")

    def on_executed(self, task: ReceivedTask) -> None:
        raise AssertionError("no call is made here")

    def stop_beginning(self) -> None:
        self.log.append("begins no more")

    def is_idle(self) -> bool:
        return not self.calls_run

    def is_through(self) -> bool:
        return not self.is_needed

    def unanswered(self) -> list[ReceivedTask]:
        return [self.running] if self.calls_run else []

    def make_leave(self, calls: list[ReceivedTask]) -> None:
        self.log.append(("leave", calls))

    def on_cancelled(self, task: ReceivedTask) -> None:
        self.log.append(("cancelled", task))
        self.calls_run = not self.heeds_cancellation

    def pack(self, task: ReceivedTask, error: Exception) -> bytes:
        return str(error).encode()

    def answer_error(self, task: ReceivedTask, status: int, error: bytes) -> None:
        self.log.append((task, status, error.decode()))

    def begin_to_end(self) -> None:
        self.log.append("lends its CPUs")

    def exit(self, code: int) -> None:
        self.log.append(f"exit {code}")

    def on_death(self, worker_id: bytes) -> None:
        self.log.append(worker_id)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        self.log.append((task_id, force))

    # --- what happens

    def task(self, name: str, **options: Any) -> ReceivedTask:
        return received(template(name, **options), actor_id=ACTOR_ID, lease_tag=1)

    def construct(self) -> ReceivedTask:
        task = self.task("A.__init__", actor=ActorOptions())
        self.running = self.task("A.work")
        self.host.run_constructor(task, lambda _task: self.log.append("constructed"))
        return task

    def live(self) -> None:
        """Run the constructor to its end."""
        task = self.construct()
        self.user_is_done()
        task.reply = CONSTRUCTED
        self.log.clear()

    def user_is_done(self) -> None:
        self._then.pop()()


@in_virtual_time
async def test_a_process_is_the_actors_when_its_constructor_begins() -> None:
    home = Home()
    task = home.construct()
    assert home.actor.actor_id == ACTOR_ID and home.actor.constructor is task and home.log == ["constructor"]
    home.user_is_done()
    assert home.log == ["constructor", "constructed"]


@pytest.mark.parametrize(
    ("status", "is_said", "is_wanted"), [(FAILED, True, True), (FAILED, False, False), (OK, False, True)]
)
def test_that_a_constructor_has_failed_is_said_before_it_is_answered(
    caplog: pytest.LogCaptureFixture, status: int, is_said: bool, is_wanted: bool
) -> None:
    @in_virtual_time
    async def story() -> None:
        home = Home(report_unseen_errors=is_wanted)
        task = home.construct()
        task.execution = Execution(status, [], packed(RaySystemError(reason="it was told to")), 0, False)
        home.user_is_done()
        assert home.log == ["constructor", "constructed"]

    story()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["it was told to" in each for each in said] == [True] * is_said


@in_virtual_time
async def test_g27_c2_an_actor_ends_step_by_step() -> None:
    home = Home()
    home.live()
    home.calls_run = home.is_needed = True
    home.host.end_actor("there is no handle of it any more")
    assert home.log == ["begins no more"] and home.actor.is_ending
    await pass_time(GRACE_S / 2)
    assert home.log == ["begins no more"], "running calls may finish"
    home.calls_run = False
    await pass_time(2 * LOOK_AGAIN_S)
    assert home.log == ["begins no more", "lends its CPUs"]
    home.is_needed = False
    await pass_time(2 * LOOK_AGAIN_S)
    assert home.log == ["begins no more", "lends its CPUs", "clean-up"] and home.asked.asked == []
    home.user_is_done()
    await turns()
    told = home.asked.take(ReportActorExit)
    assert told.request == ReportActorExit(ACTOR_ID, OWN.worker_id, "there is no handle of it any more")
    assert home.log[-1] == "clean-up"
    told.answer(DONE)
    await turns()
    assert home.log[3:] == ["exit 0"]


@in_virtual_time
async def test_an_actor_that_ends_while_it_is_constructed_answers_that_first() -> None:
    home = Home()
    task = home.construct()
    home.host.end_actor("exit_actor")
    await pass_time(1)
    assert home.log == ["constructor", "begins no more"]
    task.reply = CONSTRUCTED
    await pass_time(2 * LOOK_AGAIN_S)
    assert home.log[2:] == ["clean-up"]


@in_virtual_time
async def test_g28_those_who_depend_on_it_are_waited_for_only_so_long() -> None:
    home = Home()
    home.live()
    home.is_needed = True
    home.host.end_actor("exit_actor")
    await pass_time(GRACE_S - 0.1)
    assert home.log == ["begins no more", "lends its CPUs"]
    await pass_time(0.2)
    assert home.log[2:] == ["clean-up"]


@in_virtual_time
async def test_g28_c2_a_coroutine_that_never_ends_is_cancelled_and_the_end_goes_on() -> None:
    home = Home()
    home.live()
    home.calls_run = home.heeds_cancellation = True
    home.host.end_actor("exit_actor")
    await pass_time(GRACE_S - 0.1)
    assert home.log == ["begins no more"]
    await pass_time(0.2)
    assert home.log[1:] == [("leave", [home.running]), ("cancelled", home.running), "clean-up"]


@in_virtual_time
async def test_g28_c2_a_thread_that_never_ends_goes_with_its_process_which_cleans_up_nothing(caplog: Any) -> None:
    home = Home()
    home.live()
    home.calls_run = True
    home.host.end_actor("exit_actor")
    await pass_time(GRACE_S + CUT_OFF_S + 0.1)
    home.asked.take(ReportActorExit).answer(DONE)
    await turns()
    assert home.log[-2:] == [("cancelled", home.running), "exit 0"]
    assert f"ends A.work, which has not finished within {GRACE_S} s" in caplog.text


@in_virtual_time
async def test_g28_a_constructor_that_never_ends_goes_with_its_process() -> None:
    home = Home()
    home.construct()
    home.host.end_actor("exit_actor")
    await pass_time(GRACE_S + CUT_OFF_S + 0.1)
    home.asked.take(ReportActorExit).answer(DONE)
    await turns()
    assert home.log[-1] == "exit 0" and "clean-up" not in home.log


@in_virtual_time
async def test_g28_a_clean_up_that_never_ends_is_broken_off(caplog: Any) -> None:
    home = Home()
    home.live()
    home.host.end_actor("exit_actor")
    await pass_time(GRACE_S + 0.1)
    home.asked.take(ReportActorExit).answer(DONE)
    await turns()
    assert home.log[-2:] == ["clean-up", "exit 0"] and "the clean-up of an actor has not finished" in caplog.text


@in_virtual_time
async def test_c2_calls_that_come_too_late_fail_when_the_gcs_knows_that_the_actor_exits() -> None:
    home = Home()
    home.live()
    home.calls_run, home.wants_exit = True, "exit_actor was called"
    home.host.end_actor(home.wants_exit)
    queued, late = home.task("A.queued"), home.task("A.late")
    home.host.refuse(queued)
    await turns()
    assert home.log == ["begins no more"]
    home.asked.take(ReportActorEnding).answer(DONE)
    await turns()
    home.host.refuse(late)
    assert [(task, status) for task, status, _ in home.log[1:]] == [(queued, FAILED), (late, FAILED)]
    assert all("exit_actor was called" in error for _, _, error in home.log[1:])


@in_virtual_time
async def test_calls_of_an_actor_without_handles_are_not_answered() -> None:
    """The gcs tells the callers how the actor has ended."""
    home = Home()
    home.live()
    home.calls_run = True
    home.host.end_actor("there is no handle of it any more")
    home.host.refuse(home.task("A.late"))
    await turns()
    assert home.log == ["begins no more"]


@in_virtual_time
async def test_an_actor_on_which_nobody_depends_ends_at_once_and_lends_nothing() -> None:
    home = Home()
    home.live()
    home.host.end_actor("exit_actor")
    await turns()
    assert home.log == ["begins no more", "clean-up"]


@in_virtual_time
async def test_g33a_the_gcs_hears_that_an_actor_ends_before_the_caller_that_has_ended_it() -> None:
    for answer in (lambda asked: asked.answer(DONE), lambda asked: asked.fail(unreachable())):
        home = Home()
        home.live()
        home.host.announce_end(lambda home=home: home.log.append("answered"))  # type: ignore[misc]
        asked = home.asked.take(ReportActorEnding)
        assert asked.request == ReportActorEnding(ACTOR_ID, OWN.worker_id) and home.log == []
        answer(asked)
        await turns()
        assert home.log == ["answered"]


@in_virtual_time
async def test_an_actor_that_is_told_twice_to_end_ends_once() -> None:
    home = Home()
    home.live()
    for reason in ("exit_actor", "there is no handle of it any more"):
        home.host.end_actor(reason)
        await turns()
    home.user_is_done()
    await turns()
    assert home.asked.take(ReportActorExit).request == ReportActorExit(ACTOR_ID, OWN.worker_id, "exit_actor")
    assert home.log == ["begins no more", "clean-up"] and len(home.process.background) == 1
    assert home.reports == [2], "failed tasks are reported before the gcs hears of the end"


@in_virtual_time
async def test_where_no_actor_lives_none_is_ended() -> None:
    home = Home()
    home.host.end_actor("exit_actor")
    await pass_time(1)
    assert home.log == [] and not home.process.background


@in_virtual_time
async def test_it_ends_although_the_gcs_cannot_be_told() -> None:
    home = Home()
    home.live()
    home.host.end_actor("exit_actor")
    await turns()
    home.user_is_done()
    await turns()
    home.asked.take(ReportActorExit).fail(unreachable())
    await turns()
    assert home.log[-1] == "exit 0"


@in_virtual_time
async def test_a_caller_is_dead_if_the_gcs_has_its_certificate() -> None:
    home = Home()
    for _ in range(3):
        home.host.ask_about(CALLER)
    for asked, answer in zip(home.asked.take_all(GetWorkerDeath), (None, GetWorkerDeathReply(None), DEAD), strict=True):
        assert asked.request == GetWorkerDeath(CALLER.worker_id, CALLER.node_id) and home.log == []
        if answer is None:
            asked.fail(unreachable())
        else:
            asked.answer(answer)
    assert home.log == [CALLER.worker_id]


DEAD = GetWorkerDeathReply(WorkerDeath(CALLER.worker_id, CALLER.node_id, 5, "exit code 1"))


def test_children_of_a_call_are_cancelled_by_their_process() -> None:
    home = Home()
    home.host.cancel_children(id_of("call"), False)
    assert home.log == [(id_of("call"), False)]
