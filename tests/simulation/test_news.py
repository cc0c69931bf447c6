"""News that acts, and words that are said twice: planted bugs that a later message hides, or that cost time only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import minray
from minray.core_worker.ownership.object_directory import ObjectDirectory, _Copies
from minray.core_worker.submission.actor_task_submitter import ActorTaskSubmitter
from minray.core_worker.submission.generators import Generators
from minray.core_worker.submission.lease_client import LeaseClient
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.gcs.actor_exits import ActorExits
from minray.gcs.actor_service import ActorService
from minray.gcs.gcs_actor_manager import GcsActorManager
from minray.gcs.gcs_task_manager import GcsTaskManager
from minray.protocol.actor import GetNamedActor
from minray.protocol.core_worker import LocationChange, ReportGeneratorItem
from minray.protocol.gcs import CheckAlive
from minray.protocol.raylet import LeaseReply
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.placement_group_resource_manager import PlacementGroupResourceManager
from minray.rpc.connection import ignore
from minray.scheduling.cluster_resource_scheduler import ANY_NODE, ClusterResourceScheduler
from minray.scheduling.lease import GRANTED, SPILLBACK
from minray.simulation import SimCluster
from minray.util.placement_group import placement_group, remove_placement_group
from tests.simulation.census import unfinished
from tests.simulation.invariants import Watch
from tests.simulation.judge import judged
from tests.simulation.news import News
from tests.simulation.repeats import MOST_A_SECOND


@minray.remote(num_cpus=0)
class Named:
    """An actor with a name."""

    def answer(self) -> str:
        return "here"


@minray.remote(num_cpus=0)
class Slow:
    """An actor that takes a while to end."""

    def answer(self) -> str:
        return "here"

    def __ray_shutdown__(self) -> None:
        time.sleep(3)


@minray.remote
def rest(seconds: float) -> None:
    time.sleep(seconds)


@minray.remote
def count_slowly() -> Iterator[int]:
    for number in range(3):
        yield number
        time.sleep(5)


def name_an_actor() -> None:
    actor = Named.options(name="named").remote()
    assert minray.get(actor.answer.remote()) == "here"
    minray.kill(actor)


def make_a_group() -> None:
    group = placement_group([{"CPU": 1}] * 2, "SPREAD")
    group.wait(5)
    remove_placement_group(group)


def spread() -> None:
    minray.get([rest.options(scheduling_strategy="SPREAD").remote(0.1) for _ in range(4)])


async def tell_first(self: Any, row: Any) -> None:
    self._publish(self._actors.on_committed(row))
    self._storage.put_actor(row)
    await self._storage.commit()


def believe_all(self: Any, worker_id: bytes, _sequence: int, blocked: bool) -> None:
    worker = self.pool.workers.get(worker_id)
    if worker is not None and self.states.get(worker.lease_id) == GRANTED:
        self.local.set_blocked(worker.lease_id, blocked)


def send_on_forever(self: Any, request: Any, raylet: Any, _grant_or_reject: bool, now: float) -> None:
    del request.key.requests[request.lease_id]
    if request.key.queue:
        self._request(request.key, raylet, False)
    self.assign(request.key, now)


def say_twice(self: Any, worker: Any, kill_worker: bool, reason: str) -> None:
    RETURN(self, worker, kill_worker, reason)
    RETURN(self, worker, kill_worker, reason)


RETURN = LeaseClient.return_lease


def forget_the_name(self: Any, info: Any) -> None:
    self._named.pop((info.namespace, info.name), None)


def drop_silently(self: Any, _job_id: bytes, _count: int) -> None:
    """Count nothing."""


def send_anywhere(self: Any, demand: Any, _labels: Any = ANY_NODE, among: Any = None) -> Any:
    return OTHERS(self, demand, ANY_NODE, among)


OTHERS = ClusterResourceScheduler.others_with_room


def name_two_actors() -> None:
    """The second one gets the name of the first, which takes a while to end."""
    first = Slow.options(name="named").remote()
    minray.get(first.answer.remote())
    del first
    time.sleep(1)
    second = Named.options(name="named").remote()
    minray.get(second.answer.remote())
    time.sleep(10)


BUGS: dict[str, tuple[type, str, Any, Callable[[], None], str]] = {
    "told before it is stored": (ActorService, "_commit", tell_first, name_an_actor, "S9: the gcs tells a change"),
    "a name that stays": (GcsActorManager, "_forget_name", lambda *_: None, name_an_actor, "G31: actor"),
    "bundles that are not there": (
        PlacementGroupResourceManager, "commit", lambda *_: [], make_a_group, "G104: .* answers that",
    ),
    "a promise without an end": (ClusterResourceScheduler, "promise", lambda *_: None, spread, "L6: head promises"),
    "sent on and on": (NormalTaskSubmitter, "on_redirected", send_on_forever, spread, "L5: the request .* again and"),
    "another actor's name": (
        GcsActorManager, "_forget_name", forget_the_name, name_two_actors, "G31: .* does not lead to it",
    ),
    "said twice": (LeaseClient, "return_lease", say_twice, spread, "L5: .* sends the same ReturnWorkerLease twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_a_later_message_hides_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method, bug, body, said = BUGS[name]
    judged(body, storage="gcs.db")
    monkeypatch.setattr(owner, method, bug)
    with pytest.raises(AssertionError, match=said):
        judged(body, storage="gcs.db")


def send_many() -> None:
    minray.get([rest.remote(0.01) for _ in range(20)])


def stay_here() -> None:
    """Tasks that only this node can run wait here while another node is idle."""
    selector = {"zone": "here"}
    minray.get([rest.options(label_selector=selector).remote(0.3) for _ in range(6)])


def test_ended_tasks_that_are_neither_kept_nor_counted_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"task_events_max_num_task_in_gcs": 3}
    judged(send_many, system_config=config)
    monkeypatch.setattr(GcsTaskManager, "_count_dropped", drop_silently)
    with pytest.raises(AssertionError, match="state: the gcs has heard of .* ended tasks; it keeps 3"):
        judged(send_many, system_config=config)


def test_l5_a_request_that_is_sent_to_a_node_with_other_labels_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"num_cpus": 1, "labels": {"zone": "here"}}, {"num_cpus": 1}]
    judged(stay_here, nodes=nodes)
    monkeypatch.setattr(ClusterResourceScheduler, "others_with_room", send_anywhere)
    with pytest.raises(AssertionError, match="L5: head sends the request for lease .* to n1, which can never hold it"):
        judged(stay_here, nodes=nodes)


def keep_asking(self: Any, actor_id: bytes) -> None:
    if actor_id in self:
        self._exiting[actor_id].cancel()


def drop_an_actor() -> None:
    actor = Named.remote()
    minray.get(actor.answer.remote())
    del actor
    time.sleep(10)


def test_l2_a_table_that_keeps_tasks_which_are_over_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ([], ["L2: gcs has 1 things in ActorExits._exiting"]):
        if said:
            monkeypatch.setattr(ActorExits, "on_ended", keep_asking)
        with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
            cluster.wait_for(cluster.start_driver(drop_an_actor))
            cluster.settle()
            assert unfinished(cluster) == said


class Scene:
    """A cluster in which a generator runs and an actor lives, and its watch."""

    def __init__(self, cluster: SimCluster) -> None:
        self.watch = Watch(cluster)
        begun: list[Any] = []

        def program() -> None:
            actor = Named.remote()
            items = count_slowly.remote()
            minray.get([actor.answer.remote(), next(items)])
            begun.append(actor)
            time.sleep(1000)

        cluster.start_driver(program)
        cluster.wait_until(lambda: bool(begun))
        self.cluster = cluster
        self.driver = next(core for core in cluster.cores.values() if core.config.is_driver)

    def problems(self) -> str:
        return "\n".join(self.watch.problems)


async def soon(hear: Callable[[Scene], None], scene: Scene) -> None:
    hear(scene)


def hear_an_old_report(scene: Scene) -> None:
    nodes, other = scene.cluster.raylets["head"]._broker.nodes, scene.cluster.raylets["n1"]._config.node_id
    nodes.on_resources(other, -1, {}, {})


def hear_an_old_notice(scene: Scene) -> None:
    broker = scene.cluster.raylets["head"]._broker
    worker_id = next(worker.worker_id for worker in broker.pool.workers.values() if worker.lease_id)
    broker.on_blocked(worker_id, 50, True)
    broker.on_blocked(worker_id, 49, False)


def hear_an_old_place(scene: Scene) -> None:
    raylet = scene.cluster.raylets["n1"].address
    scene.driver.directory._heard[raylet.node_id] = 5
    scene.driver.directory.on_update(raylet, 4, [LocationChange(b"object", 0, True, 0)])


def hear_old_news_of_an_actor(scene: Scene) -> None:
    actors = scene.driver.submission.actors
    client = actors.clients.client_of(next(iter(actors.clients)))
    assert client is not None and client.info is not None
    before, client.info = client.info, msgspec.structs.replace(client.info, restarts=3)
    actors.submitter.on_info(client, before)
    client.info = before


def hear_an_old_item(scene: Scene) -> None:
    task = next(task for task in scene.driver.submission.tasks.tasks.values() if task.stream is not None)
    task.attempt = 1
    request = ReportGeneratorItem(task.task_id, 0, 3, None)
    scene.driver.submission.generators.on_report(request, ())


def ask_in_a_hurry(scene: Scene) -> None:
    for _ in range(100):
        scene.driver.gcs.send(GetNamedActor("nobody", ""), ignore)


def spill_twice(scene: Scene) -> None:
    table = scene.cluster.raylets["head"].store.table
    entry = table.create(b"o" * 28, 0, 64, scene.driver.address, b"", True)
    assert entry is not None
    table.begin_spill(entry)
    table.begin_spill(entry)


def count_all(self: Any, request: Any, _buffers: Any) -> None:
    self.streams.on_total(request.task_id, request.number - 1)


def note_a_place(self: Any, _raylet: Any, _number: int, _changes: Any) -> None:
    self._objects[b"object"] = _Copies(0, 1, {}, {})


def set_report(self: Any, node_id: bytes, version: int, total: Any, available: Any, waiting: int) -> None:
    self._views[node_id].available = dict(available)


OLD_NEWS: dict[str, tuple[Any, str, Any, Callable[[Scene], None], str]] = {
    "a report": (ClusterResourceScheduler, "on_resources", set_report, hear_an_old_report, "S3: head takes report -1 of n1"),
    "a notice": (LeaseBroker, "on_blocked", believe_all, hear_an_old_notice, "after its word number 49; the last was 50"),
    "a place": (ObjectDirectory, "on_update", note_a_place, hear_an_old_place, "S3: an owner takes update 4 of"),
    "an actor": (
        ActorTaskSubmitter, "on_info", lambda _, client, info: setattr(client, "info", info), hear_old_news_of_an_actor,
        "S3: a caller takes old news",
    ),
    "an item": (Generators, "on_report", count_all, hear_an_old_item, "S3: its owner takes item 3 of attempt 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD_NEWS)
def test_s3_old_news_that_is_believed_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method, bug, hear, said = OLD_NEWS[name]
    right, is_planted = getattr(owner, method), False
    monkeypatch.setattr(owner, method, lambda *arguments: (bug if is_planted else right)(*arguments))
    with SimCluster([{"num_cpus": 2}] * 2, 1, show_output=False) as cluster:
        scene = Scene(cluster)
        cluster.world.loop.run_until_complete(soon(hear, scene))
        assert scene.problems() == ""
        is_planted = True
        cluster.world.loop.run_until_complete(soon(hear, scene))
        assert said in scene.problems()


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (ask_in_a_hurry, "L5: driver has sent gcs the same GetNamedActor 60 times in a second"),
        (spill_twice, "L5: head writes"),
    ],
)
def test_l5_needless_work_is_seen(do: Callable[[Scene], None], said: str) -> None:
    with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
        scene = Scene(cluster)
        do(scene)
        assert said in scene.problems()


async def check_all_raylets(times: int, scene: Scene) -> None:
    for raylet in scene.cluster.raylets.values():
        for _ in range(times):
            scene.driver.process.peers.to(raylet.address).send(CheckAlive(), ignore)
    await asyncio.sleep(0.1)


def test_l5_the_same_request_to_several_processes_is_no_repetition() -> None:
    with SimCluster([{"num_cpus": 2}] * 2, 1, show_output=False) as cluster:
        scene = Scene(cluster)
        for times, is_seen in [(MOST_A_SECOND - 1, False), (1, True)]:
            cluster.world.loop.run_until_complete(check_all_raylets(times, scene))
            assert ("L5: driver has sent raylet/n1 the same CheckAlive" in scene.problems()) == is_seen


def test_g104_bundles_that_stay_reserved_beside_one_that_is_refused_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
        scene = Scene(cluster)
        bundles = cluster.raylets["head"].groups.bundles
        wanted = {0: {"CPU": 1}, 1: {"CPU": 50_000}}
        assert bundles.prepare(b"g" * 18, 1, wanted) and scene.problems() == ""
        monkeypatch.setattr(bundles, "_release", lambda _bundle: None)
        assert bundles.prepare(b"g" * 18, 2, wanted)
        assert "G104: head refuses bundles of" in scene.problems()


class Raylet:
    """The address of a raylet."""

    worker_id = b"raylet"


class Row:
    """An actor, as the gcs knows it."""

    actor_id = b"a" * 16

    def __init__(self) -> None:
        self.info = self


class Scheduler:
    """Requests leases for actors, and is always sent on."""

    async def _request(self, row: Row, lease_id: bytes, raylet: Any, final: bool) -> LeaseReply:
        return LeaseReply(SPILLBACK, raylet=raylet)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_request_for_an_actor_that_may_be_sent_on_for_ever_is_seen(says_so: bool) -> None:
    said: list[str] = []
    scheduler, raylet = Scheduler(), Raylet()
    News(lambda _, text: said.append(text))._watch_leases(scheduler)

    async def request_twice() -> None:
        await scheduler._request(Row(), b"1", raylet, False)
        await scheduler._request(Row(), b"2", raylet, says_so)

    asyncio.run(request_twice())
    assert bool(said) != says_so
