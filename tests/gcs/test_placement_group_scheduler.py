"""How placement groups are reserved, told by a driver, with pretended raylets in the simulated world."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from minray.common.bundles import STRICT_SPREAD
from minray.common.config import SystemConfig
from minray.gcs.persistent_caller import ASK_AGAIN_S
from minray.gcs.placement_group_manager import CREATED, PENDING, PREPARED, REMOVED, RESCHEDULING
from minray.protocol import actor as protocol
from minray.protocol.base import DONE, decode, encode
from minray.protocol.gcs import NODES, PREEMPTION, DrainNode, FinishJob, JobInfo, KvPut, ReportResources, UnregisterNode
from minray.protocol.placement_group import (
    GENERATION_SHIFT,
    CommitBundles,
    CommitBundlesReply,
    GetPlacementGroup,
    PrepareBundles,
    PrepareBundlesReply,
    ReleaseUnusedBundles,
    RemoveBundles,
    ReturnBundles,
    WaitPlacementGroup,
)
from minray.protocol.raylet import DrainRaylet, DrainRayletReply
from minray.rpc.service import Call
from tests.gcs.stories import A_MOMENT_S, Cluster, story
from tests.gcs.world import DISK, id_of, node_info, resources

FIRST = 1 << GENERATION_SHIFT
"""The attempts of the first gcs have higher numbers, those of the second more than twice that."""
LONG_S = 100.0


def wait(it: Cluster, number: int, timeout_s: float = LONG_S) -> asyncio.Task[Any]:
    """Until the group is there, or removed."""
    return asyncio.create_task(it.ask(WaitPlacementGroup(it.group_id(number), timeout_s)))


@story
async def test_g104_all_bundles_are_put_aside_before_work_is_let_into_any(it: Cluster) -> None:
    await it.join("b")
    for name in "ab":
        it.world.neighbours[name].answers[PrepareBundles] = None
    await it.create_group(1, 3, 3)
    waiting = wait(it, 1)
    first, answer_first = await it.hears("a", PrepareBundles)
    second, answer_second = await it.hears("b", PrepareBundles)
    assert first.bundles | second.bundles == {0: {"CPU": 30_000}, 1: {"CPU": 30_000}}
    assert first.attempt == second.attempt == FIRST + 1
    answer_first.reply(PrepareBundlesReply())
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.group(1)).explanation == "its bundles are being reserved"
    assert it.world.neighbours["a"].count(CommitBundles) == 0 and not waiting.done()
    answer_second.reply(PrepareBundlesReply())
    commits = [(await it.hears(name, CommitBundles))[0] for name in "ab"]
    assert sorted(bundle for commit in commits for bundle in commit.bundles) == [(0, FIRST + 1), (1, FIRST + 1)]
    assert (await waiting).group.state == CREATED
    assert (await it.group(1)).explanation == ""


@story
async def test_g104_what_one_node_refuses_is_given_back_everywhere_and_tried_again_later(it: Cluster) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[PrepareBundles] = PrepareBundlesReply("no room")
    began = it.now()
    await it.create_group(1, 3, 3)
    for name in "ab":
        assert (await it.hears(name, ReturnBundles))[0].attempt == FIRST + 1
    assert (await it.group(1)).explanation == "the last attempt was refused (no room)"
    config = SystemConfig()
    delay_s = config.gcs_create_placement_group_retry_min_interval_ms / 1000
    await it.hears("b", PrepareBundles)
    for attempt in range(2, 12):
        assert (await it.hears("b", PrepareBundles))[0].attempt == FIRST + attempt
        assert 0 < it.now() - began - delay_s < A_MOMENT_S / 5
        began = it.now()
        delay_s = min(delay_s * 1.5, config.gcs_create_placement_group_retry_max_interval_ms / 1000)
    it.world.neighbours["b"].answers[PrepareBundles] = PrepareBundlesReply()
    await it.until_group(1, CREATED)
    assert it.world.neighbours["a"].count(CommitBundles) == 1


@story
async def test_what_was_chosen_for_one_group_is_not_given_to_another(it: Cluster) -> None:
    """Until the node reports, which may say that there is room all the same."""
    raylet = it.world.neighbours["a"]
    raylet.answers[PrepareBundles] = None
    await it.create_group(1, 3)
    await it.create_group(2, 3)
    await it.client.pass_time(A_MOMENT_S)
    assert raylet.count(PrepareBundles) == 1
    assert (await it.group(2)).explanation.startswith("too much is in use: ")
    _, call = await it.hears("a", PrepareBundles)
    call.reply(PrepareBundlesReply())
    await it.until_group(1, CREATED)
    assert raylet.count(PrepareBundles) == 1
    await it.ask(ReportResources(resources("a", 1, cpus=4)))
    await it.hears("a", PrepareBundles)


@story
async def test_what_was_chosen_for_a_group_that_is_gone_is_free_for_others(it: Cluster) -> None:
    """Also if its node says nothing: it has as much free as before."""
    for number in (1, 2, 3):
        await it.create_group(number, 3)
        await it.until_group(number, CREATED)
        await it.remove_group(number)


@story
async def test_what_a_refused_attempt_had_chosen_is_free_for_others(it: Cluster) -> None:
    it.world.neighbours["a"].answers[PrepareBundles] = None
    await it.create_group(1, 3)
    await it.create_group(2, 3)
    _, call = await it.hears("a", PrepareBundles)
    call.reply(PrepareBundlesReply("not now"))
    request, _ = await it.hears("a", PrepareBundles)
    assert request.group_id == it.group_id(2)


@story
async def test_a_group_without_room_waits_for_a_node_or_a_report(it: Cluster) -> None:
    await it.ask(ReportResources(resources("a", 1, cpus=1)))
    await it.create_group(1, 3)
    await it.create_group(2, 8)
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.neighbours["a"].heard == []
    assert (await it.group(1)).explanation.startswith("too much is in use: ")
    assert (await it.group(2)).explanation.startswith("the cluster is too small: ")
    await it.ask(ReportResources(resources("a", 2, cpus=3)))
    await it.until_group(1, CREATED)
    await it.join("b", cpus=8)
    assert (await it.until_group(2, CREATED)).nodes() == [id_of("b")]


@story
async def test_the_room_of_a_removed_group_is_for_the_next_one_when_its_node_says_so(it: Cluster) -> None:
    await it.create_group(1, 4)
    await it.until_group(1, CREATED)
    await it.ask(ReportResources(resources("a", 1, cpus=0)))
    await it.create_group(2, 4)
    await it.remove_group(1)
    assert (await it.hears("a", RemoveBundles))[0].group_id == it.group_id(1)
    await it.ask(ReportResources(resources("a", 2, cpus=4)))
    await it.until_group(2, CREATED)


# --- Ends ---


@story
async def test_g106_a_group_that_is_removed_while_it_is_reserved_holds_nothing(it: Cluster) -> None:
    it.world.neighbours["a"].answers[PrepareBundles] = None
    await it.create_group(1, 1)
    waiting = wait(it, 1)
    _, call = await it.hears("a", PrepareBundles)
    await it.remove_group(1)
    assert (await it.hears("a", RemoveBundles))[0].group_id == it.group_id(1)
    assert (await waiting).group.state == REMOVED
    call.reply(PrepareBundlesReply())
    assert (await it.hears("a", ReturnBundles))[0].attempt == FIRST + 1
    await it.client.pass_time(LONG_S)
    assert it.world.neighbours["a"].count(PrepareBundles) == 1 and it.world.neighbours["a"].count(CommitBundles) == 0
    assert await it.group(1) == await it.ask(WaitPlacementGroup(it.group_id(1), LONG_S))


@story
async def test_g106_a_node_is_told_of_a_removed_group_until_it_has_heard_it(it: Cluster) -> None:
    await it.create_group(1, 1)
    await it.until_group(1, CREATED)
    it.world.neighbours["a"].answers[RemoveBundles] = None
    await it.remove_group(1)
    _, call = await it.hears("a", RemoveBundles)
    call.fail("internal", "a mistake")
    failed = it.now()
    _, call = await it.hears("a", RemoveBundles)
    assert it.now() - failed >= ASK_AGAIN_S
    call.reply(DONE)
    await it.client.pass_time(LONG_S)
    assert it.world.neighbours["a"].count(RemoveBundles) == 2


@story
async def test_g106_a_group_ends_with_a_job_that_finishes_while_it_is_made(it: Cluster) -> None:
    reply = (await it.at_once(KvPut("n", b"k", b"v", True), FinishJob(it.job_id), it.group_message(1, 1)))[2]
    assert reply.refused == ""
    await it.until_group(1, REMOVED)
    assert await it.create_group(2, 1) == "its job has finished"
    assert (await it.group(2)).group is None


@story
async def test_g106_g26_a_group_of_a_detached_actor_ends_with_it_even_while_it_is_made(it: Cluster) -> None:
    await it.begin_actor(1, detached=True)
    kill = protocol.KillActor(it.actor_id(1), b"kill", True)
    of_actor = it.group_message(1, 1, creator=it.actor_id(1))
    await it.at_once(KvPut("n", b"k", b"v", True), kill, of_actor)
    await it.until_group(1, REMOVED)
    await it.create_group(2, 1, creator=it.actor_id(1))
    assert (await it.until_group(2, CREATED)).creator == b"", "it belongs to the job, since there is no such actor any more"


@story
async def test_a_name_belongs_to_one_group(it: Cluster) -> None:
    assert await it.create_group(1, 1, name="n") == ""
    assert await it.create_group(1, 1, name="n") == ""
    refused, other = await asyncio.gather(it.create_group(2, 1, name="n"), it.create_group(3, 1, name="m"))
    assert "there is a placement group 'n' already" in refused and other == ""
    assert (await it.ask(GetPlacementGroup(b"", "n", ""))).group.group_id == it.group_id(1)
    assert (await it.ask(GetPlacementGroup(b"", "o", ""))).group is None
    await it.remove_group(1)
    assert await it.create_group(4, 1, name="n") == ""


@story
async def test_who_waits_for_a_group_is_answered_in_time(it: Cluster) -> None:
    await it.create_group(1, 99)
    began = it.now()
    impatient, patient = wait(it, 1, timeout_s=1.0), wait(it, 1)
    assert (await impatient).group.state == PENDING
    assert 1.0 <= it.now() - began < 1.0 + A_MOMENT_S and not patient.done()
    assert (await it.ask(WaitPlacementGroup(it.group_id(2), LONG_S))).group is None
    await it.join("b", cpus=99)
    assert (await patient).group.state == CREATED
    assert it.now() - began < 1.0 + 3 * A_MOMENT_S


# --- Nodes die ---


@story
async def test_g107_a_node_that_dies_before_it_answers_is_replaced(it: Cluster) -> None:
    await it.join("b", cpus=8)
    it.world.neighbours["b"].answers[PrepareBundles] = None
    await it.create_group(1, 3, 8)
    await it.hears("b", PrepareBundles)
    it.world.kill("b")
    assert (await it.hears("a", ReturnBundles))[0].attempt == FIRST + 1
    await it.join("c", cpus=8)
    group = await it.until_group(1, CREATED)
    assert [bundle.node_id for bundle in group.bundles] == [id_of("a"), id_of("c")]
    assert it.world.neighbours["a"].count(PrepareBundles) == 2


@story
async def test_g107_a_node_that_dies_before_work_is_let_in_loses_its_bundles_alone(it: Cluster) -> None:
    await it.join("b", cpus=8)
    it.world.neighbours["b"].answers[CommitBundles] = None
    await it.create_group(1, 3, 8)
    waiting = wait(it, 1)
    await it.hears("b", CommitBundles)
    assert (await it.group(1)).group.state == PREPARED
    it.world.kill("b")
    await it.until_group(1, RESCHEDULING)
    assert (await it.group(1)).explanation.startswith("the cluster is too small: ") and not waiting.done()
    await it.join("c", cpus=8)
    group = (await waiting).group
    assert [(bundle.node_id, bundle.attempt) for bundle in group.bundles] == [
        (id_of("a"), FIRST + 1), (id_of("c"), FIRST + 2),
    ]  # fmt: skip
    assert it.world.neighbours["a"].count(PrepareBundles) == 1


@story
async def test_g107_bundles_of_a_dead_node_come_first(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.create_group(1, 8)
    await it.until_group(1, CREATED)
    await it.create_group(2, 8)
    await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    await it.until_group(1, RESCHEDULING)
    await it.join("c", cpus=8)
    assert (await it.until_group(1, CREATED)).nodes() == [id_of("c")]
    assert (await it.group(2)).group.state == PENDING


@story
async def test_g107_bundles_that_a_node_has_not_any_more_are_placed_anew(it: Cluster) -> None:
    await it.join("b")
    it.world.neighbours["b"].answers[CommitBundles] = None
    await it.create_group(1, 3, 3, strategy=STRICT_SPREAD)
    waiting = wait(it, 1)
    request, call = await it.hears("b", CommitBundles)
    call.reply(CommitBundlesReply([index for index, _ in request.bundles]))
    await it.until_group(1, RESCHEDULING)
    await it.ask(ReportResources(resources("b", 1, cpus=3)))
    again, call = await it.hears("b", CommitBundles)
    assert again.bundles == [(request.bundles[0][0], FIRST + 2)]
    call.reply(CommitBundlesReply([]))
    assert (await waiting).group.state == CREATED


@story
async def test_g107_bundles_of_a_dead_node_go_where_there_is_room_at_once(it: Cluster) -> None:
    for name in "bc":
        await it.join(name, cpus=8)
    await it.create_group(1, 8)
    lost = (await it.until_group(1, CREATED)).nodes()
    await it.ask(UnregisterNode(lost[0], "minray stop"))
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.until_group(1, CREATED)).nodes() == [id_of(name) for name in "bc" if id_of(name) not in lost]


@story
async def test_nothing_is_kept_of_attempts_that_are_over(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.create_group(1, 8)
    await it.until_group(1, CREATED)
    await it.ask(UnregisterNode(id_of("b"), "minray stop"))
    it.world.neighbours["a"].answers[PrepareBundles] = PrepareBundlesReply("no room")
    await it.create_group(2, 1)
    await it.hears("a", ReturnBundles)
    it.world.neighbours["a"].answers[PrepareBundles] = PrepareBundlesReply()
    await it.until_group(2, CREATED)
    scheduler = it.world.gcs._group_scheduler
    assert scheduler._retries == {}
    it.world.neighbours["a"].answers[PrepareBundles] = PrepareBundlesReply("no room")
    await it.create_group(4, 1)
    while not scheduler._retries:
        await it.hears("a", ReturnBundles)
    it.world.neighbours["a"].answers[PrepareBundles] = None
    await it.remove_group(4)
    await it.create_group(3, 1)
    while (heard := await it.hears("a", PrepareBundles))[0].group_id != it.group_id(3):
        pass
    for number in (1, 2, 2, 3, 9):
        await it.remove_group(number)
    heard[1].reply(PrepareBundlesReply())
    await it.ask(ReportResources(resources("a", 1)))
    await it.client.pass_time(LONG_S)
    await it.join("c")
    await it.ask(DrainNode(id_of("c"), PREEMPTION, "soon"))
    await it.ask(UnregisterNode(id_of("c"), "it has left"))
    assert scheduler._retries == scheduler._attempts == scheduler._waiters == scheduler._promised == {}
    assert scheduler._leaving == {}


@story
async def test_no_bundles_are_put_on_nodes_that_leave(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.ask(DrainNode(id_of("b"), PREEMPTION, "soon", it.wall_clock() + 100.0))
    await it.create_group(1, 8)
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.group(1)).explanation.startswith("the cluster is too small: ")
    assert it.world.neighbours["b"].count(PrepareBundles) == 0


async def begin_to_send_away(it: Cluster) -> tuple[asyncio.Task[Any], Call]:
    """Node b, with the bundle of group 1, hears that it is to leave, and has not answered; c has room for the bundle."""
    await it.join("b", cpus=8)
    await it.create_group(1, 8)
    await it.until_group(1, CREATED)
    await it.join("c", cpus=8)
    it.world.neighbours["b"].answers[DrainRaylet] = None
    asking = asyncio.create_task(it.ask(DrainNode(id_of("b"), PREEMPTION, "soon")))
    _, call = await it.hears("b", DrainRaylet)
    return asking, call


@story
async def test_g21_g107_bundles_of_a_node_that_knows_that_it_is_to_leave_are_placed_anew(it: Cluster) -> None:
    asking, call = await begin_to_send_away(it)
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.group(1)).group.nodes() == [id_of("b")], "it would take bundles that are not there for removed ones"
    call.reply(DrainRayletReply(True))
    await asking
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.until_group(1, CREATED)).nodes() == [id_of("c")]
    await it.remove_group(1)
    await it.hears("c", RemoveBundles)
    heard = it.world.neighbours["b"]
    assert heard.count(ReturnBundles) == heard.count(RemoveBundles) == 0, "what runs there may end"


@story
async def test_g21_g107_a_node_that_is_to_leave_while_work_is_let_in_loses_its_bundles(it: Cluster) -> None:
    await it.join("b", cpus=8)
    it.world.neighbours["b"].answers[CommitBundles] = None
    await it.create_group(1, 3, 8)
    _, call = await it.hears("b", CommitBundles)
    await it.ask(DrainNode(id_of("b"), PREEMPTION, "soon"))
    await it.join("c", cpus=8)
    call.reply(CommitBundlesReply([]))
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.until_group(1, CREATED)).nodes() == [id_of("a"), id_of("c")]


@story
async def test_g21_g107_bundles_that_were_put_aside_before_a_node_knew_that_it_is_to_leave_move_on(it: Cluster) -> None:
    await it.join("b", cpus=8)
    it.world.neighbours["b"].answers[PrepareBundles] = None
    await it.create_group(1, 8)
    _, call = await it.hears("b", PrepareBundles)
    await it.ask(DrainNode(id_of("b"), PREEMPTION, "soon"))
    await it.join("c", cpus=8)
    call.reply(PrepareBundlesReply())
    await it.client.pass_time(A_MOMENT_S)
    assert (await it.until_group(1, CREATED)).nodes() == [id_of("c")]


@story
async def test_g21_g110_the_next_gcs_moves_the_bundles_of_a_node_that_has_not_heard_yet(it: Cluster) -> None:
    asking, _ = await begin_to_send_away(it)
    it.world.restart_gcs()
    request, _ = await it.hears("b", ReleaseUnusedBundles)
    assert [group_id for group_id, _, _ in request.in_use] == [it.group_id(1)]
    _, call = await it.hears("b", DrainRaylet)
    call.reply(DrainRayletReply(True))
    await it.client.pass_time(A_MOMENT_S)
    asking.cancel()
    assert (await it.until_group(1, CREATED)).nodes() == [id_of("c")]


# --- Another gcs goes on ---


@story
async def test_g110_the_next_gcs_says_which_bundles_are_in_use(it: Cluster) -> None:
    await it.create_group(1, 1)
    await it.until_group(1, CREATED)
    it.world.restart_gcs()
    request, _ = await it.hears("a", ReleaseUnusedBundles)
    assert (request.generation, request.in_use) == (2, [(it.group_id(1), 0, FIRST + 1)])
    await it.create_group(2, 1)
    assert (await it.until_group(2, CREATED)).bundles[0].attempt == 2 * FIRST + 1
    it.world.restart_gcs()
    assert (await it.hears("a", ReleaseUnusedBundles))[0].generation == 3


@story
async def test_g110_each_gcs_has_a_number_of_its_own_though_nothing_else_was_stored(it: Cluster) -> None:
    for generation in (2, 3, 4):
        it.world.restart_gcs()
        assert (await it.hears("a", ReleaseUnusedBundles))[0].generation == generation


@story
async def test_g110_the_next_gcs_lets_work_into_what_was_put_aside(it: Cluster) -> None:
    raylet = it.world.neighbours["a"]
    raylet.answers[CommitBundles] = None
    await it.create_group(1, 1)
    first, _ = await it.hears("a", CommitBundles)
    raylet.answers[CommitBundles] = CommitBundlesReply([])
    it.world.restart_gcs()
    assert (await it.hears("a", CommitBundles))[0] == first
    await it.until_group(1, CREATED)
    assert raylet.count(PrepareBundles) == 1


@story
async def test_g110_the_next_gcs_tries_again_what_was_not_put_aside_everywhere(it: Cluster) -> None:
    it.world.neighbours["a"].answers[PrepareBundles] = None
    await it.create_group(1, 1)
    await it.hears("a", PrepareBundles)
    it.world.restart_gcs()
    request, _ = await it.hears("a", PrepareBundles)
    assert request.attempt == 2 * FIRST + 1


@story
async def test_g110_the_next_gcs_places_nothing_before_it_has_noted_that_it_is_another(it: Cluster) -> None:
    """One more, which did not know of it, would use the same numbers for attempts."""
    await it.ask(ReportResources(resources("a", 1, cpus=0)))
    await it.create_group(1, 1)
    it.full_disk(after_s=0, for_s=2.0)
    it.world.restart_gcs()
    await it.ask(ReportResources(resources("a", 2, cpus=4)))
    await it.client.pass_time(A_MOMENT_S)
    assert it.world.neighbours["a"].heard == []
    assert (await it.until_group(1, CREATED)).bundles[0].attempt == 2 * FIRST + 1


@story
async def test_g110_the_next_gcs_makes_good_what_ends_bring(it: Cluster) -> None:
    """Ends that were stored by one that fell before it did what follows from them."""
    await it.join("b", cpus=8)
    await it.begin_actor(1, detached=True)
    await it.create_group(1, 8, detached=True)
    await it.create_group(2, 1)
    await it.create_group(3, 1, creator=it.actor_id(1))
    for number in (1, 2, 3):
        await it.until_group(number, CREATED)
    it.world.kill("gcs")
    tables = it.world.head.disk[DISK]
    tables["nodes"][id_of("b").hex()] = encode(node_info("b", alive=False, death_cause="tired"))
    tables["actors"].clear()
    job = decode(JobInfo, tables["jobs"][it.job_id.hex()])
    tables["jobs"][it.job_id.hex()] = encode(msgspec.structs.replace(job, end_time=1.0))
    it.world.start_gcs()
    assert (await it.until_group(1, RESCHEDULING)).nodes() == []
    for number in (2, 3):
        await it.until_group(number, REMOVED)


@story
async def test_a_group_whose_reservation_cannot_be_stored_is_reserved_again(it: Cluster) -> None:
    it.world.neighbours["a"].answers[PrepareBundles] = None
    await it.create_group(1, 1)
    _, call = await it.hears("a", PrepareBundles)
    it.full_disk(after_s=0, for_s=0.05)
    await it.client.pass_time(0)
    call.reply(PrepareBundlesReply())
    assert (await it.hears("a", ReturnBundles))[0].attempt == FIRST + 1
    request, call = await it.hears("a", PrepareBundles)
    call.reply(PrepareBundlesReply())
    assert (await it.until_group(1, CREATED)).bundles[0].attempt == request.attempt


@story
async def test_g107_bundles_of_a_dead_node_are_lost_when_that_can_be_stored(it: Cluster) -> None:
    await it.join("b", cpus=8)
    await it.create_group(1, 8)
    await it.until_group(1, CREATED)
    it.full_disk(after_s=0.003, for_s=3.0)
    it.world.kill("b")
    await it.until_group(1, RESCHEDULING)
    assert (await it.client.table(NODES))[id_of("b")].alive is False
