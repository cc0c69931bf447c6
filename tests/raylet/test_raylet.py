"""A node joins, reports, survives its gcs's restart, and ends: asked, refused, or left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from minray.common.config import fallback_endpoint, store_endpoint, worker_endpoint
from minray.common.task_spec import STRATEGY_AFFINITY, SchedulingStrategy
from minray.protocol.base import DONE, Address, decode, encode
from minray.protocol.gcs import (
    IDLE_TERMINATION,
    JOBS,
    NODES,
    PREEMPTION,
    RESOURCES,
    WORKER_DEATHS,
    CheckAlive,
    GetWorkerDeath,
    JobInfo,
    NodeDrain,
    NodeInfo,
    NodeResources,
    Poll,
    RegisterNode,
    ReportResources,
    UnregisterNode,
)
from minray.protocol.object_store import GET, PinObjects, Wanted
from minray.protocol.placement_group import Bundle, CreatePlacementGroup, PlacementGroupInfo
from minray.protocol.raylet import (
    GRANTED,
    SPILLBACK,
    UNSCHEDULABLE,
    CancelWorkerLease,
    DrainRaylet,
    FlushLogs,
    GetLeaseFailure,
    GetNodeStats,
    ReturnWorkerLease,
    Shutdown,
)
from minray.raylet.ended_leases import CANCELLED_EARLY, KEPT_S, MAX_KEPT, RETURNED, EndedLeases
from minray.rpc.pubsub import Subscription
from tests.raylet.scene import STORE_BYTES, Scene, scenario


def follow(scene: Scene) -> list[NodeResources]:
    """The reports as the gcs passes them on."""
    reports: list[NodeResources] = []

    def on_change(key: bytes, value: bytes | None) -> None:
        if value is not None:
            reports.append(decode(NodeResources, value))

    Subscription(scene.gcs, RESOURCES, on_change).start()
    return reports


@scenario(cpus=2)
async def test_the_cluster_hears_what_is_free_and_what_waits(scene: Scene) -> None:
    reports = follow(scene)
    await scene.until(lambda: reports and reports[-1].available["CPU"] == 20_000)
    await scene.lease()
    impossible = scene.request({"GPU": 1})
    scene.ask(impossible)
    scene.ask(scene.request(2))
    await scene.until(lambda: reports[-1].available["CPU"] == 10_000 and len(reports[-1].pending) == 2)
    assert reports[-1].pending == [({"CPU": 20_000}, 1), ({"GPU": 10_000}, 1)]
    await scene.raylet().call(CancelWorkerLease(impossible.lease_id))
    await scene.until(lambda: len(reports[-1].pending) == 1)


@scenario(cpus=2)
async def test_an_idle_node_reports_only_to_show_that_it_lives(scene: Scene) -> None:
    await scene.settle(2)
    reports = follow(scene)
    await scene.settle(60)
    assert len(reports) == 1, "the other nodes are not told that nothing is new"
    await scene.lease()
    await scene.until(lambda: len(reports) > 1)
    assert 10 <= reports[1].version - reports[0].version <= 25  # one in three seconds


@scenario(cpus=2)
async def test_the_death_of_a_worker_is_told_to_the_gcs(scene: Scene) -> None:
    _, reply = await scene.lease()
    worker = scene.worker(reply)
    worker.exit(4)
    question = GetWorkerDeath(worker.config.worker_id, worker.config.node_id)
    await scene.until(lambda: not worker.is_alive)
    await scene.settle()
    death = (await scene.gcs.call(question)).death
    assert death is not None and (death.pid, death.cause) == (worker.pid, "exit code 4")


@scenario(num_prestart_workers=0, worker_register_timeout_seconds=1.0)
async def test_the_death_of_a_worker_that_has_not_registered_is_told_too(scene: Scene) -> None:
    """The worker may have begun to listen. By its death certificate the node knows to remove the socket."""
    scene.silent_starts = 1
    await scene.lease()
    told = (await scene.gcs.call(Poll(WORKER_DEATHS, b"", 0, 1.0))).entries
    assert len(told) == 1 and told[0][0] not in scene.workers


@scenario(cpus=2)
async def test_a_node_that_is_shut_down_leaves_nothing_and_says_farewell(scene: Scene) -> None:
    await scene.lease()
    reports = follow(scene)
    await scene.raylet().call(Shutdown("the test is over"))
    await scene.until(lambda: "head" in scene.reasons, limit_s=1)
    assert scene.reasons["head"] == "asked to shut down: the test is over"
    assert scene.alive() == []
    await scene.until(lambda: not scene.processes["head"].alive)
    refused = (await scene.gcs.call(ReportResources(reports[-1]))).refused
    assert refused  # the gcs has buried it


@scenario(cpus=2)
async def test_a_node_that_has_ended_listens_nowhere_and_nothing_goes_off_in_it_any_more(scene: Scene) -> None:
    lease_id, _ = await scene.lease()
    await scene.give_back(lease_id)
    scene.ask(scene.request({"GPU": 1}))
    await scene.settle()
    await scene.raylets["head"].close("the test is over")
    await scene.until(lambda: "head" in scene.reasons)
    assert scene.left["head"] == []


@scenario(cpus=2)
async def test_a_busy_node_leaves_as_little(scene: Scene) -> None:
    """A group, a worker that prints and is asked about, an object on its way here, one on its way to disk, a wish to go."""
    raylet = scene.raylets["head"]
    group = PlacementGroupInfo(b"g" * 18, "", "", "PACK", [Bundle({"CPU": 10_000})], "", scene.job_id, False)
    await scene.gcs.call(CreatePlacementGroup(group))
    await scene.until(lambda: raylet.groups.bundles.all())
    lease_id, reply = await scene.lease()
    asking = scene.begin(scene.raylet().call(GetLeaseFailure(lease_id, 1000.0)))
    scene.is_busy = True
    scene.worker(reply).print("a line\n")
    owner = await scene.other_owner(b"silent".ljust(16))
    scene.world.loop.stall(scene.processes[owner.worker_id.hex()], 1000)
    pin = PinObjects(scene.address.worker_id, [Wanted(b"x" * 28, owner, b"pin", 0)], GET, 1000.0)
    pinning = scene.begin(scene.raylet().call(pin))
    await scene.raylet().call(DrainRaylet(NodeDrain(PREEMPTION, "go", raylet._platform.host.time() + 500)))
    await scene.settle()
    copy = raylet.store.table.create(b"y" * 28, 0, STORE_BYTES, scene.address, b"", True)
    assert copy is not None
    disk: Any = raylet.io_workers._disks[0]
    disk.write = scene.never
    scene.processes["head"].call_soon(raylet.store.seal, copy)
    scene.processes["head"].call_soon(raylet.groups.on_request, b"u" * 18)
    await scene.settle()
    names = [name.partition("(")[0] for name in scene.tasks_of(scene.processes["head"])]
    assert {"GetLeaseFailure", "pull", "spill", "leave_cluster"} <= set(names) and names.count("follow") == 5
    flushing = scene.begin(scene.raylet().call(FlushLogs(scene.job_id)))
    await scene.raylet().call(Shutdown("the test is over"))
    await scene.until(lambda: "head" in scene.reasons)
    assert scene.left["head"] == []
    for task in (asking, pinning, flushing):
        task.cancel()


@scenario(cpus=2)
async def test_g111_a_node_without_its_gcs_ends_after_a_minute(scene: Scene) -> None:
    began = asyncio.get_running_loop().time()
    scene.kill("gcs")
    await scene.until(lambda: "head" in scene.reasons)
    assert 55 <= asyncio.get_running_loop().time() - began <= 70
    assert scene.reasons["head"] == "the gcs was not reached for 60 s"
    assert scene.alive() == []


@scenario(cpus=2)
async def test_g111_a_node_whose_gcs_cannot_come_back_ends_at_once(scene: Scene) -> None:
    scene.raylets["head"]._gcs.may_restart = False
    scene.kill("gcs")
    await scene.until(lambda: "head" in scene.reasons, limit_s=5)
    assert scene.reasons["head"].startswith("the gcs is gone")


@scenario(cpus=2)
async def test_g111_also_when_the_gcs_is_there_and_says_nothing(scene: Scene) -> None:
    scene.world.loop.stall(scene.processes["gcs"], 200)
    began = asyncio.get_running_loop().time()
    await scene.until(lambda: "head" in scene.reasons)
    assert 55 <= asyncio.get_running_loop().time() - began <= 70


@scenario(cpus=1)
async def test_g110_while_the_gcs_is_down_leases_go_on_and_after_its_restart_all_is_as_before(scene: Scene) -> None:
    scene.kill("gcs")
    await scene.settle(10)
    lease_id, _ = await scene.lease()
    await scene.give_back(lease_id)
    scene.start_gcs()
    await scene.settle(100)
    assert scene.reasons == {}
    reports = follow(scene)
    await scene.until(lambda: reports)
    scene.add_node("late", {"CPU": 1})
    await scene.until(lambda: len(scene.raylets["head"]._broker.nodes.alive()) == 2)


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_a_node_that_was_declared_dead_ends(scene: Scene) -> None:
    await scene.gcs.call(UnregisterNode(scene.raylets["other"].address.node_id, "it was partitioned"))
    await scene.until(lambda: "other" in scene.reasons, limit_s=0.5)
    assert "refused by the gcs" in scene.reasons["other"] and "it was partitioned" in scene.reasons["other"]
    assert "head" not in scene.reasons


@scenario(cpus=1)
async def test_who_has_leased_a_worker_of_it_hears_why_the_node_ends(scene: Scene) -> None:
    """Not that the leases of a dead node's processes are over: this process is of that node itself."""
    lease_id, _ = await scene.lease()
    asking = scene.begin(scene.raylet().call(GetLeaseFailure(lease_id, 100.0)))
    await scene.settle()
    await scene.gcs.call(UnregisterNode(scene.node_id, "it was partitioned"))
    failure = await asking
    assert failure.node_ended is not None and "it was partitioned" in failure.node_ended


@scenario(cpus=1)
async def test_a_node_that_may_not_join_says_why_and_ends(scene: Scene) -> None:
    node_id = b"buried".ljust(16)
    address = Address(node_id, node_id, "sim:buried/raylet")
    info = NodeInfo(node_id, "buried", "", "", address, {}, {}, False)
    await scene.gcs.call(RegisterNode(info))
    await scene.gcs.call(UnregisterNode(node_id, "once and for all"))
    scene.add_node("buried", {"CPU": 1})
    await scene.until(lambda: "buried" in scene.reasons)
    assert scene.reasons["buried"].startswith("refused by the gcs")
    assert scene.refused == {"buried": scene.reasons["buried"]}


@scenario(cpus=1)
async def test_a_node_whose_gcs_is_gone_from_the_start_ends_and_says_so(scene: Scene) -> None:
    scene.kill("gcs")
    scene.add_node("late", {"CPU": 1})
    await scene.until(lambda: "late" in scene.reasons)
    assert scene.reasons["late"] == "the gcs was not reached for 60 s" and scene.left["late"] == []


@scenario(cpus=1)
async def test_a_node_that_is_shut_down_before_the_gcs_has_answered_ends_too(scene: Scene) -> None:
    scene.world.loop.stall(scene.processes["gcs"], 20)
    scene.add_node("late", {"CPU": 1})
    await scene.settle(5)
    late = scene.peers.at("sim:late/raylet", reconnect_timeout_s=1.0, may_restart=False)
    await late.call(Shutdown("never mind"))
    await scene.until(lambda: "late" in scene.reasons, limit_s=10)
    assert scene.reasons["late"] == "asked to shut down: never mind" and scene.left["late"] == []


@scenario(cpus=1)
async def test_no_worker_is_started_before_the_node_listens(scene: Scene) -> None:
    """The worker would find no raylet to register with."""
    scene.listening_takes_s = 1.0
    scene.add_node("slow", {"CPU": 2})
    await scene.until(lambda: "slow" in scene.raylets)
    await scene.settle()
    assert len(scene.alive()) == scene.spawns == 1 + 2


@scenario(cpus=1)
async def test_what_shares_memory_with_a_node_finds_it_as_soon_as_it_has_joined(scene: Scene) -> None:
    node_id = scene.raylets["head"].address.node_id
    assert scene.handed_out("head") == {store_endpoint("sim:head", node_id), fallback_endpoint("sim:head", node_id)}


@scenario(cpus=1, automatic_object_spilling_enabled=False)
async def test_memory_on_disk_is_for_nodes_that_may_write_there(scene: Scene) -> None:
    node_id = scene.raylets["head"].address.node_id
    assert scene.handed_out("head") == {store_endpoint("sim:head", node_id)}


@scenario(cpus=1)
async def test_where_there_is_tcp_a_node_listens_to_it_too_and_others_come_that_way(scene: Scene) -> None:
    scene.add_node("tcp", {"CPU": 1}, tcp_host="10.0.0.7")
    await scene.until(lambda: "tcp" in scene.raylets)
    address = scene.raylets["tcp"].address
    assert address.tcp_endpoint.startswith("tcp:10.0.0.7:") and not scene.raylets["head"].address.tcp_endpoint
    assert address.endpoint_from(scene.node_id) == address.tcp_endpoint
    assert await scene.raylet("tcp").call(CheckAlive()) == DONE
    assert scene.raylets["tcp"]._raylets[address.node_id] == address
    await scene.until(lambda: address.node_id in scene.raylets["head"]._raylets)
    assert scene.raylets["head"]._raylets[address.node_id] == address
    await scene.raylets["tcp"].close("the test is over")
    await scene.until(lambda: "tcp" in scene.reasons)
    assert scene.left["tcp"] == []


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_what_waits_here_goes_elsewhere_as_soon_as_there_is_room(scene: Scene) -> None:
    await scene.lease()
    request = scene.request(second_hop=True)
    assert (await scene.ask(request, "other")).kind == GRANTED
    await scene.settle(2)
    waiting = scene.ask(scene.request())
    await scene.settle(2)
    assert not waiting.done()
    await scene.raylet("other").call(ReturnWorkerLease(request.lease_id, False, ""))
    await scene.until(waiting.done, limit_s=1)
    assert waiting.result().kind == SPILLBACK


@scenario(cpus=1)
async def test_g102_the_gcs_is_asked_once_about_a_node_that_nobody_has_named_and_its_word_decides(scene: Scene) -> None:
    raylet = scene.raylets["head"]
    send, polls = raylet._gcs.send, []

    def count(request: Any, *rest: Any) -> None:
        polls.append(request)
        send(request, *rest)

    await scene.settle(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raylet._gcs, "send", count)
        strategies = [SchedulingStrategy(STRATEGY_AFFINITY, name.ljust(16)) for name in (b"nobody", b"nowhere")]
        asked = [scene.ask(scene.request(strategy=strategy)) for strategy in strategies]
        await scene.until(lambda: all(task.done() for task in asked), limit_s=0.5)
    assert [task.result().kind for task in asked] == [UNSCHEDULABLE] * 2
    assert len([poll for poll in polls if isinstance(poll, Poll) and poll.channel == NODES]) <= 2


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_the_socket_that_a_dead_worker_has_left_is_removed_by_its_node(scene: Scene) -> None:
    removed: dict[str, list[str]] = {}
    for name, raylet in scene.raylets.items():
        raylet._remove_socket = removed.setdefault(name, []).append
    _, reply = await scene.lease()
    worker = scene.worker(reply)
    worker.exit(1)
    await scene.until(lambda: removed["head"])
    await scene.settle()
    assert removed == {"head": [worker_endpoint("sim:head", worker.config.worker_id)], "other": []}


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_what_a_process_has_pinned_is_let_go_on_all_nodes_when_it_dies(scene: Scene) -> None:
    worker = scene.worker(await scene.ask(scene.request(second_hop=True), "other"))
    store = scene.raylets["head"].store
    copy = store.table.create(b"x" * 28, 0, 1000, scene.address, b"", False)
    assert copy is not None
    store.seal(copy)
    store.table.pin(copy, b"pin", worker.config.worker_id)
    worker.exit(1)
    await scene.until(lambda: not copy.pins, limit_s=5)


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_what_the_processes_of_a_dead_node_had_here_is_taken_back_and_others_keep_theirs(scene: Scene) -> None:
    dead = msgspec.structs.replace(scene.address, worker_id=b"dead".ljust(16), node_id=b"other".ljust(16))
    own, _ = await scene.lease({})
    theirs = scene.worker(await scene.ask(scene.request({}, owner=dead)))
    store = scene.raylets["head"].store
    owners = (scene.address, dead)
    copies = [store.table.create(bytes([n]) * 28, 0, 1000, owner, b"", True) for n, owner in enumerate(owners)]
    for copy in copies:
        assert copy is not None
        store.seal(copy)
    await scene.settle()
    assert theirs.is_alive
    scene.kill("other")
    await scene.until(lambda: not theirs.is_alive, limit_s=5)
    assert list(scene.raylets["head"]._broker.entries) == [own]
    assert store.table.copies() == copies[:1]


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}})
async def test_a_node_does_not_count_itself_among_the_others(scene: Scene) -> None:
    """A node knows its own free resources first, and better than the gcs."""
    raylet = scene.raylets["head"]
    own = raylet._broker.nodes.local
    await scene.lease()
    (entry,) = [each for each in (await scene.gcs.call(Poll(NODES, b"", 0, 1.0))).entries if each[0] == own.node_id]
    raylet._on_node(*entry)
    assert raylet._broker.nodes.alive()[0] is own and own.available["CPU"] == 0


@scenario(cpus=1)
async def test_g25_the_workers_of_a_job_that_is_kept_stay_and_others_go(scene: Scene) -> None:
    """Detached actors of it live on."""
    _, reply = await scene.lease()
    worker, raylet = scene.worker(reply), scene.raylets["head"]
    (entry,) = (await scene.gcs.call(Poll(JOBS, b"", 0, 1.0))).entries
    assert entry[1] is not None
    job = decode(JobInfo, entry[1])
    for kept in (True, False):
        assert worker.is_alive
        raylet._on_job(entry[0], encode(msgspec.structs.replace(job, end_time=1.0, kept=kept)))
        await scene.settle()
    assert not worker.is_alive


@scenario(cpus=1)
async def test_a_job_that_the_gcs_has_forgotten_has_finished(scene: Scene) -> None:
    """A node may miss the news of its end, if the gcs forgets it soon."""
    _, reply = await scene.lease()
    worker, raylet = scene.worker(reply), scene.raylets["head"]
    raylet._on_job(scene.job_id, None)
    await scene.settle()
    assert not worker.is_alive and scene.job_id not in raylet._local_gc.drivers


@scenario(cpus=1)
async def test_a_node_that_missed_the_wish_that_it_leaves_reads_it_in_the_table_of_nodes(scene: Scene) -> None:
    raylet = scene.raylets["head"]
    drain = NodeDrain(IDLE_TERMINATION, "it is idle", 0.0)
    (entry,) = (await scene.gcs.call(Poll(NODES, b"", 0, 1.0))).entries
    assert entry[1] is not None
    raylet._on_node(*entry)
    assert raylet._broker.leaving is None
    raylet._on_node(entry[0], encode(msgspec.structs.replace(decode(NodeInfo, entry[1]), drain=drain)))
    assert raylet._broker.leaving == drain


@scenario(cpus=1)
async def test_a_raylet_answers_whether_it_is_alive(scene: Scene) -> None:
    assert await scene.raylet().call(CheckAlive()) == DONE
    assert (await scene.raylet().call(GetNodeStats())).pid == scene.processes["head"].pid


# --- Small rooms -------------------------------------------------------------------------------------------------------


def test_ended_leases_are_remembered_for_a_while_and_not_without_bounds() -> None:
    ended = EndedLeases()
    ended.remember(b"first", RETURNED, 0)
    ended.remember(b"second", CANCELLED_EARLY, KEPT_S)
    assert (ended.get(b"first"), ended.get(b"second"), ended.get(b"third")) == (RETURNED, CANCELLED_EARLY, None)
    ended.remember(b"first", RETURNED, KEPT_S + 1)
    ended.remember(b"third", RETURNED, 2 * KEPT_S + 1)
    assert ended.get(b"second") is None
    assert ended.get(b"first") is RETURNED, "it was told of once more since"
    ended.remember(b"third", RETURNED, 2 * KEPT_S + 2)
    assert ended.get(b"first") is None
    ended.remember(b"second", RETURNED, 2 * KEPT_S + 2)
    for number in range(MAX_KEPT):
        ended.remember(number.to_bytes(4, "big"), RETURNED, 2 * KEPT_S + 2)
    assert len(ended) == MAX_KEPT
    assert ended.get(b"second") is None
