"""The lease client: how it treats answers of raylets and workers, and their silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import PendingTask, PreparedTemplate
from minray.core_worker.submission.lease_client import REJECTED_DELAY_S, LeaseClient
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import RayError, RaySystemError
from minray.platform.base import RecordTooLarge, RemoteFailure
from minray.protocol.base import DONE
from minray.protocol.core_worker import NOT_STARTED, OK, PushTask, PushTaskReply, ReclaimTasks, Rerun
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply
from minray.protocol.raylet import (
    CANCELLED,
    ENVIRONMENT_FAILED,
    GRANTED,
    REJECTED,
    SPILLBACK,
    UNSCHEDULABLE,
    CancelWorkerLease,
    GetLeaseFailure,
    LeaseFailure,
    LeaseReply,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from minray.rpc.patient_caller import ASK_AGAIN_S
from tests.core_worker.parts import OWN, address, lease_ids, pending, prepare
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import pass_time, run, turns

WORKER, RAYLET = address("worker"), address("raylet-2")
IDLE = msgspec.structs.replace(address("idle"), node_id=WORKER.node_id)
SHORT = 100.0


class Scene:
    """A lease client with its submitter; this object hears how tasks end."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        self.tasks = TaskManager(None)
        self.client = LeaseClient(process_record(self.peers), self.tasks, self, lease_ids(), lambda dependencies: None)
        self.submitter = self.client.submitter
        self.ended: list[tuple[PendingTask, int]] = []
        self.died: list[tuple[PendingTask, LeaseFailure | None]] = []
        self.have_arguments = False
        """Whether tasks that did not start have all their arguments."""
        self.preempted: list[PendingTask] = []
        """Those of them that died with a preempted node."""
        self.unstarted: list[list[PendingTask]] = []
        self.missing: list[bytes] = []
        self.failed: list[tuple[PendingTask, RayError]] = []
        self.unschedulable: list[LeaseReply] = []

    def submit(self, prepared: PreparedTemplate, count: int = 1) -> list[PendingTask]:
        made = [pending(prepared) for _ in range(count)]
        for task in made:
            self.tasks.add_task(task)
            self.submitter.on_task_ready(task, self.client._now())
        self.submitter.on_turn(self.client._now())
        return made

    def granted(self, count: int = 1) -> list[PendingTask]:
        """Get ``count`` short tasks onto one worker. Their pushes are asked."""
        tasks = self.submit(prepare(mean_us=SHORT), count)
        requests, self.peers.asked = self.peers.asked, []
        requests[0].answer(LeaseReply(GRANTED, WORKER, pid=5))
        for request in requests[1:]:
            assert isinstance(self.peers.asked.pop().request, CancelWorkerLease)
            request.answer(LeaseReply(CANCELLED))
        assert [type(asked.request) for asked in self.peers.asked] == [PushTask] * count
        return tasks

    # --- Outcomes

    def on_reply(self, task: PendingTask, reply: PushTaskReply, buffers: Sequence[Any]) -> None:
        assert task.worker is None, "it may be made again, and pushed to another one at once"
        self.ended.append((task, reply.status))
        self.tasks.move(task, "FINISHED")

    def on_died(
        self, task: PendingTask, worker: LeasedWorker, failure: LeaseFailure | None, *, is_preempted: bool = False
    ) -> None:
        self.preempted += [task] * is_preempted
        self.died.append((task, failure))

    def on_unstarted(self, tasks: list[PendingTask]) -> list[PendingTask]:
        self.unstarted.append(tasks)
        return tasks if self.have_arguments else []

    def finish_with_error(self, task: PendingTask, error: RayError) -> None:
        self.failed.append((task, error))
        self.tasks.move(task, "FAILED")

    def on_missing(self, object_ids: Sequence[bytes]) -> None:
        self.missing.extend(object_ids)

    def rerun(self, task: PendingTask) -> Rerun:
        return Rerun(list(task.unwanted), 0, [])

    def on_unschedulable(self, tasks: Sequence[PendingTask], reply: LeaseReply) -> None:
        self.unschedulable.append(reply)
        for task in tasks:
            self.tasks.move(task, "FAILED")


@pytest.mark.parametrize("max_retries", [0, 1, -1])
def test_g89_a_request_says_whether_its_task_can_run_again(max_retries: int) -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare(max_retries=max_retries))
        assert scene.peers.take(RequestWorkerLease).request.retriable == (max_retries != 0)

    run(story)


def test_a_task_is_one_request_one_push_and_one_return() -> None:
    async def story() -> None:
        scene = Scene()
        (task,) = scene.submit(prepare())
        asked = scene.peers.take(RequestWorkerLease)
        assert asked.address is None and asked.request.owner == OWN
        asked.answer(LeaseReply(GRANTED, WORKER, gpu_ids=(2,)))
        push = scene.peers.take(PushTask)
        assert push.address == WORKER and push.request.lease_id == asked.request.lease_id
        assert (push.request.task_id, push.request.sequence, push.request.gpu_ids) == (task.task_id, 1, (2,))
        push.answer(PushTaskReply(OK, (), 5))
        assert scene.ended == [(task, OK)] and scene.peers.asked == []
        await pass_time(0.1)
        returned = scene.peers.take(ReturnWorkerLease)
        assert (returned.address, returned.request.kill_worker) == (None, False)

    run(story)


def test_a_task_that_is_too_large_to_be_pushed_fails_alone() -> None:
    """The worker has not heard of that task, and runs the next one."""

    async def story() -> None:
        scene = Scene()
        first, large, last = scene.granted(3)
        pushes, scene.peers.asked = scene.peers.asked, []
        pushes[1].fail(RecordTooLarge("too large"))
        ((failed, error),) = scene.failed
        assert failed is large and isinstance(error, RaySystemError) and "too large" in str(error)
        for push in (pushes[0], pushes[2]):
            push.answer(PushTaskReply(OK, (), 5))
        assert scene.ended == [(first, OK), (last, OK)] and scene.died == []
        (later,) = scene.submit(prepare(mean_us=SHORT))
        push = scene.peers.take(PushTask)
        assert (push.request.sequence, push.request.acknowledged) == (4, 3) and push.request.task_id == later.task_id

    run(story)


def test_spillback_goes_to_the_other_raylet_and_so_does_the_return() -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(SPILLBACK, raylet=RAYLET))
        asked = scene.peers.take(RequestWorkerLease)
        assert asked.address == RAYLET and asked.request.grant_or_reject
        asked.answer(LeaseReply(GRANTED, WORKER))
        scene.peers.take(PushTask).answer(PushTaskReply(OK, (), 5))
        await pass_time(0.1)
        assert scene.peers.take(ReturnWorkerLease).address == RAYLET

    run(story)


def test_a_rejected_request_begins_again_at_home_after_a_pause() -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(SPILLBACK, raylet=RAYLET))
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(REJECTED))
        await turns()
        assert scene.peers.asked == []
        await pass_time(REJECTED_DELAY_S)
        asked = scene.peers.take(RequestWorkerLease)
        assert asked.address is None and not asked.request.grant_or_reject

    run(story)


def test_l5_a_request_that_was_cancelled_by_its_raylet_is_made_again_after_a_pause() -> None:
    """The job has finished, and this process has not ended yet."""

    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(CANCELLED, reason="its job has finished"))
        await turns()
        assert scene.peers.asked == []
        await pass_time(REJECTED_DELAY_S)
        scene.peers.take(RequestWorkerLease)

    run(story)


def test_a_raylet_that_is_lost_sends_the_request_home_after_a_pause() -> None:
    """The local raylet may go on to believe for a minute that it lives."""

    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(SPILLBACK, raylet=RAYLET))
        lost = scene.peers.take(RequestWorkerLease)
        lost.fail(unreachable())
        cancel, returned = scene.peers.asked
        scene.peers.asked.clear()
        await pass_time(REJECTED_DELAY_S)
        again = scene.peers.take(RequestWorkerLease)
        assert again.address is None and again.request.lease_id != lost.request.lease_id
        assert cancel.request == CancelWorkerLease(lost.request.lease_id), "it may still wait there"
        assert isinstance(returned.request, ReturnWorkerLease), "or may have been granted"
        assert returned.request.lease_id == lost.request.lease_id and not returned.request.kill_worker
        assert cancel.address == returned.address == RAYLET

    run(story)


def test_a_lease_goes_back_to_a_raylet_however_long_that_is_out_of_reach() -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(SPILLBACK, raylet=RAYLET))
        scene.peers.take(RequestWorkerLease).answer(LeaseReply(GRANTED, WORKER))
        scene.peers.take(PushTask).answer(PushTaskReply(OK, (), 5))
        await pass_time(0.1)
        for _ in range(5):
            returned = scene.peers.take(ReturnWorkerLease)
            returned.fail(unreachable(is_certain=False))
            scene.peers.take(GetWorkerDeath).answer(GetWorkerDeathReply(None))
            await pass_time(2 * ASK_AGAIN_S)
        scene.peers.take(ReturnWorkerLease).answer(DONE)
        await pass_time(2 * ASK_AGAIN_S)
        assert scene.peers.asked == []

    run(story)


def test_a_request_that_failed_is_repeated_after_a_pause() -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.take(RequestWorkerLease).fail(RemoteFailure("internal", "oops"))
        await turns()
        assert scene.peers.asked == []
        await pass_time(2)
        scene.peers.take(RequestWorkerLease)

    run(story)


def test_nothing_is_asked_of_a_local_raylet_that_is_dead() -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare())
        scene.peers.local.death = unreachable()
        scene.peers.take(RequestWorkerLease).fail(unreachable())
        await pass_time(10)
        assert scene.peers.asked == []

    run(story)


@pytest.mark.parametrize("kind", [UNSCHEDULABLE, ENVIRONMENT_FAILED])
def test_what_can_never_be_granted_is_told_once(kind: int) -> None:
    async def story() -> None:
        scene = Scene()
        scene.submit(prepare(), count=2)
        first, second = scene.peers.asked
        scene.peers.asked.clear()
        for asked in (first, second):
            asked.answer(LeaseReply(kind, reason="never"))
        assert [reply.reason for reply in scene.unschedulable] == ["never"] * 2 and scene.tasks.tasks == {}
        assert [type(asked.request) for asked in scene.peers.asked] == [CancelWorkerLease]

    run(story)


def test_unstarted_tasks_go_back_together_in_their_order() -> None:
    async def story() -> None:
        scene = Scene()
        tasks = scene.granted(4)
        first, *others = scene.peers.asked
        for push in others:
            push.answer(PushTaskReply(NOT_STARTED, (), 0))
        assert scene.unstarted == []
        await turns()
        assert scene.unstarted == [tasks[1:]]
        first.answer(PushTaskReply(OK, (), 5))
        assert scene.ended == [(tasks[0], OK)]

    run(story)


def test_unstarted_tasks_that_have_their_arguments_are_pushed_again_in_their_order() -> None:
    async def story() -> None:
        scene = Scene()
        scene.have_arguments = True
        tasks = scene.granted(3)
        pushes, scene.peers.asked = scene.peers.asked, []
        for push in pushes:
            push.answer(PushTaskReply(NOT_STARTED, (), 0))
        await turns()
        assert scene.unstarted == [tasks]
        again = [asked.request.task_id for asked in scene.peers.take_all(PushTask)]
        assert again == [task.task_id for task in tasks][: len(again)] and again

    run(story)


def test_what_died_with_a_preempted_node_is_told_as_such() -> None:
    async def story() -> None:
        scene = Scene()
        (task,) = scene.granted()
        scene.submitter.on_node_leaving(WORKER.node_id, scene.client._now())
        scene.client.on_node_death(WORKER.node_id)
        assert scene.died == [(task, None)] and scene.preempted == [task]

    run(story)


def test_g67_a_task_that_is_given_back_for_a_lost_argument_says_which_before_it_is_queued_again() -> None:
    async def story() -> None:
        scene = Scene()
        (task,) = scene.granted()
        scene.peers.asked[0].answer(PushTaskReply(NOT_STARTED, (), 0, missing=(b"lost",)))
        assert (scene.missing, scene.unstarted) == ([b"lost"], [])
        await turns()
        assert scene.unstarted == [[task]]

    run(story)


def test_a_late_answer_of_a_worker_that_was_given_up_does_not_count() -> None:
    async def story() -> None:
        scene = Scene()
        scene.granted(2)
        first, second = scene.peers.asked
        first.fail(unreachable())
        second.answer(PushTaskReply(OK, (), 5))
        assert scene.ended == []

    run(story)


def test_tasks_are_asked_back_from_their_worker() -> None:
    async def story() -> None:
        scene = Scene()
        scene.granted()
        (worker,) = scene.submitter.leased_workers()
        scene.peers.asked.clear()
        scene.client.reclaim(worker)
        asked = scene.peers.take(ReclaimTasks)
        assert asked.address == WORKER and asked.request.lease_id == worker.lease_id
        asked.answer(DONE)

    run(story)


# --- death


def lose_worker(scene: Scene) -> Any:
    """Every push fails; returns the question to the raylet."""
    pushes, scene.peers.asked = scene.peers.asked, []
    for push in pushes:
        push.fail(unreachable())
    returned = scene.peers.take(ReturnWorkerLease)
    assert returned.request.kill_worker


def test_g16_a_raylet_knows_which_tasks_had_begun() -> None:
    """Those up to the mark may have run; the others are pushed elsewhere for free."""

    async def story() -> None:
        scene = Scene()
        tasks = scene.granted(4)
        lose_worker(scene)
        await turns()
        failure = LeaseFailure(known=True, dead=True, started=2, signal=9)
        scene.peers.take(GetLeaseFailure).answer(failure)
        await turns()
        assert scene.died == [(task, failure) for task in tasks[:2]] and scene.unstarted == [tasks[2:]]

    run(story)


@pytest.mark.parametrize("failure", [LeaseFailure(known=False, dead=False, started=1), LeaseFailure(known=True, dead=True)])
def test_without_a_mark_every_task_may_have_run(failure: LeaseFailure) -> None:
    async def story() -> None:
        scene = Scene()
        tasks = scene.granted(3)
        lose_worker(scene)
        await turns()
        scene.peers.take(GetLeaseFailure).answer(failure)
        await turns()
        assert scene.died == [(task, failure) for task in tasks] and scene.unstarted == []

    run(story)


def test_g17_without_a_raylet_the_node_is_dead() -> None:
    async def story() -> None:
        scene = Scene()
        (task,) = scene.granted()
        lose_worker(scene)
        await turns()
        scene.peers.take(GetLeaseFailure).fail(unreachable())
        await turns()
        assert scene.died == [(task, None)]

    run(story)


def test_g17_who_hears_of_the_death_of_a_node_pushes_nothing_to_it_any_more() -> None:
    """Neither to a worker that is busy there nor to an idle one; and nobody there is asked what had begun."""

    async def story() -> None:
        scene = Scene()
        first, second = scene.submit(prepare(), 2)
        for request, worker in zip(scene.peers.take_all(RequestWorkerLease), (WORKER, IDLE), strict=True):
            request.answer(LeaseReply(GRANTED, worker, pid=5))
        busy, idle = scene.peers.take_all(PushTask)
        idle.answer(PushTaskReply(OK, (), 5))
        scene.client.on_node_death(WORKER.node_id)
        assert [died for died, _ in scene.died] == [first] and scene.ended == [(second, OK)]
        assert scene.submitter.leased_workers() == [] and len(scene.peers.take_all(ReturnWorkerLease)) == 2
        busy.fail(unreachable())
        await turns()
        assert scene.peers.asked == [] and scene.died == [(first, None)]
        scene.granted()
        scene.client.on_node_death(address("elsewhere").node_id)
        assert len(scene.submitter.leased_workers()) == 1

    run(story)


def test_closing_ends_all_enquiries() -> None:
    def enquiries() -> list[Any]:
        return [task for task in asyncio.all_tasks() if task.get_name().startswith("judge")]

    async def story() -> None:
        scene = Scene()
        scene.granted()
        lose_worker(scene)
        await turns()
        assert len(enquiries()) == 1
        scene.client.close()
        await turns()
        assert enquiries() == [] and scene.died == scene.unstarted == []

    run(story)
