"""Actors in the gcs, as a driver is told, with pretended raylets and workers in the simulated world."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from minray.common.bounds import BOUNDS
from minray.common.config import SystemConfig
from minray.errors.packed_exception import pack_exception
from minray.gcs.persistent_caller import ASK_AGAIN_S
from minray.protocol import actor as protocol
from minray.protocol import core_worker
from minray.protocol.actor import ALIVE, DEAD, DEPENDENCIES_UNREADY, PENDING_CREATION, RESTARTING, DeathCause
from minray.protocol.base import DONE, encode
from minray.protocol.core_worker import FAILED, NOT_STARTED, OK, PushTask, PushTaskReply
from minray.protocol.gcs import (
    JOBS,
    NODES,
    PREEMPTION,
    DrainNode,
    FinishJob,
    GetJob,
    KvKeys,
    KvKeysReply,
    KvPut,
    UnregisterNode,
    job_namespace,
)
from minray.protocol.raylet import (
    CANCELLED,
    ENVIRONMENT_FAILED,
    GRANTED,
    GROUP_REMOVED,
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
from tests.gcs.stories import A_MOMENT_S, COMMIT_S, Cluster, story
from tests.gcs.world import DISK, address, id_of, register_job

NODE_A = id_of("a").hex()[:12]


@story
async def test_the_life_of_an_actor(it: Cluster) -> None:
    assert await it.register(1, max_restarts=1) == protocol.RegisterActorReply(None)
    assert (await it.until(1, DEPENDENCIES_UNREADY)).start_time > 0
    await it.create(1)
    push, constructor = await it.grant("w")
    assert (push.actor_id, push.attempt, push.args, push.header) == (it.actor_id(1), 0, b"args", b"header")
    assert (await it.known(1)).state == PENDING_CREATION
    constructor.reply(PushTaskReply(OK, (), 0))
    alive = await it.until(1, ALIVE)
    assert (alive.address, alive.raylet, alive.pid) == (address("w", "a"), address("a", "a"), 7)
    await it.die("w")
    assert (await it.known(1)).state == RESTARTING
    again = await it.live(1, "v")
    assert (again.restarts, again.address) == (1, address("v", "a"))
    await it.die("v")
    dead = await it.known(1)
    assert dead.state == DEAD and dead.end_time > dead.start_time
    assert dead.death.message == f"its worker (pid=7, node={NODE_A}) died: SIGSEGV"


# --- A worker is wanted ---


@story
async def test_a_raylet_that_names_another_has_that_asked_for_a_new_lease(it: Cluster) -> None:
    await it.join("b")
    await it.register(1)
    await it.create(1)
    first, call = await it.hears("a", RequestWorkerLease)
    assert (first.actor_id, first.owner.worker_id, first.grant_or_reject, first.retriable) == (
        it.actor_id(1), id_of("gcs-1"), False, False,
    )  # fmt: skip
    call.reply(LeaseReply(SPILLBACK, raylet=address("b", "b")))
    second, call = await it.hears("b", RequestWorkerLease)
    assert second.grant_or_reject and second.lease_id != first.lease_id
    call.reply(LeaseReply(GRANTED, it.world.start("w", "b"), 7))
    push, constructor = await it.hears("w", PushTask)
    assert push.lease_id == second.lease_id
    constructor.reply(PushTaskReply(OK, (), 0))
    assert (await it.until(1, ALIVE)).raylet == address("b", "b")


@story
async def test_g35_a_worker_is_sent_all_of_the_constructors_call(it: Cluster) -> None:
    await it.register(1)
    await it.create(1)
    push, constructor = await it.grant("w")
    assert (push.task_id, push.attempt, push.header, push.args) == (b"t" * 24, 0, b"header", b"args")
    assert (push.arguments, push.nested, push.inline_buffers) == ((), (), (b"buffer",))
    constructor.reply(PushTaskReply(OK, (), 0))
    await it.until(1, ALIVE)


@story
async def test_a_raylet_that_refuses_is_asked_again_after_a_pause(it: Cluster) -> None:
    await it.register(1, max_restarts=1)
    await it.create(1)
    first, call = await it.hears("a", RequestWorkerLease)
    call.reply(LeaseReply(REJECTED))
    refused = it.now()
    second, call = await it.hears("a", RequestWorkerLease)
    assert it.now() - refused > 0.1 and second.lease_id != first.lease_id
    assert not second.grant_or_reject and second.retriable


@pytest.mark.parametrize(("max_restarts", "retriable"), [(0, [False]), (1, [True, False]), (-1, [True, True])])
@story
async def test_g89_a_request_says_whether_the_actor_can_restart_once_more(
    it: Cluster, max_restarts: int, retriable: list[bool]
) -> None:
    await it.register(1, max_restarts=max_restarts)
    await it.create(1)
    for incarnation, expected in enumerate(retriable):
        request, call = await it.hears("a", RequestWorkerLease)
        assert request.retriable is expected
        worker = f"w{incarnation}"
        call.reply(LeaseReply(GRANTED, it.world.start(worker, "a"), 7))
        _, constructor = await it.hears(worker, PushTask)
        constructor.reply(PushTaskReply(OK, (), 0))
        await it.until(1, ALIVE)
        await it.die(worker)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (UNSCHEDULABLE, protocol.ACTOR_UNSCHEDULABLE),
        (ENVIRONMENT_FAILED, protocol.RUNTIME_ENV_FAILED),
        (GROUP_REMOVED, protocol.GROUP_REMOVED),
    ],
)
@story
async def test_an_actor_for_which_there_will_be_no_worker_is_dead(it: Cluster, reply: int, kind: int) -> None:
    await it.register(1, max_restarts=-1)
    await it.create(1)
    _, call = await it.hears("a", RequestWorkerLease)
    call.reply(LeaseReply(reply, reason="for this reason"))
    dead = await it.until(1, DEAD)
    assert dead.death == protocol.DeathCause(kind, "for this reason")


@story
async def test_a_raylet_that_dies_while_it_is_asked_is_left_for_another(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.register(1)
    await it.create(1, cpus=8)
    first, _ = await it.hears("b", RequestWorkerLease)
    await it.join("c", cpus=8)
    it.world.kill("b")
    second, _ = await it.hears("c", RequestWorkerLease)
    assert second.lease_id != first.lease_id
    assert it.world.neighbours["c"].count(RequestWorkerLease) == 1


@story
async def test_g100_an_actor_that_no_node_can_hold_waits_for_one_and_says_so(it: Cluster) -> None:
    await it.register(1)
    await it.create(1, cpus=8)
    assert (await it.explained(1)).text == "it needs {CPU: 8}; the most that a node has is {CPU: 4}"
    await it.join("b", cpus=6)
    assert "the most that a node has is {CPU: 6}" in (await it.explained(1)).text
    await it.join("c", cpus=8)
    request, _ = await it.hears("c", RequestWorkerLease)
    asked = await it.explained(1)
    assert (asked.text, asked.raylet, asked.lease_id) == ("", address("c", "c"), request.lease_id)
    assert it.world.neighbours["b"].heard == []


@story
async def test_g100_an_actor_that_is_killed_while_no_node_can_hold_it_is_forgotten(it: Cluster) -> None:
    await it.register(1)
    await it.create(1, cpus=8)
    await it.client.pass_time(A_MOMENT_S)
    scheduler = it.world.gcs._actors._scheduler
    assert scheduler._without_node == {it.actor_id(1)}
    await it.kill(1)
    await it.until(1, DEAD)
    assert scheduler._without_node == set()


@story
async def test_g100_whose_only_node_has_died_waits_for_another_and_says_so(it: Cluster) -> None:
    """Not that the dead one knows more."""
    await it.join("b", cpus=8)
    await it.register(1)
    await it.create(1, cpus=8)
    await it.hears("b", RequestWorkerLease)
    it.world.kill("b")
    await it.client.until(NODES, "b", lambda node: not node.alive)
    await it.client.pass_time(A_MOMENT_S * 10)
    assert (await it.explained(1)).text == "it needs {CPU: 8}; the most that a node has is {CPU: 4}"


@story
async def test_g112_an_actor_is_created_once_however_often_that_is_said(it: Cluster) -> None:
    for _ in range(2):
        assert await it.register(1) == protocol.RegisterActorReply(None)
    for _ in range(2):
        await it.create(1)
    await it.live(1)
    await it.create(1)
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.neighbours["a"].count(RequestWorkerLease) == 1


# --- The constructor ---


@story
async def test_g35_a_constructor_whose_worker_dies_is_called_once_more(it: Cluster) -> None:
    await it.register(1, max_restarts=1)
    await it.create(1)
    first, _ = await it.grant("w")
    assert "its constructor runs on worker pid=7" in (await it.explained(1)).text
    await it.ask(it.death("w"))
    assert (await it.explained(1)).raylet == address("a", "a"), "a worker is being asked for"
    again, _ = await it.grant("v")
    assert (first.attempt, again.attempt) == (0, 1) and first.lease_id != again.lease_id
    beginning = await it.known(1)
    assert (beginning.state, beginning.death.message) == (RESTARTING, f"its worker (pid=7, node={NODE_A}) died: SIGSEGV")
    returned, _ = await it.hears("a", ReturnWorkerLease)
    assert (returned.lease_id, returned.kill_worker) == (first.lease_id, True)
    it.world.kill("v")
    assert (await it.until(1, DEAD)).death.message == "its worker died while it ran the constructor"
    assert (await it.explained(1)).text == ""


@story
async def test_a_worker_that_takes_no_more_tasks_is_given_back_for_another(it: Cluster) -> None:
    await it.register(1)
    await it.create(1)
    first, constructor = await it.grant("w")
    constructor.reply(PushTaskReply(NOT_STARTED, (), 0))
    returned, _ = await it.hears("a", ReturnWorkerLease)
    assert (returned.lease_id, returned.reason) == (first.lease_id, "it takes no more tasks")
    assert (await it.live(1, "v")).restarts == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(FAILED, protocol.CREATION_TASK_FAILED), (core_worker.ENVIRONMENT_FAILED, protocol.RUNTIME_ENV_FAILED)],
)
@story
async def test_g34_a_constructor_that_raises_is_not_called_again(it: Cluster, status: int, kind: int) -> None:
    await it.register(1, max_restarts=-1)
    await it.create(1)
    push, constructor = await it.grant("w")
    constructor.reply(PushTaskReply(status, (core_worker.Value(b"pickled", is_error=True),), 0))
    dead = await it.until(1, DEAD)
    assert (dead.death.kind, dead.death.error) == (kind, b"pickled")
    returned, _ = await it.hears("a", ReturnWorkerLease)
    assert (returned.lease_id, returned.kill_worker) == (push.lease_id, True)
    await it.client.pass_time(A_MOMENT_S)
    raylet = it.world.neighbours["a"]
    assert raylet.count(ReturnWorkerLease) == raylet.count(RequestWorkerLease) == 1


@story
async def test_a_constructor_that_is_not_understood_is_sent_again(it: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await it.register(1)
    await it.create(1)
    _, constructor = await it.grant("w")
    constructor.fail("internal", "a mistake")
    failed = it.now()
    await it.hears("w", PushTask)
    assert it.now() - failed >= ASK_AGAIN_S
    assert "PushTask failed and is sent again" in caplog.text


# --- Ends ---


@story
async def test_g29_an_actor_that_is_killed_while_a_worker_is_asked_for_gives_that_back(it: Cluster) -> None:
    await it.register(1, max_restarts=-1)
    await it.create(1)
    request, call = await it.hears("a", RequestWorkerLease)
    killed = await it.kill(1)
    assert (killed.state, killed.death.kind) == (DEAD, protocol.KILLED)
    for kind in (CancelWorkerLease, ReturnWorkerLease):
        assert (await it.hears("a", kind))[0].lease_id == request.lease_id
    call.reply(LeaseReply(GRANTED, it.world.start("w", "a"), 7))
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.neighbours["w"].heard == []


@story
async def test_g29_a_constructor_that_returns_after_its_actor_was_killed_changes_nothing(it: Cluster) -> None:
    await it.register(1, max_restarts=-1)
    await it.create(1)
    push, constructor = await it.grant("w")
    await it.kill(1)
    constructor.reply(PushTaskReply(OK, (), 0))
    assert (await it.hears("a", ReturnWorkerLease))[0].lease_id == push.lease_id
    assert (await it.known(1)).state == DEAD


@story
async def test_g29_a_kill_is_fulfilled_once_and_spares_the_next_incarnation(it: Cluster) -> None:
    await it.begin_actor(1, max_restarts=2)
    lease_id = it.world.neighbours["w"].heard[0].lease_id
    for _ in range(2):
        assert (await it.kill(1, b"first", no_restart=False)).state == ALIVE
    returned, _ = await it.hears("a", ReturnWorkerLease)
    assert (returned.lease_id, returned.reason) == (lease_id, "killed by minray.kill")
    await it.die("w")
    assert (await it.kill(1, b"while it begins anew", no_restart=False)).state == RESTARTING
    await it.live(1, "v")
    assert (await it.kill(1, b"first", no_restart=False)).state == ALIVE
    leases = [request.lease_id for request in it.world.neighbours["a"].heard if isinstance(request, ReturnWorkerLease)]
    assert leases.count(lease_id) == 2, "killed, and dead"


@story
async def test_g29_g110_what_one_gcs_has_promised_to_kill_the_next_one_kills_once(it: Cluster) -> None:
    """Before the raylet has heard of it, and after; the killer's wish may come again, for its answer was lost."""
    it.world.neighbours["a"].answers[ReturnWorkerLease] = None
    await it.begin_actor(1, max_restarts=-1)
    lease_id = it.world.neighbours["w"].heard[0].lease_id
    assert (await it.kill(1, b"wish", no_restart=False)).state == ALIVE
    await it.hears("a", ReturnWorkerLease)
    it.world.restart_gcs()
    returned, heard = await it.hears("a", ReturnWorkerLease)
    assert (returned.lease_id, returned.reason) == (lease_id, "killed by minray.kill")
    it.world.neighbours["a"].answers[ReturnWorkerLease] = DONE
    heard.reply(DONE)
    await it.die("w")
    await it.live(1, "v")
    it.world.restart_gcs()
    told = it.world.neighbours["a"].count(ReturnWorkerLease)
    assert (await it.kill(1, b"wish", no_restart=False)).state == ALIVE
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.neighbours["a"].count(ReturnWorkerLease) == told


@story
async def test_g29_an_incarnation_is_killed_while_it_is_constructed_and_the_next_one_begins(it: Cluster) -> None:
    """As it may be when its constructor does not return."""
    await it.register(1, max_restarts=1)
    await it.create(1)
    push, _ = await it.grant("w")
    assert (await it.kill(1, no_restart=False)).state == PENDING_CREATION
    assert (await it.hears("a", ReturnWorkerLease))[0].lease_id == push.lease_id
    await it.die("w")
    assert (await it.live(1, "v")).restarts == 1


@story
async def test_g29_a_kill_while_a_worker_is_asked_for_costs_no_restart(it: Cluster) -> None:
    await it.register(1, max_restarts=1)
    await it.create(1)
    first, call = await it.hears("a", RequestWorkerLease)
    await it.kill(1, no_restart=False)
    assert (await it.hears("a", CancelWorkerLease))[0].lease_id == first.lease_id
    call.reply(LeaseReply(CANCELLED))
    assert (await it.live(1)).restarts == 0


@story
async def test_g28_an_actor_without_handles_is_asked_to_end_and_then_ended(it: Cluster) -> None:
    await it.begin_actor(1, max_restarts=-1)
    cause = protocol.DeathCause(protocol.OUT_OF_SCOPE, "no handle")
    began = it.now()
    await asyncio.gather(*(it.ask(protocol.EndActor(it.actor_id(1), cause)) for _ in range(2)))
    assert it.world.neighbours["w"].count(protocol.ExitActor) == 1
    assert it.now() - began >= SystemConfig().actor_graceful_shutdown_timeout_ms / 1000
    assert (await it.known(1)).death.kind == protocol.OUT_OF_SCOPE
    assert (await it.hears("a", ReturnWorkerLease))[0].kill_worker


@pytest.mark.parametrize("reports", [True, False])
@story
async def test_g27_an_actor_that_ends_when_it_is_asked_to_does_not_begin_anew(it: Cluster, reports: bool) -> None:
    await it.begin_actor(1, max_restarts=-1)
    cause = protocol.DeathCause(protocol.OUT_OF_SCOPE, "no handle")
    ending = asyncio.create_task(it.ask(protocol.EndActor(it.actor_id(1), cause)))
    await it.hears("w", protocol.ExitActor)
    if reports:
        await it.ask(protocol.ReportActorExit(it.actor_id(1), id_of("w"), "it ends"))
    else:
        await it.die("w")
    began = it.now()
    await ending
    assert it.now() - began < A_MOMENT_S
    assert (await it.known(1)).death.kind == protocol.OUT_OF_SCOPE


@story
async def test_g34_an_actor_that_wants_to_end_does_not_begin_anew(it: Cluster) -> None:
    await it.begin_actor(1, max_restarts=-1)
    await it.ask(protocol.ReportActorExit(it.actor_id(1), id_of("v"), "of a process that it does not live in"))
    assert (await it.known(1)).state == ALIVE
    await it.ask(protocol.ReportActorExit(it.actor_id(1), id_of("w"), "exit_actor"))
    assert (await it.known(1)).death == protocol.DeathCause(protocol.EXITED, "exit_actor")


@story
async def test_g34_an_actor_may_want_to_end_before_its_constructors_answer_comes(it: Cluster) -> None:
    await it.register(1, max_restarts=-1)
    await it.create(1)
    _, constructor = await it.grant("w")
    report = asyncio.create_task(it.ask(protocol.ReportActorExit(it.actor_id(1), id_of("w"), "exit_actor")))
    await it.client.pass_time(A_MOMENT_S)
    constructor.reply(PushTaskReply(OK, (), 0))
    await report
    assert (await it.known(1)).death == protocol.DeathCause(protocol.EXITED, "exit_actor")


@story
async def test_g24_an_actor_that_is_not_alive_yet_is_ended_at_once(it: Cluster) -> None:
    for number in (1, 2):
        await it.register(number)
    await it.create(2)
    await it.grant("w")
    for number in (1, 2):
        await it.ask(protocol.EndActor(it.actor_id(number), protocol.DeathCause(protocol.OUT_OF_SCOPE, "no handle")))
        assert (await it.known(number)).death.message == "no handle"
    assert it.world.neighbours["w"].count(protocol.ExitActor) == 0


@pytest.mark.parametrize("end", ["kill", "end"])
@story
async def test_what_was_ended_before_it_was_registered_is_not_registered(it: Cluster, end: str) -> None:
    if end == "kill":
        await it.kill(1)
    else:
        await it.ask(protocol.EndActor(it.actor_id(1), protocol.DeathCause(protocol.OUT_OF_SCOPE, "no handle")))
    assert (await it.register(1)).refused == ("no handle" if end == "end" else "it was killed by minray.kill")
    assert (await it.known(1)).state == DEAD


@story
async def test_g25_the_dead_take_their_actors_with_them_but_for_detached_ones(it: Cluster) -> None:
    owner = it.world.start("o", "a")
    await it.begin_actor(1, "v", owner=owner)
    await it.begin_actor(2, "w", owner=owner, detached=True)
    await it.begin_actor(3, "x")
    await it.die("o")
    assert (await it.known(1)).death == protocol.DeathCause(protocol.OWNER_DIED, "its owner died: SIGSEGV")
    assert [(await it.known(number)).state for number in (2, 3)] == [ALIVE, ALIVE]
    assert "SIGSEGV" in (await it.register(4, owner=owner)).refused
    assert (await it.known(4, owner)).death.kind == protocol.OWNER_DIED
    assert await it.known(4) is None


@story
async def test_g25_the_processes_of_a_dead_node_take_their_actors_with_them(it: Cluster) -> None:
    await it.join("b", cpus=1)
    await it.register(1, owner=it.world.start("o", "b"))
    await it.create(1, cpus=2)
    await it.live(1)
    await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    assert (await it.known(1)).death == protocol.DeathCause(protocol.OWNER_DIED, "its owner died: minray stop")


@story
async def test_g25_a_driver_takes_its_actors_with_it(it: Cluster) -> None:
    await it.begin_actor(1)
    it.world.kill("d")
    assert (await it.until(1, DEAD)).death.kind in (protocol.OWNER_DIED, protocol.JOB_FINISHED)
    assert (await it.register(2)).refused


@story
async def test_g25_g26_of_a_job_that_is_kept_the_drivers_own_actors_end_with_the_driver(it: Cluster) -> None:
    await it.begin_actor(1, "v", detached=True)
    await it.begin_actor(2, "w")
    it.world.kill("d")
    assert (await it.until(2, DEAD)).death.kind == protocol.OWNER_DIED
    assert (await it.known(1)).state == ALIVE and (await it.ask(GetJob(it.job_id))).job.kept


@story
async def test_g26_a_job_ends_with_its_last_detached_actor(it: Cluster) -> None:
    await it.begin_actor(1, "v", detached=True)
    await it.begin_actor(2, "w", owner=address("v", "a"))
    await it.ask(KvPut(job_namespace(it.job_id), b"function", b"code", True))
    await it.ask(FinishJob(it.job_id))
    assert [(await it.known(number)).state for number in (1, 2)] == [ALIVE, ALIVE]
    assert await it.ask(KvKeys(job_namespace(it.job_id), b"")) == KvKeysReply([b"function"])
    await it.kill(1)
    assert (await it.until(2, DEAD)).death.kind == protocol.JOB_FINISHED
    assert await it.ask(KvKeys(job_namespace(it.job_id), b"")) == KvKeysReply([])
    assert not (await it.ask(GetJob(it.job_id))).job.kept
    assert (await it.register(3)).refused == "its job has finished"


@story
async def test_g26_a_job_that_goes_on_keeps_its_actors_when_the_last_detached_one_ends(it: Cluster) -> None:
    await it.begin_actor(1, "v", detached=True)
    await it.begin_actor(2, "w")
    await it.kill(1)
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.known(2)).state == ALIVE
    await it.ask(FinishJob(it.job_id))
    assert (await it.until(2, DEAD)).death.kind == protocol.JOB_FINISHED


@story
async def test_g21_a_restart_that_a_preempted_node_has_caused_does_not_count(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.register(1, max_restarts=1)
    await it.create(1, cpus=8)
    await it.live(1, node="b")
    await it.join("c", cpus=8)
    await it.ask(DrainNode(id_of("b"), PREEMPTION, "soon", it.wall_clock() + 10.0))
    await it.ask(UnregisterNode(id_of("b"), "it had to go"))
    again = await it.until(1, RESTARTING)
    assert (again.restarts, again.preemptions, again.death.preempted) == (1, 1, True)


@story
async def test_actors_are_found_by_name_and_listed(it: Cluster) -> None:
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is None
    await it.register(1, name="n")
    await it.register(2)
    await it.kill(2)
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor == await it.known(1)
    assert (await it.register(3, name="n")).existing == await it.known(1)
    assert await it.known(3) is None
    listed = (await it.ask(protocol.ListActors())).actors
    assert [(actor.actor_id, actor.state) for actor in listed] == [
        (it.actor_id(1), DEPENDENCIES_UNREADY), (it.actor_id(2), DEAD),
    ]  # fmt: skip


@story
async def test_g33a_a_name_is_free_as_soon_as_the_owner_has_let_go_of_its_actor(it: Cluster) -> None:
    await it.begin_actor(1, name="n", max_restarts=-1)
    cause = protocol.DeathCause(protocol.OUT_OF_SCOPE, "no handle")
    ending = asyncio.create_task(it.ask(protocol.EndActor(it.actor_id(1), cause)))
    await it.hears("w", protocol.ExitActor)
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is None and not ending.done()
    assert await it.register(2, name="n") == protocol.RegisterActorReply(None)
    await it.die("w")
    await ending
    assert [(await it.known(number)).state for number in (1, 2)] == [DEAD, DEPENDENCIES_UNREADY]


@story
async def test_g33a_who_has_heard_from_the_owner_that_a_name_is_free_gets_it(it: Cluster) -> None:
    """Before the owner's own message is here; each question may come twice."""
    await it.begin_actor(1, name="n")
    asking = it.register_message(2, name="n")
    assert [(await it.ask(asking)).existing.actor_id for _ in range(2)] == [it.actor_id(1)] * 2
    again = msgspec.structs.replace(asking, instead_of=it.actor_id(1))
    assert [await it.ask(again) for _ in range(2)] == [protocol.RegisterActorReply(None)] * 2
    assert (await it.known(1)).is_ending and (await it.known(1)).state == ALIVE
    it.world.restart_gcs()
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor == await it.known(2)


@story
async def test_g33a_who_may_not_have_actors_takes_no_name_from_others(it: Cluster) -> None:
    owner = it.world.start("o", "a")
    await it.begin_actor(1, name="n")
    await it.die("o")
    asking = msgspec.structs.replace(it.register_message(2, name="n", owner=owner), instead_of=it.actor_id(1))
    assert (await it.ask(asking)).existing is not None and not (await it.known(1)).is_ending


@story
async def test_g33a_an_actor_that_says_that_it_wants_to_end_has_no_name_any_more(it: Cluster) -> None:
    await it.begin_actor(1, name="n", max_restarts=-1)
    await it.ask(protocol.ReportActorEnding(it.actor_id(1), id_of("v")))
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is not None, "said by another process"
    await it.ask(protocol.ReportActorEnding(it.actor_id(1), id_of("w")))
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is None and (await it.known(1)).state == ALIVE
    await it.die("w")
    assert (await it.known(1)).death.kind == protocol.WORKER_DIED, "it does not begin anew"


@pytest.mark.parametrize("is_readable", [True, False])
@story
async def test_a_list_of_actors_has_nothing_in_it_that_is_large(it: Cluster, is_readable: bool) -> None:
    await it.register(1, handle=b"how it is called")
    error = pack_exception(ValueError("no"), task_name="A", pid=1, node_id="", ip="") if is_readable else b"garbage"
    cause = DeathCause(protocol.CREATION_TASK_FAILED, "why", error)
    await it.ask(protocol.EndActor(it.actor_id(1), cause))
    known = await it.known(1)
    assert known.handle and known.death == cause
    (listed,) = (await it.ask(protocol.ListActors())).actors
    said = "why: ValueError: no" if is_readable else "why: an error that cannot be read"
    death = DeathCause(protocol.CREATION_TASK_FAILED, said)
    assert listed == msgspec.structs.replace(known, handle=b"", death=death)


# --- Another gcs goes on ---


@story
async def test_g110_the_next_gcs_asks_for_the_same_worker(it: Cluster) -> None:
    await it.register(1)
    await it.create(1)
    first, _ = await it.hears("a", RequestWorkerLease)
    it.world.restart_gcs()
    again, call = await it.hears("a", RequestWorkerLease)
    assert (again.lease_id, again.actor_id) == (first.lease_id, it.actor_id(1))
    call.reply(LeaseReply(GRANTED, it.world.start("w", "a"), 7))
    push, _ = await it.hears("w", PushTask)
    it.world.restart_gcs()
    assert (await it.hears("a", RequestWorkerLease))[0].lease_id == first.lease_id == push.lease_id


@pytest.mark.parametrize("died", ["while the gcs was away", "when it was asked", "never"])
@story
async def test_g35_g110_the_next_gcs_asks_whether_a_lease_has_lost_its_worker(it: Cluster, died: str) -> None:
    raylet, loss = it.world.neighbours["a"], LeaseFailure(known=True, dead=True, pid=9, cause="SIGSEGV")
    await it.register(1, max_restarts=1)
    await it.create(1)
    first = (await it.hears("a", RequestWorkerLease))[0].lease_id
    if died == "while the gcs was away":
        raylet.answers[GetLeaseFailure] = loss
    it.world.restart_gcs()
    if died != "while the gcs was away":
        request, call = await it.hears("a", RequestWorkerLease)
        assert request.lease_id == first
        if died == "when it was asked":
            raylet.answers[GetLeaseFailure] = loss
        call.reply(LeaseReply(CANCELLED))
    alive = await it.live(1)
    assert alive.restarts == int(died != "never")
    assert alive.death is None or alive.death.message == f"its worker (pid=9, node={NODE_A}) died: SIGSEGV"
    assert raylet.count(GetLeaseFailure) == (1 if died == "while the gcs was away" else 2)


@story
async def test_g35_g110_on_a_node_that_goes_later_it_waited_and_has_not_run(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.register(1, max_restarts=0)
    await it.create(1, cpus=8)
    await it.hears("b", RequestWorkerLease)
    it.world.restart_gcs()
    await it.hears("b", RequestWorkerLease)
    it.world.kill("b")
    await it.join("c", cpus=8)
    assert (await it.live(1, node="c")).restarts == 0


@story
async def test_g35_g110_on_a_node_that_is_gone_the_constructor_may_have_run(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.register(1, max_restarts=0)
    await it.create(1, cpus=8)
    await it.grant("w", "b")
    it.world.kill("gcs")
    it.world.kill("b")
    it.world.start_gcs()
    assert (await it.until(1, DEAD)).death.message == "its node died"


@story
async def test_g110_the_next_gcs_gives_back_what_a_dead_actor_had(it: Cluster) -> None:
    await it.begin_actor(1)
    it.world.neighbours["a"].answers[ReturnWorkerLease] = None
    await it.kill(1)
    first, _ = await it.hears("a", ReturnWorkerLease)
    it.world.neighbours["a"].answers[ReturnWorkerLease] = DONE
    it.world.restart_gcs()
    assert (await it.hears("a", ReturnWorkerLease))[0].lease_id == first.lease_id
    await it.ask(KvPut("n", b"k", b"v", True))
    it.world.restart_gcs()
    assert (await it.until(1, DEAD)).death.kind == protocol.KILLED
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.neighbours["a"].count(ReturnWorkerLease) == 2


@story
async def test_g110_the_next_gcs_makes_good_what_deaths_bring(it: Cluster) -> None:
    """Certificates that were stored by one that fell before it did what follows from them."""
    await it.begin_actor(1, "v", max_restarts=1)
    await it.begin_actor(2, "w", owner=address("o", "a"))
    await it.begin_actor(3, "x", detached=True)
    it.world.kill("gcs")
    deaths = it.world.head.disk[DISK].setdefault("worker_deaths", {})
    for worker in "vo":
        deaths[id_of(worker).hex()] = encode(it.death(worker).death)
    it.world.start_gcs()
    assert (await it.until(1, RESTARTING)).death.kind == protocol.WORKER_DIED
    assert (await it.until(2, DEAD)).death.kind == protocol.OWNER_DIED
    assert (await it.known(3)).state == ALIVE


# --- What happens while something is written ---


@story
async def test_g35_a_worker_that_dies_while_its_actor_becomes_alive_is_lost(it: Cluster) -> None:
    await it.register(1, max_restarts=1)
    await it.create(1)
    _, constructor = await it.grant("w")
    telling = asyncio.create_task(it.at_once(KvPut("n", b"k", b"v", True), it.death("w")))
    await it.client.pass_time(COMMIT_S / 4)
    constructor.reply(PushTaskReply(OK, (), 0))
    await telling
    assert (await it.until(1, RESTARTING)).death.kind == protocol.WORKER_DIED


@story
async def test_g35_a_worker_and_its_node_that_die_at_once_are_one_death(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.register(1, max_restarts=1)
    await it.create(1, cpus=8)
    await it.live(1, node="b")
    await it.at_once(KvPut("n", b"k", b"v", True), it.death("w", "b"), UnregisterNode(id_of("b"), "minray stop"))
    assert (await it.until(1, RESTARTING)).restarts == 1


@story
async def test_g112_an_actor_that_was_forgotten_is_dead_for_all_who_ask(it: Cluster) -> None:
    """Even if its lease is still being given back."""
    raylet = it.world.neighbours["a"]
    raylet.answers[ReturnWorkerLease] = None
    await it.begin_actor(1)
    await it.kill(1)
    _, returned = await it.hears("a", ReturnWorkerLease)
    for number in range(2, BOUNDS.maximum_gcs_destroyed_actor_cached_count + 2):
        await it.kill(number)
    forgotten = await it.known(1)
    assert (forgotten.state, forgotten.death.message) == (DEAD, "it died long ago")
    returned.reply(DONE)
    assert await it.register(1) == protocol.RegisterActorReply(None)
    await it.ask(KvPut("n", b"k", b"v", True))
    assert it.actor_id(1).hex() not in it.world.head.disk[DISK]["actors"]
    assert (await it.known(1)).state == DEAD


@story
async def test_g25_an_actor_whose_owner_dies_while_it_is_registered_is_dead(it: Cluster) -> None:
    it.world.start("o", "a")
    _, _, reply = await it.at_once(
        KvPut("n", b"k", b"v", True), it.death("o"), it.register_message(1, owner=address("o", "a"), name="n")
    )
    assert reply == protocol.RegisterActorReply(None)
    assert (await it.until(1, DEAD)).death.kind == protocol.OWNER_DIED
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is None


@story
async def test_g24_g31_an_actor_that_is_let_go_while_it_is_registered_is_dead_and_keeps_its_row(it: Cluster) -> None:
    """The row says whose it was, and the name is free."""
    end = protocol.EndActor(it.actor_id(1), protocol.DeathCause(protocol.OUT_OF_SCOPE, "no handle"))
    await it.at_once(KvPut("n", b"k", b"v", True), it.register_message(1, name="n"), end)
    info = await it.until(1, DEAD)
    assert (info.name, info.owner, info.class_name, info.death.message) == ("n", it.driver, "Counter", "no handle")
    assert (await it.ask(protocol.GetNamedActor("n", ""))).actor is None
    assert (await it.register(2, name="n")) == protocol.RegisterActorReply(None)


@story
async def test_g25_an_actor_whose_job_finishes_while_it_is_registered_is_dead(it: Cluster) -> None:
    await it.at_once(KvPut("n", b"k", b"v", True), FinishJob(it.job_id), it.register_message(1))
    assert (await it.until(1, DEAD)).death.kind == protocol.JOB_FINISHED


@pytest.mark.parametrize("registered_first", [True, False])
@story
async def test_a_detached_actor_does_not_outlive_a_job_that_finishes_while_it_is_registered(
    it: Cluster, registered_first: bool
) -> None:
    """The gcs has kept no data of the job for the actor."""
    register, finish = it.register_message(1, detached=True), FinishJob(it.job_id)
    await it.at_once(KvPut("n", b"k", b"v", True), *((register, finish) if registered_first else (finish, register)))
    assert (await it.until(1, DEAD)).death.kind == protocol.JOB_FINISHED


@pytest.mark.parametrize("full_after_us", range(0, 6000, 1000))
@story
async def test_g26_a_job_is_let_go_with_its_last_detached_actor_when_that_can_be_written(
    it: Cluster, full_after_us: int
) -> None:
    await it.begin_actor(1, detached=True)
    await it.ask(FinishJob(it.job_id))
    assert (await it.ask(GetJob(it.job_id))).job.kept
    it.full_disk(after_s=full_after_us / 1e6, for_s=3.0)
    await it.kill(1)
    await it.until(1, DEAD)
    await it.client.until(JOBS, it.job_id, lambda job: not job.kept)


@pytest.mark.parametrize("full_after_us", range(0, 6000, 1000))
@story
async def test_actors_of_a_dead_node_are_dead_whenever_that_can_be_written(it: Cluster, full_after_us: int) -> None:
    await it.join("b", cpus=8)
    it.world.start("e", "b")
    other = (await it.ask(register_job("e", "b"))).job_id
    await it.register(1)
    await it.create(1, cpus=8)
    await it.live(1, node="b")
    it.full_disk(after_s=full_after_us / 1e6, for_s=3.0)
    it.world.kill("b")
    assert (await it.until(1, DEAD)).death.kind == protocol.NODE_DIED
    await it.client.until(JOBS, other, lambda job: job.end_time)


@pytest.mark.parametrize("full_after_us", range(0, 6000, 1000))
@story
async def test_g109_a_job_of_a_dead_node_ends_whenever_that_can_be_written(it: Cluster, full_after_us: int) -> None:
    """The driver of the job may be cut off, so that nothing else ends the job."""
    await it.join("b")
    it.world.start("e", "b", silent=True)
    await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    it.full_disk(after_s=full_after_us / 1e6, for_s=3.0)
    job_id = (await it.ask_until_stored(register_job("e", "b"))).job_id
    await it.client.until(JOBS, job_id, lambda job: job.end_time)
