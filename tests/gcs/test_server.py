"""The gcs as its peers see it, in the simulated world: deaths, restarts, repetitions, a full disk, foreign stores."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from minray.common.bounds import BOUNDS
from minray.common.config import SystemConfig
from minray.gcs.health_check_manager import HealthCheckManager
from minray.gcs.server import GcsServer
from minray.gcs.worker_manager import MAX_WORKER_DEATHS
from minray.platform.base import PlatformError, RemoteFailure, Storage, StorageFailed
from minray.protocol.actor import OUT_OF_SCOPE, DeathCause, EndActor, GetNamedActor
from minray.protocol.base import Request, encode
from minray.protocol.gcs import (
    DRIVER_LEFT,
    IDLE_TERMINATION,
    JOBS,
    NODES,
    RESOURCES,
    WORKER_DEATHS,
    CheckAlive,
    CheckJoin,
    DrainNode,
    FinishJob,
    GetInternalConfig,
    GetJob,
    GetWorkerDeath,
    JobInfo,
    KvDel,
    KvGet,
    KvKeys,
    KvPut,
    Poll,
    RegisterJob,
    RegisterNode,
    ReportResources,
    ReportWorkerDeath,
    UnregisterNode,
    WorkerDeath,
    job_namespace,
)
from minray.protocol.placement_group import PrepareBundles, PrepareBundlesReply, ReturnBundles, WaitPlacementGroup
from minray.protocol.raylet import DrainRaylet, RequestWorkerLease, ReturnWorkerLease
from minray.rpc.service import Dispatcher
from tests.gcs.stories import A_MOMENT_S, Cluster, story
from tests.gcs.world import DISK, GCS, Client, World, address, id_of, node_info, register_job, resources

AT_ONCE_S = 0.1
LIMIT_S = 5 * (10 + 3)
"""Threshold times (time-out and period), as configured by default."""


def now() -> float:
    return asyncio.get_running_loop().time()


async def join(world: World, client: Client, *names: str, silent: bool = False) -> bytes:
    """Nodes whose raylets listen, registered; returns the cluster id."""
    for name in names:
        world.start(name, silent=silent)
        reply = await client.ask(RegisterNode(node_info(name)))
        assert not reply.refused
    return reply.cluster_id


async def job_of(world: World, client: Client, driver: str, node: str) -> bytes:
    """A driver that listens, and its registered job."""
    world.start(driver, node)
    return (await client.ask(register_job(driver, node))).job_id


# --- Deaths ---


def test_a_killed_raylet_is_noticed_at_once() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b")
        await client.ask(ReportResources(resources("a", 1)))
        await client.pass_time(61)
        world.kill("a")
        killed = now()
        node = await client.until(NODES, "a", lambda node: not node.alive)
        assert now() - killed < AT_ONCE_S
        assert "raylet is gone" in node.death_cause
        assert await client.table(RESOURCES) == {}
        assert (await client.table(NODES))[id_of("b")].alive

    world.run(story)


def test_g108_the_id_of_a_dead_node_never_returns(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def story(client: Client) -> None:
        cluster_id = await join(world, client, "a")
        await client.ask(UnregisterNode(id_of("a"), "minray stop"))
        for restarted in (False, True):
            if restarted:
                world.restart_gcs()
            assert "minray stop" in (await client.ask(RegisterNode(node_info("a")))).refused
            assert "never returns" in (await client.ask(RegisterNode(node_info("a"), cluster_id))).refused
            assert "never returns" in (await client.ask(ReportResources(resources("a", 9)))).refused
            await client.ask(UnregisterNode(id_of("a"), "another cause"))
            assert (await client.table(NODES))[id_of("a")].death_cause == "minray stop"

    world.run(story)
    assert "never returns" in caplog.text


def test_g108_all_processes_of_a_dead_node_are_dead() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b")
        worker_of_a, worker_of_b = (GetWorkerDeath(id_of("w"), id_of(name)) for name in "ab")
        assert (await client.ask(worker_of_a)).death is None
        world.kill("a")
        await client.until(NODES, "a", lambda node: not node.alive)
        death = (await client.ask(worker_of_a)).death
        assert death and death.worker_id == id_of("w") and "its node died" in death.cause
        assert (await client.ask(worker_of_b)).death is None

    world.run(story)


def test_g109_a_dead_node_ends_the_jobs_of_its_drivers_alone() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b")
        ended, other = await job_of(world, client, "d", "a"), await job_of(world, client, "e", "b")
        world.kill("a")
        await client.until(JOBS, ended, lambda job: job.end_time)
        assert (await client.table(JOBS))[other].end_time == 0
        late = await job_of(world, client, "f", "a")
        assert (await client.ask(GetJob(late))).job.end_time > 0
        assert world.watches() == sorted(f"watch({id_of(name)[:4].hex()})" for name in "be")

    world.run(story)


def test_a_node_that_is_cut_off_dies_within_the_limits() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b")
        world.sim.wire.cut("head", "a", duration_s=None)
        cut = now()
        node = await client.until(NODES, "a", lambda node: not node.alive)
        assert LIMIT_S / 2 < now() - cut < LIMIT_S + 5
        assert "5 health checks" in node.death_cause
        assert (await client.table(NODES))[id_of("b")].alive

    world.run(story)


def test_a_node_that_is_cut_off_for_a_short_time_lives() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        for _ in range(3):
            world.sim.wire.cut("head", "a", duration_s=LIMIT_S - 25)
            assert await client.news(NODES, for_s=LIMIT_S) == []

    world.run(story)


def test_reports_prove_that_a_node_lives() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", silent=True)
        for version in range(1, 21):
            await client.ask(ReportResources(resources("a", version)))
            assert await client.news(NODES, for_s=LIMIT_S / 5) == []
        reported = now()
        await client.until(NODES, "a", lambda node: not node.alive)
        assert now() - reported < LIMIT_S + 5

    world.run(story)


@story
async def test_a_node_whose_answers_are_failures_lives(it: Cluster) -> None:
    """As one of another version may, or one whose memory is full."""
    await it.join("b")
    it.world.neighbours["b"].answers[CheckAlive] = RemoteFailure("internal", "a mistake")
    assert await it.client.news(NODES, for_s=5 * LIMIT_S) == []


@story
async def test_a_channel_that_breaks_has_its_process_checked_once_at_once(it: Cluster) -> None:
    await it.join("b")
    await it.client.pass_time(1.0)
    checks = it.world.neighbours["b"].checks
    it.world.break_channels("b")
    await it.client.pass_time(2.0)
    assert it.world.neighbours["b"].checks == checks + 1
    assert (await it.client.table(NODES))[id_of("b")].alive


@pytest.mark.parametrize("silent", [False, True])
@story
async def test_nothing_is_kept_of_a_process_that_is_watched_no_more(it: Cluster, silent: bool) -> None:
    """The process has said that it ends, or was silent for too long."""
    it.world.start("b", silent=silent)
    await it.ask(RegisterNode(node_info("b")))
    await it.client.pass_time(1.0)
    assert "channel to b" in it.world.left_by_gcs()
    if not silent:
        await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    await it.client.until(NODES, "b", lambda node: not node.alive)
    await it.client.pass_time(AT_ONCE_S)
    assert "channel to b" not in it.world.left_by_gcs()


@story
async def test_a_raylet_that_registers_while_the_gcs_begins_is_watched_once(it: Cluster) -> None:
    health = HealthCheckManager(it.world.platform, SystemConfig())
    told: list[str] = []

    async def on_dead(cause: str) -> None:
        told.append(cause)

    where = it.world.start("b")
    for _ in range(2):
        health.watch(where, silence_counts=True, on_dead=on_dead)
    await it.client.pass_time(1.0)
    assert it.world.neighbours["b"].checks == 1
    it.world.kill("b")
    await it.client.pass_time(AT_ONCE_S)
    assert len(told) == 1
    health.close()


def test_a_killed_driver_ends_its_job_at_once_and_has_a_certificate() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        await client.pass_time(61)
        world.kill("d")
        killed = now()
        await client.until(JOBS, job_id, lambda job: job.end_time)
        assert now() - killed < AT_ONCE_S
        death = (await client.ask(GetWorkerDeath(id_of("d"), id_of("a")))).death
        assert death and death.pid == 77 and "driver is gone" in death.cause
        assert list(await client.table(WORKER_DEATHS)) == [id_of("d")]

    world.run(story)


def test_the_certificate_of_a_driver_that_has_left_says_so() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        await client.ask(FinishJob(await job_of(world, client, "d", "a")))
        world.kill("d")
        death = await client.until(WORKER_DEATHS, "d", lambda death: death)
        assert death.cause == DRIVER_LEFT

    world.run(story)


@pytest.mark.parametrize("restart", [False, True])
def test_a_suspended_driver_keeps_its_job(restart: bool) -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        world.sim.loop.stall(world.processes["d"], 100 * LIMIT_S)
        if restart:
            world.restart_gcs()
        await client.pass_time(50 * LIMIT_S)
        assert not (await client.ask(GetJob(job_id))).job.end_time
        world.kill("d")
        await client.until(JOBS, job_id, lambda job: job.end_time)

    world.run(story)


def test_a_driver_that_another_sees_dead_ends_its_job() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        death = WorkerDeath(id_of("d"), id_of("a"), 77, "signal SIGKILL")
        for _ in range(2):
            await client.ask(ReportWorkerDeath(death))
        assert (await client.ask(GetJob(job_id))).job.end_time > 0
        assert await client.table(WORKER_DEATHS) == {id_of("d"): death}

    world.run(story)


def test_who_ended_in_an_orderly_way_is_not_watched_any_more() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b")
        await job_of(world, client, "d", "a")
        assert len(world.watches()) == 3
        await client.ask(UnregisterNode(id_of("a"), "minray stop"))
        await client.pass_time(0)
        assert world.watches() == [f"watch({id_of('b')[:4].hex()})"]

    world.run(story)


# --- Restarts ---


def test_g110_a_restarted_gcs_knows_what_it_acknowledged() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b")
        running, over = await job_of(world, client, "d", "a"), await job_of(world, client, "e", "a")
        await client.ask(FinishJob(over))
        await client.ask(KvPut("n:m", b"key", b"value", True))
        await client.ask(KvPut("n:m", b"gone", b"value", True))
        await client.ask(KvDel("n:m", b"gone"))
        death = WorkerDeath(id_of("w"), id_of("a"), 7, "SIGSEGV")
        await client.ask(ReportWorkerDeath(death))
        nodes, jobs = await client.table(NODES), await client.table(JOBS)
        world.restart_gcs()
        assert await client.table(NODES) == nodes and await client.table(JOBS) == jobs
        assert await client.table(WORKER_DEATHS) == {id_of("w"): death}
        assert set(jobs) == {running, over}
        assert (await client.ask(KvGet("n:m", b"key"))).value == b"value"
        assert (await client.ask(KvKeys("n:m", b""))).keys == [b"key"]
        assert not (await client.ask(ReportResources(resources("a", 7)))).refused
        assert await job_of(world, client, "f", "b") not in jobs
        assert await client.news(NODES, for_s=10 * LIMIT_S) == []

    world.run(story)


def test_g110_who_died_while_the_gcs_was_down_is_found_dead() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a", "b", "c")
        job_id = await job_of(world, client, "d", "b")
        for name in ("gcs", "a", "d"):
            world.kill(name)
        world.sim.lose_node("c")
        world.start_gcs()
        restarted = now()
        await client.until(NODES, "a", lambda node: not node.alive)
        await client.until(JOBS, job_id, lambda job: job.end_time)
        assert now() - restarted < 2.0, "as long as it takes the client to find the gcs again"
        await client.until(NODES, "c", lambda node: not node.alive)
        assert now() - restarted < LIMIT_S + 5
        assert (await client.table(NODES))[id_of("b")].alive

    world.run(story)


def test_a_gcs_that_fell_between_two_commits_ends_the_job_of_a_dead_node() -> None:
    world = World()
    job = JobInfo(b"\0\0\0\1", *(getattr(register_job("d", "a"), name) for name in ("driver", "driver_pid", "config")), 1.0)
    tables = world.head.disk.setdefault(DISK, {})
    tables["nodes"] = {id_of("a").hex(): encode(node_info("a", alive=False, death_cause="tired"))}
    tables["jobs"] = {job.job_id.hex(): encode(job)}
    tables["cluster"] = {"id": b"o" * 16, "jobs": (1).to_bytes(8, "big")}

    async def story(client: Client) -> None:
        assert (await client.table(JOBS))[job.job_id].end_time > 0

    world.run(story)


def test_g110a_a_head_that_registers_ends_its_predecessor_at_once() -> None:
    world = World()

    async def story(client: Client) -> None:
        world.start("h", "h")
        await client.ask(RegisterNode(node_info("h", is_head=True)))
        await join(world, client, "a")
        world.sim.lose_node("h")
        world.start("i", "i")
        await client.ask(RegisterNode(node_info("i", is_head=True)))
        registered = now()
        gone = await client.until(NODES, "h", lambda node: not node.alive)
        assert now() - registered < AT_ONCE_S, "although its machine says nothing any more"
        assert gone.death_cause == "its raylet is gone: the head was started again as node 692d2d2d"
        assert "declared dead" in (await client.ask(ReportResources(resources("h", 2)))).refused
        assert "declared dead" in (await client.ask(RegisterNode(node_info("h", is_head=True)))).refused
        nodes = await client.table(NODES)
        assert nodes[id_of("i")].alive and nodes[id_of("a")].alive, "other nodes, and the head itself, are not concerned"

    world.run(story)


def test_an_empty_store_under_a_running_cluster_is_refused_loudly(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def story(client: Client) -> None:
        cluster_id = await join(world, client, "a")
        world.kill("gcs")
        world.head.disk.clear()
        world.start_gcs()
        assert "unknown to this gcs" in (await client.ask(ReportResources(resources("a", 2)))).refused
        reply = await client.ask(RegisterNode(node_info("a"), cluster_id))
        assert "belongs to cluster" in reply.refused and reply.cluster_id != cluster_id
        assert await client.table(NODES) == {}

    world.run(story)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_g110_a_gcs_without_storage_forgets_the_cluster() -> None:
    world = World(storage_path="")

    async def story(client: Client) -> None:
        cluster_id = await join(world, client, "a")
        assert not (await client.ask(RegisterNode(node_info("a")))).may_restart
        world.restart_gcs()
        assert (await client.ask(RegisterNode(node_info("a"), cluster_id))).refused

    world.run(story)


# --- Late and repeated requests ---


def test_g112_a_repeated_registration_is_the_same_job() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        world.start("d", "a")
        at_once = await asyncio.gather(*(client.ask(register_job("d", "a")) for _ in range(3)))
        job_id = at_once[0].job_id
        await client.ask(FinishJob(job_id))
        end_time = (await client.ask(GetJob(job_id))).job.end_time
        assert await client.news(JOBS, for_s=5) == []
        await client.ask(FinishJob(job_id))
        late = await client.ask(register_job("d", "a"))
        assert {reply.job_id for reply in [*at_once, late]} == {job_id}
        assert [job.end_time for job in (await client.table(JOBS)).values()] == [end_time]
        assert end_time > 0

    world.run(story)


@pytest.mark.parametrize("delay_us", range(0, 4000, 250))
def test_g112_a_registration_survives_the_crash_of_the_gcs(delay_us: int) -> None:
    """The commit takes 2 ms; the request is sent again to the next gcs, whether or not the first one stored it."""
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        world.start("d", "a")
        world.sim.loop.world.call_later(delay_us / 1e6, world.restart_gcs)
        job_id = (await client.ask(register_job("d", "a"))).job_id
        assert (await client.ask(GetJob(job_id))).job.driver.worker_id == id_of("d")
        world.restart_gcs()
        assert list(await client.table(JOBS)) == [job_id]
        assert await job_of(world, client, "e", "a") != job_id

    world.run(story)


def test_g112_a_repeated_registration_of_a_node_is_no_news() -> None:
    world = World()

    async def story(client: Client) -> None:
        cluster_id = await join(world, client, "a")
        before = await client.ask(Poll(NODES, b"", 0, 0.0))
        replies = await asyncio.gather(*(client.ask(RegisterNode(node_info("a"), known)) for known in (b"", cluster_id)))
        assert [(reply.refused, reply.cluster_id) for reply in replies] == [("", cluster_id)] * 2
        assert (await client.ask(Poll(NODES, b"", 0, 0.0))).version == before.version

    world.run(story)


def test_g112_an_old_report_does_not_replace_a_new_one() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        for version in (2, 1, 2):
            assert not (await client.ask(ReportResources(resources("a", version, cpus=version)))).refused
        assert await client.table(RESOURCES) == {id_of("a"): resources("a", 2, cpus=2)}

    world.run(story)


def test_g112_a_key_is_added_once() -> None:
    world = World()

    async def story(client: Client) -> None:
        put = [KvPut("n", b"k", value, False) for value in (b"1", b"2")]
        replies = await asyncio.gather(*(client.ask(request) for request in (put[0], put[1], put[0], put[1])))
        assert [reply.added for reply in replies] == [True, False, True, False]
        for _ in range(2):
            await client.ask(KvDel("n", b"k"))
        assert (await client.ask(KvGet("n", b"k"))).value is None
        assert (await client.ask(put[1])).added

    world.run(story)


# --- Storage ---


def test_what_cannot_be_stored_is_refused_and_not_seen(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        world.head.disk_full = True
        world.start("b")
        world.start("e", "a")
        refused = [
            RegisterNode(node_info("b")),
            UnregisterNode(id_of("a"), "minray stop"),
            register_job("e", "a"),
            FinishJob(job_id),
            KvPut("n", b"k", b"v", True),
        ]
        for request in refused:
            with pytest.raises(RemoteFailure, match="storage-failed.*no space left"):
                await client.ask(request)
        assert list(await client.table(NODES)) == [id_of("a")] and (await client.table(NODES))[id_of("a")].alive
        assert [job.end_time for job in (await client.table(JOBS)).values()] == [0.0]
        assert (await client.ask(KvGet("n", b"k"))).value is None
        world.head.disk_full = False
        for request in refused:
            await client.ask(request)
        assert not (await client.table(NODES))[id_of("a")].alive
        assert all(job.end_time for job in (await client.table(JOBS)).values())
        assert (await client.ask(KvGet("n", b"k"))).value == b"v"

    world.run(story)
    assert "cannot be stored" in caplog.text


@story
async def test_a_value_is_deleted_when_that_is_stored(it: Cluster) -> None:
    await it.ask(KvPut("n", b"k", b"v", True))
    it.world.head.disk_full = True
    with pytest.raises(RemoteFailure, match="storage-failed"):
        await it.ask(KvDel("n", b"k"))
    assert (await it.ask(KvGet("n", b"k"))).value == b"v"
    it.world.head.disk_full = False
    await it.ask(KvDel("n", b"k"))
    assert it.world.head.disk[DISK]["kv"] == {} and (await it.ask(KvGet("n", b"k"))).value is None


@story
async def test_g110_a_value_that_was_refused_does_not_come_back(it: Cluster) -> None:
    """The value was about to be written. It is unknown after the key was deleted, or put again with the old value."""
    await it.ask(KvPut("n", b"kept", b"v", True))
    it.world.head.disk_full = True
    for key in (b"k", b"kept"):
        with pytest.raises(RemoteFailure, match="storage-failed"):
            await it.ask(KvPut("n", key, b"refused", True))
    with pytest.raises(RemoteFailure, match="storage-failed"):
        await it.ask(KvDel("n", b"kept"))
    it.world.head.disk_full = False
    await it.ask(KvDel("n", b"k"))
    await it.ask(KvPut("n", b"kept", b"v", True))
    await it.ask(KvPut("n", b"another", b"v", True))
    it.world.restart_gcs()
    assert [(await it.ask(KvGet("n", key))).value for key in (b"k", b"kept")] == [None, b"v"]


@story
async def test_g110_what_was_refused_is_nothing_that_the_next_gcs_knows(it: Cluster) -> None:
    """A caller that was refused may have given up."""
    it.world.head.disk_full = True
    actor, group = it.register_message(1, name="n", detached=True), it.group_message(1, 1)
    for request in (actor, group, register_job("e", "a"), RegisterNode(node_info("b"))):
        with pytest.raises(RemoteFailure, match="storage-failed"):
            await it.ask(request)
    it.world.head.disk_full = False
    await it.ask(KvPut("n", b"k", b"v", True))
    it.world.restart_gcs()
    assert (await it.ask(GetNamedActor("n", ""))).actor is None and await it.known(1) is None
    assert (await it.group(1)).group is None
    assert id_of("b") not in await it.client.table(NODES)
    assert list(await it.client.table(JOBS)) == [it.job_id]


@story
async def test_a_node_whose_farewell_cannot_be_stored_is_still_watched(it: Cluster) -> None:
    await it.join("b")
    it.world.head.disk_full = True
    with pytest.raises(RemoteFailure, match="storage-failed"):
        await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    it.world.head.disk_full = False
    it.world.kill("b")
    await it.client.until(NODES, "b", lambda node: not node.alive)


def test_a_death_is_told_when_it_can_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        await join(world, client, "b")
        other_id = await job_of(world, client, "e", "b")
        world.head.disk_full = True
        for name in "ade":
            world.kill(name)
        assert await client.news(NODES, for_s=5) == [] == await client.news(JOBS, for_s=0)
        assert 3 * 4 < caplog.text.count("an event could not be stored") <= 3 * 6, "once a second for each"
        world.head.disk_full = False
        await client.until(NODES, "a", lambda node: not node.alive)
        for ended in (job_id, other_id):
            await client.until(JOBS, ended, lambda job: job.end_time)

    world.run(story)


def test_the_values_of_a_job_go_with_it() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        for namespace in (job_namespace(job_id), "stays"):
            await client.ask(KvPut(namespace, b"function", b"code", True))
        await client.ask(FinishJob(job_id))
        assert (await client.ask(KvKeys(job_namespace(job_id), b""))).keys == []
        await client.ask(KvPut(job_namespace(job_id), b"late", b"code", True))
        assert (await client.ask(KvKeys(job_namespace(job_id), b""))).keys == []
        world.restart_gcs()
        assert (await client.ask(KvKeys(job_namespace(job_id), b""))).keys == []
        assert (await client.ask(KvKeys("stays", b""))).keys == [b"function"]
        await client.ask(KvPut("stays", b"another", b"", True))
        assert len(world.head.disk[DISK]["kv"]) == 2

    world.run(story)


@pytest.mark.parametrize("ends_first", [True, False])
def test_what_a_worker_exports_while_its_job_ends_is_not_kept(ends_first: bool) -> None:
    """A task that still runs may define a function; the gcs is storing the one and the other."""
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        job_id = await job_of(world, client, "d", "a")
        requests: list[Any] = [FinishJob(job_id), KvPut(job_namespace(job_id), b"function", b"code", True)]
        await asyncio.gather(*(client.ask(request) for request in requests[:: 1 if ends_first else -1]))
        assert (await client.ask(KvKeys(job_namespace(job_id), b""))).keys == []
        await client.ask(KvPut("stays", b"another", b"", True))
        assert len(world.head.disk[DISK]["kv"]) == 1

    world.run(story)


def test_the_rows_of_forgotten_jobs_go_with_the_next_commit() -> None:
    world = World()
    request = register_job("d", "a")
    jobs = [
        JobInfo(number.to_bytes(4, "big"), address(f"d{number}", "a"), 1, request.config, 1.0, end_time=float(number))
        for number in range(1, BOUNDS.maximum_gcs_finished_job_cached_count + 3)
    ]
    world.head.disk[DISK] = {"jobs": {job.job_id.hex(): encode(job) for job in jobs}}

    async def story(client: Client) -> None:
        assert len(await client.table(JOBS)) == BOUNDS.maximum_gcs_finished_job_cached_count
        await client.ask(KvPut("n", b"k", b"v", True))
        left = world.head.disk[DISK]["jobs"]
        assert len(left) == BOUNDS.maximum_gcs_finished_job_cached_count and jobs[0].job_id.hex() not in left

    world.run(story)


def test_the_rows_of_forgotten_certificates_go_with_the_next_commit() -> None:
    world = World()
    deaths = [
        WorkerDeath(number.to_bytes(16, "big"), id_of("a"), number, "SIGSEGV") for number in range(MAX_WORKER_DEATHS + 2)
    ]
    world.head.disk[DISK] = {"worker_deaths": {death.worker_id.hex(): encode(death) for death in deaths}}

    async def story(client: Client) -> None:
        assert (await client.ask(GetWorkerDeath(deaths[0].worker_id, id_of("a")))).death is None
        await client.ask(KvPut("n", b"k", b"v", True))
        assert [*world.head.disk[DISK]["worker_deaths"]] == [death.worker_id.hex() for death in deaths[2:]]

    world.run(story)


@story
async def test_g26_the_next_gcs_lets_go_of_a_job_whose_last_detached_actor_is_gone(it: Cluster) -> None:
    """The one before it fell when it had stored the end of the actor."""
    await it.begin_actor(1, detached=True)
    await it.ask(KvPut(job_namespace(it.job_id), b"function", b"code", True))
    await it.ask(FinishJob(it.job_id))
    it.world.restart_gcs()
    assert (await it.ask(GetJob(it.job_id))).job.kept
    it.world.kill("gcs")
    it.world.head.disk[DISK]["actors"].clear()
    it.world.start_gcs()
    await it.client.until(JOBS, it.job_id, lambda job: not job.kept)
    assert (await it.ask(KvKeys(job_namespace(it.job_id), b""))).keys == []


def test_a_damaged_row_is_named() -> None:
    world = World()

    async def story(client: Client) -> None:
        config = msgspec.structs.replace(world.config, endpoints=["sim:second"])
        world.outside.disk[DISK] = {"nodes": {"00": b"garbage"}}
        with pytest.raises(PlatformError, match="table nodes has a row that is no NodeInfo"):
            await GcsServer(world.platform, config).start()

    world.run(story)


def test_a_store_that_cannot_be_opened_ends_the_gcs() -> None:
    world = World()

    def in_use(path: str) -> Storage:
        raise StorageFailed(f"{path} is another gcs's")

    async def story(client: Client) -> None:
        server = GcsServer(msgspec.structs.replace(world.platform, open_storage=in_use), world.config)
        with pytest.raises(StorageFailed, match="another gcs's"):
            await server.start()
        await server.wait_closed()

    world.run(story)


# --- Listening ---


def test_a_taken_endpoint_is_an_error_and_leaves_nothing() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        second = GcsServer(world.platform, msgspec.structs.replace(world.config, endpoints=["sim:second", GCS]))
        with pytest.raises(PlatformError, match=GCS):
            await second.start()
        await second.wait_closed()
        assert second.endpoints == [] and list(world.sim.wire.listeners).count("sim:second") == 0

    world.run(story)


def test_all_endpoints_are_served_until_it_is_closed() -> None:
    world = World()

    async def story(client: Client) -> None:
        await join(world, client, "a")
        server = GcsServer(world.platform, msgspec.structs.replace(world.config, endpoints=["sim:one", "sim:two"]))
        await server.start()
        assert server.endpoints == ["sim:one", "sim:two"] and set(server.endpoints) <= set(world.sim.wire.listeners)
        await server.close()
        await server.close()
        await server.wait_closed()
        assert not {"sim:one", "sim:two"} & set(world.sim.wire.listeners)

    world.run(story)


@story
async def test_a_gcs_that_is_closed_leaves_nothing(it: Cluster) -> None:
    raylet = it.world.neighbours["a"]
    await it.join("b")
    for kind in (PrepareBundles, ReturnWorkerLease, DrainRaylet):
        raylet.answers[kind] = it.world.neighbours["b"].answers[kind] = None
    it.world.neighbours["b"].answers[PrepareBundles] = PrepareBundlesReply("no room")
    for number in range(1, 5):
        await it.register(number)
        await it.create(number)
    await it.live(1, "v")
    await it.grant("w")
    await it.hears("a", RequestWorkerLease)
    await it.create_group(1, 1)
    await it.create_group(2, 4)
    await it.hears("b", ReturnBundles)
    await it.kill(4)
    asking: list[Request[Any]] = [
        EndActor(it.actor_id(1), DeathCause(OUT_OF_SCOPE, "no handle")),
        DrainNode(id_of("b"), IDLE_TERMINATION, "idle"),
        WaitPlacementGroup(it.group_id(1), 100.0),
        Poll(JOBS, b"", 10, 100.0),
    ]
    waiting = [asyncio.create_task(it.ask(request)) for request in asking]
    await it.client.pass_time(A_MOMENT_S)
    it.world.sim.wire.cut("head", "b", duration_s=None)
    assert len(it.world.left_by_gcs()) > 10
    closed = asyncio.create_task(it.world.gcs.wait_closed())
    await it.client.pass_time(A_MOMENT_S)
    assert not closed.done()
    await it.world.gcs.close()
    await closed
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.left_by_gcs() == []
    for task in waiting:
        task.cancel()


@story
async def test_the_gcs_closes_the_connection_with_which_it_has_checked_a_machine(it: Cluster) -> None:
    machine = "tcp:10.0.0.9:7000"
    assert (await it.ask(CheckJoin(machine))).unreachable
    await it.world.platform.network.listen(machine, id_of("machine"), Dispatcher())
    before = it.world.left_by_gcs()
    assert (await it.ask(CheckJoin(machine))).unreachable == ""
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.left_by_gcs() == before


def test_who_joins_takes_over_the_configuration_of_the_cluster() -> None:
    world = World(health_check_period_ms=1234)

    async def story(client: Client) -> None:
        config = (await client.ask(GetInternalConfig())).system_config
        assert SystemConfig.from_overrides(config) == world.config.system_config

    world.run(story)


def test_an_unknown_channel_is_refused() -> None:
    world = World()

    async def story(client: Client) -> None:
        with pytest.raises(RemoteFailure, match="bad-request.*no channel 'weather'"):
            await client.ask(Poll("weather", b"", 0, 1000.0))
        assert not any("weather" in left for left in world.left_by_gcs())

    world.run(story)


def test_a_malformed_request_is_refused() -> None:
    world = World()

    async def story(client: Client) -> None:
        with pytest.raises(RemoteFailure, match="bad-request"):
            await client.ask(RegisterJob("no address", 1, None))  # type: ignore[arg-type]

    world.run(story)
