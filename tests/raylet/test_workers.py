"""The life of worker processes under a raylet: started, found missing, asked to end, killed."""

from __future__ import annotations

import asyncio

from minray.protocol.core_worker import ExitWorkerReply
from minray.protocol.raylet import GRANTED, UNSCHEDULABLE, GetNodeStats
from tests.raylet.scene import Scene, scenario


@scenario(cpus=3)
async def test_one_worker_per_cpu_is_started_with_the_node(scene: Scene) -> None:
    await scene.until(lambda: len(scene.alive()) == 3)
    await scene.settle(10)
    assert len(scene.alive()) == 3  # and they stay
    assert {status.state for status in (await scene.raylet().call(GetNodeStats())).workers} == {"IDLE"}


@scenario(cpus=3, num_prestart_workers=0)
async def test_no_worker_is_started_without_need_if_so_configured(scene: Scene) -> None:
    await scene.settle(10)
    assert scene.alive() == []
    _, reply = await scene.lease()
    assert scene.alive() == [scene.worker(reply)]


@scenario(cpus=1)
async def test_a_worker_is_never_used_for_another_job_or_environment(scene: Scene) -> None:
    workers = []
    for env, job_id in (("", None), ("/x", None), ("", b"jobX")):
        lease_id, reply = await scene.lease(env=env, job_id=job_id)
        workers.append(scene.worker(reply).pid)
        await scene.give_back(lease_id)
    assert len(set(workers)) == 3


@scenario(num_prestart_workers=0)
async def test_a_start_that_fails_is_tried_again(scene: Scene) -> None:
    scene.spawn_failures, scene.broken_starts = 1, 1
    assert (await scene.lease())[1].kind == GRANTED
    assert scene.spawns == 3


@scenario(num_prestart_workers=0)
async def test_when_no_worker_can_be_started_a_lease_fails_within_seconds(scene: Scene) -> None:
    scene.spawn_failures = 100
    began = asyncio.get_running_loop().time()
    _, reply = await scene.lease()
    assert (reply.kind, reply.reason) == (UNSCHEDULABLE, "no worker could be started, 5 times in a row: out of processes")
    assert asyncio.get_running_loop().time() - began < 5
    scene.spawn_failures = 0
    assert (await scene.lease(2))[1].kind == GRANTED  # its resources were given back, and all is forgiven


@scenario(num_prestart_workers=0)
async def test_workers_that_die_at_once_are_a_failure_with_their_last_words(scene: Scene) -> None:
    scene.broken_starts = 100
    _, reply = await scene.lease()
    assert reply.kind == UNSCHEDULABLE and reply.reason.endswith("exit code 3: no such module")


@scenario(num_prestart_workers=0, worker_register_timeout_seconds=60.0)
async def test_a_worker_that_never_registers_is_killed_and_replaced(scene: Scene) -> None:
    scene.silent_starts = 1
    began = asyncio.get_running_loop().time()
    _, reply = await scene.lease()
    assert reply.kind == GRANTED
    assert 60 <= asyncio.get_running_loop().time() - began < 62
    await scene.settle()
    assert len((await scene.raylet().call(GetNodeStats())).workers) == 1


@scenario(cpus=1)
async def test_a_worker_that_nobody_waits_for_is_refused(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    worker = scene.worker(reply)
    assert await worker.register() == ""  # a repetition
    await scene.give_back(lease_id, kill_worker=True)
    await scene.until(lambda: not worker.is_alive)
    _, other = await scene.lease()
    assert "does not expect" in await scene.worker(other).register_as(worker)


@scenario(cpus=1)
async def test_idle_workers_beyond_the_free_cpus_end_after_a_second(scene: Scene) -> None:
    first_id, first = await scene.lease()
    second_id, _ = await scene.lease({})
    await scene.give_back(first_id)
    await scene.give_back(second_id)
    await scene.nap(0.5)
    assert len(scene.alive()) == 2
    await scene.until(lambda: len(scene.alive()) == 1, limit_s=2)
    assert not scene.worker(first).is_alive  # idle for longer than the other
    assert scene.worker(first).asked == [False]
    await scene.settle(10)
    assert len(scene.alive()) == 1


@scenario(cpus=1)
async def test_g64_a_worker_that_refuses_to_end_stays_and_is_used_again(scene: Scene) -> None:
    scene.workers_refuse = True
    leases = [await scene.lease(), await scene.lease({})]
    for lease_id, _ in leases:
        await scene.give_back(lease_id)
    await scene.until(lambda: all(worker.asked for worker in scene.alive()))
    await scene.settle(10)
    assert len(scene.alive()) == 2
    assert (await scene.lease())[1].kind == GRANTED


async def let_two_mute_workers_idle(scene: Scene) -> None:
    """One more than the node has CPUs; they do not answer when they are asked to end."""
    leases = [await scene.lease(), await scene.lease({})]
    for worker in scene.workers.values():
        worker.answers = False
    for lease_id, _ in leases:
        await scene.give_back(lease_id)


@scenario(cpus=1, num_prestart_workers=0)
async def test_g64_a_worker_that_refuses_to_end_is_given_at_once_to_who_waits_for_one(scene: Scene) -> None:
    await let_two_mute_workers_idle(scene)
    await scene.until(lambda: any(worker.unanswered for worker in scene.alive()))
    asked = next(worker for worker in scene.alive() if worker.unanswered)
    scene.silent_starts = 1
    await scene.lease({})  # the other one
    waiting = scene.ask(scene.request({}))
    await scene.nap(0.1)
    assert asked.unanswered is not None and not waiting.done()
    asked.unanswered.reply(ExitWorkerReply(False))
    await scene.until(waiting.done, limit_s=1)
    assert scene.worker(waiting.result()) is asked


@scenario(cpus=1)
async def test_a_worker_that_does_not_answer_when_asked_is_killed(scene: Scene) -> None:
    await let_two_mute_workers_idle(scene)
    await scene.until(lambda: len(scene.alive()) == 1, limit_s=10)


@scenario(cpus=1)
async def test_a_worker_that_agrees_to_end_and_does_not_is_killed(scene: Scene) -> None:
    leases = [await scene.lease(), await scene.lease({})]
    for worker in scene.workers.values():
        worker.lingers = True
    for lease_id, _ in leases:
        await scene.give_back(lease_id)
    await scene.until(lambda: len(scene.alive()) == 1, limit_s=10)


@scenario(num_prestart_workers=0)
async def test_a_worker_that_is_being_started_ends_with_its_node(scene: Scene) -> None:
    scene.ask(scene.request())
    await scene.until(lambda: scene.spawns)
    began = asyncio.get_running_loop().time()
    await scene.raylets["head"].close("the test is over")
    assert asyncio.get_running_loop().time() - began < 1
    assert scene.alive() == []


@scenario(cpus=4)
async def test_a_backlog_has_workers_ready(scene: Scene) -> None:
    for worker in list(scene.workers.values()):
        worker.process.exit(None, 9)
    await scene.settle()
    request = scene.request()
    await scene.ask(type(request)(request.lease_id, request.owner, request.shape, 0, 10, False))
    await scene.until(lambda: len(scene.alive()) == 4)
