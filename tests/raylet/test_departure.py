"""A node that is to leave: when it goes, whom it tells, and what it hands over, among pretended neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from minray.common.bounds import BOUNDS
from minray.common.resources import UNIT
from minray.object_store.object_entry import ObjectEntry
from minray.platform.base import RemoteFailure
from minray.protocol.base import DONE, Address
from minray.protocol.core_worker import LeaveNode
from minray.protocol.gcs import IDLE_TERMINATION, PREEMPTION, NodeDrain
from minray.protocol.object_store import NO_ROOM, PINNED, Pinned, PinObjects, PinReply, PromoteObjects, ReleasePins
from minray.raylet.departure import LOOK_AGAIN_S, Departure
from minray.raylet.lease_table import LeaseEntry
from minray.raylet.placement_group_resource_manager import PlacementGroupResourceManager
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler, NodeView
from minray.scheduling.lease import LeaseRequest
from minray.scheduling.local_resource_manager import LocalResourceManager
from tests.core_worker.parts import shape
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.object_store.copies import SmallTable
from tests.platform_record import FakeHost, platform_record
from tests.rpc.fake_network import pass_time, run, turns

HERE, THERE, FURTHER = b"here", b"there", b"further"
EPOCH = 1_000_000.0
AT_ONCE = BOUNDS.drain_objects_at_once


def owner(name: str, node_id: bytes = THERE) -> Address:
    return Address(name.encode(), node_id, f"sim:{name}")


def wish(message: str = "go", after_s: float = 0.0, reason: int = PREEMPTION) -> NodeDrain:
    return NodeDrain(reason, message, EPOCH + after_s if after_s else 0.0)


class Scene:
    """One node with a worker. It plays the lease broker with its pool, the object store, and the placement groups."""

    def __init__(self, *neighbours: bytes) -> None:
        self.peers = RecordingPeers()
        self.entries: dict[bytes, LeaseEntry] = {}
        """Leases."""
        self.pool = self
        self.workers: dict[bytes, None] = {b"worker": None}
        here = NodeView(HERE, known=True, alive=True)
        self.nodes = ClusterResourceScheduler(here, spread_threshold=0.5, top_k_fraction=0.2, random=float)
        for node_id in neighbours:
            self.nodes.on_node(node_id, "", {}, True, "", {})
        self.table = SmallTable(2 * AT_ONCE)
        self.drained: list[NodeDrain] = []
        self.gone: list[str] = []
        self.bundles = PlacementGroupResourceManager(LocalResourceManager({"CPU": UNIT}), None)
        self.has_followed_groups = False
        parts: Any = self
        peers: Any = self.peers
        platform = platform_record(host=FakeHost(EPOCH))
        self.departure = Departure(platform, HERE, peers, parts, parts, parts, self.raylet_of, self.on_gone, AT_ONCE)

    @staticmethod
    def raylet_of(node_id: bytes) -> Address:
        return owner("raylet", node_id)

    def on_gone(self, reason: str) -> None:
        assert self.departure.is_over, "the gcs is told why it has gone"
        self.gone.append(reason)

    @property
    def primaries(self) -> list[ObjectEntry]:
        return self.table.primaries()

    # --- the broker with its pool, the store, and the groups

    def drain(self, drain: NodeDrain) -> None:
        self.drained.append(drain)
        self.nodes.local.draining = True

    def on_leave(self) -> None:
        assert self.drained, "the groups ask the broker whether the node leaves"
        self.has_followed_groups = True

    def lose(self, entry: ObjectEntry) -> None:
        self.table.abort(entry)

    # --- what is here

    def lease(self, holder: str, for_actor: bool = False) -> None:
        lease_id = b"%d" % len(self.entries)
        request = LeaseRequest(lease_id, holder.encode(), shape(), 0, for_actor=for_actor)
        self.entries[lease_id] = LeaseEntry(request, owner(holder), [])

    def keep(self, name: bytes, owned_on: bytes = THERE, is_written: bool = True) -> ObjectEntry:
        entry = self.table.create(name, 3, 1, owner("owner", owned_on), b"worker", True)
        assert entry is not None
        if is_written:
            self.table.seal(entry)
        return entry

    def reserve(self) -> None:
        """Put a bundle aside."""
        assert self.bundles.prepare(b"group", 1, {0: {"CPU": UNIT}}) == ""

    def rest(self) -> None:
        self.entries.clear()
        self.workers.clear()


def test_a_node_goes_when_nothing_is_left_to_do() -> None:
    async def story() -> None:
        scene = Scene()
        scene.lease("driver")
        assert scene.departure.begin(wish()) and scene.drained == [wish()]
        await pass_time(5.0)
        scene.entries.clear()
        await pass_time(2 * LOOK_AGAIN_S)
        assert scene.gone == [], "a worker may still own objects"
        scene.rest()
        await pass_time(2 * LOOK_AGAIN_S)
        assert scene.gone == ["go"] and scene.departure.is_over

    run(story)


def test_a_node_goes_when_its_bundles_are_empty_because_they_have_moved() -> None:
    async def story() -> None:
        scene = Scene()
        scene.reserve()
        scene.rest()
        scene.departure.begin(wish())
        await pass_time(2 * LOOK_AGAIN_S)
        assert scene.has_followed_groups and scene.gone == ["go"]

    run(story)


def test_a_node_goes_at_its_deadline_whatever_it_does() -> None:
    async def story() -> None:
        scene = Scene()
        scene.departure.begin(wish(after_s=10.0))
        await pass_time(9.9)
        assert scene.gone == []
        await pass_time(0.2)
        assert scene.gone == ["go (its time was up)"] and scene.departure.is_over
        scene.departure.close()

    run(story)


def test_a_node_that_has_ended_otherwise_does_not_go_once_more() -> None:
    async def story() -> None:
        scene = Scene()
        scene.departure.begin(wish(after_s=1.0))
        scene.departure.close()
        scene.rest()
        await pass_time(2.0)
        assert scene.gone == []

    run(story)


@pytest.mark.parametrize("after_s", [0.0, 30.0])
def test_the_last_wish_counts(after_s: float) -> None:
    async def story() -> None:
        scene = Scene()
        scene.departure.begin(wish(after_s=10.0))
        scene.departure.begin(wish("go later", after_s=after_s))
        await pass_time(20.0)
        assert scene.gone == [] and scene.departure.drain == wish("go later", after_s=after_s)
        scene.rest()
        await pass_time(2 * LOOK_AGAIN_S)
        assert scene.gone == ["go later"], "one coroutine waits, not two"
        scene.departure.close()

    run(story)


def test_g112_a_wish_that_comes_twice_is_heard_once() -> None:
    async def story() -> None:
        scene = Scene()
        scene.lease("driver")
        assert scene.departure.begin(wish()) and scene.departure.begin(wish())
        assert len(scene.drained) == 1 and len(scene.peers.take_all(LeaveNode)) == 1
        scene.departure.close()

    run(story)


def test_a_node_that_is_to_leave_because_it_is_idle_says_whether_it_is() -> None:
    async def story() -> None:
        idle, leased, keeping, reserved = Scene(), Scene(), Scene(), Scene()
        leased.lease("driver")
        keeping.keep(b"x")
        reserved.reserve()
        wanted = wish(reason=IDLE_TERMINATION)
        assert [scene.departure.begin(wanted) for scene in (idle, leased, keeping, reserved)] == [True, False, False, False]
        assert leased.drained == [] and leased.departure.drain is None and not leased.has_followed_groups
        leased.departure.begin(wish())
        assert not leased.departure.begin(wanted) and leased.departure.drain == wish(), "it leaves, but is not idle"
        for scene in (idle, leased):
            scene.departure.close()

    run(story)


def test_owners_of_leases_hear_of_it_once_each_and_the_gcs_not() -> None:
    async def story() -> None:
        scene = Scene()
        for holder in ("a", "b", "a"):
            scene.lease(holder)
        scene.lease("gcs", for_actor=True)
        scene.departure.drain = wish("earlier")
        scene.departure.begin(wish())
        told = scene.peers.take_all(LeaveNode)
        assert [asked.address for asked in told] == [owner("a"), owner("b")]
        assert {asked.request for asked in told} == {LeaveNode(HERE)}
        scene.departure.close()

    run(story)


def test_a_first_copy_moves_to_a_neighbour_before_it_is_given_up() -> None:
    async def story() -> None:
        scene = Scene(THERE)
        entry = scene.keep(b"x")
        own, unwritten = scene.keep(b"own", owned_on=HERE), scene.keep(b"unwritten", is_written=False)
        scene.rest()
        scene.departure.begin(wish())
        await turns()
        (asked,) = scene.peers.take_all(PinObjects)
        (wanted,) = asked.request.wanted
        assert asked.address.node_id == THERE and (wanted.object_id, wanted.attempt) == (b"x", entry.attempt)
        asked.answer(PinReply([Pinned(PINNED)]))
        await turns()
        assert entry in scene.primaries
        (promoted,) = scene.peers.take_all(PromoteObjects)
        promoted.answer(DONE)
        await turns()
        assert scene.primaries == [own, unwritten] and scene.peers.take_all(ReleasePins)[0].request.pins == [wanted.pin]
        scene.lose(unwritten)
        await pass_time(2 * LOOK_AGAIN_S)
        assert scene.gone == ["go"], "what belongs to this node's processes ends with them"

    run(story)


def test_what_one_neighbour_does_not_take_is_offered_to_the_next() -> None:
    async def story() -> None:
        scene = Scene(THERE, FURTHER)
        entry = scene.keep(b"x")
        scene.departure.begin(wish())
        refusals = (
            lambda asked: asked.answer(PinReply([Pinned(NO_ROOM)])),
            lambda asked: asked.fail(unreachable()),
            lambda asked: asked.fail(RemoteFailure("internal", "oops")),
        )
        tried, pins = [], []
        for refuse in refusals:
            await turns()
            (asked,) = scene.peers.take_all(PinObjects)
            tried.append(asked.address.node_id)
            pins.append(asked.request.wanted[0].pin)
            refuse(asked)
            await pass_time(1.5 * LOOK_AGAIN_S)
            assert [released.request.pins for released in scene.peers.take_all(ReleasePins)] == [pins[-1:]]
        assert tried in ([THERE, FURTHER, THERE], [FURTHER, THERE, FURTHER]) and len(set(pins)) == 3
        assert scene.primaries == [entry] and scene.gone == []
        scene.departure.close()

    run(story)


@pytest.mark.parametrize("count", [1, 2, AT_ONCE - 1, AT_ONCE + 3])
@pytest.mark.parametrize("neighbours", [1, 2, 3, AT_ONCE])
def test_what_nobody_takes_keeps_nothing_else_back_and_all_are_offered_it(count: int, neighbours: int) -> None:
    async def story() -> None:
        names = [b"neighbour %d" % number for number in range(neighbours)]
        scene = Scene(*names)
        for number in range(count):
            scene.keep(b"%d" % number)
        scene.departure.begin(wish())
        offers: set[tuple[bytes, bytes]] = set()
        for _ in range(2 * neighbours):
            await turns()
            for asked in scene.peers.take_all(PinObjects):
                offers.add((asked.request.wanted[0].object_id, asked.address.node_id))
                asked.answer(PinReply([Pinned(NO_ROOM)]))
            await pass_time(1.5 * LOOK_AGAIN_S)
        assert offers == {(entry.object_id, name) for entry in scene.primaries for name in names}
        scene.departure.close()

    run(story)


def test_nothing_is_offered_to_those_that_leave_too_and_little_at_a_time() -> None:
    async def story() -> None:
        scene = Scene(THERE)
        for number in range(AT_ONCE + 5):
            scene.keep(b"%d" % number)
        scene.nodes.alive()[1].draining = True
        scene.departure.begin(wish())
        await pass_time(3 * LOOK_AGAIN_S)
        assert scene.peers.take_all(PinObjects) == []
        scene.nodes.alive()[1].draining = False
        await pass_time(1.5 * LOOK_AGAIN_S)
        assert len(scene.peers.take_all(PinObjects)) == AT_ONCE
        scene.departure.close()
        await turns()
        assert len(scene.peers.take_all(ReleasePins)) == AT_ONCE, "whoever is given up lets go"

    run(story)
