"""When processes are to collect garbage: the decision by itself, and who is asked."""

from __future__ import annotations

from minray.protocol.gcs import FinishJob, JobConfig, NodeResources, RegisterJob
from minray.protocol.object_store import CreateObject
from minray.raylet.local_gc import LocalGc
from tests.core_worker.parts import object_id
from tests.raylet.scene import Scene, scenario

WAITING = [({"CPU": 10_000}, 1)]


class Reports:
    """Those of two nodes; one report a second of each."""

    def __init__(self) -> None:
        self.gc = LocalGc(10.0)
        self.now = 0.0
        self.version = 0
        self.nodes = {b"a": (0, WAITING), b"b": (5, [])}

    def pass_time(self, seconds: int) -> list[float]:
        """When garbage was to be collected."""
        collected = []
        for _ in range(seconds):
            self.now += 1
            self.version += 1
            for node_id, (free, waiting) in self.nodes.items():
                report = NodeResources(node_id, self.version, {"CPU": 5}, {"CPU": free}, waiting)
                if self.gc.on_report(node_id, report, self.now):
                    collected.append(self.now)
        return collected


def test_while_leases_wait_and_nothing_changes_it_is_done_after_ever_longer_pauses() -> None:
    assert Reports().pass_time(100) == [11, 21, 41, 81]


def test_a_change_anywhere_begins_a_new_rest() -> None:
    reports = Reports()
    assert reports.pass_time(25) == [11, 21]
    reports.nodes[b"b"] = 4, []
    assert reports.pass_time(25) == [36, 46]


def test_a_node_that_dies_or_joins_is_a_change() -> None:
    reports = Reports()
    reports.pass_time(9)
    del reports.nodes[b"b"]
    assert not reports.gc.on_report(b"b", None, reports.now)
    assert reports.pass_time(11) == [19]
    reports.nodes[b"c"] = 1, []
    assert reports.pass_time(11) == [31]


def test_where_nothing_waits_nobody_is_asked() -> None:
    reports = Reports()
    reports.nodes[b"a"] = 0, []
    assert reports.pass_time(100) == []


def test_what_waits_at_a_dead_node_is_no_reason() -> None:
    reports = Reports()
    reports.pass_time(2)
    del reports.nodes[b"a"]
    reports.gc.on_report(b"a", None, reports.now)
    assert reports.pass_time(100) == []


def test_a_shortage_of_memory_is_answered_at_once_but_not_again_and_again() -> None:
    collector = LocalGc(10.0)
    assert [collector.on_shortage(now) for now in (0.0, 1.0, 9.9, 10.0, 11.0)] == [True, False, False, True, False]
    assert collector.shortages == 2


def test_a_shortage_at_another_node_is_answered_too_and_once() -> None:
    reports = Reports()
    reports.nodes = {b"b": (5, [])}
    assert reports.pass_time(3) == []

    def report(shortages: int) -> bool:
        reports.version += 1
        told = NodeResources(b"b", reports.version, {"CPU": 5}, {"CPU": 5}, [], shortages)
        return reports.gc.on_report(b"b", told, reports.now)

    assert [report(1), report(1), report(2)] == [True, False, False]
    assert not reports.gc.on_shortage(reports.now), "the processes of this node have just collected"
    reports.now += 10
    assert [report(2), report(3)] == [False, True]


def test_shortages_before_a_node_is_known_are_over() -> None:
    told = NodeResources(b"c", 1, {"CPU": 5}, {"CPU": 5}, [], 7)
    assert not LocalGc(10.0).on_report(b"c", told, 0.0)


@scenario(nodes={"head": {"CPU": 1}, "other": {"CPU": 1}}, num_prestart_workers=1)
async def test_all_processes_of_all_nodes_are_asked_when_a_request_waits_for_memory(scene: Scene) -> None:
    await scene.settle(1)
    size = scene.raylets["head"].store.table.allocator.capacity
    for number in (1, 2):
        create = CreateObject(object_id(str(number)), 0, size, scene.address, scene.address.worker_id)
        scene.begin(scene.raylet("head").call(create))
    await scene.until(lambda: scene.collected, limit_s=1)
    await scene.settle(5)
    assert [worker.collected for worker in scene.alive()] == [1, 1] and scene.collected == 1


@scenario(nodes={"head": {"CPU": 1, "slow": 1}, "other": {"CPU": 1}}, num_prestart_workers=1)
async def test_the_driver_and_all_workers_of_all_nodes_are_asked_where_a_lease_waits(scene: Scene) -> None:
    """One of the workers is idle, at a node where nothing waits."""
    lease_id, _ = await scene.lease({"CPU": 1, "slow": 1})
    waiting = scene.ask(scene.request({"CPU": 1, "slow": 1}))
    await scene.settle(9)
    assert not scene.collected
    await scene.until(lambda: scene.collected, limit_s=10)
    await scene.settle()
    assert [worker.collected for worker in scene.alive()] == [1, 1] and scene.collected == 1
    await scene.give_back(lease_id)
    await waiting
    await scene.settle(100)
    assert scene.collected == 1


@scenario(nodes={"head": {"CPU": 1}}, num_prestart_workers=1)
async def test_a_driver_whose_job_is_over_is_asked_no_more(scene: Scene) -> None:
    """Another owner's lease waits for a node that has its resources."""
    other = await scene.other_owner(b"p" * 16)
    job = RegisterJob(other, 2, JobConfig([], "", "", ""))
    job_id = (await scene.gcs.call(job)).job_id
    scene.ask(scene.request({"GPU": 1}, owner=other, job_id=job_id))
    await scene.gcs.call(FinishJob(scene.job_id))
    await scene.until(lambda: scene.bystanders[other.worker_id].collected, limit_s=20)
    await scene.settle()
    assert scene.collected == 0
