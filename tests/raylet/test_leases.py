"""Leases from request to end, as an owner sees them, and that messages may come twice, late or in another order."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from minray.common.task_spec import STRATEGY_AFFINITY, SchedulingStrategy
from minray.protocol.gcs import FinishJob
from minray.protocol.raylet import (
    CANCELLED,
    GRANTED,
    GROUP_REMOVED,
    MAX_CALLS,
    REJECTED,
    SPILLBACK,
    UNSCHEDULABLE,
    CancelWorkerLease,
    Dependency,
    ExplainLease,
    GetLeaseFailure,
    GetNodeStats,
    KillWorker,
    LeaseReply,
    RegisterDriver,
)
from minray.raylet import refusals
from minray.raylet.killable_workers import KillableWorkers
from tests.raylet.scene import Scene, scenario
from tests.rpc.recording_call import RecordingCall

# --- Granting ----------------------------------------------------------------------------------------------------------


@scenario()
async def test_a_lease_is_granted_and_its_worker_used_again(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    worker = scene.worker(reply)
    assert (reply.kind, reply.pid, reply.contended) == (GRANTED, worker.pid, False)
    await scene.give_back(lease_id)
    _, again = await scene.lease()
    assert scene.worker(again) is worker


@scenario(cpus=1)
async def test_g99_a_second_request_waits_for_the_first_lease_to_end(scene: Scene) -> None:
    lease_id, _ = await scene.lease()
    waiting = scene.ask(scene.request())
    await scene.settle()
    assert not waiting.done()
    await scene.give_back(lease_id)
    assert (await waiting).kind == GRANTED


@scenario(nodes={"head": {"CPU": 1, "GPU": 2}})
async def test_gpus_are_named_in_the_grant(scene: Scene) -> None:
    _, one = await scene.lease({"GPU": 1})
    _, other = await scene.lease({"GPU": 1})
    assert [one.gpu_ids, other.gpu_ids] == [(0,), (1,)]


@scenario(nodes={"head": {"CPU": 2, "GPU": 2}})
async def test_a_worker_that_was_shown_gpus_gets_no_lease_of_others(scene: Scene) -> None:
    lease_id, half = await scene.lease({"GPU": 0.5})
    await scene.give_back(lease_id)
    _, whole = await scene.lease({"GPU": 1})
    assert scene.worker(whole) is scene.worker(half) and whole.gpu_ids == half.gpu_ids == (0,)
    lease_id, other = await scene.lease({"GPU": 1})
    await scene.give_back(lease_id)
    _, none = await scene.lease({"CPU": 1})
    assert other.gpu_ids == (1,) and scene.worker(none) not in (scene.worker(other), scene.worker(half))


@scenario(cpus=1)
async def test_a_grant_says_that_others_wait_and_owners_are_asked_for_idle_leases(scene: Scene) -> None:
    owner = await scene.other_owner(b"p" * 16)
    first_id, first = await scene.lease()
    assert not first.contended
    second, third = scene.request(), scene.request(owner=owner)
    asked = scene.ask(second), scene.ask(third)
    await scene.until(lambda: scene.revoked >= 2)
    await scene.give_back(first_id)
    answered = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().contended for task in answered[0]] == [True]


@scenario(cpus=1)
async def test_an_owner_that_does_not_answer_is_not_asked_again(scene: Scene) -> None:
    scene.is_busy = True
    await scene.lease()
    scene.ask(scene.request(owner=await scene.other_owner(b"p" * 16)))
    await scene.settle(5)
    assert scene.revoked == 1


@scenario(cpus=1)
async def test_the_owner_whose_lease_is_wanted_is_asked_for_it(scene: Scene) -> None:
    """Not the one who came first."""
    first = await scene.other_owner(b"p" * 16)
    await scene.lease({}, owner=first)
    await scene.lease()
    scene.ask(scene.request(owner=first))
    await scene.until(lambda: scene.revoked)


# --- Twice, late, in another order -------------------------------------------------------------------------------------


@scenario()
async def test_g112_a_repeated_request_grants_one_worker(scene: Scene) -> None:
    request = scene.request()
    first, second = scene.ask(request), scene.ask(request)
    granted = await first
    assert (await second) == granted
    assert await scene.ask(request) == granted
    assert (await scene.raylet().call(GetNodeStats())).available["CPU"] == 10_000


@scenario(cpus=1)
async def test_g112_a_repeated_lease_request_waits_for_the_same_worker(scene: Scene) -> None:
    lease_id, first = await scene.lease()
    request = scene.request()
    waiting = [scene.ask(request), scene.ask(request)]
    await scene.settle()
    await scene.give_back(lease_id)
    granted, again = await asyncio.gather(*waiting)
    assert granted == again and granted.worker == first.worker


@scenario()
async def test_g112_a_request_that_comes_after_the_return_is_not_granted_again(scene: Scene) -> None:
    request = scene.request()
    await scene.ask(request)
    await scene.give_back(request.lease_id)
    assert (await scene.ask(request)).kind == CANCELLED


@scenario(cpus=1)
async def test_g112_a_repeated_return_never_frees_somebody_elses_lease(scene: Scene) -> None:
    """Ray's leases were once named by their worker (its pull request 55469); the next lease has the same worker."""
    first_id, first = await scene.lease()
    await scene.give_back(first_id)
    second_id, second = await scene.lease()
    assert second.worker == first.worker
    await scene.give_back(first_id)
    await scene.give_back(first_id, kill_worker=True)
    third = scene.ask(scene.request())
    await scene.settle()
    assert not third.done() and scene.worker(second).is_alive
    await scene.give_back(second_id)
    assert (await third).kind == GRANTED


@scenario(cpus=1)
async def test_g112_a_cancel_that_comes_before_its_request_still_cancels_it(scene: Scene) -> None:
    request = scene.request()
    await scene.raylet().call(CancelWorkerLease(request.lease_id))
    assert (await scene.ask(request)).kind == CANCELLED
    assert (await scene.lease())[1].kind == GRANTED


@scenario(cpus=1)
async def test_a_waiting_request_can_be_cancelled_and_a_granted_one_cannot(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    request = scene.request()
    waiting, again = scene.ask(request), scene.ask(request)
    await scene.raylet().call(CancelWorkerLease(request.lease_id))
    assert [(await waiting).kind, (await again).kind] == [CANCELLED, CANCELLED]
    await scene.raylet().call(CancelWorkerLease(lease_id))
    await scene.settle()
    assert scene.worker(reply).is_alive
    assert (await scene.raylet().call(GetLeaseFailure(lease_id, 0.1))).dead is False


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_g112_a_repeated_request_is_spilled_to_the_same_node(scene: Scene) -> None:
    await scene.lease()
    request = scene.request()
    spilled = await scene.ask(request)
    assert spilled.kind == SPILLBACK and spilled.raylet == scene.raylets["other"].address
    assert await scene.ask(request) == spilled


@scenario(cpus=1, num_prestart_workers=0)
async def test_what_a_cancelled_request_was_given_goes_at_once_to_the_next(scene: Scene) -> None:
    lease_id, reply = await scene.lease(env="/b")
    await scene.give_back(lease_id)
    scene.silent_starts = 1
    no_worker_yet = scene.request(env="/a")
    cancelled = scene.ask(no_worker_yet)
    next_one = scene.request(env="/b")
    waiting = scene.ask(next_one)
    await scene.nap(0.1)
    broker = scene.raylets["head"]._broker
    assert broker.states.get(next_one.lease_id) == "QUEUED"
    broker.cancel(no_worker_yet.lease_id)
    assert broker.states.get(next_one.lease_id) == "GRANTED"
    assert (await cancelled).kind == CANCELLED and (await waiting).worker == reply.worker


@scenario(cpus=1, num_prestart_workers=0)
async def test_the_worker_that_starts_for_a_cancelled_request_is_the_next_ones(scene: Scene) -> None:
    request = scene.request()
    cancelled = scene.ask(request)
    await scene.until(lambda: scene.spawns)
    assert not scene.workers  # it has not registered
    scene.raylets["head"]._broker.cancel(request.lease_id)
    assert (await cancelled).kind == CANCELLED
    await scene.until(lambda: scene.workers)
    await scene.settle()
    assert (await scene.lease())[1].kind == GRANTED and scene.spawns == 1


# --- Arguments ---------------------------------------------------------------------------------------------------------


@scenario()
async def test_g86_arguments_are_let_go_with_their_lease_and_a_blocked_one_holds_nobody_up(scene: Scene) -> None:
    store = scene.raylets["head"].store
    requests, copies = [], []
    for object_id in (b"x" * 28, b"y" * 28):
        copy = store.table.create(object_id, 0, 400_000, scene.address, b"", False)
        assert copy is not None
        store.seal(copy)
        copies.append(copy)
        argument = Dependency(object_id, scene.address, 400_000)
        requests.append(msgspec.structs.replace(scene.request(), dependencies=[argument]))
    first = scene.worker(await scene.ask(requests[0]))
    second = scene.ask(requests[1])
    await scene.settle()
    assert not second.done()  # both together are more than 70 % of the store
    broker = scene.raylets["head"]._broker
    broker.on_blocked(first.config.worker_id, 1, True)
    assert broker.states.get(requests[1].lease_id) == "GRANTED"
    assert [len(copy.pins) for copy in copies] == [1, 1]
    for request in requests:
        await scene.give_back(request.lease_id)
    assert [len(copy.pins) for copy in copies] == [0, 0]


@scenario(num_prestart_workers=0)
async def test_a_lease_is_granted_when_its_arguments_have_come(scene: Scene) -> None:
    store = scene.raylets["head"].store
    copy = store.table.create(b"x" * 28, 0, 1000, scene.address, b"", False)
    assert copy is not None
    request = msgspec.structs.replace(scene.request(), dependencies=[Dependency(b"x" * 28, scene.address, 1000)])
    scene.ask(request)
    await scene.settle()
    states = scene.raylets["head"]._broker.states
    assert states.get(request.lease_id) == "FETCHING" and scene.spawns == 0
    store.seal(copy)
    await scene.nap(0)
    assert states.get(request.lease_id) == "ALLOCATED"


# --- The death of workers ----------------------------------------------------------------------------------------------


@scenario(cpus=1)
async def test_a_dead_workers_lease_ends_with_a_certificate(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    worker = scene.worker(reply)
    worker.start_task(lease_id, 7)
    worker.print("\x1etask\nit is over\n", "stderr")
    failure = asyncio.get_running_loop().create_task(scene.raylet().call(GetLeaseFailure(lease_id, 60)), name="failure")
    await scene.settle()
    assert not failure.done()
    worker.exit(3)
    certificate = await failure
    assert (certificate.known, certificate.dead, certificate.started, certificate.pid) == (True, True, 7, worker.pid)
    assert (certificate.exit_code, certificate.signal, certificate.cause) == (3, None, "exit code 3")
    assert certificate.stderr_tail == ["it is over"]
    assert await scene.raylet().call(GetLeaseFailure(lease_id, 60)) == certificate
    assert (await scene.lease())[1].kind == GRANTED


@scenario(cpus=1)
async def test_marks_of_an_earlier_lease_say_nothing_about_this_one(scene: Scene) -> None:
    first_id, reply = await scene.lease()
    scene.worker(reply).start_task(first_id, 7)
    await scene.give_back(first_id)
    owner = await scene.other_owner(b"p" * 16)
    second_id, again = await scene.lease(owner=owner, lease_id=first_id[:8] + owner.worker_id[:12])
    assert again.worker == reply.worker
    scene.worker(again).exit(1)
    assert (await scene.raylet().call(GetLeaseFailure(second_id, 60))).started == 0


@scenario()
async def test_a_lease_that_nobody_knows_has_no_certificate(scene: Scene) -> None:
    assert (await scene.raylet().call(GetLeaseFailure(b"x" * 20, 60))).known is False
    lease_id, _ = await scene.lease()
    await scene.give_back(lease_id)
    failure = await scene.raylet().call(GetLeaseFailure(lease_id, 60))
    assert (failure.known, failure.dead) == (True, False)


@scenario(cpus=1)
async def test_g42_a_worker_is_killed_by_its_lease_and_only_by_that(scene: Scene) -> None:
    old_id, _ = await scene.lease()
    await scene.give_back(old_id)
    lease_id, reply = await scene.lease()
    await scene.raylet().call(KillWorker(old_id, "too late"))
    await scene.settle()
    assert scene.worker(reply).is_alive
    await scene.raylet().call(KillWorker(lease_id, "cancelled by force"))
    certificate = await scene.raylet().call(GetLeaseFailure(lease_id, 60))
    assert (certificate.signal, certificate.doom) == (9, "cancelled by force")


@scenario(cpus=1)
async def test_a_worker_given_back_as_broken_is_killed_before_its_resources_are_free(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    await scene.give_back(lease_id, kill_worker=True, reason="its channel broke")
    _, next_reply = await scene.lease()
    assert not scene.worker(reply).is_alive
    assert next_reply.worker != reply.worker
    assert (await scene.raylet().call(GetLeaseFailure(lease_id, 60))).doom == "its channel broke"


@scenario(cpus=1)
async def test_g99_what_a_worker_that_is_being_killed_holds_is_not_given_out(scene: Scene) -> None:
    lease_id, _ = await scene.lease()
    broker = scene.raylets["head"]._broker
    broker.give_back(lease_id, True, "its channel broke")
    assert (broker.local.resources.spare()["CPU"], broker.states.get(lease_id)) == (0, "ENDING")
    await scene.until(lambda: broker.local.resources.spare()["CPU"] == 10_000)


@scenario(cpus=1)
async def test_g23_a_worker_that_has_used_up_its_calls_is_not_leased_again_and_may_end_in_its_own_time(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    worker = scene.worker(reply)
    worker.refuses = True  # somebody still needs what it owns
    await scene.give_back(lease_id, kill_worker=True, reason=MAX_CALLS)
    _, next_reply = await scene.lease()
    assert next_reply.worker != reply.worker and worker.is_alive
    await scene.settle(5)
    assert worker.is_alive and worker.asked.count(False) > 2 and True not in worker.asked
    worker.refuses = False
    await scene.until(lambda: not worker.is_alive)


def uncounted(kind: str, worker_id: bytes) -> None:
    """Count no worker that is killed for memory."""


@scenario(cpus=2)
async def test_g89_who_may_be_killed_for_memory_and_what_its_owner_hears(scene: Scene) -> None:
    await scene.until(lambda: len(scene.alive()) == 2)
    request = msgspec.structs.replace(scene.request(), retriable=False)
    busy = scene.worker(await scene.ask(request))
    broker = scene.raylets["head"]._broker
    killable = KillableWorkers(broker.pool, broker.entries, lambda pid: 10 * pid, broker.kill_worker, uncounted)
    found = killable.candidates()
    assert found is not None
    idle, leased = sorted(found, key=lambda one: one.lease_id)
    assert (idle.lease_id, idle.retriable) == (b"", True)
    assert (leased.worker_id, leased.lease_id, leased.retriable) == (busy.config.worker_id, request.lease_id, False)
    assert [one.memory_bytes for one in (idle, leased)] == [10 * idle.pid, 10 * busy.pid]
    killable.kill(leased, "too little memory", 9, 10)
    assert killable.candidates() is None  # one at a time: its memory may be enough
    certificate = await scene.raylet().call(GetLeaseFailure(request.lease_id, 60))
    assert (certificate.memory_used, certificate.memory_total) == (9, 10)
    assert certificate.doom == "too little memory"
    killable.kill(idle, "too little memory", 9, 10)
    await scene.until(lambda: not scene.workers[idle.worker_id].is_alive)


@scenario(cpus=2)
async def test_g89_an_idle_worker_that_is_being_killed_gets_no_lease(scene: Scene) -> None:
    await scene.until(lambda: len(scene.alive()) == 2)
    pool, broker = scene.raylets["head"]._broker.pool, scene.raylets["head"]._broker
    killed = list(pool.workers.values())
    assert [pool.state(worker.worker_id) for worker in killed] == ["IDLE"] * 2
    for worker in killed:
        broker.kill_worker(worker, "too little memory")
    assert [(pool.state(worker.worker_id), worker.doom) for worker in killed] == [("DYING", "too little memory")] * 2
    _, reply = await scene.lease()
    assert reply.worker is not None and reply.worker.worker_id not in {worker.worker_id for worker in killed}


@scenario(cpus=2)
async def test_g89_a_worker_that_may_be_killed_for_memory_has_the_time_of_its_grant(scene: Scene) -> None:
    oldest_id, _ = await scene.lease()
    await scene.nap(1)
    newest_id, _ = await scene.lease()
    broker = scene.raylets["head"]._broker
    killable = KillableWorkers(broker.pool, broker.entries, lambda pid: pid, broker.kill_worker, uncounted)
    leased_at = {one.lease_id: one.leased_at for one in killable.candidates() or []}
    assert leased_at[newest_id] >= leased_at[oldest_id] + 1


@scenario(cpus=1, num_prestart_workers=0)
async def test_g89_a_worker_that_starts_is_not_killed_for_memory(scene: Scene) -> None:
    scene.silent_starts = 1
    scene.ask(scene.request())
    await scene.nap(0.1)
    broker = scene.raylets["head"]._broker
    assert KillableWorkers(broker.pool, broker.entries, lambda pid: pid, broker.kill_worker, uncounted).candidates() == []


@scenario(cpus=3)
async def test_g106_a_removed_group_takes_its_leases_and_requests_along(scene: Scene) -> None:
    in_group = SchedulingStrategy(group_id=b"g" * 18)
    broker = scene.raylets["head"]._broker
    granted_id, granted = await scene.lease(strategy=in_group)
    _, other = await scene.lease()
    waiting = scene.ask(scene.request(3, strategy=in_group))
    await scene.settle()
    broker.on_group_removed(b"g" * 18)
    assert (await waiting).kind == GROUP_REMOVED
    certificate = await scene.raylet().call(GetLeaseFailure(granted_id, 60))
    assert (certificate.dead, certificate.group_removed) == (True, True)
    assert not scene.worker(granted).is_alive and scene.worker(other).is_alive
    assert (await scene.lease(strategy=in_group))[1].kind == GROUP_REMOVED


@scenario(cpus=2)
async def test_of_a_node_that_ends_nothing_is_heard_but_how_its_workers_ended(scene: Scene) -> None:
    """Neither that they have died, nor that requests of theirs are over: all that is about the whole node."""
    broker = scene.raylets["head"]._broker
    parent_id, parent = await scene.lease(2)
    child = scene.ask(scene.request(owner=scene.worker(parent).address))
    await scene.settle()
    deaths: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_on_worker_death", deaths.append)
        end = broker.table.end_of(parent_id)
        await broker.close("the test is over")
    assert isinstance(end, asyncio.Future) and (await end).node_ended == "the test is over"
    assert deaths == [] and not child.done()


@scenario(cpus=1, num_prestart_workers=0)
async def test_nothing_begins_any_more_on_a_node_that_ends(scene: Scene) -> None:
    broker = scene.raylets["head"]._broker
    leases = [await scene.lease(), await scene.lease({})]
    for lease_id, _ in leases:
        await scene.give_back(lease_id)
    argument = Dependency(b"x" * 28, scene.address, 1000)
    scene.ask(msgspec.structs.replace(scene.request(), dependencies=[argument]))
    scene.ask(scene.request(env="/another"))
    await scene.nap(0.1)
    scheduler = broker.scheduler
    timers = [scheduler._timer, scheduler._reap_timer, *broker.arguments._timers.values()]
    assert len(timers) == 3
    await broker.close("the test is over")
    assert all(timer is not None and timer.cancelled() for timer in timers)
    spawns = scene.spawns
    late: Any = RecordingCall()
    broker.request(scene.request(env="/a/third"), late)
    await scene.settle()
    assert scene.spawns == spawns


# --- The death of owners -----------------------------------------------------------------------------------------------


@scenario(cpus=2)
async def test_leases_of_a_dead_worker_are_taken_back_and_their_workers_killed(scene: Scene) -> None:
    """Ray's issue 62093: the cleanup was skipped when the leased worker was killed because its owner had died."""
    _, parent = await scene.lease()
    owner = scene.worker(parent).address
    child_id, child = await scene.lease(owner=owner)
    waiting = scene.ask(scene.request(owner=owner))
    scene.worker(parent).exit(1)
    assert (await waiting).kind == CANCELLED
    await scene.until(lambda: not scene.worker(child).is_alive)
    assert (await scene.lease(2))[1].kind == GRANTED
    assert (await scene.raylet().call(GetLeaseFailure(child_id, 60))).dead
    assert (await scene.lease(owner=owner))[1].kind == CANCELLED


@scenario(cpus=1)
async def test_only_so_many_dead_owners_are_remembered_the_oldest_not(scene: Scene) -> None:
    broker = scene.raylets["head"]._broker
    owners = [await scene.other_owner(bytes([number]) * 16) for number in range(1, 4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusals, "MAX_DEAD_OWNERS", 2)
        for owner in owners:
            broker.on_owner_death(owner.worker_id, True, "it is gone")
    assert [(await scene.lease({}, owner=owner))[1].kind for owner in owners] == [GRANTED, CANCELLED, CANCELLED]


@scenario()
async def test_an_owner_whose_death_is_not_certified_any_more_may_lease_again(scene: Scene) -> None:
    """The gcs keeps certificates as long as messages can be late; after that there is nothing to remember."""
    broker = scene.raylets["head"]._broker
    owner = await scene.other_owner(b"p" * 16)
    broker.on_owner_death(owner.worker_id, True, "it is gone")
    assert (await scene.lease(owner=owner))[1].kind == CANCELLED
    broker.on_owner_death(owner.worker_id, False, "")
    assert (await scene.lease(owner=owner))[1].kind == GRANTED


@scenario(cpus=1)
async def test_nobody_waits_for_the_answer_of_an_owner_that_has_died(scene: Scene) -> None:
    scene.is_busy = True
    await scene.lease()
    scene.ask(scene.request(owner=await scene.other_owner(b"p" * 16)))
    await scene.until(lambda: scene.revoked)
    broker = scene.raylets["head"]._broker
    broker.on_owner_death(scene.address.worker_id, True, "it is gone")
    await scene.until(lambda: not broker.scheduler._revoking)


@scenario(cpus=2)
async def test_g110_without_the_gcs_leases_of_a_worker_that_dies_here_are_taken_back_all_the_same(scene: Scene) -> None:
    _, parent = await scene.lease()
    _, child = await scene.lease(owner=scene.worker(parent).address)
    scene.kill("gcs")
    scene.worker(parent).exit(1)
    await scene.until(lambda: not scene.worker(child).is_alive, limit_s=1)


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 2}})
async def test_a_worker_on_another_node_owns_no_leases_here_after_its_death(scene: Scene) -> None:
    spill = scene.request(2)
    assert (await scene.ask(spill)).kind == SPILLBACK
    there = await scene.ask(scene.request(2, second_hop=True), "other")
    owner = scene.worker(there).address
    _, child = await scene.lease(owner=owner)
    scene.worker(there).exit(1)
    await scene.until(lambda: not scene.worker(child).is_alive)


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 2}}, health_check_period_ms=1000)
async def test_g108_owners_of_a_dead_node_own_no_leases_here(scene: Scene) -> None:
    there = await scene.ask(scene.request(2, second_hop=True), "other")
    owner = scene.worker(there).address
    _, child = await scene.lease(owner=owner)
    scene.kill("other")
    await scene.until(lambda: not scene.worker(child).is_alive)
    late = msgspec.structs.replace(owner, worker_id=b"l" * 16)  # never seen before; its request was on its way for long
    assert (await scene.lease(owner=late))[1] == LeaseReply(CANCELLED, reason="its owner is dead")
    assert (await scene.lease())[1].kind == GRANTED


@scenario()
async def test_a_finished_job_loses_its_leases_and_workers(scene: Scene) -> None:
    _, busy = await scene.lease()
    idle_id, idle = await scene.lease()
    await scene.give_back(idle_id)
    impossible = scene.ask(scene.request({"GPU": 1}))
    await scene.gcs.call(FinishJob(scene.job_id))
    assert (await impossible).reason == "its job has finished"
    await scene.until(lambda: not scene.worker(busy).is_alive and not scene.worker(idle).is_alive)
    assert scene.worker(idle).asked == [True]
    assert (await scene.lease())[1].kind == CANCELLED


@scenario(cpus=2)
async def test_the_end_of_one_job_leaves_the_other_alone(scene: Scene) -> None:
    _, mine = await scene.lease()
    _, theirs = await scene.lease(job_id=b"them")
    await scene.gcs.call(FinishJob(scene.job_id))
    await scene.until(lambda: not scene.worker(mine).is_alive)
    assert scene.worker(theirs).is_alive


# --- Blocked workers ---------------------------------------------------------------------------------------------------


@scenario(cpus=1)
async def test_g101_a_blocked_worker_lends_its_cpu(scene: Scene) -> None:
    parent_id, parent = await scene.lease()
    worker = scene.worker(parent)
    child = scene.ask(scene.request(depth=1))
    blocked = worker.blocked_message(True)
    await scene.raylet().call(blocked)
    assert (await child).kind == GRANTED
    await scene.raylet().call(worker.blocked_message(False))
    await scene.raylet().call(blocked)  # late: it changes nothing
    stats = await scene.raylet().call(GetNodeStats())
    assert stats.available["CPU"] == 0
    assert [status.blocked for status in stats.workers if status.lease_id == parent_id] == [False]


@scenario(cpus=1)
async def test_g101_nested_leases_to_any_depth_come_without_delay(scene: Scene) -> None:
    began = asyncio.get_running_loop().time()
    for depth in range(20):
        _, reply = await scene.lease(depth=depth)
        await scene.raylet().call(scene.worker(reply).blocked_message(True))
    assert asyncio.get_running_loop().time() - began < 3  # a worker's start each, and no back-off


# --- Several nodes -----------------------------------------------------------------------------------------------------


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_a_busy_node_names_one_with_room_which_then_grants_or_rejects(scene: Scene) -> None:
    await scene.lease()
    _, spilled = await scene.lease()
    assert (spilled.kind, spilled.raylet) == (SPILLBACK, scene.raylets["other"].address)
    first = scene.request(second_hop=True)
    assert (await scene.ask(first, "other")).kind == GRANTED
    await scene.settle(1)  # until the head has heard of that
    waiting = scene.ask(scene.request())
    await scene.settle()
    assert not waiting.done()  # both are full


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_a_spilled_request_is_rejected_when_another_node_has_room(scene: Scene) -> None:
    assert (await scene.ask(scene.request(second_hop=True), "other")).kind == GRANTED
    assert (await scene.ask(scene.request(second_hop=True), "other")).kind == REJECTED


@scenario(cpus=1)
async def test_g100_infeasible_work_waits_until_a_node_joins_and_says_so(scene: Scene) -> None:
    request = scene.request({"GPU": 1})
    waiting = scene.ask(request)
    await scene.settle()
    assert not waiting.done()
    assert (await scene.raylet().call(ExplainLease(request.lease_id))).text == "needs {GPU: 1}; no node has GPU"
    scene.add_node("gpu", {"GPU": 1})
    reply = await waiting
    await scene.until(lambda: "gpu" in scene.raylets)
    assert (reply.kind, reply.raylet) == (SPILLBACK, scene.raylets["gpu"].address)


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}}, health_check_period_ms=1000)
async def test_g102_hard_affinity_to_a_dead_or_unknown_node_fails(scene: Scene) -> None:
    other = scene.raylets["other"].address.node_id
    to_other = SchedulingStrategy(STRATEGY_AFFINITY, other)
    assert (await scene.lease(strategy=to_other))[1].kind == SPILLBACK
    to_nobody = SchedulingStrategy(STRATEGY_AFFINITY, b"nobody".ljust(16))
    assert (await scene.lease(strategy=to_nobody))[1].kind == UNSCHEDULABLE
    scene.kill("other")
    await scene.until(lambda: len(scene.raylets["head"]._broker.nodes.alive()) == 1)
    _, failed = await scene.lease(strategy=to_other)
    assert failed.kind == UNSCHEDULABLE and "node other" in failed.reason and "is dead" in failed.reason
    _, soft = await scene.lease(strategy=SchedulingStrategy(STRATEGY_AFFINITY, other, True))
    assert soft.kind == GRANTED


# --- Saying why --------------------------------------------------------------------------------------------------------


@scenario(cpus=2)
async def test_a_waiting_request_can_say_what_it_waits_for(scene: Scene) -> None:
    _, first = await scene.lease()
    scene.worker(first).print("\x1ef\n")
    await scene.lease()
    request = scene.request()
    waiting = scene.ask(request)
    await scene.settle()
    text = (await scene.raylet().call(ExplainLease(request.lease_id))).text
    pids = scene.worker(first).pid, next(worker.pid for worker in scene.workers.values() if worker.pid != first.pid)
    assert text == f"waits for CPU on node head: 2 of 2 in use by f (pid {pids[0]}), a task (pid {pids[1]})"
    assert text in (await scene.raylet().call(GetNodeStats())).pending_leases[0]
    await scene.raylet().call(CancelWorkerLease(request.lease_id))
    await waiting
    assert (await scene.raylet().call(ExplainLease(request.lease_id))).text == ""


@scenario(cpus=1)
async def test_a_request_over_the_worker_cap_says_so(scene: Scene) -> None:
    _, parent = await scene.lease(depth=1)
    await scene.raylet().call(scene.worker(parent).blocked_message(True))
    request = scene.request(depth=1)
    waiting = scene.ask(request)
    await scene.nap(0.1)
    assert "blocked in get or wait" in (await scene.raylet().call(ExplainLease(request.lease_id))).text
    assert (await waiting).kind == GRANTED


@scenario(num_prestart_workers=0)
async def test_a_request_whose_worker_starts_says_so(scene: Scene) -> None:
    scene.silent_starts = 1
    request = scene.request()
    scene.ask(request)
    await scene.nap(0.1)
    said = (await scene.raylet().call(ExplainLease(request.lease_id))).text
    assert said == "waits for a worker, which is starting on node head"


@scenario()
async def test_a_driver_learns_where_things_are(scene: Scene) -> None:
    reply = await scene.raylet().call(RegisterDriver(None, 1, b""))
    assert (reply.node_name, reply.gcs_endpoint, reply.socket_dir) == ("head", "sim:gcs", "sim:head")
    assert reply.address == scene.raylets["head"].address
