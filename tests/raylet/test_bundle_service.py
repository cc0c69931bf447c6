"""Between a node's bundles, its lease broker and the gcs: what follows from each message, and which news are asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.common.bundles import group_name
from minray.common.resources import UNIT, resource_set
from minray.protocol.base import encode
from minray.protocol.gcs import Poll, PollReply
from minray.protocol.placement_group import (
    GENERATION_SHIFT,
    PLACEMENT_GROUPS,
    CommitBundles,
    GetPlacementGroup,
    PlacementGroupInfo,
    PlacementGroupReply,
    PrepareBundles,
    ReleaseUnusedBundles,
    RemoveBundles,
    ReturnBundles,
)
from minray.raylet.bundle_service import REMOVED, BundleService
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler, NodeView
from minray.scheduling.local_resource_manager import LocalResourceManager
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.platform_record import platform_record
from tests.rpc.fake_network import run, turns

A, B = b"a" * 18, b"b" * 18
CPU = {"CPU": UNIT}
CALL: Any = None


def group(group_id: bytes, state: str = "CREATED") -> PlacementGroupInfo:
    return PlacementGroupInfo(group_id, "", "", "PACK", [], state, b"job1", False)


class Scene:
    """A node with two CPUs. It plays the lease broker with its parts, and notes at each ``advance`` what it could offer."""

    def __init__(self) -> None:
        self.resources = LocalResourceManager(resource_set({"CPU": 2}))
        self.local = self.scheduler = self.table = self
        here = NodeView(b"here", total=self.resources.total, available=self.resources.available)
        self.nodes = ClusterResourceScheduler(here, spread_threshold=0.5, top_k_fraction=0.2, random=float)
        self.leaving: object | None = None
        self.removed: list[bytes] = []
        self.busy: set[bytes] = set()
        """Groups with leases here."""
        self.seen: list[tuple[float, float, bool]] = []
        """At each advance: free CPUs of the node, those of group A, and whether it heard that there are new ones."""
        self.is_settled = True
        """Whether it has advanced since it heard of a removed group."""
        self.peers = RecordingPeers()
        myself: Any = self
        gcs: Any = self.peers.local
        self.groups = BundleService(platform_record(), gcs, myself)

    # --- the broker

    def advance(self) -> None:
        free = [self.resources.available.get(name, 0) / UNIT for name in ("CPU", group_name("CPU", A))]
        self.seen.append((free[0], free[1], self.nodes.must_retry_infeasible))
        self.nodes.must_retry_infeasible = False
        self.is_settled = True

    def on_group_removed(self, group_id: bytes) -> None:
        self.removed.append(group_id)
        self.is_settled = False

    def works_in_group(self, group_id: bytes) -> bool:
        return group_id in self.busy

    # --- what happens

    def prepare(self, group_id: bytes = A, attempt: int = 1) -> str:
        return self.groups.handle_PrepareBundles(PrepareBundles(group_id, attempt, {0: CPU}), CALL).refused

    def commit(self, group_id: bytes = A, attempt: int = 1) -> list[int]:
        return self.groups.handle_CommitBundles(CommitBundles(group_id, [(0, attempt)]), CALL).missing


def test_g104_each_step_of_a_bundle_is_followed_by_a_look_at_what_can_run_now() -> None:
    scene = Scene()
    assert scene.prepare() == "" and scene.commit() == []
    assert scene.seen == [(1, 0, False), (1, 1, True)], "what waits because no node could hold it can be held now"
    assert scene.prepare(B) == ""
    scene.groups.handle_ReturnBundles(ReturnBundles(B, 1), CALL)
    assert scene.seen[2:] == [(0, 1, False), (1, 1, False)]


def test_g99_a_removed_group_s_resources_are_free_when_the_last_lease_in_it_is_over() -> None:
    scene = Scene()
    scene.prepare()
    scene.commit()
    scene.busy.add(A)
    scene.groups.handle_RemoveBundles(RemoveBundles(A), CALL)
    assert scene.removed == [A] and len(scene.seen) == 3 and scene.is_settled
    scene.groups.settle()
    assert len(scene.seen) == 3 and scene.resources.available["CPU"] == UNIT
    scene.busy.clear()
    scene.groups.settle()
    assert scene.seen[3:] == [(2, 0, False)]


def test_a_node_that_leaves_puts_nothing_aside() -> None:
    scene = Scene()
    scene.leaving = object()
    assert "is to leave" in scene.prepare() and scene.resources.available == scene.resources.total


def test_g110_what_another_gcs_does_not_know_is_given_back_and_the_work_in_it_ended() -> None:
    scene = Scene()
    scene.prepare(A)
    scene.commit(A)
    scene.prepare(B)
    scene.seen.clear()
    scene.groups.handle_ReleaseUnusedBundles(ReleaseUnusedBundles(1, []), CALL)
    assert scene.removed == [A] and scene.seen[-1] == (1, 1, False)
    late = PrepareBundles(B, (1 << GENERATION_SHIFT) - 1, {0: CPU})
    assert scene.groups.handle_PrepareBundles(late, CALL).refused == "this attempt is over"


def test_g21_on_a_node_that_leaves_the_work_in_moved_bundles_goes_on_until_the_group_is_removed() -> None:
    async def story() -> None:
        scene = Scene()
        scene.prepare()
        scene.commit()
        scene.busy.add(A)
        scene.leaving = object()
        scene.groups.on_leave()
        (asked,) = scene.peers.take_all(GetPlacementGroup)
        asked.answer(PlacementGroupReply(group(A)))
        scene.groups.handle_ReleaseUnusedBundles(ReleaseUnusedBundles(1, []), CALL)
        await turns(2)
        (poll,) = scene.peers.take_all(Poll)
        poll.answer(PollReply(b"epoch", 1, True, [(A, encode(group(A, "RESCHEDULING")))]))
        await turns(4)
        assert scene.removed == []
        (poll,) = scene.peers.take_all(Poll)
        poll.answer(PollReply(b"epoch", 2, False, [(A, encode(group(A, REMOVED)))]))
        await turns(4)
        assert scene.removed == [A] and scene.is_settled
        scene.busy.clear()
        scene.groups.settle()
        assert scene.resources.available == scene.resources.total
        scene.groups.close()

    run(story)


def test_a_node_without_bundles_leaves_without_following_the_news() -> None:
    scene = Scene()
    scene.groups.on_leave()
    assert scene.peers.take_all(Poll) == []


def test_a_group_that_the_news_have_not_named_is_asked_about_once_at_a_time() -> None:
    async def story() -> None:
        scene = Scene()
        for group_id in (A, A, B):
            scene.groups.on_request(group_id)
        await turns(2)
        assert len(scene.peers.take_all(Poll)) == 1
        about_a, about_b = scene.peers.take_all(GetPlacementGroup)
        assert [about_a.request.group_id, about_b.request.group_id] == [A, B]
        about_a.fail(unreachable())
        about_b.answer(PlacementGroupReply(group(B)))
        assert scene.removed == []
        scene.groups.on_request(A)
        (again,) = scene.peers.take_all(GetPlacementGroup)
        assert again.request.group_id == A, "it was not answered before"
        scene.groups.close()

    run(story)


@pytest.mark.parametrize("answer", [None, group(A, REMOVED)])
def test_requests_in_a_group_that_was_removed_long_ago_end(answer: PlacementGroupInfo | None) -> None:
    async def story() -> None:
        scene = Scene()
        scene.groups.on_request(A)
        scene.peers.take_all(GetPlacementGroup)[0].answer(PlacementGroupReply(answer))
        assert scene.removed == [A]
        scene.groups.close()

    run(story)


def test_the_news_of_groups_are_followed_from_the_first_request_on() -> None:
    async def story() -> None:
        scene = Scene()
        scene.groups.on_request(A)
        scene.peers.take_all(GetPlacementGroup)[0].answer(PlacementGroupReply(group(A)))
        await turns(2)
        (poll,) = scene.peers.take_all(Poll)
        assert poll.request.channel == PLACEMENT_GROUPS
        poll.answer(PollReply(b"epoch", 2, True, [(A, encode(group(A))), (B, encode(group(B)))]))
        await turns(4)
        scene.groups.on_request(B)
        assert scene.peers.take_all(GetPlacementGroup) == [], "the news have named it"
        (poll,) = scene.peers.take_all(Poll)
        poll.answer(PollReply(b"epoch", 4, False, [(A, None), (B, encode(group(B, REMOVED)))]))
        await turns(4)
        assert scene.removed == [A, B]
        scene.groups.on_request(B)
        assert len(scene.peers.take_all(GetPlacementGroup)) == 1, "nobody names it any more"
        scene.groups.close()
        await turns(2)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("follow")]

    run(story)
